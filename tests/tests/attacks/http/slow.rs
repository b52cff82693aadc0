//! Clients that hold connections: silent, half done, byte by byte, deaf, or idle.

use super::{Served, in_time};
use anyhow::ensure;
use bytes::Bytes;
use std::net::SocketAddr;
use std::time::Duration;
use tidegate_tests::client::{Client, get, send};
use tidegate_tests::wait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};

const HEALTH: &str = "GET /healthcheck HTTP/1.1\r\nhost: x\r\n\r\n";
const FRS_BODY: &str = "<frs><item business='login' key='honest'/></frs>";

/// An endpoint that accepts nobody any more keeps clients waiting once its backlog is full.
async fn connected(to: SocketAddr) -> anyhow::Result<TcpStream> {
    in_time("a connection", async { Ok(TcpStream::connect(to).await?) }).await
}

/// Connects this many clients; each sends this and reads nothing.
async fn holders(to: SocketAddr, count: usize, says: &[u8]) -> anyhow::Result<Vec<TcpStream>> {
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        let mut stream = connected(to).await?;
        // One that had to give way already is no client any more; the next one comes.
        let writing = stream.write_all(says);
        let _ = wait::within("room for what is sent", wait::UNFINISHED, writing).await?;
        all.push(stream);
    }
    Ok(all)
}

/// Clients that send a head that never ends, a byte each time; those that are cut off come again.
fn dribblers(to: SocketAddr, count: usize) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut streams: Vec<Option<TcpStream>> = (0..count).map(|_| None).collect();
        let head = format!("GET /healthcheck HTTP/1.1\r\nhost: {}", "x".repeat(10_000));
        let mut sent = vec![0; count];
        let mut turns = tokio::time::interval(Duration::from_millis(20));
        loop {
            turns.tick().await;
            for (index, slot) in streams.iter_mut().enumerate() {
                let Some(stream) = slot else {
                    (*slot, sent[index]) = (TcpStream::connect(to).await.ok(), 0);
                    continue;
                };
                match stream.try_write(&head.as_bytes()[sent[index]..=sent[index]]) {
                    Ok(bytes) => sent[index] += bytes,
                    Err(_) => *slot = None,
                }
            }
        }
    })
}

/// Clients that ask for page after page and read nothing, until the endpoint takes no more.
async fn deaf(to: SocketAddr, count: usize, asks: &str) -> anyhow::Result<Vec<TcpStream>> {
    let many = asks.repeat(200);
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        let stream = connected(to).await?;
        stream.writable().await?;
        let _ = stream.try_write(many.as_bytes());
        all.push(stream);
    }
    Ok(all)
}

/// Clients that were answered, and keep their connections.
async fn idlers(to: SocketAddr, count: usize) -> anyhow::Result<Vec<TcpStream>> {
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        let answered = wait::until("an answer to a keep-alive client", wait::SOON, async || {
            let mut stream = connected(to).await.ok()?;
            stream.write_all(HEALTH.as_bytes()).await.ok()?;
            let mut answer = [0; 512];
            // One that was slow to ask may have given way.
            (stream.read(&mut answer).await.ok()? > 0).then_some(stream)
        });
        all.push(answered.await?);
    }
    Ok(all)
}

/// Symptom: 600 connections with half a request head kept /healthcheck from answering for as long as they
/// liked, so that a liveness probe would have restarted the service. Cause: only idle connections gave way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_health_check_is_answered_beside_any_number_of_slow_clients() -> anyhow::Result<()> {
    let served = Served::start().await?;
    let to = served.http;
    let half_head = "GET /healthcheck HTTP/1.1\r\nhost: x\r\nx-more: ";
    let half_body = "POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{\"domain\":";
    let large = format!(
        "POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n{}",
        " ".repeat(30_000)
    );
    let dribbling = dribblers(to, 1_000);
    let mut held = Vec::new();
    let mut checked = 0;
    for round in 0..3 {
        held.push(holders(to, 600, b"").await?);
        held.push(holders(to, 600, half_head.as_bytes()).await?);
        held.push(holders(to, 600, half_body.as_bytes()).await?);
        held.push(holders(to, 200, large.as_bytes()).await?);
        held.push(deaf(to, 300, "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await?);
        held.push(idlers(to, 300).await?);
        for _ in 0..20 {
            let what = format!("/healthcheck in round {round}");
            let reply = in_time(&what, get(to, "/healthcheck")).await?;
            ensure!(reply.body == "OK\n", "{reply:?}");
            checked += 1;
        }
    }
    dribbling.abort();
    ensure!(checked == 60);
    let gave_way = served.metric("tidegate_connections_gave_way_total", "http").await?;
    ensure!(gave_way > 6_000, "only {gave_way} connections gave way");
    // Large bodies that are honest come in all the same.
    let padded = format!(
        "{}{{\"domain\":\"test\",\"descriptors\":[{{\"entries\":[{{\"key\":\"client\"}}]}}]}}",
        " ".repeat(900_000)
    );
    let posted = in_time("a large body", send(to, "POST", "/json", &[], padded)).await?;
    ensure!(posted.status == 200, "{posted:?}");
    Ok(())
}

/// The endpoint that decides: callers are served, and hear of each of their items, while others only hold on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frs_callers_are_served_beside_any_number_of_silent_holders() -> anyhow::Result<()> {
    let served = Served::start().await?;
    let to = served.frs;
    let head = "POST /frs HTTP/1.1\r\nhost: f\r\nx-frs-command: Update\r\ncontent-length: ";
    let half_head = &head[..40];
    let half_body = format!("{head}200\r\n\r\n<frs>");
    // 300 of them are more than there is memory for.
    let large = format!("{head}262144\r\n\r\n{}", " ".repeat(60_000));
    let mut held = Vec::new();
    let mut counted = 0;
    for _ in 0..2 {
        held.push(holders(to, 700, b"").await?);
        held.push(holders(to, 700, half_head.as_bytes()).await?);
        held.push(holders(to, 700, half_body.as_bytes()).await?);
        held.push(holders(to, 300, large.as_bytes()).await?);
        for index in 0..20 {
            // Clients that come all at once may get 503, but are never cut off.
            let body = format!("{}{FRS_BODY}", " ".repeat(index * 10_000));
            let asked = async || {
                let command = [("x-frs-command", &b"Update"[..])];
                let reply = send(to, "POST", "/frs", &command, Bytes::from(body.clone())).await;
                reply.ok().filter(|reply| reply.status == 200)
            };
            let reply = wait::until("an answer", wait::SOON, asked).await?;
            counted += 1;
            let body = String::from_utf8_lossy(&reply.body).into_owned();
            ensure!(body.contains(&format!("count=\"{counted}\"")), "{counted}: {body}");
        }
    }
    Ok(())
}

/// Idle connections kept what their largest request and answer had needed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_connection_keeps_at_most_64_kib() -> anyhow::Result<()> {
    const COUNT: usize = 200;
    let served = Served::start().await?;
    let entries = "{\"key\":\"client\",\"value\":\"x\"},".repeat(8_000);
    let large = format!(
        "{{\"domain\":\"test\",\"descriptors\":[{{\"entries\":[{}]}}]}}",
        entries.trim_end_matches(',')
    );
    let path = format!("/{}", "p".repeat(12_000));
    let (http, frs) = (served.http, served.frs);
    let one = async || -> anyhow::Result<[Client; 2]> {
        let mut first = Client::connect(http).await?;
        // What is answered does not matter: it was read.
        first.send("POST", "/json", &[], large.clone()).await?;
        first.get(&path, &[]).await?;
        first.get("/metrics", &[]).await?;
        let mut second = Client::connect(frs).await?;
        let body = format!("{}{FRS_BODY}", " ".repeat(200_000));
        second.send("POST", "/frs", &[("x-frs-command", b"Query")], body).await?;
        Ok([first, second])
    };
    // On a busy machine the first would be closed as idle before the last comes, if they came one by one.
    let four = async || tokio::try_join!(one(), one(), one(), one());
    // What the process needs once, for four requests of each kind at a time.
    for _ in 0..5 {
        four().await?;
    }
    let before = served.sidecar.process.resident_bytes()?;
    let mut idle = Vec::new();
    while idle.len() < COUNT {
        idle.extend(<[_; 4]>::from(four().await?));
    }
    let after = served.sidecar.process.resident_bytes()?;
    let each = after.saturating_sub(before) / (2 * COUNT as u64);
    println!("{each} bytes for each of {} idle connections", 2 * COUNT);
    ensure!(each <= 64 * 1024, "{each} bytes for each idle connection");
    for [first, second] in &mut idle {
        ensure!(first.get("/healthcheck", &[]).await?.status == 200);
        let asked = second.send("POST", "/frs", &[("x-frs-command", b"Query")], FRS_BODY);
        ensure!(asked.await?.status == 200);
    }
    Ok(())
}

/// A client that does not take its answer is cut off, and so is one whose request does not end.
#[tokio::test]
async fn requests_and_answers_have_an_end() -> anyhow::Result<()> {
    let served = Served::start().await?;
    let half = holders(served.http, 20, b"GET / HTTP/1.1\r\nhost:").await?;
    let body = b"POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{";
    let half_body = holders(served.http, 20, body).await?;
    let mut ended = JoinSet::new();
    for mut stream in half.into_iter().chain(half_body) {
        ended.spawn(async move {
            let mut rest = Vec::new();
            // A reset says the same.
            let read = stream.read_to_end(&mut rest);
            let _ = wait::within("the end of a request", wait::UNFINISHED, read).await?;
            anyhow::Ok(())
        });
    }
    while let Some(one) = ended.join_next().await {
        one??;
    }
    Ok(())
}
