//! A TCP proxy between a client and its server, which can part them.

use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What a proxy does with its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Passes bytes on.
    Open,
    /// Holds bytes back, as a network that drops them; connections stay open.
    Silent,
    /// Closes connections, new ones as well.
    Cut,
}

/// A proxy; it closes its connections when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    /// Where clients connect.
    pub address: SocketAddr,
    mode: watch::Sender<Mode>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Starts one in front of a server.
    ///
    /// # Errors
    /// When it cannot listen.
    pub async fn start(server: SocketAddr) -> anyhow::Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mode = watch::Sender::new(Mode::Open);
        let accepting = tokio::spawn(accept(listener, server, mode.subscribe()));
        Ok(Proxy { address, mode, accepting })
    }

    /// Holds back everything, both ways, until the proxy is open again. New connections are accepted, and stay without
    /// an answer.
    pub fn silence(&self) {
        self.mode.send_replace(Mode::Silent);
    }

    /// Closes every connection, and each new one at once.
    pub fn cut(&self) {
        self.mode.send_replace(Mode::Cut);
    }

    /// Passes everything on, also what was held back.
    pub fn open(&self) {
        self.mode.send_replace(Mode::Open);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, mode: watch::Receiver<Mode>) {
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(connect(client, server, mode.clone()));
    }
}

/// One connection, from its first byte to its end. Errors end it.
async fn connect(client: TcpStream, server: SocketAddr, mut mode: watch::Receiver<Mode>) {
    let mut cut = mode.clone();
    let passing = async {
        mode.wait_for(|mode| *mode == Mode::Open).await.ok()?;
        let server = TcpStream::connect(server).await.ok()?;
        let (client_reads, client_writes) = client.into_split();
        let (server_reads, server_writes) = server.into_split();
        tokio::join!(
            pass(client_reads, server_writes, mode.clone()),
            pass(server_reads, client_writes, mode),
        );
        Some(())
    };
    tokio::select! {
        _ = passing => {}
        _ = cut.wait_for(|mode| *mode == Mode::Cut) => {}
    }
}

/// Passes bytes on in one direction, to their end.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut mode: watch::Receiver<Mode>) {
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        let opened = mode.wait_for(|mode| *mode == Mode::Open).await.is_ok();
        if !opened || to.write_all(&bytes[..count]).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait;
    use anyhow::ensure;
    use std::time::Duration;

    async fn echoes() -> anyhow::Result<SocketAddr> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut reads, mut writes) = stream.split();
                    let _ = tokio::io::copy(&mut reads, &mut writes).await;
                });
            }
        });
        Ok(address)
    }

    async fn exchange(stream: &mut TcpStream) -> anyhow::Result<()> {
        stream.write_all(b"?").await?;
        let mut answer = [0];
        wait::within("an echo", wait::SOON, stream.read_exact(&mut answer)).await??;
        Ok(())
    }

    #[tokio::test]
    async fn a_silent_proxy_delays_what_an_open_one_passes_on() -> anyhow::Result<()> {
        let proxy = Proxy::start(echoes().await?).await?;
        let mut stream = TcpStream::connect(proxy.address).await?;
        exchange(&mut stream).await?;
        proxy.silence();
        stream.write_all(b"held").await?;
        let mut later = TcpStream::connect(proxy.address).await?;
        later.write_all(b"too").await?;
        let mut first = [0; 4];
        // The time that it is silent for, and no wait for anything.
        let heard = tokio::time::timeout(Duration::from_millis(100), stream.read(&mut first));
        ensure!(heard.await.is_err(), "a silent proxy passed bytes on");
        proxy.open();
        wait::within("what was held", wait::SOON, stream.read_exact(&mut first)).await??;
        ensure!(&first == b"held");
        wait::within("the later one", wait::SOON, later.read_exact(&mut first[..3])).await??;
        Ok(())
    }

    #[tokio::test]
    async fn a_cut_proxy_has_no_connections_and_an_open_one_has_again() -> anyhow::Result<()> {
        let proxy = Proxy::start(echoes().await?).await?;
        let mut stream = TcpStream::connect(proxy.address).await?;
        exchange(&mut stream).await?;
        proxy.cut();
        let mut rest = Vec::new();
        let _ = wait::within("the end", wait::SOON, stream.read_to_end(&mut rest)).await?;
        let mut refused = TcpStream::connect(proxy.address).await?;
        let _ = wait::within("the end", wait::SOON, refused.read_to_end(&mut rest)).await?;
        proxy.open();
        exchange(&mut TcpStream::connect(proxy.address).await?).await
    }
}
