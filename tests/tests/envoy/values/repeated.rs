//! Headers that clients send more than once, and cookies: both filters read the same values.
//!
//! A client that sent its token in a second `cookie` header evaded the limits of `jwt_claim`: the
//! filter read the first header only, while Envoy's filters, `jwt_authn` among them, find a cookie
//! in any. Actions on other headers, and on parameters, have the first value in both.

use super::*;

/// Reads of a request, each with the name of its row.
fn actions() -> Vec<(&'static str, Value)> {
    let sub = |of: Value| {
        let mut of = of;
        of["claim_name"] = json!("sub");
        claim(of)
    };
    vec![
        ("cookie", sub(json!({"cookie": "jwt"}))),
        ("prefixed", sub(json!({"cookie": "jwt", "value_prefix": "Bearer "}))),
        ("bearer", sub(json!({"header_name": "authorization", "value_prefix": "Bearer "}))),
        ("raw", sub(json!({"header_name": "x-token"}))),
        ("header", json!({"request_headers": {"header_name": "x-many", "descriptor_key": "v"}})),
        ("format", format("%REQ(x-many)%")),
        (
            "query",
            json!({"query_parameters": {"query_parameter_name": "q", "descriptor_key": "v"}}),
        ),
    ]
}

const VALUES: [&str; 2] = ["ann", "bob"];
/// `{"alg":"HS256"}`, `{"sub":"bob"}`, and any signature.
const BOB: &str = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJib2IifQ.c2ln";

/// Twins with one entry for each action, and limits that tell its values apart.
async fn twins() -> anyhow::Result<Twins> {
    let (mut rate_limits, mut limits) = (Vec::new(), Vec::new());
    for (row, action) in actions() {
        let mark = json!({"generic_key": {"descriptor_key": "row", "descriptor_value": row}});
        rate_limits.push(json!({"actions": [mark, action]}));
        let limit = |value: &str| json!({"name": format!("{row}-{value}"), "unit": "hour", "requests_per_unit": REQUESTS});
        let mut of_values: Vec<Value> = VALUES
            .iter()
            .map(|value| json!({"key": "v", "value": value, "rate_limit": limit(value)}))
            .collect();
        of_values.push(json!({"key": "v", "rate_limit": limit("other")}));
        limits.push(json!({"key": "row", "value": row, "descriptors": of_values}));
    }
    let limits = json!({"domain": "test", "descriptors": limits});
    Twins::start(&limits, &json!(rate_limits)).await
}

/// The limits that a reply is about.
fn met(reply: &Reply) -> Vec<String> {
    let rows = actions();
    let names = rows.iter().flat_map(|(row, _)| {
        VALUES.iter().chain(&["other"]).map(move |value| format!("{row}-{value}"))
    });
    names.filter(|name| left_of(reply, name).is_some()).collect()
}

/// The headers of a request over HTTP/1, and the limits that it meets.
type Request = (Vec<(&'static str, Vec<u8>)>, &'static [&'static str]);

fn cookies(of: &[&str], met: &'static [&'static str]) -> Request {
    (of.iter().map(|value| ("cookie", value.as_bytes().to_vec())).collect(), met)
}

fn requests_with_cookies() -> Vec<Request> {
    let [ann, bob] = [TOKEN, BOB].map(|token| format!("jwt={token}"));
    let (ann, bob) = (ann.as_str(), bob.as_str());
    let quoted = format!("jwt=\"{TOKEN}\"");
    let loose = format!("jwt=\"{TOKEN}\" ; a=b");
    let spaced = format!("a=b;   jwt={TOKEN};;");
    let other_case =
        format!("JWT={TOKEN}; jwt ={TOKEN}; xjwt={TOKEN}; jwtx={TOKEN}; b=jwt={TOKEN}");
    let prefixed = format!("jwt=Bearer {TOKEN}");
    let filler = "filler=1; ".repeat(2_000);
    let ends = format!("{filler}{ann}");
    let equals = "=;".repeat(10_000);
    let mut requests = vec![
        cookies(&[], &[]),
        cookies(&[ann], &["cookie-ann"]),
        cookies(&["a=b", ann], &["cookie-ann"]),
        cookies(&["a=b", "c=d", "", "jwt", ann, bob], &["cookie-ann"]),
        cookies(&["", ann], &["cookie-ann"]),
        cookies(&[";", " ; ;", "=", "==", ann], &["cookie-ann"]),
        cookies(&[ann, bob], &["cookie-ann"]),
        cookies(&[bob, ann], &["cookie-bob"]),
        // The first cookie with the name counts, whatever it has.
        cookies(&["jwt=", ann], &[]),
        cookies(&["jwt=\"\"", ann], &[]),
        cookies(&["jwt=\"", ann], &[]),
        cookies(&["a=b; jwt=x.y.z; c=d", ann], &[]),
        cookies(&["a=b", "jwt==", ann], &[]),
        cookies(&[&quoted], &["cookie-ann"]),
        cookies(&["a=\"b;\"", &quoted], &["cookie-ann"]),
        cookies(&[&loose], &[]),
        cookies(&["a=b", &spaced], &["cookie-ann"]),
        cookies(&["a=b", &other_case], &[]),
        cookies(&[&other_case, ann], &["cookie-ann"]),
        cookies(&["a=b", &prefixed], &["prefixed-ann"]),
        cookies(&[&filler, &ends], &["cookie-ann"]),
        cookies(&[&equals, &equals, ann], &["cookie-ann"]),
        cookies(&[&["a=b"; 60][..], &[ann]].concat(), &["cookie-ann"]),
    ];
    let mut bytes = cookies(&[ann], &["cookie-ann"]);
    bytes.0.insert(0, ("cookie", b"\xff\xfe=\x80; jwt\xff=1; \t".to_vec()));
    requests.push(bytes);
    requests
}

fn requests_with_other_headers() -> Vec<Request> {
    let bearer = |token: &str| ("authorization", format!("Bearer {token}").into_bytes());
    let other = |value: &str| ("authorization", value.as_bytes().to_vec());
    let raw = |value: &str| ("x-token", value.as_bytes().to_vec());
    let many = |value: &str| ("x-many", value.as_bytes().to_vec());
    vec![
        // Envoy itself joins values of this header, by commas.
        (vec![bearer(TOKEN), bearer(BOB)], &[]),
        (vec![other("Basic eDp5"), bearer(BOB)], &[]),
        (vec![other(""), bearer(BOB)], &["bearer-bob"]),
        (vec![raw(BOB), raw(TOKEN)], &["raw-bob"]),
        (vec![raw("x"), raw(TOKEN)], &[]),
        (vec![many("ann"), many("bob")], &["header-ann", "format-ann"]),
        (vec![many("bob"), many("ann")], &["header-bob", "format-bob"]),
        (vec![many("ann,bob"), many("ann")], &["header-other", "format-other"]),
    ]
}

#[tokio::test]
async fn both_filters_find_the_same_values_in_repeated_headers() -> anyhow::Result<()> {
    let twins = twins().await?;
    let mut wrong = Vec::new();
    for (headers, expected) in [requests_with_cookies(), requests_with_other_headers()].concat() {
        let sent: Vec<(&str, &[u8])> =
            headers.iter().map(|(name, value)| (*name, value.as_slice())).collect();
        let replies = twins.send("/", &sent).await?;
        for (reply, filter) in replies.iter().zip(["ours", "Envoy's"]) {
            ensure!(reply.status == 200, "{filter}: {reply:?}");
            if met(reply) != expected {
                let shown = sent.iter().map(|(name, value)| {
                    let value = value.get(..200).unwrap_or(value);
                    format!("{name}: {}", value.escape_ascii())
                });
                let shown: Vec<String> = shown.collect();
                wrong.push(format!("{filter}: {:?}, expected {expected:?}: {shown:?}", met(reply)));
            }
        }
    }
    for (path, expected) in [
        ("/?q=ann&q=bob", "query-ann"),
        ("/?q=bob&q=ann", "query-bob"),
        ("/?q&q=ann", "query-other"),
    ] {
        for (reply, filter) in twins.send(path, &[]).await?.iter().zip(["ours", "Envoy's"]) {
            if met(reply) != [expected] {
                wrong.push(format!("{filter}: {:?}, expected {expected}: {path}", met(reply)));
            }
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// HTTP/2 lets clients send each cookie in a field of its own. Envoy joins them.
#[tokio::test]
async fn cookies_that_a_client_splits_over_http2_are_one_header() -> anyhow::Result<()> {
    let Twins(stacks) = twins().await?;
    let [ann, bob] = [TOKEN, BOB].map(|token| format!("jwt={token}"));
    let (ann, bob) = (ann.as_str(), bob.as_str());
    let requests: [(&[&str], &[&str]); 5] = [
        (&[ann], &["cookie-ann"]),
        (&["a=b", "c=d", ann], &["cookie-ann"]),
        (&["a=b", bob, ann], &["cookie-bob"]),
        (&["jwt=", ann], &[]),
        (&["", "a", ann], &["cookie-ann"]),
    ];
    for (stack, filter) in stacks.iter().zip(["ours", "Envoy's"]) {
        for (cookies, expected) in requests {
            let socket = tokio::net::TcpStream::connect(stack.envoy.address).await?;
            let (sender, connection) = h2::client::handshake(socket).await?;
            let connection = tokio::spawn(connection);
            let mut request = hyper::Request::builder().uri("http://test/");
            for cookie in cookies {
                request = request.header("cookie", *cookie);
            }
            let mut sender = sender.ready().await?;
            let (response, _) = sender.send_request(request.body(())?, true)?;
            let response = wait::within("an answer", wait::ANSWER, response).await??;
            let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
            let about = header("ratelimit").unwrap_or_default();
            let named = |name: &&str| about.contains(&format!("\"{name}\";"));
            ensure!(response.status() == 200, "{filter}: {response:?}");
            let met: Vec<&str> = ["cookie-ann", "cookie-bob"].into_iter().filter(named).collect();
            ensure!(met == expected, "{filter}: {cookies:?}: {met:?}, expected {expected:?}");
            connection.abort();
        }
    }
    Ok(())
}
