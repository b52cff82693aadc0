//! The RLS door: `envoy.service.ratelimit.v3.RateLimitService` over gRPC.

use crate::address::Listener;
use crate::clock;
use crate::engine::Engine;
use crate::metrics::Metrics;
use proto::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tidegate_core::{Answer, Descriptor, Direction};
use tidegate_store::UpdateError;
use tidegate_wire::rls::{RateLimitRequest, RateLimitResponse};
use tidegate_wire::{
    WireError, lease_ask_from, request_from_wire, response_to_wire, returned_from,
};
use tokio::sync::watch;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::metadata::MetadataMap;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// The glue that the build generates.
#[expect(unreachable_pub, unused_qualifications, reason = "generated")]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/envoy.service.ratelimit.v3.RateLimitService.rs"));
}

/// Above what the filter sends (128 descriptors of ten values, each at most 1 KiB that U+FFFD may
/// make 3), and what Envoy's own filter makes of 60 KiB of headers in a handful of descriptors.
const REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Out of file descriptors, an accept fails at once and again: without a pause that would take a
/// whole core.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

async fn pause_after_error<T>(accepted: io::Result<T>) -> io::Result<T> {
    if let Err(error) = &accepted {
        tracing::warn!(%error, "a connection was not accepted");
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
    accepted
}

/// Why a call has no answer.
#[derive(Debug)]
enum Refused {
    /// It makes no sense.
    Invalid(String),
    /// The store could not be used.
    Undecided(UpdateError),
}

impl From<WireError> for Refused {
    fn from(error: WireError) -> Self {
        Refused::Invalid(error.to_string())
    }
}

impl From<UpdateError> for Refused {
    fn from(error: UpdateError) -> Self {
        Refused::Undecided(error)
    }
}

/// The service; clones share the engine.
#[derive(Clone)]
pub(crate) struct Rls {
    pub(crate) engine: Arc<Engine>,
    pub(crate) metrics: Metrics,
}

#[tonic::async_trait]
impl RateLimitService for Rls {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let answer = self.answer(request, &metadata);
        answer.map(Response::new).inspect_err(|_| self.metrics.refused())
    }
}

impl Rls {
    fn answer(
        &self,
        request: RateLimitRequest,
        metadata: &MetadataMap,
    ) -> Result<RateLimitResponse, Status> {
        let answer = self.decide(request, metadata).map_err(|refused| match refused {
            Refused::Invalid(message) => {
                tracing::debug!(error = message, "refused a request");
                Status::invalid_argument(message)
            }
            Refused::Undecided(error) => {
                tracing::debug!(%error, "no decision");
                Status::resource_exhausted(error.to_string())
            }
        })?;
        Ok(response_to_wire(&answer))
    }

    fn decide(&self, request: RateLimitRequest, metadata: &MetadataMap) -> Result<Answer, Refused> {
        let request = request_from_wire(request)?;
        let descriptors = request.descriptors.len();
        let value_of = |name: &'static str| metadata.get(name).map(|value| value.as_bytes());
        if let Some(back) = returned_from(descriptors, value_of)? {
            let takes = |descriptor: &Descriptor| descriptor.direction == Direction::Take;
            if let Some(index) = request.descriptors.iter().position(takes) {
                return Err(Refused::Invalid(format!(
                    "descriptors[{index}]: a return (metadata tidegate-return) takes no hits; set \
                     is_negative_hits"
                )));
            }
            return Ok(self.engine.give_back(&request, &back, clock::now())?);
        }
        Ok(match lease_ask_from(descriptors, value_of)? {
            Some(ask) => self.engine.decide_leasing(&request, &ask, clock::now())?,
            None => self.engine.decide(&request, clock::now())?,
        })
    }

    /// Serves until `stop` says so, then lets calls under way finish.
    pub(crate) async fn serve(
        self,
        listener: Listener,
        mut stop: watch::Receiver<bool>,
    ) -> anyhow::Result<()> {
        let stopped = async move {
            // An error means that the sender is gone, which is a stop as well.
            let _ = stop.wait_for(|stop| *stop).await;
        };
        let service =
            RateLimitServiceServer::new(self).max_decoding_message_size(REQUEST_BYTES_MAX);
        let router = Server::builder().add_service(service);
        match listener {
            Listener::Tcp(listener) => {
                let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
                let incoming = incoming.then(pause_after_error);
                router.serve_with_incoming_shutdown(incoming, stopped).await?;
            }
            Listener::Unix(listener, _file) => {
                let incoming = UnixListenerStream::new(listener).then(pause_after_error);
                router.serve_with_incoming_shutdown(incoming, stopped).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Modes;
    use crate::rules::{self, SameDomain};
    use tidegate_core::Nanos;
    use tidegate_store::{Cluster, Geometry, Options};
    use tidegate_wire::rls::{Code, DescriptorEntry, RateLimitDescriptor};
    use tonic::Code as GrpcCode;

    fn rls(dir: &tempfile::TempDir) -> Rls {
        let limits = dir.path().join("limits.yaml");
        let limit = "rate_limit: {unit: day, requests_per_unit: 100}";
        std::fs::write(&limits, format!("domain: d\ndescriptors:\n- {{key: k, {limit}}}")).unwrap();
        let rules = rules::load(&limits, SameDomain::Refuse).unwrap().rules;
        let options = Options::narrow(Geometry::by_capacity(64, 0.8).unwrap());
        let store = Cluster::open(&dir.path().join("data"), &options).unwrap();
        let modes = Modes { lease_ttl: Some(Nanos::from_secs(2)), ..Modes::default() };
        let metrics = Metrics::default();
        let engine = Engine::new(store, rules, modes, metrics.clone()).unwrap();
        Rls { engine: Arc::new(engine), metrics }
    }

    fn call(
        rls: &Rls,
        hits_addend: u32,
        is_negative_hits: bool,
        metadata: &[(&'static str, &str)],
    ) -> Result<RateLimitResponse, Status> {
        let entries = vec![DescriptorEntry { key: "k".into(), value: "v".into() }];
        let descriptor =
            RateLimitDescriptor { entries, is_negative_hits, ..RateLimitDescriptor::default() };
        let request =
            RateLimitRequest { domain: "d".into(), descriptors: vec![descriptor], hits_addend };
        let mut map = MetadataMap::new();
        for (name, value) in metadata {
            map.insert(*name, value.parse().unwrap());
        }
        rls.answer(request, &map)
    }

    const CALL: (&str, &str) = ("tidegate-call", "7");
    const ASK: [(&str, &str); 4] =
        [("tidegate-lease", "20"), ("tidegate-proxy", "ab"), ("tidegate-clock", "5"), CALL];

    #[test]
    fn a_lease_is_had_and_given_back_by_words_of_metadata() {
        let dir = tempfile::TempDir::new().unwrap();
        let rls = rls(&dir);
        let status = |answer: Result<RateLimitResponse, Status>| {
            let mut answer = answer.unwrap();
            assert_eq!(answer.overall_code, i32::from(Code::Ok));
            answer.statuses.remove(0)
        };
        assert_eq!(status(call(&rls, 1, false, &[])).quota, None);
        let leased = status(call(&rls, 1, false, &ASK));
        let quota = leased.quota.unwrap();
        assert_eq!((quota.requests, leased.limit_remaining), (20, 78));
        let returned = status(call(&rls, 15, true, &[("tidegate-return", &quota.id), CALL]));
        assert_eq!((returned.limit_remaining, returned.quota), (93, None));
        let unknown = status(call(&rls, 15, true, &[("tidegate-return", "12ab"), CALL]));
        assert_eq!(unknown.limit_remaining, 93);
    }

    #[test]
    fn metadata_that_makes_no_sense_is_an_invalid_argument() {
        #[track_caller]
        fn check(is_negative_hits: bool, metadata: &[(&'static str, &str)], message: &str) {
            let dir = tempfile::TempDir::new().unwrap();
            let rls = rls(&dir);
            let refused = call(&rls, 1, is_negative_hits, metadata).unwrap_err();
            assert_eq!((refused.code(), refused.message()), (GrpcCode::InvalidArgument, message));
            let answer = call(&rls, 1, false, &[]).unwrap();
            assert_eq!(answer.statuses[0].limit_remaining, 99, "nothing was taken");
        }
        check(
            false,
            &[("tidegate-lease", "1,2"), ASK[1], ASK[2], CALL],
            "metadata tidegate-lease: \"1,2\" is not one number, or one for each descriptor",
        );
        check(false, &[ASK[0], ASK[2], CALL], "metadata tidegate-proxy: \"\" is not 16 hex digits");
        check(
            true,
            &[("tidegate-return", "x")],
            "metadata tidegate-return: \"x\" is not 16 hex digits for each descriptor",
        );
        check(
            true,
            &[("tidegate-return", "1")],
            "metadata tidegate-call: \"\" is not 16 hex digits",
        );
        check(
            false,
            &[("tidegate-return", "1"), CALL],
            "descriptors[0]: a return (metadata tidegate-return) takes no hits; set is_negative_hits",
        );
    }
}
