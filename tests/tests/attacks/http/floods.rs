//! Bytes that are dear to read, each flood beside valid traffic in the same run: CPU of the server per byte.

use super::Served;
use anyhow::ensure;
use std::net::SocketAddr;
use std::time::Duration;
use tidegate_tests::wait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

/// A byte of a flood may cost this many times one of a valid request: a ratio, so that a slow machine changes nothing.
const RATIO_MAX: f64 = 2.0;
/// At 5 ns a byte, 10 ms: far more than what eight connections cost.
const BYTES: usize = 2 << 20;
/// Floods come over this many connections at once.
const CONNECTIONS: usize = 8;

/// Floods are measured one after the other.
static TURN: Mutex<()> = Mutex::const_new(());

/// CPU that the server used for a flood of at least [`BYTES`], in nanoseconds a byte.
async fn cost(served: &Served, to: SocketAddr, request: &[u8]) -> anyhow::Result<f64> {
    let times = (BYTES / CONNECTIONS).div_ceil(request.len());
    let before = served.sidecar.process.cpu_time_of_threads()?;
    let mut floods = tokio::task::JoinSet::new();
    for _ in 0..CONNECTIONS {
        let request = request.to_vec();
        floods.spawn(async move { flood(to, &request, times).await });
    }
    let mut sent = 0;
    while let Some(bytes) = wait::within("a flood", wait::COMMAND, floods.join_next()).await? {
        sent += bytes??;
    }
    let used: Duration = served.sidecar.process.cpu_time_of_threads()?.saturating_sub(before);
    Ok(used.as_nanos() as f64 / sent as f64)
}

/// Sends a request this many times, reads the answers, and connects again after each close.
async fn flood(to: SocketAddr, request: &[u8], times: usize) -> anyhow::Result<usize> {
    let mut sent = 0;
    while sent < times {
        let (mut read, mut write) = TcpStream::connect(to).await?.into_split();
        let reading = tokio::spawn(async move {
            let mut buffer = vec![0; 1 << 16];
            while read.read(&mut buffer).await.is_ok_and(|bytes| bytes > 0) {}
        });
        // At least one, so that an endpoint that closes at once makes an end.
        loop {
            sent += 1;
            if write.write_all(request).await.is_err() || sent >= times {
                break;
            }
        }
        let _ = write.shutdown().await;
        reading.await?;
    }
    Ok(sent * request.len())
}

fn post(path: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nhost: x\r\n{headers}content-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

fn chunked(path: &str, headers: &str, chunks: &str) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\n{headers}transfer-encoding: chunked\r\n\r\n{chunks}0\r\n\r\n"
    )
    .into_bytes()
}

/// Runs all floods, and complains of every one that costs too much.
async fn compare(
    served: &Served,
    to: SocketAddr,
    valid: &[u8],
    floods: &[(&str, Vec<u8>)],
) -> anyhow::Result<()> {
    let mut usual = cost(served, to, valid).await?;
    println!("{usual:6.1} ns a byte: valid requests");
    let mut dear = Vec::new();
    for (name, request) in floods {
        let mut found = cost(served, to, request).await?;
        // What else the machine does makes both dearer by turns: a flood is dear if it is each time.
        for _ in 0..2 {
            if found <= usual * RATIO_MAX {
                break;
            }
            usual = cost(served, to, valid).await?;
            found = found.min(cost(served, to, request).await?);
        }
        println!("{found:6.1} ns a byte: {name}");
        if found > usual * RATIO_MAX {
            dear.push(format!("{name}: {found:.1} ns a byte, where valid ones cost {usual:.1}"));
        }
    }
    ensure!(dear.is_empty(), "{dear:#?}");
    Ok(())
}

const ASK: &str = r#"{"domain":"test","descriptors":[{"entries":[{"key":"client","value":"a"}]}]}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_heads_to_the_http_endpoint_are_dear() -> anyhow::Result<()> {
    let _turn = TURN.lock().await;
    let served = Served::start().await?;
    let headers: String =
        (0..60).map(|index| format!("x-{index}: {}\r\n", "v".repeat(220))).collect();
    let many: String = (0..4_000).map(|index| format!("{index}:\r\n")).collect();
    let get = |path: &str, headers: &str| {
        format!("GET {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n").into_bytes()
    };
    let floods = [
        // As long as the valid path: in both, most of the work is for the request and not for its bytes.
        ("unknown paths", get("/unknown-path", "").repeat(30)),
        ("heads of 14 KB", get("/", &headers)),
        ("heads that are too large", get("/", &headers.repeat(2))),
        ("too many headers", get("/", &many)),
        ("a path of 30 KB", get(&format!("/{}", "p".repeat(30_000)), "")),
        ("no HTTP", b"\x16\x03\x01\x02".repeat(4_000)),
        ("empty lines", b"\r\n".repeat(30_000)),
        ("bodies that nobody wants", post("/healthcheck", "", &"x".repeat(100_000))),
    ];
    let valid = get("/healthcheck", "").repeat(30);
    compare(&served, served.http, &valid, &floods).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_bodies_to_the_http_endpoint_are_dear() -> anyhow::Result<()> {
    let _turn = TURN.lock().await;
    let served = Served::start().await?;
    let json = |body: String| post("/json", "", &body);
    let list = |of: &str, times: usize| of.repeat(times).trim_end_matches(',').to_owned();
    let descriptors = |inner: String| json(format!(r#"{{"domain":"d","descriptors":[{inner}]}}"#));
    let floods = [
        ("chunks of a byte", chunked("/json", "", &"1\r\n \r\n".repeat(100_000))),
        (
            "chunks with extensions",
            chunked("/json", "", &format!("1;{}\r\n \r\n", "e=x;".repeat(500)).repeat(7)),
        ),
        ("many chunks with extensions", chunked("/json", "", &"1;x\r\n \r\n".repeat(100_000))),
        (
            "a large chunk",
            chunked("/json", "", &format!("{:x}\r\n{}\r\n", 900_000, " ".repeat(900_000))),
        ),
        ("two million empty descriptors", descriptors(list("{},", 300_000))),
        ("empty entries", descriptors(format!(r#"{{"entries":[{}]}}"#, list("{},", 300_000)))),
        (
            "entries in all descriptors",
            descriptors(list(
                &format!(r#"{{"entries":[{}]}},"#, list(r#"{"key":"k"},"#, 500)),
                120,
            )),
        ),
        ("deep lists", json("[".repeat(900_000))),
        ("deep objects", json(r#"{"a":"#.repeat(180_000))),
        (
            "a long text of escapes",
            json(format!(r#"{{"domain":"{}"}}"#, r"\u0041".repeat(150_000))),
        ),
        ("a long number", json(format!(r#"{{"hitsAddend":{}}}"#, "9".repeat(900_000)))),
        ("a long unknown name", json(format!(r#"{{"{}":1}}"#, "n".repeat(900_000)))),
        ("white space", json(" ".repeat(900_000))),
        ("a body that is too large", json(" ".repeat(1_100_000))),
    ];
    let valid = post("/json", "", ASK).repeat(20);
    compare(&served, served.http, &valid, &floods).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_bytes_to_the_frs_endpoint_are_dear() -> anyhow::Result<()> {
    let _turn = TURN.lock().await;
    let served = Served::start().await?;
    let command = "x-frs-command: Query\r\n";
    let xml = |body: String| post("/frs", command, &body);
    let item = |key: &str| format!("<frs><item business='login' key='{key}'/></frs>");
    let attributes: String = (0..20_000).map(|index| format!(" a{index}='x'")).collect();
    let entities: String = (0..9)
        .map(|index| format!("<!ENTITY e{index} \"{}\">", format!("&e{};", index + 1).repeat(10)))
        .collect();
    let floods = [
        ("entities", xml(format!("<!DOCTYPE frs [{entities}]><frs>&e0;</frs>"))),
        (
            "entities without end",
            xml(format!("<!DOCTYPE frs [{}", "<!ENTITY a 'x'>".repeat(15_000))),
        ),
        ("references", xml(item(&"&#x41;".repeat(160)).replace("<frs>", &" ".repeat(200_000)))),
        ("attributes", xml(format!("<frs><item{attributes}/></frs>"))),
        ("a long attribute", xml(item(&"k".repeat(240_000)))),
        ("deep nesting", xml("<frs>".repeat(50_000))),
        (
            "deep nesting of items",
            xml(format!("<frs>{}", "<item business='login' key='k'>".repeat(8_000))),
        ),
        (
            "too many items",
            xml(format!("<frs>{}</frs>", "<item business='b' key='k'/>".repeat(9_000))),
        ),
        ("comments", xml(format!("<frs>{}</frs>", "<!---->".repeat(35_000)))),
        ("a comment without end", xml(format!("<frs><!--{}", "-".repeat(250_000)))),
        ("instructions", xml("<?x?>".repeat(50_000))),
        ("CDATA", xml(format!("<frs><![CDATA[{}", "]".repeat(250_000)))),
        ("lines", xml(format!("<frs>{}<", "\n".repeat(250_000)))),
        ("bytes that are no text", post("/frs", command, &"\u{fffe}".repeat(80_000))),
        ("chunks of a byte", chunked("/frs", command, &"1\r\n \r\n".repeat(40_000))),
        (
            "unknown commands",
            post("/frs", &format!("x-frs-command: {}\r\n", "x".repeat(20_000)), ""),
        ),
        (
            "content types",
            post("/frs", &format!("{command}content-type: {}\r\n", "charset".repeat(2_500)), "x"),
        ),
    ];
    let valid = xml(item("a")).repeat(20);
    compare(&served, served.frs, &valid, &floods).await
}
