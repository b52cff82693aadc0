//! One process that serves everything, by threads.

use super::doors::{Doors, Parts, open_http};
use super::signals::{Asked, Signals};
use super::sockets::{Door, Place};
use super::takeover::{self, UnderWay};
use super::{Core, Ended, OwnMetrics, open_places, take_over, tell_old};
use crate::cli::ServeOptions;
use crate::health::Health;
use crate::keeper;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Serves until told to stop, or until another process has taken over.
pub(super) async fn serve(options: &ServeOptions, core: &Core) -> anyhow::Result<()> {
    let mut signals = Signals::listen()?;
    let mut offer = take_over(options).await?;
    let mut places = open_places(options, offer.as_mut()).await?;

    let mut doors = Doors::new();
    let engine = core.engine.clone();
    let (keeper, store) = keeper::keep(engine.clone(), options.store.sync_interval);
    let draining = watch::Sender::new(false);
    let health = Health { draining: draining.subscribe(), store, workers: None };
    let rls = core.rls(health.clone(), options)?;
    let parts = Parts { rls, frs: core.frs(options) };
    let mut http = Vec::new();
    for place in &places {
        for listener in place.listeners()? {
            if place.door == Door::Http {
                http.push(open_http(
                    listener,
                    core.http(OwnMetrics::with_store(core), health.clone()),
                ));
            } else {
                doors.open(place.door, listener, &parts);
            }
        }
    }
    let reloading = tokio::spawn(core.reload.clone().run(engine));
    tracing::info!("ready");
    tell_old(offer, &mut places).await;

    let under_way = UnderWay::default();
    let ended = run(options, core, (&places, &under_way), &mut doors, &mut signals).await;
    reloading.abort();
    if let Ok(Ended::TakenOver(taken)) = &ended {
        tracing::info!("a new process has taken over");
        close(&mut http).await;
        taken.iter().for_each(|&place| places[place].disown());
    } else {
        draining.send_replace(true);
        under_way.leave(&mut places);
    }
    // These would take connections that nobody accepts any more.
    drop(places);
    doors.drain(signals.stop()).await;
    keeper.abort();
    close(&mut http).await;
    ended.map(|_| ())
}

async fn run(
    options: &ServeOptions,
    core: &Core,
    (places, under_way): (&[Place], &UnderWay),
    doors: &mut Doors,
    signals: &mut Signals,
) -> anyhow::Result<Ended> {
    let mut given = std::pin::pin!(takeover::given(&options.store.data_dir, places, under_way));
    loop {
        tokio::select! {
            asked = signals.next() => match asked {
                Asked::Stop => return Ok(Ended::Told),
                Asked::Reload => core.reload.ask(),
            },
            taken = &mut given => return Ok(Ended::TakenOver(taken)),
            failed = doors.failed() => return failed.map(|()| Ended::Told),
        }
    }
}

/// Stops accepting.
pub(super) async fn close(doors: &mut Vec<JoinHandle<anyhow::Result<()>>>) {
    for door in doors.drain(..) {
        door.abort();
        let _ = door.await;
    }
}
