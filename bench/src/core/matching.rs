//! Finds the rule of a descriptor, by the number of rules for its key and the way they match.

use super::KEYS;
use super::subject::{Answers, Subject, Work};
use tidegate_core::{DeniedHits, Enforcement, Entry, FixedWindow, Nanos, Quota};
use tidegate_limits::{Cidr, Limit, Lookup, Matcher, Rule, RuleKind, Rules};

const DOMAIN: &str = "shop";

/// A way to match: makes the matcher of a numbered rule, and a value that it matches.
struct Way {
    name: &'static str,
    matcher: fn(u32) -> anyhow::Result<Matcher>,
    value: fn(u32) -> String,
}

const WAYS: [Way; 4] = [
    Way {
        name: "exact",
        matcher: |number| Ok(Matcher::Exact(format!("tenant-{number}"))),
        value: |number| format!("tenant-{number}"),
    },
    Way {
        name: "wildcard",
        matcher: |number| Ok(Matcher::Wildcard(format!("/tenant-{number}/*/items"))),
        value: |number| format!("/tenant-{number}/v1/items"),
    },
    Way {
        name: "cidr",
        matcher: |number| {
            let [.., high, middle, low] = number.to_be_bytes();
            let range = format!("{}.{middle}.{low}.0/24", 10 + high);
            Ok(Matcher::Cidr(vec![Cidr::parse(&range)?]))
        },
        value: |number| {
            let [.., high, middle, low] = number.to_be_bytes();
            format!("{}.{middle}.{low}.77", 10 + high)
        },
    },
    Way {
        name: "regex",
        matcher: |number| {
            Ok(Matcher::Regex(format!("/tenant-{number}/(items|carts)/[0-9]+").into()))
        },
        value: |number| format!("/tenant-{number}/carts/20260101"),
    },
];

pub(super) fn subjects(sizes: &[u32]) -> Vec<Subject> {
    let mut subjects = Vec::new();
    let fewest = sizes.first().copied().unwrap_or_default();
    for way in &WAYS {
        for (what, answers) in [("", Answers::Yes), (", none matches", Answers::No)] {
            let name = |size: u32| format!("find among {size} {} rules{what}", way.name);
            for &size in sizes {
                let subject = Subject::new(name(size), answers, move || way.work(size, answers));
                let subject = subject.with_rules(size);
                // The peer is the smallest size.
                subjects.push(match size {
                    size if size == fewest => subject,
                    _ => subject.beside(name(fewest)),
                });
            }
        }
    }
    subjects
}

impl Way {
    fn work(&self, size: u32, answers: Answers) -> anyhow::Result<Box<dyn Work>> {
        let mut rules = Rules::default();
        let root = rules.root_mut(DOMAIN);
        let region = root.insert("region", &Matcher::Exact("eu".to_owned()), None)?;
        for number in 0..size {
            region.insert("tenant", &(self.matcher)(number)?, None)?.set_rule(rule(number)?);
        }
        rules.build_indexes();
        let descriptors = (0..KEYS).map(|pick| {
            let number = match answers {
                Answers::Yes => pick * 7_919 % size,
                Answers::No => size + pick,
            };
            [Entry::new("region", "eu"), Entry::new("tenant", (self.value)(number))]
        });
        Ok(Box::new(Lookups { rules, descriptors: descriptors.collect() }))
    }
}

fn rule(number: u32) -> anyhow::Result<Rule> {
    let path = format!("{DOMAIN}/region=eu/tenant={number}");
    let quota = Quota::FixedWindow(FixedWindow::new(1, Nanos::from_secs(60))?);
    let limit = Limit {
        name: None,
        path: path.clone(),
        label: String::new(),
        quota,
        timezone: None,
        denied: DeniedHits::Ignore,
        replaces: Vec::new(),
    };
    Ok(Rule {
        path,
        kind: RuleKind::Limits(vec![limit]),
        enforcement: Enforcement::Enforce,
        metric_values: Vec::new(),
        metadata: None,
    })
}

struct Lookups {
    rules: Rules,
    descriptors: Vec<[Entry; 2]>,
}

impl Work for Lookups {
    fn decide_each(&mut self, picks: &[u32]) -> u64 {
        let mut found = 0;
        for &pick in picks {
            let entries = &self.descriptors[pick as usize];
            found += u64::from(matches!(self.rules.find(DOMAIN, entries), Lookup::Rule(_)));
        }
        found
    }
}
