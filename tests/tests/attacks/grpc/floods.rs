//! Useless frames without end, and thousands of connections that say next to nothing: the first are
//! ended, the others have an end, and a bystander is answered all the while.

use super::{Peer, Served, beside};
use anyhow::ensure;
use tidegate_tests::frames::{
    self, CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PRIORITY, SETTINGS,
    WINDOW_UPDATE, frame,
};
use tokio::io::AsyncWriteExt;

type Flood = (&'static str, Vec<u8>, fn(u32) -> Vec<u8>);

/// What comes first, and what then comes again and again, with the number of a stream.
fn floods() -> Vec<Flood> {
    vec![
        ("PING", Vec::new(), |_| frame(PING, 0, 0, &[0; 8])),
        ("SETTINGS", Vec::new(), |turn| frames::settings(&[(4, 100 + turn % 2)])),
        ("acknowledgements", Vec::new(), |_| frame(SETTINGS, 1, 0, &[])),
        ("PRIORITY", Vec::new(), |stream| frame(PRIORITY, 0, stream, &[0; 5])),
        ("WINDOW_UPDATE", Vec::new(), |_| frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])),
        ("unknown frames", Vec::new(), |_| frame(99, 0, 0, &[])),
        ("empty DATA", frames::call(1), |_| frame(DATA, 0, 1, &[])),
        ("padding alone", frames::call(1), |_| frame(DATA, 8, 1, &[1, 0])),
        ("empty CONTINUATION", frame(HEADERS, 0, 1, &[]), |_| frame(CONTINUATION, 0, 1, &[])),
        ("CONTINUATION", frame(HEADERS, 0, 1, &[]), |_| frame(CONTINUATION, 0, 1, &[0x82; 50])),
        ("resets after HEADERS", Vec::new(), |stream| {
            [frames::call(stream), frames::reset(stream)].concat()
        }),
        ("calls without a message", Vec::new(), |stream| {
            frames::headers(stream, END_STREAM, &frames::rls_block())
        }),
        ("malformed calls", Vec::new(), |stream| frame(HEADERS, END_HEADERS, stream, &[0x82])),
        ("calls beyond the number allowed", Vec::new(), frames::call),
        ("windows beyond 2^31-1", Vec::new(), |stream| {
            [frames::call(stream), frames::window_update(stream, i32::MAX as u32)].concat()
        }),
    ]
}

/// Symptom: PINGs were answered for ever, since they cost a client no patience.
#[tokio::test(flavor = "multi_thread")]
async fn floods_are_ended_beside_a_bystander() -> anyhow::Result<()> {
    let served = Served::start().await?;
    beside(&served, async {
        for (what, begin, piece) in floods() {
            let mut peer = served.greeted().await?;
            peer.send(&begin).await?;
            let mut pieces = (0..1_000_000_u32).map(|turn| piece(2 * turn + 3));
            loop {
                let batch: Vec<u8> = pieces.by_ref().take(1_000).flatten().collect();
                ensure!(!batch.is_empty(), "{what} have no end");
                if peer.send(&batch).await.is_err() || has_ended(&mut peer) {
                    break;
                }
            }
        }
        Ok(())
    })
    .await
}

fn has_ended(peer: &mut Peer) -> bool {
    while let Some(frame) = frames::cut(&mut peer.said) {
        if frame.kind == frames::GOAWAY {
            return true;
        }
    }
    false
}

/// Symptom: a client that sent the preface and no SETTINGS kept its place for ever. With it: half a preface,
/// half a frame, and nothing at all.
#[tokio::test(flavor = "multi_thread")]
async fn thousands_that_do_not_greet_are_closed() -> anyhow::Result<()> {
    let served = Served::start().await?;
    let preface = frames::preface();
    let beginnings = [0, 12, 24, 30];
    beside(&served, async {
        let mut peers = Vec::new();
        for number in 0..4_000 {
            let mut peer = served.peer().await?;
            // It may have been closed already, on a slow machine.
            let _ = peer.stream.write_all(&preface[..beginnings[number % 4]]).await;
            peers.push(peer);
        }
        for peer in &mut peers {
            while peer.next().await?.is_some() {}
        }
        Ok(())
    })
    .await
}

/// Two thousand connections that send the end of a call byte by byte: the bytes are read as they come, and
/// nobody waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_trickle_from_thousands_is_borne() -> anyhow::Result<()> {
    let served = Served::start().await?;
    beside(&served, async {
        let mut peers = Vec::new();
        let call = frames::whole_call(1);
        let (begin, end) = call.split_at(call.len() - 15);
        for _ in 0..2_000 {
            let mut peer = served.greeted().await?;
            peer.stream.write_all(begin).await?;
            peers.push(peer);
        }
        for byte in end {
            for peer in &mut peers {
                peer.stream.write_all(&[*byte]).await?;
            }
        }
        for peer in &mut peers {
            let ended = |frame: &frames::Frame| frame.stream == 1 && frame.flags & END_STREAM != 0;
            let answer = peer.until("an answer", ended).await?.text();
            // Two thousand calls end at once, so that a busy machine may shed some.
            let is_answered =
                ["grpc-status\u{1}0", "overloaded"].iter().any(|end| answer.contains(end));
            ensure!(is_answered, "{answer}");
        }
        Ok(())
    })
    .await
}
