//! A table beside a slow twin, with little room.

use super::*;
use crate::recorder::Sink;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Mutex;

#[derive(Debug, Default)]
struct Heard(Mutex<BTreeMap<String, Hits>>);

impl Sink for Heard {
    fn add(&self, sum: &Sum<'_>) {
        let name = sum.entries.clone().map(|(_, value)| value).collect();
        self.0.lock().unwrap().entry(name).or_default().add(sum.hits);
    }
}

fn event<'a>(entries: &'a [Entry], hits: Hits, at_ms: u64) -> Event<'a> {
    let last = Last { at_ms, ..Last::default() };
    Event { domain: "d", entries, met: Met::NoRule, hits, last }
}

/// What happens to a table.
#[derive(Debug, Clone)]
enum Step {
    Record { value: u8, length: usize, allowed: u64, denied: u64, elsewhere: u64, pause_ms: u64 },
    PassOn { end: usize, visits: usize, is_prompt: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let pause = prop_oneof![8 => Just(0_u64), 4 => 0..2_000_u64, 1 => 50_000..200_000_u64];
    let length = prop_oneof![9 => 0..40_usize, 1 => 400..700_usize];
    let record = (0..30_u8, length, 0..3_u64, 0..3_u64, 0..3_u64, pause);
    let record = record.prop_map(|(value, length, allowed, denied, elsewhere, pause_ms)| {
        Step::Record { value, length, allowed, denied, elsewhere, pause_ms }
    });
    let pass_on = (0..40_usize, 0..20_usize, any::<bool>());
    let pass_on =
        pass_on.prop_map(|(end, visits, is_prompt)| Step::PassOn { end, visits, is_prompt });
    prop_oneof![20 => record, 1 => pass_on]
}

proptest! {
    #[test]
    fn nothing_is_lost_and_nothing_is_heard_twice(
        places in 1..20_usize,
        name_bytes in 1..1_500_usize,
        steps in prop::collection::vec(step(), 0..400),
    ) {
        let (prompt, patient) = (Arc::new(Heard::default()), Arc::new(Heard::default()));
        let sinks = Sinks { prompt: Some(prompt.clone()), patient: Some(patient.clone()) };
        let mut table = Table::new(0, 1, Bounds { places, name_bytes });
        let mut twin: BTreeMap<String, Hits> = BTreeMap::new();
        let mut now = 0;
        for step in steps {
            match step {
                Step::Record { value, length, allowed, denied, elsewhere, pause_ms } => {
                    now += pause_ms;
                    let value = format!("{value}{}", "x".repeat(length));
                    let hits = Hits { allowed, denied, elsewhere, in_envoy: allowed };
                    if hits.all() == 0 {
                        continue;
                    }
                    let entries = [Entry::new("k", value.as_str())];
                    table.record(&event(&entries, hits, now), || None, &sinks);
                    twin.entry(value).or_default().add(hits);
                }
                Step::PassOn { end, visits, is_prompt } => {
                    let to = if is_prompt { Hearer::Prompt } else { Hearer::Patient };
                    table.pass_on((end, visits), (to, Asked::Yes), now, &sinks);
                }
            }
            let (used, bytes) = table.size();
            prop_assert!(used <= places && (bytes <= name_bytes || used == 1), "{used} {bytes}");
        }
        for hearer in [Hearer::Prompt, Hearer::Patient] {
            table.pass_on((usize::MAX, usize::MAX), (hearer, Asked::Yes), now, &sinks);
        }
        prop_assert_eq!(&*prompt.0.lock().unwrap(), &twin);
        let patient = patient.0.lock().unwrap();
        prop_assert_eq!(patient.len(), twin.len());
        for (value, hits) in twin {
            let heard = patient[&value];
            let expected = (hits.allowed, hits.denied + hits.elsewhere);
            // One with a name that is too long was heard of whole.
            prop_assert_eq!((heard.allowed, heard.denied + heard.elsewhere), expected);
        }
        // Whatever nobody uses any more goes.
        for hearer in [Hearer::Prompt, Hearer::Patient] {
            let to = (hearer, Asked::Yes);
            table.pass_on((usize::MAX, usize::MAX), to, now + IDLE_MS + 1, &sinks);
        }
        prop_assert_eq!(table.size(), (0, 0));
    }

    /// In rounds of chunks, with records between them that take places and give others up.
    #[test]
    fn a_round_visits_each_place_that_was_there(
        values in prop::collection::vec(0..60_u8, 1..300),
        chunk in 1..7_usize,
        places in 10..40_usize,
    ) {
        let prompt = Arc::new(Heard::default());
        let sinks = Sinks { prompt: Some(prompt.clone()), patient: None };
        let mut table = Table::new(0, 1, Bounds { places, name_bytes: 10_000 });
        let hit = Hits { allowed: 1, ..Hits::default() };
        let record = |table: &mut Table, value: &str| {
            let entries = [Entry::new("k", value)];
            table.record(&event(&entries, hit, 1), || None, &sinks);
        };
        let (before, during) = values.split_at(values.len() / 2);
        let mut expected: BTreeMap<String, u64> = BTreeMap::new();
        for value in before {
            record(&mut table, &value.to_string());
            *expected.entry(value.to_string()).or_default() += 1;
        }
        let (mut end, mut during) = (usize::MAX, during.iter());
        while end > 0 {
            end = table.pass_on((end, chunk), (Hearer::Prompt, Asked::Yes), 1, &sinks);
            if let Some(value) = during.next() {
                record(&mut table, &value.to_string());
            }
        }
        let heard = prompt.0.lock().unwrap();
        for (value, hits) in expected {
            prop_assert!(heard[&value].allowed >= hits, "{value}");
        }
    }
}

/// A second of traffic of one descriptor has others heard of.
#[test]
fn a_prompt_sink_hears_within_a_second_of_traffic() {
    let prompt = Arc::new(Heard::default());
    let sinks = Sinks { prompt: Some(prompt.clone()), patient: None };
    let mut table = Table::new(0, 1, Bounds::default());
    let hit = Hits { allowed: 1, ..Hits::default() };
    for number in 0..5_000 {
        let entries = [Entry::new("k", number.to_string())];
        table.record(&event(&entries, hit, 0), || None, &sinks);
    }
    let entries = [Entry::new("k", "busy")];
    for at_ms in (0..=1_200).step_by(4) {
        table.record(&event(&entries, hit, at_ms), || None, &sinks);
    }
    assert_eq!(prompt.0.lock().unwrap().len(), 5_001);
}
