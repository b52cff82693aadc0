//! What operators' commands need of servers beyond updates: all their entries, and a seed for new ones.
//!
//! Single entries are read and changed by updates, as sidecars do, so that works with every kind of server. A kind
//! whose keys can be listed implements [`Listing`]. Refuses to hurry: each page is followed by a pause as long as it
//! took, so sidecars keep at least half of a server's time.

use crate::engine::Cause;
use crate::redis::List;
use crate::remote::{ConnectError, Remote, connect, connect_knowing};
use crate::settings::{Servers, Settings};
use std::time::{Duration, Instant};
use tidegate_store::{Entry, Hashed};
use tokio::runtime::Builder;

/// The shortest pause after a page.
const PAUSE: Duration = Duration::from_millis(1);

/// One kind of servers, for operators.
pub(crate) trait Listing {
    /// The next entries. None after the last.
    async fn next(&mut self) -> Result<Option<Page>, Cause>;

    /// Replaces the seed.
    async fn set_seed(&mut self, seed: u64) -> Result<(), Cause>;
}

/// Some entries.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) entries: Vec<(Hashed, Entry)>,
    /// Values under keys of the prefix that are no counters.
    pub(crate) unreadable: u64,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the shared counters cannot be listed: {0}")]
    List(String),
    #[error(
        "memcached gives no list of its keys; tidegate explain, and tidegate store get with a key or \
         --limits, show single counters"
    )]
    NoList,
    #[error(
        "the servers have counters under this prefix already, with keys that were hashed with another seed; give an \
         empty prefix (--authority-prefix), or erase them first"
    )]
    OtherSeed,
}

/// Whether servers give a list of their keys.
fn has_list(servers: &Servers) -> bool {
    match servers {
        Servers::Single(_) | Servers::Sentinel { .. } | Servers::Cluster { .. } => true,
        Servers::Memcached(_) => false,
    }
}

/// Passes every entry to `visit`, until it returns an error. Returns how many values were no counters.
pub fn list<E>(
    settings: &Settings,
    mut visit: impl FnMut(Hashed, Entry) -> Result<(), E>,
) -> Result<Result<u64, E>, OperatorError> {
    if !has_list(&settings.servers) {
        return Err(OperatorError::NoList);
    }
    block_on(async {
        let (mut listing, mut unreadable) = (List::open(settings).await?, 0);
        loop {
            let asked = Instant::now();
            let Some(page) = listing.next().await? else { return Ok(Ok(unreadable)) };
            unreadable += page.unreadable;
            let pause = asked.elapsed().max(PAUSE);
            for (key, entry) in page.entries {
                if let Err(stopped) = visit(key, entry) {
                    return Ok(Err(stopped));
                }
            }
            tokio::time::sleep(pause).await;
        }
    })
}

/// Connects to servers whose keys are hashed with `seed`, which they get if they have no counters.
pub fn connect_with_seed(settings: Settings, seed: u64) -> Result<Remote, OperatorError> {
    match connect_knowing(settings.clone(), seed) {
        Ok(remote) => return Ok(remote),
        Err(error) => {
            // Is it the seed, or something else?
            let found = connect(settings.clone()).map_err(|_| error)?;
            drop(found);
        }
    }
    // Nobody can tell whether servers without a list have counters.
    if !has_list(&settings.servers) || list(&settings, |_, _| Err(()))?.is_err() {
        return Err(OperatorError::OtherSeed);
    }
    block_on(async { List::open(&settings).await?.set_seed(seed).await })?;
    Ok(connect_knowing(settings, seed)?)
}

fn block_on<T>(work: impl Future<Output = Result<T, Cause>>) -> Result<T, OperatorError> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(ConnectError::Thread)?;
    runtime.block_on(work).map_err(|cause| OperatorError::List(cause.to_string()))
}
