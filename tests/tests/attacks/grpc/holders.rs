//! Connections that begin messages and fall silent: they have an end, and until then others have room.

use super::{Peer, Served};
use anyhow::{Context, ensure};
use tidegate_tests::frames::{self, DATA, frame};
use tidegate_tests::wait;
use tidegate_wire::rls::Code;

/// A connection that has sent this many bytes of a message of 4 MiB, and stops.
async fn silent(served: &Served, bytes: usize) -> anyhow::Result<Peer> {
    let mut peer = served.greeted().await?;
    let length = u32::try_from(4 << 20)?.to_be_bytes();
    let mut body = [&[0], &length[..]].concat();
    body.resize(bytes, 0);
    let frames = body.chunks(16_384).flat_map(|chunk| frame(DATA, 0, 1, chunk));
    let bytes = [frames::call(1), frames.collect()].concat();
    peer.send(&bytes).await?;
    Ok(peer)
}

/// Symptom: 38 connections that had sent parts of messages and fell silent held all that may be held. A client
/// of messages of 300 KB failed 323 times of 323, each time with its connection. Cause: what had begun had no
/// end, and the last to come made room.
#[tokio::test(flavor = "multi_thread")]
async fn silent_holders_do_not_starve_honest_clients() -> anyhow::Result<()> {
    let served = Served::start().await?;
    let mut holders = Vec::new();
    for _ in 0..100 {
        holders.push(silent(&served, 3 << 20).await?);
    }
    // Many that hold a little more than any connection may.
    for _ in 0..500 {
        holders.push(silent(&served, 80 << 10).await?);
    }
    let client = served.client().await?;
    // What they sent at once may be more than a slow machine takes in in time.
    let calm = async || client.ask(&[("free", "calm")]).await.ok();
    wait::until("an answer after what all holders sent", wait::ANSWER, calm).await?;
    for turn in 0..30 {
        let bytes = if turn % 3 == 0 { 3_900_000 } else { 300_000 };
        let value = "v".repeat(bytes);
        let answer = client.ask(&[("free", &value)]).await;
        let answer = answer.with_context(|| format!("call {turn} of {bytes} bytes"))?;
        ensure!(answer.overall_code() == Code::Ok, "{answer:?}");
    }
    let resident = served.resident_bytes()?;
    ensure!(resident < 700 << 20, "{resident} bytes are resident");
    // All of them have an end.
    for holder in &mut holders {
        let ended = holder
            .until("an end", |frame| (frame.stream, frame.kind) == (1, frames::HEADERS))
            .await?;
        let text = ended.text();
        let is_ended =
            ["grpc-status\u{1}4", "grpc-status\u{1}8"].iter().any(|end| text.contains(end));
        ensure!(is_ended, "{text}");
        // The connection lives on.
        holder.call().await?;
    }
    Ok(())
}

/// Symptom: whoever opened as many connections as there may be, and said nothing after its greeting, kept all
/// others out for ever. Now the one that has made no call for longest makes room.
#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_make_room_when_all_places_are_taken() -> anyhow::Result<()> {
    let served = Served::start_with(&["--connections-max", "2000"]).await?;
    let mut caller = served.greeted().await?;
    let mut silent = Vec::new();
    for _ in 0..1_999 {
        silent.push(served.greeted().await?);
    }
    // Until some have been silent for long enough.
    let client = wait::until("room for another client", wait::IDLE, async || {
        caller.call().await.ok()?;
        let mut client = served.greeted().await.ok()?;
        client.call().await.is_ok().then_some(client)
    });
    let mut clients = vec![client.await?];
    for _ in 0..200 {
        // The one before made a call just now, and so did this one's predecessors.
        let mut client = wait::until("room", wait::IDLE, async || {
            let mut client = served.greeted().await.ok()?;
            client.call().await.is_ok().then_some(client)
        })
        .await?;
        client.call().await?;
        clients.push(client);
    }
    // Who made calls was not ended.
    caller.call().await?;
    for client in &mut clients {
        client.call().await?;
    }
    Ok(())
}

/// The parts of a connection: a block of headers and a frame that do not end are the connection's end.
#[tokio::test(flavor = "multi_thread")]
async fn blocks_and_frames_that_do_not_end_are_the_end() -> anyhow::Result<()> {
    let served = Served::start().await?;
    let mut peers = Vec::new();
    for begun in [frame(frames::HEADERS, 0, 1, &[0x83]), frames::call(1)[..20].to_vec()] {
        for _ in 0..500 {
            let mut peer = served.greeted().await?;
            peer.send(&begun).await?;
            peers.push(peer);
        }
    }
    let ended = async {
        for peer in &mut peers {
            let reason = peer.reason().await?;
            ensure!(reason.contains("has been unfinished for too long"), "{reason}");
        }
        anyhow::Ok(())
    };
    wait::within("the ends of all", wait::UNFINISHED, ended).await?
}
