//! TLS: accepted and refused clients, and certificates that change.

use super::Served;
use anyhow::ensure;
use hyper_util::rt::TokioIo;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use tidegate_tests::certificates::{Authority, Identity, dns, uri};
use tidegate_tests::rls::Rls;
use tidegate_tests::{artifacts, command, sidecar, wait};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tonic::transport::{Endpoint, Uri};

/// A directory with the endpoint's certificate, its key, and an authority of clients.
struct Files {
    dir: TempDir,
    authority: Authority,
}

impl Files {
    fn new() -> anyhow::Result<Files> {
        let files = Files { dir: TempDir::new()?, authority: Authority::new()? };
        files.put(&files.authority.sign(dns("localhost")?)?)?;
        std::fs::write(files.path("ca"), &files.authority.pem)?;
        Ok(files)
    }

    fn put(&self, identity: &Identity) -> anyhow::Result<()> {
        self.replace("cert", &identity.cert)?;
        self.replace("key", &identity.key)
    }

    /// Renames a new file into place: one that is read while it is written would be a mistake of its own.
    fn replace(&self, name: &str, text: &str) -> anyhow::Result<()> {
        sidecar::replace(&self.dir.path().join(name), text)
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    async fn serve(&self, flags: &[&str]) -> anyhow::Result<Served> {
        let (cert, key) = (self.path("cert"), self.path("key"));
        let tls = ["--tls-cert", &cert, "--tls-key", &key];
        Served::start(&[&tls[..], flags].concat()).await
    }
}

/// Asks once over a connection of its own that trusts `authority`.
async fn ask(served: &Served, authority: &str, client: Option<&Identity>) -> anyhow::Result<()> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.as_bytes())?)?;
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match client {
        None => builder.with_no_client_auth(),
        Some(identity) => builder.with_client_auth_cert(
            vec![CertificateDer::from_pem_slice(identity.cert.as_bytes())?],
            PrivateKeyDer::from_pem_slice(identity.key.as_bytes())?,
        )?,
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = TlsConnector::from(Arc::new(config));
    let address = served.tcp;
    let connect = tower::service_fn(move |_: Uri| {
        let connector = connector.clone();
        async move {
            let stream = TcpStream::connect(address).await?;
            let name = ServerName::try_from("localhost").expect("a name");
            let stream = connector.connect(name, stream).await?;
            assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
            std::io::Result::Ok(TokioIo::new(stream))
        }
    });
    let channel = Endpoint::from_static("http://localhost").connect_with_connector(connect).await?;
    Rls(channel).ask(&[("free", "a")]).await?;
    Ok(())
}

#[tokio::test]
async fn tcp_takes_only_tls_and_unix_sockets_never_do() -> anyhow::Result<()> {
    let files = Files::new()?;
    let served = files.serve(&[]).await?;
    ask(&served, &files.authority.pem, None).await?;
    served.check_alive().await?;
    let plain = async {
        Rls(served.channel().await?).ask(&[("free", "a")]).await.map_err(anyhow::Error::from)
    };
    ensure!(plain.await.is_err(), "it answered without TLS");
    let stranger = Authority::new()?;
    ensure!(ask(&served, &stranger.pem, None).await.is_err(), "the client trusts nobody there");
    // An operator sees why at the default level, once a minute. The client's end may come before the line.
    let has_failed = || served.sidecar.process.log().contains("TLS handshake failed");
    wait::until("the failure in the log", wait::SOON, async || has_failed().then_some(())).await?;
    let log = served.sidecar.process.log();
    let failed: Vec<&str> =
        log.lines().filter(|line| line.contains("TLS handshake failed")).collect();
    ensure!(failed.len() == 1 && failed[0].contains(r#""peer":"127.0.0.1:"#), "{log}");
    Ok(())
}

#[tokio::test]
async fn clients_need_a_certificate_of_the_authority_and_a_name_of_the_list() -> anyhow::Result<()>
{
    let files = Files::new()?;
    let (ca, spiffe) = (files.path("ca"), "spiffe://mesh/ns/edge/sa/envoy");
    let named =
        ["--tls-client-ca", &ca, "--tls-client-name", "Envoy.example", "--tls-client-name", spiffe];
    let (any, listed) = (files.serve(&named[..2]).await?, files.serve(&named).await?);
    let by_dns = files.authority.sign(dns("envoy.example")?)?;
    let by_uri = files.authority.sign(uri(spiffe)?)?;
    let other = files.authority.sign(dns("other.example")?)?;
    let foreign = Authority::new()?.sign(dns("envoy.example")?)?;
    for (who, client, taken_by_any, taken_by_listed) in [
        ("a listed DNS name", Some(&by_dns), true, true),
        ("a listed URI", Some(&by_uri), true, true),
        ("another name", Some(&other), true, false),
        ("another authority", Some(&foreign), false, false),
        ("no certificate", None, false, false),
    ] {
        for (served, taken) in [(&any, taken_by_any), (&listed, taken_by_listed)] {
            let asked = ask(served, &files.authority.pem, client).await;
            ensure!(asked.is_ok() == taken, "{who}, listed names: {taken_by_listed}: {asked:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn new_certificates_are_taken_up_and_bad_ones_are_not() -> anyhow::Result<()> {
    let files = Files::new()?;
    let served = files.serve(&[]).await?;
    let log = || served.sidecar.process.log();
    ask(&served, &files.authority.pem, None).await?;

    files.replace("cert", "no certificate")?;
    let complaint = "the old TLS certificates stay in force";
    wait::until("the mistake in the log", wait::RELOAD, async || {
        log().contains(complaint).then_some(())
    })
    .await?;
    ask(&served, &files.authority.pem, None).await?;

    let next = Authority::new()?;
    files.put(&next.sign(dns("localhost")?)?)?;
    wait::until("the new certificate", wait::RELOAD, async || {
        ask(&served, &next.pem, None).await.ok()
    })
    .await?;
    ensure!(ask(&served, &files.authority.pem, None).await.is_err(), "the old one is still there");
    // The certificate may have been seen once before its key; each mistake is logged once.
    ensure!(log().matches("no certificate in PEM").count() == 1, "{}", log());
    Ok(())
}

/// As Kubernetes changes a mounted Secret: a link to the directory of all files moves.
#[tokio::test]
async fn a_link_that_moves_is_a_change() -> anyhow::Result<()> {
    let (old, new) = (Files::new()?, Files::new()?);
    let dir = TempDir::new()?;
    let data = dir.path().join("..data");
    std::os::unix::fs::symlink(old.dir.path(), &data)?;
    for name in ["cert", "key"] {
        std::os::unix::fs::symlink(Path::new("..data").join(name), dir.path().join(name))?;
    }
    let path = |name: &str| dir.path().join(name).display().to_string();
    let served = Served::start(&["--tls-cert", &path("cert"), "--tls-key", &path("key")]).await?;
    ask(&served, &old.authority.pem, None).await?;
    let next = dir.path().join("..next");
    std::os::unix::fs::symlink(new.dir.path(), &next)?;
    std::fs::rename(&next, &data)?;
    wait::until("the new certificate", wait::RELOAD, async || {
        ask(&served, &new.authority.pem, None).await.ok()
    })
    .await
}

/// Handshakes that hang hold nobody up.
#[tokio::test]
async fn a_peer_that_does_not_shake_hands_is_closed_and_others_are_served() -> anyhow::Result<()> {
    let files = Files::new()?;
    let served = files.serve(&[]).await?;
    let mut silent = TcpStream::connect(served.tcp).await?;
    ask(&served, &files.authority.pem, None).await?;
    let mut bytes = Vec::new();
    let closed = tokio::io::AsyncReadExt::read_to_end(&mut silent, &mut bytes);
    let _ = wait::within("the end of the connection", wait::HANDSHAKE, closed).await?;
    Ok(())
}

#[tokio::test]
async fn files_that_make_no_sense_are_an_error_at_the_start() -> anyhow::Result<()> {
    let files = Files::new()?;
    let other = files.authority.sign(dns("localhost")?)?;
    std::fs::write(files.path("other-key"), &other.key)?;
    std::fs::write(files.path("empty"), "")?;
    std::fs::write(files.path("limits.yaml"), sidecar::FREE_AND_COUNTED)?;
    let path = |name: &str| files.path(name);
    let (limits, data) = (path("limits.yaml"), path("data"));
    let usual =
        ["serve", "--http", "off", "--frs", "off", "--grpc", "127.0.0.1:0", "--capacity", "1000"];
    for (flags, code, says) in [
        (vec!["--tls-cert", "cert", "--tls-key", "none"], 1, "--tls-key"),
        (vec!["--tls-cert", "empty", "--tls-key", "key"], 1, "no certificate in PEM"),
        (vec!["--tls-cert", "cert", "--tls-key", "cert"], 1, "no private key in PEM"),
        (vec!["--tls-cert", "cert", "--tls-key", "other-key"], 1, "do not go together"),
        (
            vec!["--tls-cert", "cert", "--tls-key", "key", "--tls-client-ca", "key"],
            1,
            "--tls-client-ca",
        ),
        (vec!["--tls-cert", "cert"], 2, "--tls-key"),
        (vec!["--tls-client-ca", "ca"], 2, "--tls-cert"),
    ] {
        let mut command = Command::new(artifacts::sidecar()?);
        command.args(usual).args(["--limits", &limits, "--data-dir", &data]);
        command.args(flags.iter().map(|&word| match word.starts_with("--") {
            true => word.to_owned(),
            false => path(word),
        }));
        let ran = command::run(command).await?;
        ensure!(ran.code == Some(code) && ran.err.contains(says), "{flags:?}: {ran:?}");
    }
    Ok(())
}
