//! HTTP/1.1 clients that hold one connection each, so that a test knows what goes over which.

use crate::wait;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Request, StatusCode};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// What came back.
#[derive(Debug)]
pub struct Reply {
    /// HTTP status.
    pub status: StatusCode,
    /// Response headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

impl Reply {
    /// A header as text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// One connection.
#[derive(Debug)]
pub struct Client {
    sender: SendRequest<Full<Bytes>>,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// When nothing listens there.
    pub async fn connect(address: SocketAddr) -> anyhow::Result<Client> {
        let connecting = TcpStream::connect(address);
        let stream = wait::within("a connection", wait::SOON, connecting).await??;
        stream.set_nodelay(true)?;
        Client::over(stream).await
    }

    /// Speaks over a stream that is connected, such as one of TLS.
    ///
    /// # Errors
    /// When it breaks.
    pub async fn over(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> anyhow::Result<Client> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Client { sender })
    }

    /// Sends GET `path` with `headers`, whose values may be any bytes that HTTP/1.1 can carry.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn get(&mut self, path: &str, headers: &[(&str, &[u8])]) -> anyhow::Result<Reply> {
        self.send("GET", path, headers, Bytes::new()).await
    }

    /// Sends a request of any method, with a body.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &[u8])],
        body: impl Into<Bytes>,
    ) -> anyhow::Result<Reply> {
        let mut request = Request::builder().method(method).uri(path);
        let host = [("host", &b"localhost"[..])];
        let host = host.iter().filter(|_| headers.iter().all(|(name, _)| *name != "host"));
        for (name, value) in host.chain(headers) {
            request = request.header(*name, HeaderValue::from_bytes(value)?);
        }
        let request = request.body(Full::new(body.into()))?;
        wait::within(path, wait::ANSWER, self.reply(request)).await?
    }

    async fn reply(&mut self, request: Request<Full<Bytes>>) -> anyhow::Result<Reply> {
        // The connection may still be busy with the end of the last response.
        self.sender.ready().await?;
        let (head, body) = self.sender.send_request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Reply { status: head.status, headers: head.headers, body })
    }
}

/// GETs one path over a connection of its own.
///
/// # Errors
/// When nothing listens there or the connection breaks.
pub async fn get(address: SocketAddr, path: &str) -> anyhow::Result<Reply> {
    Client::connect(address).await?.get(path, &[]).await
}

/// Sends one request of any method over a connection of its own.
///
/// # Errors
/// As [`get`].
pub async fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &[u8])],
    body: impl Into<Bytes>,
) -> anyhow::Result<Reply> {
    Client::connect(address).await?.send(method, path, headers, body).await
}

/// How many requests ended how.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// 200
    pub allowed: u32,
    /// 429
    pub denied: u32,
    /// Anything else, and broken connections
    pub failed: u32,
}

impl Tally {
    /// Adds one reply.
    pub fn count(&mut self, reply: &anyhow::Result<Reply>) {
        match reply.as_ref().map(|reply| reply.status.as_u16()) {
            Ok(200) => self.allowed += 1,
            Ok(429) => self.denied += 1,
            _ => self.failed += 1,
        }
    }

    fn add(&mut self, other: Tally) {
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.failed += other.failed;
    }
}

/// Sends `requests` GETs with one header, spread over `connections` that work at the same time.
///
/// # Errors
/// When a connection cannot be opened.
pub async fn drive(
    address: SocketAddr,
    header: (&'static str, &str),
    requests: u32,
    connections: u32,
) -> anyhow::Result<Tally> {
    // All at once, so that Envoy deals them out evenly to its workers.
    let mut clients = Vec::new();
    for _ in 0..connections {
        clients.push(Client::connect(address).await?);
    }
    let mut drivers = tokio::task::JoinSet::new();
    for (index, mut client) in (0..connections).zip(clients) {
        let share = requests / connections + u32::from(index < requests % connections);
        let (name, value) = (header.0, header.1.to_owned());
        drivers.spawn(async move {
            let mut tally = Tally::default();
            for _ in 0..share {
                tally.count(&client.get("/", &[(name, value.as_bytes())]).await);
            }
            tally
        });
    }
    let mut total = Tally::default();
    while let Some(tally) = drivers.join_next().await {
        total.add(tally?);
    }
    Ok(total)
}
