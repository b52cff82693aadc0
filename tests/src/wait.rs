//! Waiting for a condition, with a bound and a name for what was waited for.

use anyhow::bail;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Long enough for any start or recovery on a busy machine; only a failure waits this long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The window of most limits in the tests.
pub const HOUR: Duration = Duration::from_secs(3_600);

/// Looks until `look` finds something.
///
/// # Errors
/// When nothing was found within [`PATIENCE`]; the error says what was waited for.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> anyhow::Result<T> {
    let start = Instant::now();
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    while start.elapsed() < PATIENCE {
        ticks.tick().await;
        if let Some(found) = look().await {
            return Ok(found);
        }
    }
    bail!("waited {PATIENCE:?} for {what} in vain")
}

/// How far the current window of `period` is from its end, by the system clock.
#[must_use]
pub fn left_in_window(period: Duration) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let into = now.as_nanos() % period.as_nanos();
    Duration::from_nanos(u64::try_from(period.as_nanos() - into).unwrap_or(u64::MAX))
}

/// Waits until the current window of `period` has at least `needed` left, so that what follows
/// does not straddle a boundary.
///
/// # Errors
/// When that does not come about, as when `needed` is more than a period.
pub async fn for_room_in_window(period: Duration, needed: Duration) -> anyhow::Result<()> {
    let what = format!("{needed:?} left in a window of {period:?}");
    until(&what, async || (left_in_window(period) >= needed).then_some(())).await
}
