//! Limits of another process, which sends a copy of each new version: for workers, so that a service has one stream
//! to a server of limits, and all its processes have the same limits.

use crate::{Feed, Standing, copy};
use anyhow::Context;
use std::fs::File;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_authority::{Authority, Observer};
use tidegate_limits::{self as rules, Defaults, Rules};
use tokio::sync::{Notify, watch};

pub(crate) struct CopiedFeed {
    defaults: Defaults,
    observer: Arc<dyn Observer>,
    /// The last copy, until it is in force.
    next: Mutex<Option<File>>,
    arrived: Notify,
}

impl CopiedFeed {
    pub(crate) fn open(
        defaults: Defaults,
        observer: Arc<dyn Observer>,
        file: &File,
    ) -> anyhow::Result<(CopiedFeed, Rules)> {
        let rules = read(file, &defaults)?;
        observer.limits_loaded();
        let (next, arrived) = (Mutex::new(None), Notify::new());
        Ok((CopiedFeed { defaults, observer, next, arrived }, rules))
    }

    async fn follow(self: Arc<Self>, authority: Arc<Authority>) {
        loop {
            self.arrived.notified().await;
            let Some(file) = self.take_next() else { continue };
            let (feed, authority) = (self.clone(), authority.clone());
            let replaced = tokio::task::spawn_blocking(move || {
                let rules = read(&file, &feed.defaults)?;
                anyhow::Ok(authority.replace_limits(rules)?)
            });
            match replaced.await {
                Ok(Ok(())) => self.observer.limits_loaded(),
                // The other process has them in force, so this cannot be their fault.
                failed => {
                    self.observer.limits_current(false);
                    self.observer.limits_failed();
                    let error = failed.map(|failed| failed.err().map(|error| format!("{error:#}")));
                    tracing::error!(?error, "a copy of the limits could not be read");
                }
            }
        }
    }

    fn take_next(&self) -> Option<File> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn read(file: &File, defaults: &Defaults) -> anyhow::Result<Rules> {
    let source = copy::read(file, Path::new("the limits"))?;
    Ok(rules::load_source(&source, defaults.clone()).context("a copy of the limits")?.rules)
}

impl Feed for CopiedFeed {
    /// The other process reloads.
    fn reload(&self) {}

    fn standing(&self) -> Standing {
        Standing::default()
    }

    fn copies(&self) -> watch::Receiver<Option<Arc<File>>> {
        watch::Sender::new(None).subscribe()
    }

    fn is_followed_by_each(&self) -> bool {
        false
    }

    fn replace_by_copy(&self, copy: File) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(copy);
        self.arrived.notify_one();
    }

    fn run(self: Arc<Self>, authority: Arc<Authority>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.follow(authority))
    }
}
