//! A client of the rate limit service.

use crate::sidecar::Sidecar;
use crate::wait;
use std::path::Path;
use tidegate_wire::rls::{
    Code, DescriptorEntry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use tidegate_wire::{RLS_METHOD, RLS_SERVICE};
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

/// More undecided answers than this are a fault.
const UNDECIDED_MAX: u32 = 50;

/// One connection to the service; clones share it.
#[derive(Clone, Debug)]
pub struct Rls(pub Channel);

impl Rls {
    /// Connects to the socket of the sidecar that was started in `dir`.
    ///
    /// # Errors
    /// When nothing listens there.
    pub async fn at(dir: &Path) -> anyhow::Result<Rls> {
        let uri = format!("unix:{}", Sidecar::socket(dir).display());
        let endpoint = Endpoint::from_shared(uri)?;
        Ok(Rls(wait::within("a connection", wait::SOON, endpoint.connect()).await??))
    }

    /// Asks.
    ///
    /// # Errors
    /// The status with which the service refuses, or the connection breaks.
    pub async fn call(
        &self,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, tonic::Status> {
        self.call_with(request, &[]).await
    }

    /// Asks, with metadata.
    ///
    /// # Errors
    /// As [`Rls::call`].
    ///
    /// # Panics
    /// When a value of the metadata is not ASCII.
    pub async fn call_with(
        &self,
        request: RateLimitRequest,
        metadata: &[(&'static str, String)],
    ) -> Result<RateLimitResponse, tonic::Status> {
        let mut request = tonic::Request::new(request);
        for (name, value) in metadata {
            request.metadata_mut().insert(*name, value.parse().expect("ASCII"));
        }
        let asking = async {
            let mut grpc = self.ready().await?;
            grpc.unary(request, method(), ProstCodec::default()).await
        };
        let answered = wait::within("an answer", wait::ANSWER, asking).await;
        let answered = answered.map_err(|error| tonic::Status::cancelled(error.to_string()))?;
        Ok(answered?.into_inner())
    }

    /// A client that may begin a call.
    async fn ready(&self) -> Result<tonic::client::Grpc<Channel>, tonic::Status> {
        let mut grpc = tonic::client::Grpc::new(self.0.clone());
        grpc.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
        Ok(grpc)
    }

    /// Asks again while a busy machine keeps the service from a decision: a thread that holds the counter may be without
    /// a processor for longer than others wait, and many calls at once may be too many. Nothing is charged then.
    /// After fifty such answers it returns the last.
    ///
    /// # Errors
    /// As [`Rls::call`].
    pub async fn decide(
        &self,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, tonic::Status> {
        self.decide_with(request, &[]).await
    }

    /// The same with metadata.
    ///
    /// # Errors
    /// As [`Rls::call_with`].
    ///
    /// # Panics
    /// As that.
    pub async fn decide_with(
        &self,
        request: RateLimitRequest,
        metadata: &[(&'static str, String)],
    ) -> Result<RateLimitResponse, tonic::Status> {
        let mut looks = wait::looks();
        let deciding = async {
            for _ in 1..UNDECIDED_MAX {
                looks.tick().await;
                match self.call_with(request.clone(), metadata).await {
                    Err(status) if is_undecided(&status) => {}
                    decided => return decided,
                }
            }
            self.call_with(request, metadata).await
        };
        let decided = wait::within("a decision", wait::SOON, deciding).await;
        decided.unwrap_or_else(|error| Err(tonic::Status::aborted(error.to_string())))
    }

    /// Begins a call whose message never comes. A call about these entries follows on the same connection, so its
    /// answer shows that the first one has arrived.
    ///
    /// # Errors
    /// As [`Rls::call`], for the second one.
    pub async fn hold(
        &self,
        about: &[(&str, &str)],
    ) -> Result<JoinHandle<Result<(), tonic::Status>>, tonic::Status> {
        let (begun, is_begun) = tokio::sync::oneshot::channel();
        let held = tokio::spawn({
            let rls = self.clone();
            async move {
                // A body is first looked at when its headers were sent.
                let mut begun = Some(begun);
                let nothing = std::iter::from_fn(move || {
                    begun.take().map(|begun| begun.send(()));
                    None::<RateLimitRequest>
                });
                let messages = tokio_stream::StreamExt::chain(
                    tokio_stream::iter(nothing),
                    tokio_stream::pending(),
                );
                let codec = ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
                let request = tonic::Request::new(messages);
                rls.ready().await?.client_streaming(request, method(), codec).await.map(|_| ())
            }
        });
        let begun = wait::within("a call to begin", wait::SOON, is_begun).await;
        begun.map_err(|error| tonic::Status::cancelled(error.to_string()))?.map_err(|_| {
            tonic::Status::cancelled("the call ended before its message was asked for")
        })?;
        self.ask(about).await?;
        Ok(held)
    }

    /// Asks domain `test` about descriptors of one entry each.
    ///
    /// # Errors
    /// As [`Rls::call`].
    pub async fn ask(&self, about: &[(&str, &str)]) -> Result<RateLimitResponse, tonic::Status> {
        self.call(request("test", about)).await
    }
}

/// Has all clients ask about one entry at once, each this many times; returns the number of allowed calls.
///
/// # Errors
/// As [`Rls::call`].
pub async fn allowed_at_once(
    clients: Vec<Rls>,
    calls: u32,
    entry: (&'static str, &'static str),
) -> anyhow::Result<u32> {
    let mut callers = tokio::task::JoinSet::new();
    for rls in clients {
        callers.spawn(async move {
            let mut allowed = 0;
            for _ in 0..calls {
                let answer = rls.decide(request("test", &[entry])).await?;
                allowed += u32::from(answer.overall_code() == Code::Ok);
            }
            anyhow::Ok(allowed)
        });
    }
    let mut allowed = 0;
    while let Some(caller) = callers.join_next().await {
        allowed += caller??;
    }
    Ok(allowed)
}

/// As [`allowed_at_once`], and then until none of them is allowed another call: of several sidecars, one whose clients are
/// done first may hold tokens that it took ahead.
///
/// # Errors
/// As [`Rls::call`].
pub async fn allowed_in_all(
    clients: Vec<Rls>,
    calls: u32,
    entry: (&'static str, &'static str),
) -> anyhow::Result<u32> {
    let mut allowed = allowed_at_once(clients.clone(), calls, entry).await?;
    loop {
        match allowed_at_once(clients.clone(), 1, entry).await? {
            0 => return Ok(allowed),
            more => allowed += more,
        }
    }
}

/// A request about descriptors of one entry each.
#[must_use]
pub fn request(domain: &str, about: &[(&str, &str)]) -> RateLimitRequest {
    let descriptor = |(key, value): &(&str, &str)| RateLimitDescriptor {
        entries: vec![entry(key, value)],
        ..Default::default()
    };
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: about.iter().map(descriptor).collect(),
        hits_addend: 0,
    }
}

/// Whether the service had too much to do, or other threads held the counter.
fn is_undecided(status: &tonic::Status) -> bool {
    match status.code() {
        tonic::Code::Aborted => true,
        tonic::Code::ResourceExhausted => {
            let crowded = "no lock or writer slot became free within";
            status.message() == "overloaded" || status.message().starts_with(crowded)
        }
        _ => false,
    }
}

fn method() -> hyper::http::uri::PathAndQuery {
    format!("/{RLS_SERVICE}/{RLS_METHOD}").parse().expect("a path")
}

fn entry(key: &str, value: &str) -> DescriptorEntry {
    DescriptorEntry { key: key.to_owned(), value: value.to_owned() }
}
