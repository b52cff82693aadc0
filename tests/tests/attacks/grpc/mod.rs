//! Attacks on the gRPC endpoint of a real sidecar, by raw sockets: floods, header bombs, silent holders, thousands
//! of connections. Judged by the sidecar's processor time beside plain traffic of the same length in the same
//! run, by its memory beside idle polite connections, and by a bystander whose every call is answered.

mod floods;
mod holders;
mod memory;
mod work;

use anyhow::{Context, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::SocketAddr;
use tempfile::TempDir;
use tidegate_tests::rls::{Rls, request};
use tidegate_tests::sidecar::Sidecar;
use tidegate_tests::{frames, wait};
use tidegate_wire::rls::Code;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A sidecar with its gRPC endpoint at a TCP port and at a Unix socket.
struct Served {
    dir: TempDir,
    sidecar: Sidecar,
    tcp: SocketAddr,
}

impl Served {
    async fn start() -> anyhow::Result<Served> {
        Served::start_with(&[]).await
    }

    async fn start_with(flags: &[&str]) -> anyhow::Result<Served> {
        // Thousands of sockets are opened here and there.
        let files = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files })?;
        let dir = TempDir::new()?;
        let (sidecar, tcp) = Sidecar::start_on_tcp(dir.path(), flags).await?;
        Ok(Served { dir, sidecar, tcp })
    }

    /// A connection that has said its preface and settings.
    async fn greeted(&self) -> anyhow::Result<Peer> {
        let mut peer = self.peer().await?;
        peer.send(&frames::preface()).await?;
        Ok(peer)
    }

    async fn peer(&self) -> anyhow::Result<Peer> {
        let stream = TcpStream::connect(self.tcp).await?;
        stream.set_nodelay(true)?;
        Ok(Peer { stream, said: Vec::new(), next_call: FIRST_CALL })
    }

    /// A client that is polite, by a connection of its own.
    async fn client(&self) -> anyhow::Result<Rls> {
        Rls::at(self.dir.path()).await
    }

    fn resident_bytes(&self) -> anyhow::Result<u64> {
        self.sidecar.process.resident_bytes()
    }
}

/// A connection, frame by frame.
struct Peer {
    stream: TcpStream,
    /// What the endpoint sent and nobody has looked at.
    said: Vec<u8>,
    /// The stream of the next `call`.
    next_call: u32,
}

/// Above all streams that a test numbers itself.
const FIRST_CALL: u32 = 10_000_001;

impl Peer {
    /// Sends these bytes, and takes meanwhile what the endpoint says: else it would stop to read.
    async fn send(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let (mut reader, mut writer) = self.stream.split();
        let reading = async {
            while matches!(reader.read_buf(&mut self.said).await, Ok(1..)) {}
            std::future::pending::<()>().await;
        };
        let sending = async {
            tokio::select! {
                sent = writer.write_all(bytes) => sent,
                () = reading => Ok(()),
            }
        };
        wait::within("room for what is sent", wait::UNFINISHED, sending).await??;
        Ok(())
    }

    /// The next frame; none at the connection's end.
    async fn next(&mut self) -> anyhow::Result<Option<frames::Frame>> {
        loop {
            if let Some(frame) = frames::cut(&mut self.said) {
                return Ok(Some(frame));
            }
            let read = self.stream.read_buf(&mut self.said);
            // How it ends is the same here: a close with something unread is a reset.
            if wait::within("a frame", wait::UNFINISHED, read).await?.unwrap_or(0) == 0 {
                return Ok(None);
            }
        }
    }

    /// The next frame that is as wanted.
    async fn until(
        &mut self,
        what: &str,
        is_wanted: impl Fn(&frames::Frame) -> bool,
    ) -> anyhow::Result<frames::Frame> {
        while let Some(frame) = self.next().await? {
            if is_wanted(&frame) {
                return Ok(frame);
            }
            ensure!(frame.kind != frames::GOAWAY, "closed before {what}: {}", frame.text());
        }
        anyhow::bail!("closed before {what}")
    }

    /// Makes a call, which is answered well, and all before it is done.
    ///
    /// A busy machine has the sidecar shed a call now and then, so it is made again then. Once this test failed
    /// of it.
    async fn call(&mut self) -> anyhow::Result<()> {
        let decided = async {
            loop {
                let stream = self.next_call;
                self.next_call += 2;
                self.send(&frames::whole_call(stream)).await?;
                let last = self.until("an answer", |frame| {
                    frame.stream == stream && frame.flags & frames::END_STREAM != 0
                });
                let last = last.await?.text();
                if last.contains("grpc-status\u{1}0") {
                    return Ok(());
                }
                ensure!(last.contains("overloaded"), "{last}");
            }
        };
        wait::within("a call that is not shed", wait::UNFINISHED, decided).await?
    }

    /// Reads to the end, and says why the endpoint closed.
    async fn reason(&mut self) -> anyhow::Result<String> {
        let mut reason = None;
        while let Some(frame) = self.next().await? {
            if frame.kind == frames::GOAWAY {
                reason = Some(frame.text());
            }
        }
        reason.context("closed without a word")
    }
}

/// Asks, again and again, until it is dropped or fails; every call must be answered well, at the second try if the sidecar
/// shed the first.
async fn bystand(rls: Rls) -> anyhow::Result<u64> {
    for calls in 0.. {
        let answer = rls.decide(request("test", &[("free", "bystander")])).await;
        let answer = answer.with_context(|| format!("the bystander's call {calls}"))?;
        ensure!(answer.overall_code() == Code::Ok, "{answer:?}");
    }
    Ok(0)
}

/// Does something beside a bystander.
async fn beside<T>(
    served: &Served,
    doing: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let rls = served.client().await?;
    tokio::select! {
        done = wait::within("the end of an attack", wait::COMMAND, doing) => done?,
        ended = bystand(rls) => { ended?; anyhow::bail!("the bystander came to an end") }
    }
}
