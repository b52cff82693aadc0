//! Decisions of an authority, as sinks hear of them, from many threads and across a change of limits.

use super::*;
use std::collections::BTreeMap;
use std::path::Path;
use tidegate_authority::{Authority, Modes, open_store, wait};
use tidegate_core::{Descriptor, Request, Timestamp};
use tidegate_limits::{SameDomain, load};

const LIMITS: &str = "\
domain: shop
statistics: [{ name: users, by: [user] }]
descriptors:
  - { key: user, rate_limit: { unit: minute, requests_per_unit: 3 } }
  - { key: app, rate_limit: { unit: minute, requests_per_unit: 10 } }
";

/// What a sink has heard: by descriptor and rule, and what came last.
#[derive(Debug, Default, Clone)]
struct Heard(Arc<Mutex<Sums>>);

type Sums = BTreeMap<(String, String), (Hits, Last)>;

impl Sink for Heard {
    fn add(&self, sum: &Sum<'_>) {
        let entries: String =
            sum.entries.clone().map(|(key, value)| format!(" {key}={value}")).collect();
        let met = match sum.met {
            Met::Rule(rule) => rule.path.clone(),
            met => format!("{met:?}"),
        };
        let mut heard = self.0.lock().unwrap();
        let of = heard.entry((format!("{}{entries}", sum.domain), met)).or_default();
        of.0.add(sum.hits);
        of.1 = sum.last;
    }
}

impl Heard {
    fn hits(&self, descriptor: &str, met: &str) -> Hits {
        let key = (descriptor.to_owned(), met.to_owned());
        self.0.lock().unwrap().get(&key).map_or_else(Hits::default, |(hits, _)| *hits)
    }

    fn sink(&self) -> Option<Arc<dyn Sink>> {
        Some(Arc::new(self.clone()))
    }
}

fn rules(dir: &Path, limits: &str) -> Rules {
    let file = dir.join("limits.yaml");
    std::fs::write(&file, limits).unwrap();
    load(&file, SameDomain::Refuse).unwrap().rules
}

fn authority(dir: &Path, recent: &Recent) -> Authority {
    let store = open_store(64, &dir.join("data")).unwrap();
    let observer = Arc::new(recent.clone());
    Authority::new(store, rules(dir, LIMITS), Modes::default(), observer).unwrap()
}

fn call(authority: &Authority, domain: &str, descriptors: &[(&str, &str)], hits: u64) {
    let descriptors = descriptors.iter();
    let descriptors =
        descriptors.map(|(key, value)| Descriptor::new(vec![Entry::new(*key, *value)])).collect();
    let hits = tidegate_core::Hits::new(hits);
    let request = Request { domain: domain.to_owned(), descriptors, hits };
    wait(authority.decide(&request, Timestamp::from_nanos(30_000_000_000))).unwrap();
}

#[test]
fn sinks_hear_of_each_hit_and_of_what_came_last() {
    let dir = tempfile::tempdir().unwrap();
    let (prompt, patient) = (Heard::default(), Heard::default());
    let recent = Recent::new(Sinks { prompt: prompt.sink(), patient: patient.sink() });
    let authority = authority(dir.path(), &recent);
    for _ in 0..5 {
        call(&authority, "shop", &[("user", "eve"), ("app", "web")], 1);
    }
    call(&authority, "shop", &[("user", "eve")], 0);
    call(&authority, "shop", &[("usr", "eve")], 4);
    call(&authority, "else", &[("user", "eve")], 2);
    let before = now_ms();
    recent.pass_on_prompt();
    let hits = |allowed, denied, elsewhere| Hits { allowed, denied, elsewhere, in_envoy: 0 };
    for (descriptor, met, expected) in [
        ("shop user=eve", "shop/user", hits(3, 2, 0)),
        ("shop app=web", "shop/app", hits(3, 0, 2)),
        ("shop usr=eve", "NoRule", hits(4, 0, 0)),
        ("else user=eve", "UnknownDomain", hits(2, 0, 0)),
    ] {
        assert_eq!(prompt.hits(descriptor, met), expected, "{descriptor}");
        assert_eq!(patient.hits(descriptor, met), Hits::default(), "it did not ask");
    }
    let last = prompt.0.lock().unwrap()[&("shop user=eve".to_owned(), "shop/user".to_owned())].1;
    assert_eq!(last.left, Some((0, 3)));
    let retry = last.retry_at_ms.unwrap() - last.at_ms;
    assert!(retry == 30_000 && last.at_ms <= before, "the window ends 30 s later: {last:?}");
    recent.pass_on_prompt();
    recent.pass_on_patient();
    assert_eq!(prompt.hits("shop user=eve", "shop/user"), hits(3, 2, 0), "nothing comes twice");
    // Over a longer time, it does not matter which limit denied.
    assert_eq!(patient.hits("shop app=web", "shop/app"), hits(3, 2, 0));
}

/// `domains` of the patient one alone are those with statistics.
#[test]
fn without_a_prompt_sink_only_domains_with_statistics_count() {
    let dir = tempfile::tempdir().unwrap();
    let patient = Heard::default();
    let recent = Recent::new(Sinks { prompt: None, patient: patient.sink() });
    let authority = authority(dir.path(), &recent);
    call(&authority, "shop", &[("user", "eve")], 1);
    call(&authority, "else", &[("user", "eve")], 1);
    recent.pass_on_patient();
    assert_eq!(patient.0.lock().unwrap().len(), 1);
    let none = rules(dir.path(), "domain: shop\ndescriptors: []\n");
    assert!(recent.limits_replaced(&none).is_idle());
    assert!(Recent::new(Sinks::default()).limits_replaced(&none).is_idle());
}

/// The path of a rule that is gone is that of the hits it decided, even if a new rule has its memory.
#[test]
fn hits_belong_to_the_rule_that_decided_them() {
    let dir = tempfile::tempdir().unwrap();
    let prompt = Heard::default();
    let recent = Recent::new(Sinks { prompt: prompt.sink(), patient: None });
    let authority = authority(dir.path(), &recent);
    let others = LIMITS.replace("key: user,", "key: user, value: eve,");
    for round in 0..200 {
        call(&authority, "shop", &[("user", "eve")], 1);
        let limits = if round % 2 == 0 { &others } else { LIMITS };
        authority.replace_limits(rules(dir.path(), limits)).unwrap();
    }
    recent.pass_on_prompt();
    assert_eq!(prompt.hits("shop user=eve", "shop/user").all(), 100);
    assert_eq!(prompt.hits("shop user=eve", "shop/user=eve").all(), 100);
}

/// More descriptors than there are places, threads that meet in stripes, and others that ask all the time.
#[test]
fn sums_of_many_threads_are_exact() {
    const THREADS: u64 = 12;
    const CALLS: u64 = 4_000;
    let dir = tempfile::tempdir().unwrap();
    let (prompt, patient) = (Heard::default(), Heard::default());
    let sinks = Sinks { prompt: prompt.sink(), patient: patient.sink() };
    let recent = Recent::bounded(sinks, Bounds { places: 50, name_bytes: 1_000 });
    let authority = authority(dir.path(), &recent);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (authority, recent) = (&authority, &recent);
            scope.spawn(move || {
                for number in 0..CALLS {
                    let name = ((number * 31 + thread * 7) % 100).to_string();
                    call(authority, "shop", &[("usr", &name)], 1);
                    if number % 500 == thread {
                        recent.pass_on_prompt();
                        recent.pass_on_patient();
                    }
                }
            });
        }
    });
    recent.pass_on_prompt();
    recent.pass_on_patient();
    for heard in [prompt, patient] {
        let heard = heard.0.lock().unwrap();
        let total: u64 = heard.values().map(|(hits, _)| hits.allowed).sum();
        assert_eq!((heard.len(), total), (100, THREADS * CALLS));
    }
}
