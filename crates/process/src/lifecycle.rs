//! The life of a process that owns the sockets, with or without workers: from the moment it is ready until it
//! has ended.
//!
//! Owns the order of a shutdown: first connections are refused, or a new process has the sockets; then the
//! requests under way finish; /healthcheck reports it until the last one has.

use crate::StopCause;
use crate::endpoints::Endpoints;
use crate::service::Service;
use crate::signals::{Action, Signals};
use crate::sockets::BoundAddress;
use crate::sockets::start::complete_takeover;
use crate::sockets::takeover::{self, Handover, Offer};
use std::path::Path;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub(crate) struct Lifecycle<'a> {
    data_dir: Option<&'a Path>,
    addresses: Vec<BoundAddress>,
    handover: Handover,
    http: Endpoints,
    draining: watch::Sender<bool>,
    store_watch: JoinHandle<()>,
    reloading: JoinHandle<()>,
    neighbours: Option<JoinHandle<()>>,
}

impl<'a> Lifecycle<'a> {
    /// Every endpoint is open: completes a takeover, if there is one. /healthcheck follows `draining`.
    pub(crate) async fn start(
        data_dir: Option<&'a Path>,
        service: &Service,
        (mut addresses, offer): (Vec<BoundAddress>, Option<Offer>),
        http: Endpoints,
        draining: watch::Sender<bool>,
        store_watch: JoinHandle<()>,
    ) -> Lifecycle<'a> {
        let reloading = tokio::spawn(service.feed.clone().run(service.authority.clone()));
        complete_takeover(offer, &mut addresses).await;
        let handover = Handover::default();
        let neighbours = service.watch_neighbours();
        Lifecycle {
            data_dir,
            addresses,
            handover,
            http,
            draining,
            store_watch,
            reloading,
            neighbours,
        }
    }

    /// Waits for a signal to stop, for another process to take over, or for a failure of the endpoints that decide
    /// requests.
    pub(crate) async fn until_stopped(
        &self,
        signals: &mut Signals,
        reload: impl Fn(),
        failed: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<StopCause> {
        let taken_over = async {
            match self.data_dir {
                Some(dir) => {
                    takeover::serve_until_taken(dir, &self.addresses, &self.handover).await
                }
                // Another process could not have the counters.
                None => std::future::pending().await,
            }
        };
        tokio::pin!(taken_over, failed);
        loop {
            tokio::select! {
                action = signals.next() => match action {
                    Action::Stop => return Ok(StopCause::Requested),
                    Action::Reload => reload(),
                },
                taken = &mut taken_over => return Ok(StopCause::TakenOver(taken)),
                failed = &mut failed => return failed.map(|()| StopCause::Requested),
            }
        }
    }

    /// Shuts down. `drain` ends the endpoints that decide requests.
    pub(crate) async fn shut_down(
        mut self,
        ended: anyhow::Result<StopCause>,
        drain: impl Future<Output = ()>,
    ) -> anyhow::Result<()> {
        self.reloading.abort();
        // It no longer decides by its limits for long.
        self.neighbours.iter().for_each(JoinHandle::abort);
        if let Ok(StopCause::TakenOver(taken)) = &ended {
            tracing::info!("a new process has taken over");
            self.http.stop();
            taken.iter().for_each(|&index| self.addresses[index].release_file());
        } else {
            self.draining.send_replace(true);
            self.handover.leave_files(&mut self.addresses);
        }
        // Open sockets would queue connections that no process accepts any more.
        self.addresses.clear();
        drain.await;
        self.http.close_http().await;
        self.store_watch.abort();
        ended.map(|_| ())
    }
}
