//! The HTTP door: `/healthcheck` and `/metrics`.

use crate::address::Listener;
use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use tokio::sync::watch;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves until it is aborted; `/healthcheck` fails once `draining` says so, so that a load
/// balancer looks elsewhere while calls under way are still answered.
pub(crate) async fn serve(
    listener: Listener,
    registry: Registry,
    draining: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let registry = Arc::new(registry);
    let router = Router::new()
        .route("/healthcheck", get(async move || healthcheck(*draining.borrow())))
        .route("/metrics", get(async move || metrics(&registry)));
    match listener {
        Listener::Tcp(listener) => axum::serve(listener, router).await?,
        Listener::Unix(listener, _file) => axum::serve(listener, router).await?,
    }
    Ok(())
}

fn healthcheck(draining: bool) -> (StatusCode, &'static str) {
    if draining {
        (StatusCode::INTERNAL_SERVER_ERROR, "draining\n")
    } else {
        (StatusCode::OK, "OK\n")
    }
}

fn metrics(registry: &Registry) -> axum::response::Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, registry) {
        Ok(()) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
