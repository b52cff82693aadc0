//! Waiting for a condition or an answer, each with a name and a bound.
//!
//! A bound follows from what the product promises, see [`bound`]. The constants here are these promises; a wait
//! names the one that it relies on.

use anyhow::Context;
use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// The pause between two looks is a thirtieth of the time already waited, within these bounds: a wait of seconds looks
/// seldom, as each look may be a page of metrics.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// What a busy machine adds to any designed time.
const BUSY: Duration = Duration::from_secs(15);

/// What follows without a timer of more than a moment: an answer, a line of a log, the end of a killed process,
/// decisions that the filter reports at its next tick.
pub const SOON: Duration = Duration::from_secs(1);
/// A sidecar that opens its data, or an Envoy that compiles the filter.
pub const START: Duration = Duration::from_secs(10);
/// Limits and certificates are looked at every 2 s; limits have to be quiet for 100 ms, or for a second at most.
pub const RELOAD: Duration = Duration::from_secs(3);
/// The filter reports what it decided by itself within five seconds.
pub const REPORT: Duration = Duration::from_secs(5);
/// The supervisor and the store's maintenance check once a second, and may need two checks for what they report.
pub const CHECK: Duration = Duration::from_secs(2);
/// The default of `--lease-ttl`.
pub const LEASE: Duration = Duration::from_secs(2);
/// The filter gives back what it does not spend before the lease ends, and repeats that for 10 s.
pub const RECALL: Duration = Duration::from_secs(12);
/// The longest pause before a worker that failed is started again. Circuit breakers, and Envoy before it connects
/// again, pause for less.
pub const RETRY: Duration = Duration::from_secs(10);
/// The supervisor takes a worker for blocked after ten seconds without a message, and reports it with the next check.
pub const SILENCE: Duration = Duration::from_secs(11);
/// A peer has 5 s for its preface or its handshake.
pub const HANDSHAKE: Duration = Duration::from_secs(5);
/// A message, a frame or a block of headers may be unfinished for 20 s, and an answer unread; that is checked every 5 s.
pub const UNFINISHED: Duration = Duration::from_secs(25);
/// A connection without a call for 10 s makes room for others.
pub const IDLE: Duration = Duration::from_secs(10);
/// A drain takes 10 s at most, and processes that do not end then are killed after 5 s more.
pub const DRAIN: Duration = Duration::from_secs(15);
/// A command with hundreds of checks, as the clients in other languages.
pub const COMMAND: Duration = Duration::from_secs(120);
/// The timeout that most tests give to the filter's calls is 5 s, and a request may wait for several. Thousands of
/// requests at once wait for each other.
pub const ANSWER: Duration = Duration::from_secs(30);

/// Windows of limits. That of most tests is an hour, and a day if they take long.
pub const MINUTE: Duration = Duration::from_secs(60);
/// See [`MINUTE`].
pub const HOUR: Duration = Duration::from_secs(3_600);
/// See [`MINUTE`].
pub const DAY: Duration = Duration::from_secs(86_400);
/// What the traffic of a test needs at most in one window, on a busy machine.
pub const ROOM: Duration = Duration::from_secs(60);

/// How long to wait for what is designed to take this long: twice that, and 15 s for a busy machine.
#[must_use]
pub fn bound(designed: Duration) -> Duration {
    2 * designed + BUSY
}

/// Waits for what is designed to end within `designed`.
///
/// # Errors
/// When it does not end within its [`bound`]; the error says what was waited for.
pub async fn within<T>(
    what: &str,
    designed: Duration,
    ending: impl Future<Output = T>,
) -> anyhow::Result<T> {
    let bound = bound(designed);
    let ended = tokio::time::timeout(bound, ending).await;
    ended.ok().with_context(|| format!("waited {bound:?} for {what} in vain"))
}

/// Looks until `look` finds what is designed to be there within `designed`.
///
/// # Errors
/// As [`within`]. A look that does not end counts as one that finds nothing.
pub async fn until<T>(
    what: &str,
    designed: Duration,
    mut look: impl AsyncFnMut() -> Option<T>,
) -> anyhow::Result<T> {
    let looking = async {
        let mut looks = looks();
        loop {
            looks.tick().await;
            if let Some(found) = look().await {
                return found;
            }
        }
    };
    within(what, designed, looking).await
}

/// Runs `event`. Returns the range in which an answer of that time must report the end of the window of `period`: in
/// whole seconds from then, rounded up.
///
/// # Errors
/// Those of the event.
pub async fn reset_during<T>(
    period: Duration,
    event: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<(RangeInclusive<u64>, T)> {
    let secs = || left_in_window(period).as_nanos().div_ceil(1_000_000_000) as u64;
    let most = secs();
    let happened = event.await?;
    Ok((secs()..=most, happened))
}

/// The pace of looks, for a loop that has its own bound.
#[must_use]
pub fn looks() -> Looks {
    Looks { begun: Instant::now(), is_first: true }
}

/// See [`looks`].
#[derive(Debug)]
pub struct Looks {
    begun: Instant,
    is_first: bool,
}

impl Looks {
    /// Waits for the time of the next look. The first comes at once.
    pub async fn tick(&mut self) {
        if !std::mem::take(&mut self.is_first) {
            let pause = (self.begun.elapsed() / 30).clamp(PAUSE_MIN, PAUSE_MAX);
            tokio::time::sleep(pause).await;
        }
    }
}

/// How far the current window of `period` is from its end, by the system clock.
#[must_use]
pub fn left_in_window(period: Duration) -> Duration {
    period.saturating_sub(into_window(period))
}

/// How long ago the current window of `period` began, by the system clock.
#[must_use]
pub fn into_window(period: Duration) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Duration::from_nanos(u64::try_from(now.as_nanos() % period.as_nanos()).unwrap_or(u64::MAX))
}

/// Servers of shared counters may begin a window so much later than this machine.
const LATE: Duration = Duration::from_secs(3);

/// Waits until the current window of `period` has at least `needed` left, so that what follows
/// does not straddle a boundary, also if a server of shared counters is late.
///
/// # Errors
/// When that does not come about, as when `needed` is more than a period.
pub async fn for_room_in_window(period: Duration, needed: Duration) -> anyhow::Result<()> {
    let what = format!("{needed:?} left in a window of {period:?}");
    let has_room = |left: Duration| left >= needed && (period < HOUR || left + LATE <= period);
    until(&what, needed, async || has_room(left_in_window(period)).then_some(())).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_at_its_bound_though_a_look_does_not() {
        let begun = Instant::now();
        let found = until::<()>("nothing", SOON, async || std::future::pending().await).await;
        let error = found.expect_err("nothing was found").to_string();
        assert_eq!(error, "waited 17s for nothing in vain");
        assert_eq!(begun.elapsed(), bound(SOON));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_found_ends_a_wait() -> anyhow::Result<()> {
        let mut looks = 0..;
        let found = until("a third look", SOON, async || looks.next().filter(|look| *look == 2));
        assert_eq!(found.await?, 2);
        assert_eq!(looks.next(), Some(3));
        Ok(())
    }
}
