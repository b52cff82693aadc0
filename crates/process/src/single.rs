//! One process that serves all endpoints with several threads.

use crate::Settings;
use crate::endpoints::{DecisionServices, Endpoints};
use crate::lifecycle::Lifecycle;
use crate::service::Service;
use crate::signals::Signals;
use crate::sockets::Endpoint;
use crate::sockets::start::{open_addresses, request_takeover};
use tidegate_servers::http::Http;
use tidegate_servers::{Health, Overload};
use tokio::sync::watch;

/// Serves until a signal to stop, or until another process has taken over.
pub(crate) async fn serve(settings: &Settings, service: &Service) -> anyhow::Result<()> {
    let mut signals = Signals::subscribe()?;
    let mut offer = request_takeover(settings).await?;
    let addresses = open_addresses(settings, offer.as_mut()).await?;

    let (mut decisions, mut http) = (Endpoints::new(), Endpoints::new());
    let (store_watch, store) =
        tidegate_data_dir::maintain(service.store.clone(), settings.data_dir.sync_interval);
    let draining = watch::Sender::new(false);
    let shared = service.shared_health();
    let health = Health { draining: draining.subscribe(), store, workers: None, shared };
    let shared = service.shared(health, Overload::start());
    let services = DecisionServices::new(&shared, settings)?;
    for address in &addresses {
        for listener in address.listeners()? {
            if address.endpoint == Endpoint::Http {
                http.open_http(Http::new(shared.clone(), service.page_with_store()), listener);
            } else {
                decisions.open(address.endpoint, listener, &services);
            }
        }
    }
    tracing::info!("ready");
    let data_dir = &settings.data_dir.dir;
    let lifecycle =
        Lifecycle::start(data_dir, service, (addresses, offer), http, draining, store_watch).await;
    let reload = || {
        service.feed.reload();
        services.rls.reload_files();
    };
    let tending = service.tend();
    let ended = lifecycle.until_stopped(&mut signals, reload, decisions.failed()).await;
    let drain = async {
        decisions.drain(signals.stop()).await;
        service.leave(tending).await;
    };
    lifecycle.shut_down(ended, drain).await
}
