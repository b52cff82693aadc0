//! The conformance cases over the wire, up to where the clock of a test would move or limits change. The authority's
//! own tests run them in full.
//!
//! Tokens that a sidecar takes from a shared counter end with the second if the counter is exact. A request whose tokens come
//! too late takes others, so such counters are not asked near the end of a second. The seconds of memcached begin at other
//! times, and a busy machine may keep a request waiting. So a case with such a counter runs again on a sidecar of its own
//! after an answer that counts more than expected, but never after one that admits more.
//!
//! Sidecars are real, one for each set of flags, and each case has domains of its own there. Where a window turns
//! during a case, its counts begin anew. Such a case runs again on a sidecar of its own, but only
//! if the time to the reset, in the answer that differs, shows that the window opened after the case began.

use crate::rls::Rls;
use crate::service::Service;
use crate::{artifacts, wait};
use anyhow::ensure;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidegate_wire::Kind;
use tidegate_wire::rls::{DescriptorStatus, RateLimit, RateLimitResponse, RateLimitUnit};
use tidegate_wire::testing::{Ask, Case, Step, Times, cases_in, limits_files};
use tokio::task::{JoinSet, LocalSet};

const SECOND: Duration = Duration::from_secs(1);
/// The part of a second in which exact counters are asked.
const OF_A_SECOND: std::ops::Range<Duration> =
    Duration::from_millis(50)..Duration::from_millis(800);

/// How often a case runs again, each time on a sidecar of its own: after a window has turned, and after hits on an exact
/// counter may have counted twice.
const RUNS_AFTER_TURN: usize = 1;
const RUNS_AFTER_TWICE: usize = 2;
/// And one that is to differ, which it does if its asks follow each other soon enough.
const RUNS_TO_DIFFER: usize = 5;

/// More flags for each sidecar, by its number.
pub type MoreFlags = Rc<dyn Fn(usize) -> Vec<String>>;

/// Runs every case on sidecars with these flags, besides its own. Those that `differ`, by their titles, fail.
///
/// # Errors
/// With all other cases that fail, or the first of these that does not.
pub async fn holds_over_the_wire(more: MoreFlags, differ: &[&str]) -> anyhow::Result<()> {
    let cases = cases_in(&artifacts::root().join("crates/authority/conformance"))?;
    let mut by_flags: BTreeMap<Vec<String>, Vec<Case>> = BTreeMap::new();
    for case in cases {
        by_flags.entry(case.flags.clone()).or_default().push(case);
    }
    let differ: Vec<String> = differ.iter().map(|&title| title.to_owned()).collect();
    let sidecars = Sidecars { more, differ: differ.clone(), started: Cell::new(0) };
    let mut failed = LocalSet::new().run_until(all(by_flags, Rc::new(sidecars))).await?;
    for title in differ {
        let before = failed.len();
        failed.retain(|failure| failure.lines().next() != Some(&title));
        ensure!(failed.len() < before, "the case {title:?} does not differ any more");
    }
    ensure!(failed.is_empty(), "{} cases fail:\n\n{}", failed.len(), failed.join("\n\n"));
    Ok(())
}

/// Starts sidecars.
struct Sidecars {
    more: MoreFlags,
    /// The titles of cases that are to differ on them.
    differ: Vec<String>,
    started: Cell<usize>,
}

/// What failed of all cases.
async fn all(
    by_flags: BTreeMap<Vec<String>, Vec<Case>>,
    sidecars: Rc<Sidecars>,
) -> anyhow::Result<Vec<String>> {
    let mut sets = JoinSet::new();
    for cases in by_flags.into_values() {
        sets.spawn_local(failures(cases, sidecars.clone()));
    }
    let mut failed = Vec::new();
    while let Some(set) = sets.join_next().await {
        failed.extend(set??);
    }
    Ok(failed)
}

/// Runs these cases, which have the same flags, at once on one sidecar, and returns what failed.
async fn failures(cases: Vec<Case>, sidecars: Rc<Sidecars>) -> anyhow::Result<Vec<String>> {
    let service = Rc::new(sidecars.start(&cases).await?);
    let mut running = JoinSet::new();
    for case in cases {
        let (service, sidecars) = (service.clone(), sidecars.clone());
        running.spawn_local(async move {
            let mut held = holds(&service.rls, &case).await;
            for run in 0.. {
                let runs = match &held {
                    Ok(()) if sidecars.differ.contains(&case.title) => RUNS_TO_DIFFER,
                    Err(Failure::WindowTurned(_)) => RUNS_AFTER_TURN,
                    Err(Failure::CountedTwice(_)) if sidecars.share_counters() => RUNS_AFTER_TWICE,
                    _ => break,
                };
                if run >= runs {
                    break;
                }
                let own = sidecars.start(std::slice::from_ref(&case)).await?;
                held = holds(&own.rls, &case).await;
            }
            anyhow::Ok(held.err().map(|failure| format!("{}\n{}", case.title, failure.why())))
        });
    }
    let mut failures = Vec::new();
    while let Some(ended) = running.join_next().await {
        failures.extend(ended??);
    }
    Ok(failures)
}

impl Sidecars {
    fn share_counters(&self) -> bool {
        (self.more)(0).iter().any(|flag| flag == "--authority")
    }

    /// One with the flags and the limits of these cases.
    async fn start(&self, cases: &[Case]) -> anyhow::Result<Service> {
        let own = cases.first().map(|case| &case.flags[..]).unwrap_or_default();
        let number = self.started.replace(self.started.get() + 1);
        let flags = [own, &(self.more)(number)[..]].concat();
        let mut files = Vec::new();
        for case in cases {
            for text in limits_files(&case.limits, &suffix(case)) {
                files.push((format!("{}.yaml", files.len()), text));
            }
        }
        let files: Vec<_> =
            files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        let service = Service::start_on(&files, &flags).await?;
        if self.share_counters() {
            // Until then, a failure rule decides.
            service.until_metric("tidegate_shared_up 1").await?;
        }
        Ok(service)
    }
}

/// What the domains of a case end with, as in `test.modes.txt-12`.
fn suffix(case: &Case) -> String {
    format!(".{}", case.at.replace(':', "-"))
}

enum Failure {
    /// A window turned, so the counts of the case began anew.
    WindowTurned(String),
    /// Hits on an exact counter, as far as the answer tells.
    CountedTwice(String),
    Other(String),
}

async fn holds(rls: &Rls, case: &Case) -> Result<(), Failure> {
    let (suffix, begun) = (suffix(case), SystemTime::now());
    for step in &case.steps {
        let Step::Ask(ask) = step else { return Ok(()) };
        let mut request = ask.request.clone();
        request.domain.push_str(&suffix);
        if case.limits.contains("exact: true") {
            let is_within = || OF_A_SECOND.contains(&wait::into_window(SECOND)).then_some(());
            let waited = wait::until("the middle of a second", SECOND, async || is_within()).await;
            waited.map_err(|error| Failure::Other(ask.failed(&error.to_string())))?;
        }
        let asked = SystemTime::now();
        let answer = rls.decide_with(request, &ask.metadata_of_call).await;
        let answered = SystemTime::now();
        let answer = answer.map_err(|status| Failure::Other(ask.failed(&status.to_string())))?;
        check(ask, answer, &suffix, [begun, asked, answered]).map_err(|failure| match failure {
            Failure::CountedTwice(why) if !asks_exact(case, ask) => Failure::Other(why),
            failure => failure,
        })?;
    }
    Ok(())
}

/// Whether an ask has the key of an exact counter.
fn asks_exact(case: &Case, ask: &Ask) -> bool {
    let entries = || ask.request.descriptors.iter().flat_map(|descriptor| &descriptor.entries);
    let mut rules = case.limits.split("key: ").skip(1);
    rules.any(|rule| {
        let is_of =
            |key: &str| rule.strip_prefix(key).is_some_and(|rest| rest.starts_with([',', '\n']));
        rule.contains("exact: true") && entries().any(|entry| is_of(&entry.key))
    })
}

fn check(
    ask: &Ask,
    mut answer: RateLimitResponse,
    suffix: &str,
    [begun, asked, answered]: [SystemTime; 3],
) -> Result<(), Failure> {
    let metadata = answer.dynamic_metadata.as_mut();
    let domain = metadata.and_then(|metadata| metadata.fields.get_mut("domain"));
    if let Some(Kind::StringValue(domain)) = domain.and_then(|domain| domain.kind.as_mut()) {
        *domain = domain.strip_suffix(suffix).unwrap_or("not the domain of the case").to_owned();
    }
    ask.check(&answer, Times::Ignored).map_err(|why| {
        let turned = |status| opened_between(status, begun, [asked, answered]);
        if answer.statuses.iter().any(turned) {
            return Failure::WindowTurned(why);
        }
        match ask.counts_more(&answer) {
            true => Failure::CountedTwice(why),
            false => Failure::Other(why),
        }
    })
}

/// Whether the window of this status opened after `begun`, by the status's own time to the reset. It was decided
/// between `asked` and `answered`.
///
/// Windows of a unit begin at multiples of their length since 1970, and the time is rounded up, so the end of the
/// window is the second of the decision plus the time.
fn opened_between(
    status: &DescriptorStatus,
    begun: SystemTime,
    [asked, answered]: [SystemTime; 2],
) -> bool {
    let (Some(limit), Some(reset)) = (&status.current_limit, &status.duration_until_reset) else {
        return false;
    };
    let (Some(length), Ok(reset)) = (length_secs(limit), u64::try_from(reset.seconds)) else {
        return false;
    };
    let secs = |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    (secs(asked)..=secs(answered)).any(|decided| {
        let end = decided + reset;
        end.is_multiple_of(length) && end - length > secs(begun) && end - length <= decided
    })
}

fn length_secs(limit: &RateLimit) -> Option<u64> {
    const DAY: u64 = 86_400;
    Some(match limit.unit() {
        RateLimitUnit::Unknown => return None,
        RateLimitUnit::Second => 1,
        RateLimitUnit::Minute => 60,
        RateLimitUnit::Hour => 3_600,
        RateLimitUnit::Day => DAY,
        RateLimitUnit::Week => 7 * DAY,
        RateLimitUnit::Month => 30 * DAY,
        RateLimitUnit::Year => 365 * DAY,
    })
}

impl Failure {
    fn why(self) -> String {
        match self {
            Failure::WindowTurned(why) => format!("{why}\nagain, after a window had turned"),
            Failure::CountedTwice(why) => format!("{why}\nmaybe counted twice"),
            Failure::Other(why) => why,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At second 7,200 a window of an hour opens.
    #[test]
    fn only_a_window_that_opened_after_the_case_began_excuses_an_answer() {
        let at = |millis| UNIX_EPOCH + Duration::from_millis(millis);
        let status = |unit: RateLimitUnit, seconds| DescriptorStatus {
            current_limit: Some(RateLimit {
                requests_per_unit: 5,
                unit: unit.into(),
                name: String::new(),
            }),
            duration_until_reset: Some(prost_types::Duration { seconds, nanos: 0 }),
            ..Default::default()
        };
        let hour = RateLimitUnit::Hour;
        for (status, [begun, asked, answered], expected) in [
            (status(hour, 3_600), [7_199_900, 7_200_100, 7_200_200], true),
            (status(hour, 3_598), [7_199_900, 7_202_100, 7_202_200], true),
            // A second turned between the ask and the answer.
            (status(hour, 3_600), [7_199_900, 7_199_950, 7_200_010], true),
            // The window before was still open.
            (status(hour, 1), [7_199_000, 7_199_950, 7_200_010], false),
            // The case began in this window.
            (status(hour, 3_600), [7_200_050, 7_200_100, 7_200_200], false),
            (status(hour, 3_590), [7_205_000, 7_210_000, 7_210_001], false),
            // The first hit of the case opened a window, which is not at a multiple of its length.
            (status(hour, 3_600), [7_300_000, 7_301_500, 7_301_600], false),
            // Not a window of a unit.
            (status(RateLimitUnit::Unknown, 3_600), [7_199_900, 7_200_100, 7_200_200], false),
            (DescriptorStatus::default(), [7_199_900, 7_200_100, 7_200_200], false),
        ] {
            let [begun, asked, answered] = [begun, asked, answered].map(at);
            let found = opened_between(&status, begun, [asked, answered]);
            assert_eq!(found, expected, "{status:?} {begun:?} {asked:?} {answered:?}");
        }
    }
}
