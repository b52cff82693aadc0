//! The console's endpoints from outside: its files, who may read and change, TLS, and what is asked wrongly.

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use tidegate_tests::certificates::{Authority, Identity, dns, ip};
use tidegate_tests::client::{Client, Reply, get, send};
use tidegate_tests::command::run;
use tidegate_tests::rls::{Rls, allowed_at_once};
use tidegate_tests::sidecar::{Sidecar, home, replace};
use tidegate_tests::{artifacts, wait};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

const LIMITS: &str = "\
domain: test
descriptors:
  - { key: user, rate_limit: { unit: hour, requests_per_unit: 30 } }
  - { key: free, rate_limit: { unlimited: true } }
";
const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const EVE: &str = r#"{"domain": "test", "entries": [{"key": "user", "value": "eve"}]}"#;
/// What shows values of requests.
const QUESTIONS: [&str; 8] = [
    "/v1/overview",
    "/v1/rules",
    "/v1/key?domain=test&entry=user=eve",
    "/v1/limits",
    "/v1/top",
    "/v1/decisions",
    "/v1/statistics",
    "/v1/statistics/x",
];
/// What is open to all.
const OPEN: [&str; 4] = ["/healthcheck", "/metrics", "/rlconfig", "/"];

async fn started(flags: &[&str]) -> anyhow::Result<(TempDir, Sidecar)> {
    let (dir, path) = home(LIMITS)?;
    std::fs::write(dir.path().join("token"), TOKEN)?;
    let flags = [&["--capacity", "1000"], flags].concat();
    let sidecar = Sidecar::start_with(dir.path(), &path, &flags).await?;
    Ok((dir, sidecar))
}

async fn with_token(flags: &[&str]) -> anyhow::Result<(TempDir, Sidecar)> {
    let (dir, path) = home(LIMITS)?;
    let token = dir.path().join("token");
    std::fs::write(&token, TOKEN)?;
    let token = token.display().to_string();
    let flags = [&["--capacity", "1000", "--http-token-file", &token], flags].concat();
    let sidecar = Sidecar::start_with(dir.path(), &path, &flags).await?;
    Ok((dir, sidecar))
}

fn bearer(token: &str) -> Vec<u8> {
    format!("Bearer {token}").into_bytes()
}

async fn answer(http: SocketAddr, path: &str) -> anyhow::Result<Value> {
    let reply = get(http, path).await?;
    ensure!(reply.status == 200, "{path}: {reply:?}");
    Ok(serde_json::from_slice(&reply.body)?)
}

/// Asks until the answer passes its checks: it leaves out a worker that reports late, as on a busy machine.
pub(crate) async fn of_all_workers<T>(
    what: &str,
    checked: impl AsyncFn() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let mut last = None;
    let found = wait::until(what, wait::CHECK, async || match checked().await {
        Ok(found) => Some(found),
        Err(error) => {
            last = Some(error);
            None
        }
    });
    let found = found.await;
    found.with_context(|| format!("at last {last:?}"))
}

async fn post(
    http: SocketAddr,
    path: &str,
    headers: &[(&str, &[u8])],
    body: &str,
) -> anyhow::Result<Reply> {
    let json = [("content-type", &b"application/json"[..])];
    let json = json.iter().filter(|_| headers.iter().all(|(name, _)| *name != "content-type"));
    let headers: Vec<(&str, &[u8])> = json.chain(headers).copied().collect();
    send(http, "POST", path, &headers, body.to_owned()).await
}

#[tokio::test]
async fn the_files_are_served_with_their_policy_and_their_tag() -> anyhow::Result<()> {
    let (_dir, sidecar) = started(&[]).await?;
    let mut client = Client::connect(sidecar.http).await?;
    let browser: [(&str, &[u8]); 2] =
        [("accept", b"text/html,*/*;q=0.8"), ("accept-encoding", b"gzip")];
    let page = client.get("/", &browser).await?;
    ensure!(page.status == 200 && page.header("content-encoding") == Some("gzip"), "{page:?}");
    ensure!(page.body.starts_with(&[0x1f, 0x8b]), "no gzip");
    let policy = page.header("content-security-policy").context("no policy")?;
    for part in
        ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "form-action 'none'"]
    {
        ensure!(policy.split("; ").any(|has| has == part), "{policy}");
    }
    ensure!(
        !policy.contains("unsafe") && !policy.contains('*') && !policy.contains("http"),
        "{policy}"
    );
    ensure!(page.header("x-content-type-options") == Some("nosniff"), "{page:?}");
    ensure!(page.header("referrer-policy") == Some("no-referrer"), "{page:?}");
    let plain = client.get("/", &[("accept", b"text/html")]).await?;
    let text = String::from_utf8(plain.body.into())?;
    // Every file that the page names is there; what is loaded by modules, the browser's tests load.
    let mut named = 0;
    for path in text.split(['"', '\'']).filter(|part| part.starts_with("/console/")) {
        let file = client.get(path, &[]).await?;
        ensure!(file.status == 200 && file.header("cache-control") == Some("no-cache"), "{path}");
        let tag = file.header("etag").context("no tag")?.to_owned();
        let known = client.get(path, &[("if-none-match", tag.as_bytes())]).await?;
        ensure!(known.status == 304 && known.body.is_empty(), "{known:?}");
        let other = client.get(path, &[("if-none-match", b"\"x\"")]).await?;
        ensure!(other.status == 200 && other.body == file.body, "{path}");
        named += 1;
    }
    ensure!(named >= 4, "{named} files");
    for path in ["/console", "/console/", "/console/x", "/console/../main.js", "/console/%2e%2e/x"]
    {
        ensure!(get(sidecar.http, path).await?.status == 404, "{path}");
    }
    let post = send(sidecar.http, "POST", "/console/main.js", &[], String::new()).await?;
    ensure!(post.status == 405, "{post:?}");
    // For others than browsers `/` is a list.
    let list = get(sidecar.http, "/").await?;
    ensure!(list.body.starts_with(b"tidegate\n"), "{list:?}");
    Ok(())
}

#[tokio::test]
async fn a_console_that_is_off_is_not_there() -> anyhow::Result<()> {
    let (_dir, sidecar) = with_token(&["--console", "off"]).await?;
    let mut client = Client::connect(sidecar.http).await?;
    let page = client.get("/", &[("accept", b"text/html")]).await?;
    ensure!(page.body.starts_with(b"tidegate\n"), "{page:?}");
    for path in [
        "/console/main.js",
        "/v1/overview",
        "/v1/rules",
        "/v1/key?domain=test&entry=user=eve",
        "/v1/limits",
    ] {
        ensure!(client.get(path, &[]).await?.status == 404, "{path}");
    }
    let erased =
        post(sidecar.http, "/v1/key/erase", &[("authorization", &bearer(TOKEN))], EVE).await?;
    ensure!(erased.status == 404, "{erased:?}");
    ensure!(client.get("/v1/top", &[]).await?.status == 200);
    Ok(())
}

/// A page of a name whose address becomes 127.0.0.1 has its reader's browser ask for that name.
#[tokio::test]
async fn at_loopback_a_reader_asks_for_this_machine() -> anyhow::Result<()> {
    let (_dir, sidecar) = with_token(&[]).await?;
    let mut client = Client::connect(sidecar.http).await?;
    let evil = ("host", &b"evil.example:8080"[..]);
    for path in QUESTIONS {
        let near = client.get(path, &[("host", b"127.0.0.1:8080")]).await?;
        ensure!(near.status != 403 && near.status != 401, "{path}: {near:?}");
        let refused = client.get(path, &[evil]).await?;
        ensure!(
            refused.status == 403 && refused.body.starts_with(b"ask for localhost"),
            "{path}: {refused:?}"
        );
        let token = bearer(TOKEN);
        let shown = client.get(path, &[evil, ("authorization", &token)]).await?;
        ensure!(shown.status == near.status, "{path}: {shown:?}");
    }
    for path in OPEN {
        ensure!(client.get(path, &[evil]).await?.status == 200, "{path}");
    }
    let asked = json!({"domain": "test", "descriptors": []}).to_string();
    let decided = client.send("POST", "/json", &[evil], asked).await?;
    ensure!(decided.status != 403, "{decided:?}");
    Ok(())
}

#[tokio::test]
async fn beyond_this_machine_readers_show_the_token() -> anyhow::Result<()> {
    for (has_token, status) in [(true, 401), (false, 403)] {
        let (dir, path) = home(LIMITS)?;
        let token = dir.path().join("token");
        std::fs::write(&token, TOKEN)?;
        let file = token.display().to_string();
        let with_token = if has_token { &["--http-token-file", &file][..] } else { &[] };
        let flags = [&["--capacity", "1000"], with_token].concat();
        let sidecar = Sidecar::start_at(dir.path(), &path, "0.0.0.0:0", &flags).await?;
        let http = SocketAddr::from(([127, 0, 0, 1], sidecar.http.port()));
        let mut client = Client::connect(http).await?;
        for path in QUESTIONS {
            let refused = client.get(path, &[]).await?;
            ensure!(refused.status == status, "{path}: {refused:?}");
            let own = client.get(path, &[("authorization", &bearer(TOKEN))]).await?;
            ensure!((own.status == 403) == (status == 403), "{path}: {own:?}");
            ensure!(own.header("access-control-allow-origin").is_none());
        }
        for path in OPEN.iter().chain(&["/console/main.js"]) {
            ensure!(client.get(path, &[]).await?.status == 200, "{path}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn counters_change_for_those_with_the_token_alone() -> anyhow::Result<()> {
    let (dir, sidecar) = with_token(&["--workers", "2"]).await?;
    let http = sidecar.http;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(Rls::at(dir.path()).await?);
    }
    ensure!(allowed_at_once(clients, 10, ("user", "eve")).await? == 30);
    let left = async || -> anyhow::Result<Value> {
        let key = answer(http, "/v1/key?domain=test&entry=user=eve").await?;
        Ok(key["limits"][0]["left"].clone())
    };
    ensure!(left().await? == 0);
    let token = bearer(TOKEN);
    let own = ("authorization", &token[..]);
    let wrong = bearer(&"x".repeat(32));
    let set = r#"{"domain": "test", "entries": [{"key": "user", "value": "eve"}], "limit": "test/user", "left": 12}"#;
    for (path, body) in [("/v1/key/erase", EVE), ("/v1/key/set", set)] {
        for (headers, status) in [
            (vec![], 401),
            (vec![("authorization", &wrong[..])], 401),
            (vec![("cookie", &b"token=0123456789abcdef0123456789abcdef"[..])], 401),
            (vec![own, ("sec-fetch-site", b"cross-site")], 403),
            (vec![own, ("sec-fetch-site", b"same-site")], 403),
            (vec![own, ("content-type", b"text/plain")], 415),
            (vec![own, ("content-type", b"application/x-www-form-urlencoded")], 415),
        ] {
            let refused = post(http, path, &headers, body).await?;
            ensure!(refused.status == status, "{path} {headers:?}: {refused:?}");
        }
        for method in ["GET", "PUT", "DELETE", "OPTIONS"] {
            let refused = send(http, method, path, &[own], body.to_owned()).await?;
            ensure!(
                refused.status == 405 && refused.header("allow") == Some("POST"),
                "{method}: {refused:?}"
            );
            ensure!(refused.header("access-control-allow-origin").is_none());
        }
    }
    ensure!(left().await? == 0, "a refusal changed something");
    let made = post(http, "/v1/key/set", &[own, ("sec-fetch-site", b"same-origin")], set).await?;
    ensure!(made.status == 200 && made.body == r#"{"before":0,"left":12}"#, "{made:?}");
    ensure!(left().await? == 12);
    // The workers decide by it.
    let rls = vec![Rls::at(dir.path()).await?, Rls::at(dir.path()).await?];
    ensure!(allowed_at_once(rls, 10, ("user", "eve")).await? == 12);
    let made = post(http, "/v1/key/erase", &[own], EVE).await?;
    ensure!(made.status == 200 && made.body == r#"{"erased":true}"#, "{made:?}");
    ensure!(left().await? == 30);
    for (body, status) in [
        ("{", 400),
        (r#"{"domain": "test", "entries": []}"#, 400),
        (r#"{"domain": "test", "entries": [{"key": "free", "value": "x"}]}"#, 200),
        (r#"{"domain": "x", "entries": [{"key": "free", "value": "x"}]}"#, 404),
    ] {
        let reply = post(http, "/v1/key/erase", &[own], body).await?;
        ensure!(reply.status == status, "{body}: {reply:?}");
    }
    let log = sidecar.process.log();
    ensure!(log.contains("counters erased over HTTP") && log.contains("a counter set over HTTP"));
    ensure!(!log.contains(TOKEN), "the log has the token");
    Ok(())
}

#[tokio::test]
async fn nobody_changes_anything_without_a_token_at_the_sidecar() -> anyhow::Result<()> {
    let (_dir, sidecar) = started(&[]).await?;
    let token = bearer(TOKEN);
    let refused = post(sidecar.http, "/v1/key/erase", &[("authorization", &token)], EVE).await?;
    ensure!(
        refused.status == 403 && refused.body.starts_with(b"changes take a token"),
        "{refused:?}"
    );
    Ok(())
}

#[tokio::test]
async fn counts_are_sums_over_workers_and_questions_are_checked() -> anyhow::Result<()> {
    let (dir, sidecar) = started(&["--workers", "2"]).await?;
    let http = sidecar.http;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(Rls::at(dir.path()).await?);
    }
    ensure!(allowed_at_once(clients, 10, ("user", "eve")).await? == 30);
    let expected = json!([{
        "domain": "test", "allowed": 30, "denied": 50, "denied_elsewhere": 0, "shadowed": 0, "in_envoy": 0,
        "unmatched": 0,
    }]);
    of_all_workers("the overview", async || {
        let overview = answer(http, "/v1/overview").await?;
        ensure!(overview["domains"] == expected, "{overview}");
        ensure!(overview["workers"] == json!({"serving": 2, "of": 2}), "{overview}");
        ensure!(
            overview["limits"]["current"] == true && overview["limits"]["limits"] == 1,
            "{overview}"
        );
        Ok(())
    })
    .await?;
    of_all_workers("the rules", async || {
        let rules = answer(http, "/v1/rules?find=user").await?;
        ensure!(rules["total"] == 2 && rules["rules"][0]["counts"]["hits"] == 80, "{rules}");
        ensure!(rules["rules"][0]["limits"][0]["words"] == "30 per hour", "{rules}");
        Ok(())
    })
    .await?;
    for (path, error) in [
        ("/v1/rules?n=0", "`n` must be a number from 1 to 1000"),
        ("/v1/key?entry=a=b", "`domain` is missing"),
        ("/v1/key?domain=test&entry=a", "`entry` must be KEY=VALUE"),
        (&format!("/v1/rules?{}", "n=1&".repeat(65)), "more than 64 parameters"),
    ] {
        let reply = get(http, path).await?;
        let body: Value = serde_json::from_slice(&reply.body)?;
        ensure!(reply.status == 400 && body["error"] == error, "{path}: {reply:?}");
    }
    // A name of 10 KB is asked for as it was sent.
    let long = "x".repeat(10_000);
    let key = answer(http, &format!("/v1/key?domain=test&entry=user={long}")).await?;
    ensure!(key["entries"][0]["value"] == long && key["limits"][0]["left"] == 30);
    Ok(())
}

#[tokio::test]
async fn reloads_and_mistakes_are_told() -> anyhow::Result<()> {
    let (dir, sidecar) = started(&["--workers", "1"]).await?;
    let path = dir.path().join("limits.yaml");
    let first = answer(sidecar.http, "/v1/limits").await?;
    ensure!(first["sources"][0]["name"] == path.display().to_string(), "{first}");
    ensure!(first["reloads"] == json!([]) && first["current"] == true, "{first}");
    replace(&path, &LIMITS.replace("30", "31"))?;
    let told = async |what: &str, look: &dyn Fn(&Value) -> bool| {
        wait::until(what, wait::RELOAD, async || {
            answer(sidecar.http, "/v1/limits").await.ok().filter(|answer| look(answer))
        })
        .await
    };
    let changed =
        told("the change", &|of| of["reloads"].as_array().is_some_and(|all| all.len() == 1))
            .await?;
    let change = &changed["reloads"][0]["changes"][0];
    ensure!(change["path"] == "test/user" && change["kind"] == "changed", "{changed}");
    replace(&path, &LIMITS.replace("unit: hour", "unit: fortnight"))?;
    let refused = told("the mistake", &|of| of["current"] == false).await?;
    let refusal = &refused["sources"][0]["refused"];
    let mistake = refusal["mistakes"][0].as_str().context("no mistake")?;
    ensure!(mistake.contains("limits.yaml:3:") && mistake.contains("fortnight"), "{refused}");
    ensure!(refused["limits"] == 1 && refused["mistakes"] == 1, "{refused}");
    replace(&path, &LIMITS.replace("30", "31"))?;
    let mended = told("the end of it", &|of| of["current"] == true).await?;
    ensure!(mended["sources"][0]["refused"] == Value::Null, "{mended}");
    Ok(())
}

/// A connection over TLS that trusts `authority` and shows `own`, if it has one.
async fn over_tls(
    http: SocketAddr,
    authority: &Authority,
    own: Option<&Identity>,
) -> anyhow::Result<Client> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes())?)?;
    let config = ClientConfig::builder().with_root_certificates(roots);
    let config = match own {
        None => config.with_no_client_auth(),
        Some(own) => {
            let chain = vec![CertificateDer::from_pem_slice(own.cert.as_bytes())?];
            config
                .with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(own.key.as_bytes())?)?
        }
    };
    let stream = TcpStream::connect(http).await?;
    let name = ServerName::try_from("127.0.0.1")?;
    let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
    let stream = wait::within("a handshake", wait::HANDSHAKE, connecting).await??;
    Client::over(stream).await
}

#[tokio::test]
async fn a_certificate_reads_and_the_token_changes() -> anyhow::Result<()> {
    let (dir, path) = home(LIMITS)?;
    let (servers, operators, others) = (Authority::new()?, Authority::new()?, Authority::new()?);
    let own = servers.sign(ip("127.0.0.1")?)?;
    let write = |name: &str, text: &str| -> anyhow::Result<String> {
        let path = dir.path().join(name);
        std::fs::write(&path, text)?;
        Ok(path.display().to_string())
    };
    let flags = [
        "--capacity",
        "1000",
        "--http-token-file",
        &write("token", TOKEN)?,
        "--http-tls-cert",
        &write("cert.pem", &own.cert)?,
        "--http-tls-key",
        &write("key.pem", &own.key)?,
        "--http-tls-client-ca",
        &write("operators.pem", &operators.pem)?,
        "--http-tls-client-name",
        "ops.internal",
        "--prometheus",
        "127.0.0.1:0",
    ];
    let sidecar = Sidecar::start_at(dir.path(), &path, "0.0.0.0:0", &flags).await?;
    let http = SocketAddr::from(([127, 0, 0, 1], sidecar.http.port()));
    // Probes of health need neither.
    let mut nobody = over_tls(http, &servers, None).await?;
    for path in OPEN {
        ensure!(nobody.get(path, &[]).await?.status == 200, "{path}");
    }
    for path in QUESTIONS {
        ensure!(nobody.get(path, &[]).await?.status == 401, "{path}");
    }
    let token = bearer(TOKEN);
    ensure!(nobody.get("/v1/overview", &[("authorization", &token)]).await?.status == 200);
    let certified = operators.sign(dns("ops.internal")?)?;
    let mut operator = over_tls(http, &servers, Some(&certified)).await?;
    for path in QUESTIONS {
        let reply = operator.get(path, &[]).await?;
        ensure!(reply.status != 401 && reply.status != 403, "{path}: {reply:?}");
    }
    let json: (&str, &[u8]) = ("content-type", b"application/json");
    let refused = operator.send("POST", "/v1/key/erase", &[json], EVE).await?;
    ensure!(refused.status == 401, "{refused:?}");
    let mut operator = over_tls(http, &servers, Some(&certified)).await?;
    let made =
        operator.send("POST", "/v1/key/erase", &[json, ("authorization", &token)], EVE).await?;
    ensure!(made.status == 200, "{made:?}");
    // Of another name, or of another authority.
    for wrong in [operators.sign(dns("dev.internal")?)?, others.sign(dns("ops.internal")?)?] {
        let reply = async {
            let mut client = over_tls(http, &servers, Some(&wrong)).await?;
            client.get("/healthcheck", &[]).await
        };
        ensure!(reply.await.is_err(), "a wrong certificate was accepted");
    }
    // Plain requests get nothing, but at the address for metrics.
    ensure!(get(http, "/healthcheck").await.is_err());
    let metrics = sidecar.tcp("prometheus")?;
    for path in ["/healthcheck", "/metrics"] {
        ensure!(get(metrics, path).await?.status == 200, "{path}");
    }
    for path in ["/", "/v1/overview", "/console/main.js"] {
        ensure!(get(metrics, path).await?.status == 404, "{path}");
    }
    // A new certificate is used without a restart.
    let renewed = Authority::new()?;
    let own = renewed.sign(ip("127.0.0.1")?)?;
    write("cert.pem", &own.cert)?;
    write("key.pem", &own.key)?;
    wait::until("the new certificate", wait::RELOAD, async || {
        over_tls(http, &renewed, None).await.ok()
    })
    .await?;
    Ok(())
}

/// An operator's commands ask a sidecar beyond its machine, and see why one does not answer.
#[tokio::test]
async fn commands_ask_over_tls_with_the_token_or_a_certificate() -> anyhow::Result<()> {
    let (dir, path) = home(LIMITS)?;
    let (servers, operators) = (Authority::new()?, Authority::new()?);
    let (own, operator) = (servers.sign(ip("127.0.0.1")?)?, operators.sign(dns("ops.internal")?)?);
    let write = |name: &str, text: &str| -> anyhow::Result<String> {
        let path = dir.path().join(name);
        std::fs::write(&path, text)?;
        Ok(path.display().to_string())
    };
    let (token, ca) = (write("token", TOKEN)?, write("servers.pem", &servers.pem)?);
    let (cert, key) = (write("cert.pem", &own.cert)?, write("key.pem", &own.key)?);
    let operators = write("operators.pem", &operators.pem)?;
    let (client_cert, client_key) =
        (write("ops.crt", &operator.cert)?, write("ops.key", &operator.key)?);
    let flags = [
        ["--capacity", "1000"],
        ["--http-token-file", &token],
        ["--http-tls-cert", &cert],
        ["--http-tls-key", &key],
        ["--http-tls-client-ca", &operators],
    ];
    let sidecar = Sidecar::start_at(dir.path(), &path, "0.0.0.0:0", &flags.concat()).await?;
    let plain = format!("127.0.0.1:{}", sidecar.http.port());
    let https = format!("https://{plain}");
    let top = async |flags: &[[&str; 2]]| {
        let mut command = Command::new(artifacts::sidecar()?);
        command.args(["top", "--json"]).args(flags.concat());
        run(command).await
    };
    let (by_token, by_cert) = (
        [["--http", &https], ["--http-ca", &ca], ["--http-token-file", &token]],
        [["--http", &https], ["--http-ca", &ca], ["--http-cert", &client_cert]],
    );
    for flags in [&by_token[..], &[&by_cert[..], &[["--http-key", &client_key]]].concat()] {
        let ran = top(flags).await?;
        ensure!(ran.code == Some(0) && ran.out.contains("descriptors"), "{flags:?}: {ran:?}");
    }
    for (flags, expected) in [
        (&by_token[..2], "the sidecar answers 401"),
        (&by_token[..1], "invalid peer certificate"),
        (&[["--http", plain.as_str()]][..], "it speaks TLS: write https:// before the address"),
        (&by_cert[..], "--http-key"),
    ] {
        let ran = top(flags).await?;
        let says_why = ran.err.contains(expected) && ran.out.is_empty();
        ensure!(ran.code != Some(0) && says_why, "{flags:?}: {ran:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_mistake_in_the_files_of_tls_is_told_before_anything_is_served() -> anyhow::Result<()> {
    let (dir, path) = home(LIMITS)?;
    for workers in ["0", "2"] {
        let mut command = Command::new(artifacts::sidecar()?);
        command
            .args([
                "serve",
                "--frs",
                "off",
                "--grpc",
                "127.0.0.1:0",
                "--http",
                "127.0.0.1:0",
                "--capacity",
                "1000",
            ])
            .args(["--http-tls-cert", "/nowhere/cert.pem", "--http-tls-key", "/nowhere/key.pem"])
            .args(["--workers", workers, "--limits"])
            .arg(&path)
            .arg("--data-dir")
            .arg(Path::new(dir.path()).join("data"));
        let ran = run(command).await?;
        ensure!(ran.code == Some(1), "{ran:?}");
        ensure!(ran.err.contains("--http-tls-cert /nowhere/cert.pem"), "{ran:?}");
    }
    Ok(())
}
