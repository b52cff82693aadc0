//! Names of keys. A key is a hash, so no name can be read from it. But descriptors are known elsewhere, to a sidecar that
//! runs (who is limited now) and to the database of statistics, and limits make a key of each.
//!
//! What nobody knows has no name. Values that were cut have none either, as their keys are others.

use super::key::counter_of;
use crate::arguments::store::NameOptions;
use crate::commands::top::{answered, ask};
use anyhow::{Context, anyhow};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use tidegate_authority::{Hashing, clock};
use tidegate_core::Entry;
use tidegate_limits::describe::key_values;
use tidegate_limits::{self as rules, Loaded, Lookup, Rules, SameDomain, Statistic};
use tidegate_process::STATISTICS_FILE;
use tidegate_statistics::database::{Database, Settings};

/// Rules that a sidecar is asked about one by one. It knows 64 descriptors of each, and answers with 100 of all.
const RULES_ASKED_MAX: usize = 500;
/// Of each statistic, as the database has at most.
const SERIES_MAX: u32 = 100_000;

/// Names by key.
#[derive(Debug, Default)]
pub(crate) struct Names(HashMap<u128, Name>);

/// A counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name {
    domain: String,
    entries: Vec<Entry>,
    /// The path of the limit.
    limit: String,
}

type Descriptors = HashSet<(String, Vec<Entry>)>;

impl Name {
    pub(crate) fn json(&self) -> Value {
        let entries = self.entries.iter().map(|e| json!({"key": e.key, "value": e.value}));
        json!({
            "domain": self.domain,
            "entries": entries.collect::<Vec<_>>(),
            "limit": self.limit,
        })
    }

    /// On one line, which no value can leave.
    pub(crate) fn text(&self) -> String {
        let text = format!("{} {} ({})", self.domain, key_values(&self.entries), self.limit);
        tidegate_statistics::render::plain(&text).replace('\t', "\\t")
    }
}

impl Names {
    /// The names that `options` ask for; none if they ask for none. `dir` is the data directory, if there is one.
    pub(crate) fn of(
        options: &NameOptions,
        dir: Option<&Path>,
        hashing: Hashing,
    ) -> anyhow::Result<Option<Names>> {
        let Some(limits) = &options.names else { return Ok(None) };
        let Loaded { rules, .. } =
            rules::load(limits, SameDomain::Merge).map_err(|errors| anyhow!("{errors}"))?;
        let mut known = Descriptors::new();
        // Any of both may be away; then the other still has names.
        if let Err(error) = of_sidecar(options, &rules, &mut known) {
            eprintln!("tidegate: no names from the sidecar: {error:#}");
        }
        if let Some(settings) = database(options, dir)?
            && let Err(error) = of_statistics(settings, &rules, &mut known)
        {
            eprintln!("tidegate: no names from the statistics: {error:#}");
        }
        let mut names = Names::default();
        for (domain, entries) in known {
            names.add(&rules, (domain, entries), hashing);
        }
        Ok(Some(names))
    }

    pub(crate) fn get(&self, key: u128) -> Option<&Name> {
        self.0.get(&key)
    }

    /// Adds the keys of all counters that a descriptor meets.
    fn add(&mut self, rules: &Rules, (domain, entries): (String, Vec<Entry>), hashing: Hashing) {
        let Lookup::Rule(found) = rules.find(&domain, &entries) else { return };
        for limit in found.rule.limits() {
            let hash = counter_of((&domain, &entries), &found, limit, hashing);
            let name = Name {
                domain: domain.clone(),
                entries: entries.clone(),
                limit: limit.path.clone(),
            };
            for label in limit.quota.part_labels(clock::now()) {
                self.0.insert(hash.part(hashing.seed(), label).0, name.clone());
            }
        }
    }
}

/// The descriptors that a sidecar knows now.
fn of_sidecar(options: &NameOptions, rules: &Rules, known: &mut Descriptors) -> anyhow::Result<()> {
    let token = options.sidecar.token()?;
    let mut asked = vec![String::new()];
    let of_limits = rules.rules().into_iter().filter(|rule| !rule.limits().is_empty());
    for rule in of_limits.take(RULES_ASKED_MAX) {
        asked.push(format!("&rule={}", utf8_percent_encode(&rule.path, NON_ALPHANUMERIC)));
    }
    for rule in asked {
        for order in ["hits", "denied"] {
            let target = format!("/v1/top?n=100&order={order}{rule}");
            let body = answered(ask::get(&options.sidecar, token.as_deref(), &target)?)?;
            let document: Value =
                serde_json::from_slice(&body).context("the sidecar's answer is no JSON")?;
            known.extend(document["descriptors"].as_array().into_iter().flatten().filter_map(row));
        }
    }
    Ok(())
}

/// A descriptor of an answer, if its name is whole.
fn row(row: &Value) -> Option<(String, Vec<Entry>)> {
    if row["cut"].as_bool()? {
        return None;
    }
    let entry = |entry: &Value| Some(Entry::new(entry["key"].as_str()?, entry["value"].as_str()?));
    let entries = row["entries"].as_array()?.iter().map(entry).collect::<Option<_>>()?;
    Some((row["domain"].as_str()?.to_owned(), entries))
}

/// The database that the flags name, or that of the data directory if it has one.
fn database(options: &NameOptions, dir: Option<&Path>) -> anyhow::Result<Option<Settings>> {
    if let Some(settings) = options.database()? {
        return Ok(Some(settings));
    }
    let file = dir.map(|dir| dir.join(STATISTICS_FILE)).filter(|file| file.exists());
    Ok(file.map(|file| Settings::sqlite(&file)))
}

/// The series of statistics, as descriptors of their keys.
fn of_statistics(settings: Settings, rules: &Rules, known: &mut Descriptors) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let database = Database::open(settings).await?;
        for statistic in rules.statistics() {
            for values in database.series(statistic, SERIES_MAX).await? {
                let Statistic { domain, by, .. } = &**statistic;
                let entries = by.iter().zip(&values).map(|(key, value)| Entry::new(key, value));
                let entries: Vec<Entry> = entries.collect();
                // A statistic says nothing of the order of a descriptor's keys.
                for order in orders(&entries) {
                    if matches!(rules.find(domain, &order), Lookup::Rule(_)) {
                        known.insert((domain.to_string(), order));
                    }
                }
            }
        }
        database.close().await;
        Ok(())
    })
}

/// All orders of these: up to 24 of the four that a statistic may have.
fn orders(entries: &[Entry]) -> Vec<Vec<Entry>> {
    if entries.len() <= 1 {
        return vec![entries.to_vec()];
    }
    let mut all = Vec::new();
    for (index, first) in entries.iter().enumerate() {
        let mut rest = entries.to_vec();
        rest.remove(index);
        for mut order in orders(&rest) {
            order.insert(0, first.clone());
            all.push(order);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_entries_have_24_orders() {
        let entries: Vec<Entry> = ["a", "b", "c", "d"].map(|key| Entry::new(key, "")).into();
        let all: HashSet<Vec<Entry>> = orders(&entries).into_iter().collect();
        assert_eq!((all.len(), orders(&[]).len()), (24, 1));
    }

    #[test]
    fn a_name_that_was_cut_is_none() {
        let answer = |cut: bool| {
            let entries = json!([{"key": "user", "value": "eve"}]);
            json!({"domain": "shop", "entries": entries, "cut": cut})
        };
        let expected = ("shop".to_owned(), vec![Entry::new("user", "eve")]);
        assert_eq!(row(&answer(false)), Some(expected));
        assert_eq!(row(&answer(true)), None);
        assert_eq!(row(&json!({"domain": "shop"})), None);
    }

    #[test]
    fn no_value_leaves_the_line_of_its_name() {
        let name = Name {
            domain: "shop".to_owned(),
            entries: vec![Entry::new("user", "a\tb\nc\x1b[2J")],
            limit: "shop/user".to_owned(),
        };
        assert!(!name.text().contains(['\t', '\n', '\x1b']), "{}", name.text());
    }
}
