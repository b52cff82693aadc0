//! Requests that are all under way at once, over HTTP/2 or HTTP/1.1, each of them accounted for.

use crate::client::Client;
use crate::load::{Headers, Outcome};
use crate::wait;
use h2::client::SendRequest;
use hyper::{Request, Version};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// How requests are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// One connection for each request.
    Http1,
    /// Over this many connections, as streams.
    Http2 {
        /// The connections.
        connections: u64,
    },
}

/// Requests that are sent without waiting for one another.
#[derive(Clone)]
pub struct Burst {
    /// The Envoy.
    pub target: SocketAddr,
    /// How.
    pub protocol: Protocol,
    /// How many.
    pub requests: u64,
    /// The path of each.
    pub path: String,
    /// The headers of each, by its number from 0.
    pub headers: Arc<dyn Fn(u64) -> Headers + Send + Sync>,
}

impl Burst {
    /// Requests of one client, named in the header `x-client`, over HTTP/2.
    #[must_use]
    pub fn of_one_client(target: SocketAddr, client: &str, requests: u64) -> Burst {
        let client = client.as_bytes().to_vec();
        Burst {
            target,
            // A client's library takes many small answers at once for an attack, and hangs up.
            protocol: Protocol::Http2 { connections: requests.div_ceil(200) },
            requests,
            path: "/".to_owned(),
            headers: Arc::new(move |_| vec![("x-client", client.clone())]),
        }
    }

    /// Sends all of them, and waits until each is answered or its connection broke.
    ///
    /// # Errors
    /// When no connection can be opened, or a request is not answered at all.
    pub async fn run(&self) -> anyhow::Result<Outcome> {
        match self.protocol {
            Protocol::Http1 => self.run_http1().await,
            Protocol::Http2 { connections } => self.run_http2(connections).await,
        }
    }

    async fn run_http1(&self) -> anyhow::Result<Outcome> {
        let mut clients = Vec::new();
        for _ in 0..self.requests {
            clients.push(Client::connect(self.target).await?);
        }
        let mut requests = JoinSet::new();
        for (number, mut client) in (0..).zip(clients) {
            let (headers, path) = ((self.headers)(number), self.path.clone());
            requests.spawn(async move {
                let begun = Instant::now();
                let headers: Vec<(&str, &[u8])> =
                    headers.iter().map(|(name, value)| (*name, value.as_slice())).collect();
                let reply = client.get(&path, &headers).await;
                Ok((reply.ok().map(|reply| reply.status.as_u16()), begun.elapsed()))
            });
        }
        collect(requests).await
    }

    async fn run_http2(&self, connections: u64) -> anyhow::Result<Outcome> {
        let mut ready = Vec::new();
        for _ in 0..connections {
            ready.push(connect(self.target).await?);
        }
        let mut requests = JoinSet::new();
        for (index, sender) in (0..).zip(ready) {
            let share = self.clone();
            let numbers: Vec<u64> = (index..self.requests).step_by(connections as usize).collect();
            for number in numbers {
                let (sender, request) = (sender.clone(), share.request(number)?);
                requests.spawn(async move {
                    let begun = Instant::now();
                    let answering = answer(sender, request);
                    let status = wait::within("an answer", wait::ANSWER, answering).await?;
                    Ok((status.ok(), begun.elapsed()))
                });
            }
        }
        collect(requests).await
    }

    fn request(&self, number: u64) -> anyhow::Result<Request<()>> {
        let uri = format!("http://test{}", self.path);
        let mut request = Request::builder().version(Version::HTTP_2).uri(uri);
        for (name, value) in (self.headers)(number) {
            request = request.header(name, value);
        }
        Ok(request.body(())?)
    }
}

/// One connection of HTTP/2.
async fn connect(target: SocketAddr) -> anyhow::Result<SendRequest<bytes::Bytes>> {
    let stream = wait::within("a connection", wait::SOON, TcpStream::connect(target)).await??;
    stream.set_nodelay(true)?;
    let (sender, connection) =
        h2::client::Builder::new().initial_max_send_streams(1_000).handshake(stream).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// The status of the answer, once all of it has come.
async fn answer(sender: SendRequest<bytes::Bytes>, request: Request<()>) -> anyhow::Result<u16> {
    let (response, _) = sender.ready().await?.send_request(request, true)?;
    let (head, mut body) = response.await?.into_parts();
    while let Some(piece) = body.data().await {
        let bytes = piece?.len();
        body.flow_control().release_capacity(bytes)?;
    }
    Ok(head.status.as_u16())
}

/// The status, none of a connection that broke, and how long it took. An error when there is no answer at all.
type Answered = anyhow::Result<(Option<u16>, Duration)>;

async fn collect(mut requests: JoinSet<Answered>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new()?;
    let begun = Instant::now();
    while let Some(answered) = requests.join_next().await {
        let (status, took) = answered??;
        outcome.count_status(status, took);
    }
    outcome.took = begun.elapsed();
    Ok(outcome)
}
