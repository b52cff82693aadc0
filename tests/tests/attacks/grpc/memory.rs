//! Memory that stays with connections, whatever they did before.

use super::{Peer, Served};
use anyhow::{Context, ensure};
use tidegate_tests::frames::{self, DATA, END_STREAM, NEWEST, frame};
use tidegate_tests::wait;

const CONNECTIONS: u64 = 300;

/// What an idle connection may keep.
const KEPT_BYTES_MAX: u64 = 64 * 1024;

/// Opens connections that do this, then make one call, and are idle.
async fn opened(served: &Served, doing: impl Fn() -> Vec<Vec<u8>>) -> anyhow::Result<Vec<Peer>> {
    let mut peers = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut peer = served.greeted().await?;
        for piece in doing() {
            peer.send(&piece).await?;
        }
        peer.call().await?;
        peer.said = Vec::new();
        peers.push(peer);
    }
    Ok(peers)
}

/// Symptom: connections that had opened 32 streams and reset them kept 1.07 MB each: what closed streams left
/// was kept by number, with all the memory that they ever had.
#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_keep_little_whatever_they_did() -> anyhow::Result<()> {
    let served = Served::start().await?;
    let before = served.resident_bytes()?;
    let polite = opened(&served, Vec::new).await?;
    let usual = served.resident_bytes()?.saturating_sub(before);
    ensure!(usual < CONNECTIONS * 32 * 1024, "{usual} bytes for polite connections");
    let begun = frames::envelope(&[0; 16_000]);
    let resets = || (0..32).map(|number| frames::reset(2 * number + 1)).collect::<Vec<_>>();
    let large_messages = || {
        let begin = |number: u32| {
            let stream = 2 * number + 1;
            [frames::call(stream), frame(DATA, 0, stream, &begun[..15_000])].concat()
        };
        [(0..32).map(begin).collect(), resets()].concat()
    };
    let large_headers = || {
        let begin = |number: u32| {
            let mut block = frames::rls_block();
            if number == 0 {
                block.extend(frames::kept(b"x", &[b'y'; 4000]));
            }
            block.extend([NEWEST; 2]);
            frames::headers(2 * number + 1, 0, &block)
        };
        [(0..32).map(begin).collect(), resets()].concat()
    };
    let large_blocks = || {
        let mut block = frames::rls_block();
        frames::text(&mut block, b"\x00\x01x", &[b'v'; 100_000]);
        vec![frames::headers(1, 1, &block)]
    };
    let mut all = vec![polite];
    for doing in [&large_messages as &dyn Fn() -> Vec<Vec<u8>>, &large_headers, &large_blocks] {
        let before = served.resident_bytes()?;
        all.push(opened(&served, doing).await?);
        let allowed = before + CONNECTIONS * KEPT_BYTES_MAX;
        let rested = wait::until("little memory to be left", wait::CHECK, async || {
            let resident = served.resident_bytes().ok()?;
            (resident <= allowed).then_some(resident)
        });
        let rested = rested.await.with_context(|| format!("above {allowed} bytes"))?;
        println!("{} bytes a connection", rested.saturating_sub(before) / CONNECTIONS);
    }
    // All of them live.
    for peer in all.iter_mut().flatten() {
        peer.call().await?;
    }
    Ok(())
}

/// Large answers are asked for and no window is given for them: what is held is bounded, and has an end.
#[tokio::test(flavor = "multi_thread")]
async fn answers_without_a_window_are_given_up() -> anyhow::Result<()> {
    let served = Served::start().await?;
    let before = served.resident_bytes()?;
    let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let symbol = b"envoy.service.ratelimit.v3.RateLimitService";
    let message = [&[0x22, symbol.len() as u8][..], symbol].concat();
    let mut peers = Vec::new();
    for _ in 0..100 {
        let mut peer = served.peer().await?;
        peer.send(&frames::preface_with(&[(4, 1)])).await?;
        let mut begun = 0;
        for stream in (1..4_000).step_by(2) {
            let call = frames::headers(stream, 0, &frames::block(path));
            let ask = frame(DATA, END_STREAM, stream, &frames::envelope(&message));
            peer.send(&[call, ask].concat()).await?;
            let said = peer.until("an answer", |frame| frame.stream == stream).await?;
            // Some may be refused, when the machine is busy.
            begun += usize::from(said.flags & END_STREAM == 0);
            if begun == 100 {
                break;
            }
        }
        ensure!(begun > 0, "nothing is answered");
        peers.push(peer);
    }
    let held = served.resident_bytes()?.saturating_sub(before);
    ensure!(held < 400 << 20, "{held} bytes are held");
    for peer in &mut peers {
        // Tiny windows do not put the end off.
        peer.send(&frames::window_update(1, 1)).await?;
        peer.until("a reset", |frame| frame.kind == frames::RST_STREAM).await?;
    }
    Ok(())
}
