//! The addresses of a service as it starts: opened, or taken over from the process that serves until now.

use crate::Settings;
use crate::sockets::{self, BoundAddress};
use crate::takeover::{self, Offer};
use anyhow::Context;

/// Asks whoever serves for the sockets, if told to.
pub(crate) async fn take_over(settings: &Settings) -> anyhow::Result<Option<Offer>> {
    if !settings.takeover {
        return Ok(None);
    }
    let data_dir = settings.data_dir.dir.clone();
    let asked = tokio::task::spawn_blocking(move || takeover::ask(&data_dir)).await?;
    let offer =
        asked.context("cannot take over from the process that serves this data directory")?;
    if offer.is_none() {
        tracing::info!("nobody serves this data directory, so there is nothing to take over");
    }
    Ok(offer)
}

/// Opens every address, or takes it from `offer`.
pub(crate) async fn open_addresses(
    settings: &Settings,
    mut offer: Option<&mut Offer>,
) -> anyhow::Result<Vec<BoundAddress>> {
    let mut places = Vec::new();
    for (door, address) in sockets::wanted(settings)? {
        let inherited = match &mut offer {
            Some(offer) => offer.take(door, &address).await,
            None => None,
        };
        let place = match inherited {
            Some(place) => place,
            None => BoundAddress::open(door, &address).await?,
        };
        tracing::info!(door = door.name(), address = place.describe(), "listening");
        places.push(place);
    }
    Ok(places)
}

/// Tells the process that served until now that this one does.
pub(crate) async fn confirm(offer: Option<Offer>, places: &mut [BoundAddress]) {
    let Some(offer) = offer else { return };
    places.iter_mut().for_each(BoundAddress::own);
    match tokio::task::spawn_blocking(move || offer.serving()).await {
        Ok(Ok(())) => tracing::info!("took over; the old process drains"),
        Ok(Err(error)) => {
            let error = format!("{error:#}");
            tracing::warn!(error, "the old process went away before it was told to");
        }
        Err(error) => tracing::error!(%error, "the old process could not be told"),
    }
}
