//! What a process has that owns the sockets, whether it answers requests itself or by workers: from when
//! it is ready until it has ended.
//!
//! Owns the order of an end: first nobody connects any more, or a new process has the sockets; then the
//! requests under way finish; /healthcheck says so until the last of them has.

use crate::Ended;
use crate::endpoints::Endpoints;
use crate::service::Service;
use crate::signals::{Asked, Signals};
use crate::sockets::BoundAddress;
use crate::start::confirm;
use crate::takeover::{self, Offer, UnderWay};
use std::path::Path;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// See the module.
pub(crate) struct Lifecycle<'a> {
    data_dir: &'a Path,
    places: Vec<BoundAddress>,
    under_way: UnderWay,
    http: Endpoints,
    draining: watch::Sender<bool>,
    keeper: JoinHandle<()>,
    reloading: JoinHandle<()>,
}

impl<'a> Lifecycle<'a> {
    /// All is open: tells whoever served until now. `draining` is what /healthcheck goes by.
    pub(crate) async fn ready(
        data_dir: &'a Path,
        service: &Service,
        (mut places, offer): (Vec<BoundAddress>, Option<Offer>),
        http: Endpoints,
        draining: watch::Sender<bool>,
        keeper: JoinHandle<()>,
    ) -> Lifecycle<'a> {
        let reloading = tokio::spawn(service.feed.clone().run(service.authority.clone()));
        confirm(offer, &mut places).await;
        let under_way = UnderWay::default();
        Lifecycle { data_dir, places, under_way, http, draining, keeper, reloading }
    }

    /// Waits until it is told to stop, another process has taken over, or those who answer requests
    /// cannot do so any more.
    pub(crate) async fn until_told(
        &self,
        signals: &mut Signals,
        reload: impl Fn(),
        failed: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<Ended> {
        let given = takeover::given(self.data_dir, &self.places, &self.under_way);
        tokio::pin!(given, failed);
        loop {
            tokio::select! {
                asked = signals.next() => match asked {
                    Asked::Stop => return Ok(Ended::Asked),
                    Asked::Reload => reload(),
                },
                taken = &mut given => return Ok(Ended::TakenOver(taken)),
                failed = &mut failed => return failed.map(|()| Ended::Asked),
            }
        }
    }

    /// Ends all, once those who answer requests have done so in `drain`.
    pub(crate) async fn end(
        mut self,
        ended: anyhow::Result<Ended>,
        drain: impl Future<Output = ()>,
    ) -> anyhow::Result<()> {
        self.reloading.abort();
        if let Ok(Ended::TakenOver(taken)) = &ended {
            tracing::info!("a new process has taken over");
            self.http.stop();
            taken.iter().for_each(|&place| self.places[place].disown());
        } else {
            self.draining.send_replace(true);
            self.under_way.leave(&mut self.places);
        }
        // These would take connections that nobody accepts any more.
        self.places.clear();
        drain.await;
        self.http.close_http().await;
        self.keeper.abort();
        ended.map(|_| ())
    }
}
