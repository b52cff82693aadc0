//! Opens the addresses of a service, or takes them over from the process that serves until now.

use super::takeover::{self, Offer};
use crate::Settings;
use crate::sockets::{self, BoundAddress};
use anyhow::Context;

/// The addresses that are `bound` already, or those that are opened now or taken over.
pub(crate) async fn open_or_take_over(
    settings: &Settings,
    bound: Option<Vec<BoundAddress>>,
) -> anyhow::Result<(Vec<BoundAddress>, Option<Offer>)> {
    if let Some(bound) = bound {
        return Ok((bound, None));
    }
    let mut offer = request_takeover(settings).await?;
    let addresses = open_addresses(settings, offer.as_mut()).await?;
    Ok((addresses, offer))
}

/// With `--takeover`, requests the sockets of the process that serves the data directory.
async fn request_takeover(settings: &Settings) -> anyhow::Result<Option<Offer>> {
    if !settings.takeover {
        return Ok(None);
    }
    let Some(data_dir) = settings.data_dir.dir.clone() else { return Ok(None) };
    let offer = tokio::task::spawn_blocking(move || takeover::request_sockets(&data_dir)).await?;
    let offer =
        offer.context("cannot take over from the process that serves this data directory")?;
    if offer.is_none() {
        tracing::info!("no process serves this data directory; nothing to take over");
    }
    Ok(offer)
}

/// Opens every configured address, or takes it from `offer`.
pub(crate) async fn open_addresses(
    settings: &Settings,
    mut offer: Option<&mut Offer>,
) -> anyhow::Result<Vec<BoundAddress>> {
    let mut addresses = Vec::new();
    for (endpoint, address) in sockets::configured(settings)? {
        let inherited = match &mut offer {
            Some(offer) => offer.take(endpoint, &address).await,
            None => None,
        };
        let bound = match inherited {
            Some(bound) => bound,
            None => BoundAddress::open(endpoint, &address, settings.socket_mode).await?,
        };
        tracing::info!(door = endpoint.name(), address = bound.describe(), "listening");
        addresses.push(bound);
    }
    Ok(addresses)
}

/// Tells the old process that this one serves.
pub(crate) async fn complete_takeover(offer: Option<Offer>, addresses: &mut [BoundAddress]) {
    let Some(offer) = offer else { return };
    addresses.iter_mut().for_each(BoundAddress::adopt_file);
    match tokio::task::spawn_blocking(move || offer.confirm_serving()).await {
        Ok(Ok(())) => tracing::info!("took over; the old process drains"),
        Ok(Err(error)) => {
            let error = format!("{error:#}");
            tracing::warn!(error, "the old process ended before the takeover was complete");
        }
        Err(error) => tracing::error!(%error, "the old process could not be notified"),
    }
}
