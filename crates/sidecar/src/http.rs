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

/// Serves until `stop` says so.
pub(crate) async fn serve(
    listener: Listener,
    registry: Registry,
    stop: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let registry = Arc::new(registry);
    let draining = stop.clone();
    let router = Router::new()
        .route("/healthcheck", get(async move || healthcheck(*draining.borrow())))
        .route("/metrics", get(async move || metrics(&registry)));
    let mut stop = stop;
    let stopped = async move {
        // An error means that the sender is gone, which is a stop as well.
        let _ = stop.wait_for(|stop| *stop).await;
    };
    match listener {
        Listener::Tcp(listener) => {
            axum::serve(listener, router).with_graceful_shutdown(stopped).await?;
        }
        Listener::Unix(listener, _file) => {
            axum::serve(listener, router).with_graceful_shutdown(stopped).await?;
        }
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
