//! The conformance cases of `conformance/`, by the clock of the test.

use super::*;
use prost::Message;
use tidegate_limits::{Defaults, load};
use tidegate_wire::response_to_wire;
use tidegate_wire::testing::{Case, Step, Times, cases_in, limits_files};

/// The rules of the limits of a case, with the flags of `modes`.
fn rules(limits: &str, modes: Modes) -> Rules {
    let dir = tempfile::TempDir::new().expect("a directory");
    for (index, text) in limits_files(limits, "").into_iter().enumerate() {
        std::fs::write(dir.path().join(format!("{index}.yaml")), text).expect("a file");
    }
    let defaults = Defaults { denied: modes.denied, ..Defaults::default() };
    load(dir.path(), defaults).expect("good rules").rules
}

fn modes(flags: &[String]) -> Modes {
    let mut modes = Modes::default();
    for flag in flags {
        match flag.as_str() {
            "--shadow-mode" => modes.shadow = GlobalShadow::On,
            "--quota-mode" => modes.quota = GlobalQuota::On,
            "--dynamic-metadata" => modes.metadata = DynamicMetadata::On,
            "--count-denied" => modes.denied = DeniedHits::Count,
            flag => panic!("no mode for {flag}"),
        }
    }
    modes
}

fn holds(case: &Case) -> Result<(), String> {
    let modes = modes(&case.flags);
    let dir = tempfile::TempDir::new().expect("a directory");
    let counters = counters(dir.path());
    let first = rules(&case.limits, modes);
    let authority = Authority::new(counters, first, modes, Arc::new(())).expect("an authority");
    let mut now = Timestamp::from_secs(START);
    for step in &case.steps {
        match step {
            Step::After(span) => now = now.saturating_add(*span),
            Step::Limits(limits) => {
                authority.replace_limits(rules(limits, modes)).expect("rules in force");
            }
            Step::Ask(ask) => {
                let message = ask.request.encode_to_vec();
                let metadata = &ask.metadata_of_call;
                let value_of = |name: &'static str| {
                    let found = metadata.iter().find(|(known, _)| *known == name);
                    found.map(|(_, value)| value.as_bytes())
                };
                let answered = answer(&authority, &message, value_of, now);
                let (_, answer) = answered.map_err(|error| ask.failed(&error.to_string()))?;
                ask.check(&response_to_wire(&answer), Times::Compared)?;
            }
        }
    }
    Ok(())
}

#[test]
fn every_conformance_case_holds() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance");
    let cases = cases_in(&directory).unwrap_or_else(|error| panic!("{error}"));
    let failure = |case: &Case| holds(case).err().map(|why| format!("{}\n{why}\n", case.title));
    let failures: Vec<String> = cases.iter().filter_map(failure).collect();
    assert!(
        failures.is_empty(),
        "{} of {} cases fail:\n\n{}",
        failures.len(),
        cases.len(),
        failures.join("\n")
    );
}
