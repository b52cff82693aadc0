//! One process that serves everything, by threads.

use crate::Settings;
use crate::endpoints::Endpoints;
use crate::lifecycle::Lifecycle;
use crate::service::Service;
use crate::signals::Signals;
use crate::sockets::Endpoint;
use crate::start::{open_addresses, take_over};
use tidegate_servers::Health;
use tidegate_servers::Overload;
use tokio::sync::watch;

/// Serves until told to stop, or until another process has taken over.
pub(crate) async fn serve(settings: &Settings, service: &Service) -> anyhow::Result<()> {
    let mut signals = Signals::listen()?;
    let mut offer = take_over(settings).await?;
    let places = open_addresses(settings, offer.as_mut()).await?;

    let (mut doors, mut http) = (Endpoints::new(), Endpoints::new());
    let (keeper, store) =
        tidegate_data_dir::maintain(service.store().clone(), settings.data_dir.sync_interval);
    let draining = watch::Sender::new(false);
    let health = Health { draining: draining.subscribe(), store, workers: None };
    let overload = Overload::start();
    let parts = service.parts(health.clone(), overload.clone(), settings)?;
    for place in &places {
        for listener in place.listeners()? {
            if place.door == Endpoint::Http {
                let page = service.page_with_store();
                http.open_http(service.http(page, health.clone(), overload.clone()), listener);
            } else {
                doors.open(place.door, listener, &parts);
            }
        }
    }
    tracing::info!("ready");
    let data_dir = &settings.data_dir.dir;
    let lifecycle =
        Lifecycle::ready(data_dir, service, (places, offer), http, draining, keeper).await;
    let reload = || {
        service.feed.reload();
        parts.rls.reload_files();
    };
    let ended = lifecycle.until_told(&mut signals, reload, doors.failed()).await;
    lifecycle.end(ended, doors.drain(signals.stop())).await
}
