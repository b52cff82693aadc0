//! A rate limit service that records what it is asked, and answers by a pure function of it, so that
//! both filters get the same answer to the same descriptors. It grants no leases.

use super::blocks::OTHER;
use super::configuration::LATE;
use super::differences::of_ours;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tidegate_core::fingerprint;
use tidegate_wire::rls::{
    Code, DescriptorStatus, RateLimit, RateLimitOverride, RateLimitResponse, RateLimitUnit,
};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic::codegen::{Body, BoxFuture, Service, StdError, http};
use tonic_prost::ProstCodec;

/// One of the descriptors of a call.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Descriptor {
    /// Keys and values in order.
    pub(super) entries: Vec<(String, Vec<u8>)>,
    pub(super) hits: u64,
    /// The limit that overrides the service's: the number and the unit.
    pub(super) limit: Option<(u32, i32)>,
    pub(super) is_refund: bool,
    /// Whether the call has the domain of a `per_route`.
    pub(super) is_elsewhere: bool,
}

impl Descriptor {
    /// Whether it is sent at the end of a stream.
    pub(super) fn is_late(&self) -> bool {
        self.entries.first().is_some_and(|(key, _)| key == LATE)
    }
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Descriptor { hits, limit, is_refund, is_elsewhere, .. } = self;
        write!(f, "{hits} hits, limit {limit:?}")?;
        write!(f, ", refund {is_refund}, elsewhere {is_elsewhere}:")?;
        self.entries.iter().try_for_each(|(key, value)| match value.get(..80) {
            Some(start) => write!(f, " {key}={}... ({} bytes)", start.escape_ascii(), value.len()),
            None => write!(f, " {key}={}", value.escape_ascii()),
        })
    }
}

/// The hits of descriptors, which have none of their own.
pub(super) type Debits = BTreeMap<Descriptor, u64>;

/// The calls of each domain, in order: their descriptors.
type Calls = BTreeMap<String, Vec<Vec<Descriptor>>>;

/// The service. It ends when it is dropped.
pub(super) struct Recorder {
    pub(super) address: SocketAddr,
    calls: Arc<Mutex<Calls>>,
    serving: JoinHandle<()>,
}

impl Recorder {
    pub(super) async fn start() -> anyhow::Result<Recorder> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let calls = Arc::new(Mutex::new(Calls::new()));
        let server = tonic::transport::Server::builder().add_service(Rls(calls.clone()));
        let connections = tokio_stream::wrappers::TcpListenerStream::new(listener);
        let serving = tokio::spawn(async move {
            // It ends with the test.
            let _ = server.serve_with_incoming(connections).await;
        });
        Ok(Recorder { address, calls, serving })
    }

    /// The calls of a domain since the last time.
    pub(super) fn take(&self, domain: &str) -> Vec<Vec<Descriptor>> {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.remove(domain).unwrap_or_default()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Denies a third of all descriptors, whichever filter asks.
pub(super) fn is_denied(descriptor: &Descriptor) -> bool {
    !descriptor.entries.is_empty() && hash(descriptor).is_multiple_of(3)
}

/// The same for the descriptors of both filters.
fn hash(descriptor: &Descriptor) -> u128 {
    let Descriptor { entries, hits, limit, .. } = of_ours(descriptor);
    fingerprint(format!("{entries:?} {hits} {limit:?}").as_bytes())
}

/// A limit for two thirds of all descriptors.
fn status(descriptor: &Descriptor) -> DescriptorStatus {
    let code = if is_denied(descriptor) { Code::OverLimit } else { Code::Ok }.into();
    let hash = u64::try_from(hash(descriptor) >> 64).unwrap_or_default();
    let part = |shift: u32| u32::try_from((hash >> shift) & 0xff).unwrap_or_default();
    if descriptor.entries.is_empty() || part(0) < 85 {
        return DescriptorStatus { code, ..Default::default() };
    }
    let limit = RateLimit {
        requests_per_unit: 1 + part(8),
        unit: RateLimitUnit::Hour.into(),
        // Ours would name it otherwise.
        name: "named".to_owned(),
    };
    DescriptorStatus {
        code,
        current_limit: Some(limit),
        // With others the filters differ ("`x-ratelimit-remaining` when a request ...").
        limit_remaining: if is_denied(descriptor) { 0 } else { 1 + part(24) % 8 },
        duration_until_reset: Some(prost_types::Duration { seconds: part(32).into(), nanos: 0 }),
        ..Default::default()
    }
}

fn answer(descriptors: &[Descriptor]) -> RateLimitResponse {
    let is_denied = descriptors.iter().any(is_denied);
    RateLimitResponse {
        overall_code: if is_denied { Code::OverLimit } else { Code::Ok }.into(),
        statuses: descriptors.iter().map(status).collect(),
        ..Default::default()
    }
}

#[derive(Clone)]
struct Rls(Arc<Mutex<Calls>>);

impl Rls {
    fn ask(&self, request: Request) -> RateLimitResponse {
        // An absent number is 1, and so is 0 for the whole request.
        let whole = u64::from(request.hits_addend.max(1));
        let (domain, is_elsewhere) = match request.domain.strip_suffix(OTHER) {
            Some(domain) => (domain.to_owned(), true),
            None => (request.domain, false),
        };
        let descriptor = |descriptor: RequestDescriptor| Descriptor {
            entries: descriptor
                .entries
                .into_iter()
                .map(|entry| (String::from_utf8_lossy(&entry.key).into_owned(), entry.value))
                .collect(),
            hits: descriptor.hits_addend.unwrap_or(whole),
            limit: descriptor.limit.map(|limit| (limit.requests_per_unit, limit.unit)),
            is_refund: descriptor.is_negative_hits,
            is_elsewhere,
        };
        let descriptors: Vec<_> = request.descriptors.into_iter().map(descriptor).collect();
        let response = answer(&descriptors);
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        calls.entry(domain).or_default().push(descriptors);
        response
    }
}

impl tonic::server::NamedService for Rls {
    const NAME: &'static str = tidegate_wire::RLS_SERVICE;
}

impl<B> Service<http::Request<B>> for Rls
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let rls = self.clone();
        let asked = tower::service_fn(move |request: tonic::Request<Request>| {
            let response = rls.ask(request.into_inner());
            async { Ok(tonic::Response::new(response)) }
        });
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(ProstCodec::default());
            Ok(grpc.unary(asked, request).await)
        })
    }
}

/// `RateLimitRequest`. Envoy sends values that are not UTF-8, which only bytes can hold.
#[derive(Clone, PartialEq, prost::Message)]
struct Request {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<RequestDescriptor>,
    #[prost(uint32, tag = "3")]
    hits_addend: u32,
}

/// `RateLimitDescriptor`.
#[derive(Clone, PartialEq, prost::Message)]
struct RequestDescriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<RequestEntry>,
    #[prost(message, optional, tag = "2")]
    limit: Option<RateLimitOverride>,
    #[prost(message, optional, tag = "3")]
    hits_addend: Option<u64>,
    #[prost(bool, tag = "4")]
    is_negative_hits: bool,
}

/// `RateLimitDescriptor.Entry`.
#[derive(Clone, PartialEq, prost::Message)]
struct RequestEntry {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}
