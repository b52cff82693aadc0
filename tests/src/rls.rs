//! A client of the rate limit service.

use crate::sidecar::Sidecar;
use std::path::Path;
use tidegate_wire::rls::{
    Code, DescriptorEntry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use tidegate_wire::{RLS_METHOD, RLS_SERVICE};
use tonic::transport::{Channel, Endpoint};

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
        Ok(Rls(Endpoint::from_shared(uri)?.connect().await?))
    }

    /// Asks.
    ///
    /// # Errors
    /// The status with which the service refuses, or the connection breaks.
    pub async fn call(
        &self,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, tonic::Status> {
        let mut grpc = tonic::client::Grpc::new(self.0.clone());
        grpc.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
        let path = format!("/{RLS_SERVICE}/{RLS_METHOD}").parse().expect("a path");
        let codec = tonic_prost::ProstCodec::default();
        let answer = grpc.unary(tonic::Request::new(request), path, codec).await?;
        Ok(answer.into_inner())
    }

    /// Asks domain `test` about descriptors of one entry each.
    ///
    /// # Errors
    /// As [`Rls::call`].
    pub async fn ask(&self, about: &[(&str, &str)]) -> Result<RateLimitResponse, tonic::Status> {
        self.call(request("test", about)).await
    }
}

/// Lets all clients ask at once about one entry, each so often; returns the number of allowed calls.
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
                let answer = rls.ask(&[entry]).await?;
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

fn entry(key: &str, value: &str) -> DescriptorEntry {
    DescriptorEntry { key: key.to_owned(), value: value.to_owned() }
}
