//! Peers that are silent, slow, too many, too old or no peers at all; and the endpoint's end.

use super::Served;
use anyhow::{bail, ensure};
use rustix::process::Signal;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tidegate_tests::frames::{self, DATA, GOAWAY, HEADERS};
use tidegate_tests::rls::Rls;
use tidegate_tests::sidecar::{FREE_AND_COUNTED, Sidecar, start_until_ready};
use tidegate_tests::{artifacts, wait};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::process::Command;

/// Reads what a connection still sends, until the endpoint closes it, which it does to a silent one.
async fn rest(mut stream: impl AsyncReadExt + Unpin) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // How it ends is the same here: a close with something unread is a reset.
    let reading = stream.read_to_end(&mut bytes);
    let _ = wait::within("the end of a connection", wait::HANDSHAKE, reading).await?;
    Ok(bytes)
}

#[tokio::test]
async fn a_peer_that_says_nothing_is_closed() -> anyhow::Result<()> {
    let served = Served::start(&[]).await?;
    let silent = TcpStream::connect(served.tcp).await?;
    let mut half = UnixStream::connect(Sidecar::socket(served.dir.path())).await?;
    half.write_all(&frames::preface()[..20]).await?;
    rest(silent).await?;
    rest(half).await?;
    served.check_alive().await
}

#[tokio::test]
async fn garbage_is_closed_and_others_live_on() -> anyhow::Result<()> {
    let served = Served::start(&[]).await?;
    let get = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec();
    let hello = [&[0x16, 0x03, 0x01, 0x02, 0x00][..], &[0; 512]].concat();
    let after_preface = [frames::preface(), vec![0xff; 4096]].concat();
    for garbage in [vec![0; 4096], vec![0xff; 65_536], get, hello, after_preface] {
        let mut stream = TcpStream::connect(served.tcp).await?;
        // It may be closed before all is written.
        let _ = stream.write_all(&garbage).await;
        rest(stream).await?;
        served.check_alive().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_message_that_is_too_large_is_refused() -> anyhow::Result<()> {
    let served = Served::start(&[]).await?;
    let rls = Rls(served.channel().await?);
    let long = "x".repeat(5 * 1024 * 1024);
    ensure!(rls.ask(&[("free", &long)]).await.is_err(), "5 MiB were taken");
    let fits = "x".repeat(3 * 1024 * 1024);
    rls.ask(&[("free", &fits)]).await?;
    served.check_alive().await
}

/// Symptom: the GOAWAY that said why was overtaken by a reset. Cause: a connection was closed with something
/// unread; now its peer is heard out.
#[tokio::test]
async fn a_peer_that_goes_on_after_a_mistake_hears_of_it() -> anyhow::Result<()> {
    /// A peer is heard out for a second. A machine that stood still for that long proves nothing.
    const HEARD_OUT: Duration = Duration::from_secs(1);
    let served = Served::start(&[]).await?;
    for _ in 0..10 {
        let mut stream = UnixStream::connect(Sidecar::socket(served.dir.path())).await?;
        let (begun, mut said) = (Instant::now(), Vec::new());
        let going_on = async {
            stream.write_all(&[frames::preface(), vec![0xff; 1 << 20]].concat()).await?;
            wait::within("an end", wait::SOON, stream.read_to_end(&mut said)).await??;
            anyhow::Ok(())
        };
        let heard = going_on.await;
        if heard.is_err() && begun.elapsed() >= HEARD_OUT {
            continue;
        }
        heard?;
        let kinds = frames::kinds(&said);
        ensure!(kinds.last() == Some(&(GOAWAY, 0)), "{kinds:?}");
        return Ok(());
    }
    bail!("a mebibyte took a second and more, each time")
}

/// The soft limit is often a tenth of --connections-max. (It was lowered for this whole process of tests, so that the
/// tests beside could run out of sockets; now the shell lowers it for the sidecar alone.)
#[cfg(target_os = "linux")]
#[tokio::test]
async fn as_many_files_may_be_open_as_the_system_allows() -> anyhow::Result<()> {
    let dir = TempDir::new()?;
    std::fs::write(dir.path().join("limits.yaml"), FREE_AND_COUNTED)?;
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -S -n 1000 && exec \"$@\"", "sh"]).arg(artifacts::sidecar()?);
    command.args(["serve", "--http", "off", "--frs", "off", "--grpc", "127.0.0.1:0"]);
    command.args(["--capacity", "1000", "--log-format", "json"]);
    command.args(["--limits", "limits.yaml", "--data-dir", "data"]).current_dir(dir.path());
    let (process, _) = start_until_ready(command, "sidecar", dir.path(), "grpc").await?;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", process.pid()?))?;
    let open = limits.lines().find(|line| line.starts_with("Max open files")).unwrap_or_default();
    let words: Vec<_> = open.split_whitespace().collect();
    let [.., soft, hard, "files"] = words[..] else { anyhow::bail!("{limits}") };
    ensure!(soft == hard, "{open}");
    Ok(())
}

/// It asks on and on and reads no answer: first the endpoint stops to read, then it closes.
#[tokio::test]
async fn a_peer_that_reads_no_answers_is_closed() -> anyhow::Result<()> {
    let served = Served::start(&[]).await?;
    // Has smaller buffers than TCP.
    let mut stream = UnixStream::connect(Sidecar::socket(served.dir.path())).await?;
    stream.write_all(&frames::preface()).await?;
    let before = served.sidecar.process.resident_bytes()?;
    let asking = async {
        for call in 0_u32.. {
            let stream_id = 2 * call + 1;
            let bytes = [frames::call(stream_id), frames::message(stream_id)].concat();
            if stream.write_all(&bytes).await.is_err() {
                break;
            }
        }
    };
    wait::within("the end of the connection", wait::UNFINISHED, asking).await?;
    let grown = served.sidecar.process.resident_bytes()?.saturating_sub(before);
    ensure!(grown < 32 * 1024 * 1024, "{grown} bytes more");
    served.check_alive().await
}

/// The system probes silent peers (TCP keepalive).
#[cfg(target_os = "linux")]
#[tokio::test]
async fn half_open_connections_are_asked_after() -> anyhow::Result<()> {
    let served = Served::start(&[]).await?;
    let mut stream = TcpStream::connect(served.tcp).await?;
    stream.write_all(&frames::preface()).await?;
    let address = |of: SocketAddr| format!("0100007F:{:04X}", of.port());
    let (local, remote) = (address(served.tcp), address(stream.local_addr()?));
    wait::until("a keepalive timer", wait::SOON, async || {
        let sockets = std::fs::read_to_string("/proc/net/tcp").ok()?;
        let mut lines = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        // Number, local and remote address, state, queues, kind of timer: 02 is keepalive.
        let ours = lines.find(|line| line.get(1..3) == Some(&[local.as_str(), remote.as_str()]))?;
        ours.get(5)?.starts_with("02:").then_some(())
    })
    .await
}

#[tokio::test]
async fn connections_beyond_the_bound_are_closed_at_once() -> anyhow::Result<()> {
    let served = Served::start(&["--connections-max", "2"]).await?;
    let first = Rls(served.channel().await?);
    first.ask(&[("free", "a")]).await?;
    served.check_alive().await?;
    // Until the endpoint has seen that the one of the check is gone.
    let second = wait::until("room for a second connection", wait::SOON, async || {
        let second = Rls(served.channel().await.ok()?);
        second.ask(&[("free", "a")]).await.is_ok().then_some(second)
    })
    .await?;
    let refused = "tidegate_connections_refused_total{door=\"grpc\"}";
    let count = async || {
        let metrics = tidegate_tests::client::get(served.sidecar.http, "/metrics").await?;
        let text = String::from_utf8_lossy(&metrics.body).into_owned();
        let line = text.lines().find_map(|line| line.strip_prefix(refused));
        anyhow::Ok(line.map_or(Ok(0), |count| count.trim().parse::<u64>())?)
    };
    // A connection without a call for ten seconds would make room.
    first.ask(&[("free", "a")]).await?;
    second.ask(&[("free", "a")]).await?;
    let before = count().await?;
    let third = rest(TcpStream::connect(served.tcp).await?).await?;
    ensure!(third.is_empty(), "{third:?}");
    ensure!(served.metric(&format!("{refused} {}", before + 1)).await?);
    first.ask(&[("free", "a")]).await?;
    drop(second);
    wait::until("room again", wait::SOON, async || served.check_alive().await.ok()).await
}

#[tokio::test]
async fn an_old_connection_gets_goaway_and_calls_on_it_are_cut_off_after_a_grace()
-> anyhow::Result<()> {
    let served = Served::start(&["--connection-age", "1s", "--connection-age-grace", "1s"]).await?;
    let mut idle = TcpStream::connect(served.tcp).await?;
    idle.write_all(&frames::preface()).await?;
    let mut calling = TcpStream::connect(served.tcp).await?;
    calling.write_all(&[frames::preface(), frames::call(1)].concat()).await?;
    for stream in [idle, calling] {
        let said = frames::kinds(&rest(stream).await?);
        ensure!(said.iter().any(|(kind, _)| *kind == GOAWAY), "{said:?}");
    }
    served.check_alive().await
}

#[tokio::test]
async fn a_stop_answers_what_is_under_way_and_takes_nothing_new() -> anyhow::Result<()> {
    let mut served = Served::start(&[]).await?;
    let mut stream = TcpStream::connect(served.tcp).await?;
    stream.write_all(&[frames::preface(), frames::call(1)].concat()).await?;
    // A whole call, whose answer shows that the first has begun.
    stream.write_all(&[frames::call(3), frames::message(3)].concat()).await?;
    let mut said = Vec::new();
    until_said(&mut stream, &mut said, |kinds| {
        kinds.iter().filter(|(_, stream)| *stream == 3).count() >= 3
    })
    .await?;
    served.sidecar.process.signal(Signal::TERM)?;
    until_said(&mut stream, &mut said, |kinds| kinds.iter().any(|(kind, _)| *kind == GOAWAY))
        .await?;
    ensure!(TcpStream::connect(served.tcp).await.is_err(), "the endpoint is still open");
    stream.write_all(&frames::message(1)).await?;
    said.extend(rest(stream).await?);
    let answer: Vec<u8> = frames::kinds(&said)
        .into_iter()
        .filter(|(_, stream)| *stream == 1)
        .map(|(kind, _)| kind)
        .collect();
    ensure!(answer == [HEADERS, DATA, HEADERS], "{answer:?}");
    let ended = served.sidecar.process.wait().await?;
    ensure!(ended.success(), "{ended}: {}", served.sidecar.process.log());
    ensure!(!served.sidecar.process.log().contains("cut off"), "{}", served.sidecar.process.log());
    Ok(())
}

/// Reads until the frames so far are as wanted.
async fn until_said(
    stream: &mut TcpStream,
    said: &mut Vec<u8>,
    is_wanted: impl Fn(&[(u8, u32)]) -> bool,
) -> anyhow::Result<()> {
    let reading = async {
        while !is_wanted(&frames::kinds(said)) {
            ensure!(stream.read_buf(said).await? > 0, "closed after {:?}", frames::kinds(said));
        }
        Ok(())
    };
    wait::within("frames", wait::SOON, reading).await?
}
