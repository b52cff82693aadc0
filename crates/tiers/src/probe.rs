//! Probes: whether a database answers, also while nobody asks it for a counter.
//!
//! Without them a process would say for hours that a database is away which is back, or that one answers which is not
//! there. Each process asks by itself: what its neighbours see may be another network.

use crate::tiered::Inner;
use std::sync::Weak;
use std::time::Duration;

/// How long a database may be silent before it is asked.
const SILENT_MAX: Duration = Duration::from_secs(2);

/// Asks a shard now and then, unless other operations do. Does not keep the store open while it waits.
pub(crate) async fn serve(inner: Weak<Inner>, shard: usize) {
    loop {
        tokio::time::sleep(SILENT_MAX).await;
        let Some(inner) = inner.upgrade() else { return };
        if inner.was_heard_of(shard) {
            continue;
        }
        // What follows from an error is done.
        let _ = inner.noted(shard, inner.rows.ask(shard).await);
    }
}
