//! One process that serves everything, by threads.

use super::doors::Doors;
use super::owner::Owner;
use super::signals::Signals;
use super::sockets::Door;
use super::{Core, OwnMetrics, open_places, take_over};
use crate::cli::ServeOptions;
use crate::health::Health;
use crate::keeper;
use crate::overload::Overload;
use tokio::sync::watch;

/// Serves until told to stop, or until another process has taken over.
pub(super) async fn serve(options: &ServeOptions, core: &Core) -> anyhow::Result<()> {
    let mut signals = Signals::listen()?;
    let mut offer = take_over(options).await?;
    let places = open_places(options, offer.as_mut()).await?;

    let (mut doors, mut http) = (Doors::new(), Doors::new());
    let (keeper, store) = keeper::keep(core.engine.clone(), options.store.sync_interval);
    let draining = watch::Sender::new(false);
    let health = Health { draining: draining.subscribe(), store, workers: None };
    let overload = Overload::start();
    let parts = core.parts(health.clone(), overload.clone(), options)?;
    for place in &places {
        for listener in place.listeners()? {
            if place.door == Door::Http {
                let page = OwnMetrics::with_store(core);
                http.open_http(core.http(page, health.clone(), overload.clone()), listener);
            } else {
                doors.open(place.door, listener, &parts);
            }
        }
    }
    tracing::info!("ready");
    let data_dir = &options.store.data_dir;
    let owner = Owner::ready(data_dir, core, (places, offer), http, draining, keeper).await;
    let reload = || {
        core.reload.ask();
        parts.rls.reload_files();
    };
    let ended = owner.until_told(&mut signals, reload, doors.failed()).await;
    owner.end(ended, doors.drain(signals.stop())).await
}
