//! The statistics in force, by domain: the way of an outcome to its series.

use crate::aggregator::Aggregator;
use crate::label::label;
use crate::series::Counts;
use std::collections::HashMap;
use std::sync::Arc;
use tidegate_limits::{Rules, Statistic};

/// The statistics that a set of rules declares, with their labels. Made when rules come into force, and kept beside them.
#[derive(Debug, Default)]
pub struct Declared(HashMap<Arc<str>, Vec<Labelled>>);

/// A statistic after its label.
type Labelled = (Arc<str>, Arc<Statistic>);

impl Declared {
    #[must_use]
    pub fn of(rules: &Rules) -> Declared {
        let mut declared = Declared::default();
        for statistic in rules.statistics() {
            let of_domain = declared.0.entry(statistic.domain.clone()).or_default();
            of_domain.push((label(statistic), statistic.clone()));
        }
        declared
    }

    /// Whether there are no statistics.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All statistics, by name.
    pub fn all(&self) -> impl Iterator<Item = &Statistic> {
        let mut all: Vec<&Statistic> =
            self.0.values().flatten().map(|(_, statistic)| &**statistic).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all.into_iter()
    }

    /// Counts what became of a descriptor in each statistic whose keys it has.
    pub fn record<'e>(
        &self,
        aggregator: &Aggregator,
        domain: &str,
        entries: &(impl Iterator<Item = (&'e str, &'e str)> + Clone),
        counts: Counts,
    ) {
        for (label, statistic) in self.0.get(domain).into_iter().flatten() {
            if let Some((values, distinct)) = statistic.values(entries) {
                aggregator.record(label, &values, distinct, counts);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregator::Bounds;
    use crate::series::Series;

    #[test]
    fn a_descriptor_counts_in_each_statistic_whose_keys_it_has() {
        let statistic = |name: &str, by: &[&str]| Statistic {
            name: name.to_owned(),
            domain: "shop".into(),
            by: by.iter().map(|key| (*key).to_owned()).collect(),
            distinct: None,
        };
        let mut rules = Rules::default();
        rules.set_statistics(vec![
            statistic("calls", &["app"]),
            statistic("pairs", &["app", "path"]),
        ]);
        let declared = Declared::of(&rules);
        assert!(!declared.is_empty() && Declared::default().is_empty());
        let aggregator = Aggregator::new(Bounds::default());
        let app = [("app", "web")].into_iter();
        let pair = [("app", "web"), ("path", "/")].into_iter();
        let one = Counts { allowed: 1, denied: 0, hits: 2 };
        declared.record(&aggregator, "shop", &pair, one);
        declared.record(&aggregator, "shop", &app, one);
        declared.record(&aggregator, "bank", &pair, one);
        let batch = aggregator.take(120);
        let found = |label: &str, values: &[&str]| batch.counts(label, 60, &Series::new(values));
        assert_eq!(
            found(r#"["calls",["app"],null]"#, &["web"]),
            Some(Counts { allowed: 2, denied: 0, hits: 4 })
        );
        assert_eq!(found(r#"["pairs",["app","path"],null]"#, &["web", "/"]), Some(one));
        assert_eq!(batch.len(), 2);
    }
}
