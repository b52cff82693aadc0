//! The HTTP door: `/healthcheck` and `/metrics`.

use crate::address::Listener;
use crate::keeper::StoreHealth;
use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use tokio::sync::watch;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves until it is aborted. `/healthcheck` fails while calls under way are drained, so that a load
/// balancer looks elsewhere, and when no decision can be made any more.
pub(crate) async fn serve(
    listener: Listener,
    registry: Registry,
    health: Health,
) -> anyhow::Result<()> {
    let registry = Arc::new(registry);
    let router = Router::new()
        .route("/healthcheck", get(async move || health.answer()))
        .route("/metrics", get(async move || metrics(registry.clone()).await));
    match listener {
        Listener::Tcp(listener) => axum::serve(listener, router).await?,
        Listener::Unix(listener, _file) => axum::serve(listener, router).await?,
    }
    Ok(())
}

/// What `/healthcheck` goes by.
#[derive(Debug, Clone)]
pub(crate) struct Health {
    pub(crate) draining: watch::Receiver<bool>,
    pub(crate) store: watch::Receiver<StoreHealth>,
}

impl Health {
    fn answer(&self) -> (StatusCode, &'static str) {
        let failing = |text| (StatusCode::INTERNAL_SERVER_ERROR, text);
        if *self.draining.borrow() {
            return failing("draining\n");
        }
        match *self.store.borrow() {
            StoreHealth::Lost => failing("a file of the data directory was cut short\n"),
            StoreHealth::Whole | StoreHealth::Moved => (StatusCode::OK, "OK\n"),
        }
    }
}

async fn metrics(registry: Arc<Registry>) -> axum::response::Response {
    // The store is looked through for it, which may take milliseconds.
    let encoded = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).map(|()| text)
    });
    match encoded.await {
        Ok(Ok(text)) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        _ => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
