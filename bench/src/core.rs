//! The core suite: the cost of decisions without keys, locks, clock and cache misses.
//!
//! A thousand counters, in use for an hour, are in the caches of one core. Each decision is on a random one
//! of them, and the clock advances a little each time. Limiters of the governor crate run under the same
//! clock. The suite also measures how a descriptor's rule is found, by the number of rules, and a call inside
//! the sidecar, from bytes to bytes, with store and rules but without transport.

mod answering;
mod instructions;
mod limits;
mod matching;
mod peers;
mod subject;

pub(crate) use instructions::Part;

use crate::figures::median;
use crate::neighbours::Neighbours;
use crate::report::{Row, print_table};
use crate::store::random_picks;
use crate::{Extent, progress};
use std::path::Path;
use std::time::Instant;
use subject::Subject;

const SUITE: &str = "core";
/// The number of counters, or of descriptors, to pick from.
const KEYS: u32 = 1_000;

/// The size of the measurement.
#[derive(Debug)]
struct Plan {
    rounds: u32,
    /// Decisions per round: few, so that most rounds are not interrupted. In all rounds together the
    /// counters' clock advances by less than a minute.
    decisions: u32,
    /// Rules of one key.
    rules: &'static [u32],
    /// Decisions whose instructions are counted. A second run has twice as many.
    counted: u32,
    /// The most rules in counted runs: making more takes minutes under callgrind.
    counted_rules: u32,
}

const FULL: Plan = Plan {
    rounds: 21,
    decisions: 100_000,
    rules: &[10, 1_000, 10_000],
    counted: 20_000,
    counted_rules: 1_000,
};
const QUICK: Plan =
    Plan { rounds: 2, decisions: 20_000, rules: &[10, 100], counted: 1_000, counted_rules: 10 };

/// Runs the suite. `dir` takes the files of callgrind.
pub(crate) fn run(extent: Extent, dir: &Path) -> anyhow::Result<Vec<Row>> {
    let plan = extent.of(&FULL, &QUICK);
    let neighbours = Neighbours::watch()?;
    let subjects = subjects(plan.rules)?;
    let times = times(plan, &subjects)?;
    print("Nanoseconds per decision", &subjects, &times);
    let mut rows = rows(&subjects, ("time", "ns/decision"), &times);
    if let Some(counts) = instructions::measure(plan, &subjects, dir)? {
        print("Instructions per decision", &subjects, &counts);
        rows.extend(self::rows(&subjects, ("instructions", "instructions/decision"), &counts));
    }
    let others = neighbours.report()?;
    rows.push(Row::new(SUITE, "the whole suite", ("cpu_of_others", "share"), others));
    Ok(rows)
}

/// All subjects, peers included.
fn subjects(rules: &[u32]) -> anyhow::Result<Vec<Subject>> {
    let mut subjects = limits::subjects()?;
    subjects.extend(peers::subjects());
    subjects.extend(matching::subjects(rules));
    subjects.extend(answering::subjects());
    Ok(subjects)
}

/// Nanoseconds per decision of each subject: the median of rounds in which all take turns.
fn times(plan: &Plan, subjects: &[Subject]) -> anyhow::Result<Vec<Option<f64>>> {
    let picks = random_picks(KEYS, plan.decisions as usize);
    progress::show("making counters and rules");
    let mut works = Vec::new();
    for subject in subjects {
        works.push((subject, subject.prepare()?, Vec::new()));
    }
    for round in 1..=plan.rounds {
        for (subject, work, times) in &mut works {
            progress::show(&format!("round {round} of {}: {}", plan.rounds, subject.name));
            let start = Instant::now();
            let yes = work.decide_each(&picks);
            times.push(start.elapsed().as_nanos() as f64 / picks.len() as f64);
            subject.check(yes, picks.len())?;
        }
    }
    progress::clear();
    Ok(works.iter().map(|(.., times)| Some(median(times))).collect())
}

/// The figure of the subject's peer.
fn peer_of<'a>(
    subject: &'a Subject,
    subjects: &[Subject],
    figures: &[Option<f64>],
) -> Option<(&'a str, f64)> {
    let peer = subject.peer.as_deref()?;
    let place = subjects.iter().position(|other| other.name == peer)?;
    Some((peer, figures.get(place).copied().flatten()?))
}

fn rows(
    subjects: &[Subject],
    metric: (&'static str, &'static str),
    figures: &[Option<f64>],
) -> Vec<Row> {
    let mut rows = Vec::new();
    for (subject, figure) in subjects.iter().zip(figures) {
        let Some(figure) = figure else { continue };
        let row = Row::new(SUITE, &subject.name, metric, *figure);
        rows.push(row.beside(peer_of(subject, subjects, figures)));
    }
    rows
}

fn print(title: &str, subjects: &[Subject], figures: &[Option<f64>]) {
    let mut lines = Vec::new();
    for (subject, figure) in subjects.iter().zip(figures) {
        let Some(figure) = figure else { continue };
        let mut line = vec![subject.name.clone(), format!("{figure:.1}")];
        if let Some((peer, value)) = peer_of(subject, subjects, figures) {
            line.extend([peer.to_owned(), format!("{value:.1}"), format!("{:.2}", figure / value)]);
        }
        lines.push(line);
    }
    print_table(title, &["case", "figure", "peer", "its figure", "ratio"], &lines);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subject_answers_as_it_should_and_has_its_peer() {
        let subjects = subjects(&[10, 100]).unwrap();
        let picks = random_picks(KEYS, 5_000);
        for subject in &subjects {
            let allowed = subject.prepare().unwrap().decide_each(&picks);
            subject.check(allowed, picks.len()).unwrap();
            let named = subjects.iter().filter(|other| other.name == subject.name).count();
            assert_eq!(named, 1, "{}", subject.name);
            let Some(peer) = &subject.peer else { continue };
            assert!(subjects.iter().any(|other| other.name == *peer), "{peer}");
        }
    }

    #[test]
    fn rows_say_what_they_are_compared_with() {
        let subjects = subjects(&[10]).unwrap();
        let figures: Vec<Option<f64>> = subjects.iter().map(|_| Some(5.0)).collect();
        let rows = rows(&subjects, ("time", "ns/decision"), &figures);
        assert_eq!(rows.len(), subjects.len());
        let row = rows.iter().find(|row| row.case == "token_bucket, allow").unwrap();
        assert_eq!(row.peer.as_deref(), Some("governor, allow"));
        assert_eq!(row.ratio, Some(1.0));
    }
}
