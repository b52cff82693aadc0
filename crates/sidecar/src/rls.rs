//! The RLS door: `envoy.service.ratelimit.v3.RateLimitService` over gRPC.

use crate::address::Listener;
use crate::clock;
use crate::engine::Engine;
use crate::metrics::Metrics;
use proto::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tidegate_wire::rls::{RateLimitRequest, RateLimitResponse};
use tidegate_wire::{request_from_wire, response_to_wire};
use tokio::sync::watch;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
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
        self.answer(request.into_inner()).map(Response::new).inspect_err(|_| self.metrics.refused())
    }
}

impl Rls {
    fn answer(&self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let request = request_from_wire(request).map_err(|error| {
            tracing::debug!(%error, "refused a request");
            Status::invalid_argument(error.to_string())
        })?;
        let answer = self.engine.decide(&request, clock::now()).map_err(|error| {
            tracing::debug!(%error, "no decision");
            Status::resource_exhausted(error.to_string())
        })?;
        Ok(response_to_wire(&answer))
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
