//! One process that serves all endpoints with several threads.

use crate::Settings;
use crate::endpoints::{DecisionServices, Endpoints};
use crate::lifecycle::Lifecycle;
use crate::service::Service;
use crate::signals::Signals;
use crate::sockets::BoundAddress;
use crate::sockets::start::open_or_take_over;
use std::sync::Arc;
use tidegate_servers::http::TopPage;
use tidegate_servers::{Health, Overload};
use tokio::sync::watch;

/// Serves until a signal to stop, or until another process has taken over, at the addresses that are `bound` already if
/// any are.
pub(crate) async fn serve(
    settings: &Settings,
    service: &Service,
    bound: Option<Vec<BoundAddress>>,
) -> anyhow::Result<()> {
    let mut signals = Signals::subscribe()?;
    let (addresses, offer) = open_or_take_over(settings, bound).await?;

    let (mut decisions, mut http) = (Endpoints::new(), Endpoints::of_http(settings)?);
    let http_tls = http.tls();
    let (store_watch, store) =
        tidegate_data_dir::maintain(service.store.clone(), settings.data_dir.sync_interval);
    let draining = watch::Sender::new(false);
    let shared = service.shared_health();
    let cold = service.cold_health();
    let health = Health { draining: draining.subscribe(), store, workers: None, shared, cold };
    let shared = service.shared(health, Overload::start());
    let services = DecisionServices::new(&shared, settings)?;
    for address in &addresses {
        for listener in address.listeners()? {
            if address.endpoint.decides() {
                decisions.open(address.endpoint, listener, &services);
            } else {
                let top = service.top.clone();
                let top = top.map(|top| Arc::new(top) as Arc<dyn TopPage>);
                let pages = (service.page_with_store(), top);
                http.open_pages(address.endpoint, listener, (&shared, service, settings), pages);
            }
        }
    }
    tracing::info!("ready");
    let data_dir = settings.data_dir.dir.as_deref();
    let lifecycle =
        Lifecycle::start(data_dir, service, (addresses, offer), http, draining, store_watch).await;
    let reload = || {
        service.feed.reload();
        services.rls.reload_files();
        http_tls.iter().for_each(|tls| tls.reload());
    };
    service.start_moves()?;
    let (tending, recording) = (service.tend(), service.record());
    let ended = lifecycle.until_stopped(&mut signals, reload, decisions.failed()).await;
    let drain = async {
        decisions.drain(signals.stop()).await;
        service.leave(tending).await;
        service.finish(recording).await;
    };
    lifecycle.shut_down(ended, drain).await
}
