//! Sums of statistics of several keys, by each of these keys alone.
//!
//! They are kept beside their statistic, as one of their own, since the sums of one value may be those of a hundred thousand
//! series. They have a bound and others of their own, too, so that a value may be named here whose series had no room.

use crate::batch::Point;
use crate::label::sum_labels;
use crate::query::Query;
use crate::series::{Series, Tally};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The points of all sums of these points.
pub(crate) fn of(points: &[Point]) -> Vec<Point> {
    let mut labels: HashMap<&Arc<str>, Vec<Arc<str>>> = HashMap::new();
    let mut sums: BTreeMap<(Arc<str>, u64, Series), Tally> = BTreeMap::new();
    for Point { statistic, minute, series, tally } in points {
        let labels = labels.entry(statistic).or_insert_with(|| sum_labels(statistic));
        let values = series.values();
        for (key, label) in labels.iter().enumerate() {
            let series = match &values {
                Some(values) => Series::new(&values[key..][..1]),
                None => Series::Other,
            };
            sums.entry((label.clone(), *minute, series)).or_default().add(tally.clone());
        }
    }
    let point = |((statistic, minute, series), tally)| Point { statistic, minute, series, tally };
    sums.into_iter().map(point).collect()
}

impl Query {
    /// The same question to the sums by one key, if it names no other one.
    pub(crate) fn of_sums(&self) -> Option<Query> {
        let named = self.filters.iter().map(|(key, _)| *key).chain(self.by.iter().copied());
        let mut named: Vec<usize> = named.collect();
        named.sort_unstable();
        named.dedup();
        let [key] = named[..] else { return None };
        let label = sum_labels(&self.label).get(key)?.to_string();
        Some(Query {
            label,
            keys: vec![self.keys.get(key)?.clone()],
            filters: self.filters.iter().map(|(_, value)| (0, value.clone())).collect(),
            by: self.by.iter().map(|_| 0).collect(),
            ..self.clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::Counts;
    use tidegate_limits::Statistic;

    fn statistic(by: &[&str]) -> Statistic {
        let by = by.iter().map(|key| (*key).to_owned()).collect();
        Statistic { name: "calls".to_owned(), domain: "".into(), by, distinct: None }
    }

    #[test]
    fn points_are_added_up_by_each_key() {
        let label = crate::label::label(&statistic(&["app", "path"]));
        let point = |minute, series, hits| {
            let counts = Counts { allowed: 1, denied: 0, hits };
            Point {
                statistic: label.clone(),
                minute,
                series,
                tally: Tally { counts, sketch: None },
            }
        };
        let points = [
            point(60, Series::new(&["a", "x"]), 1),
            point(60, Series::new(&["a", "y"]), 2),
            point(60, Series::new(&["b", "y"]), 4),
            point(120, Series::new(&["b", "y"]), 8),
            point(120, Series::Other, 16),
        ];
        let found: Vec<_> = of(&points)
            .into_iter()
            .map(|Point { statistic, minute, series, tally }| {
                let key = if statistic.ends_with(",0]") { "app" } else { "path" };
                let value = series.values().map(|values| values.join("+"));
                (key, minute, value, tally.counts.allowed, tally.counts.hits)
            })
            .collect();
        let named = |name: &str| Some(name.to_owned());
        let expected = [
            ("app", 60, named("a"), 2, 3),
            ("app", 60, named("b"), 1, 4),
            ("app", 120, named("b"), 1, 8),
            ("app", 120, None, 1, 16),
            ("path", 60, named("x"), 1, 1),
            ("path", 60, named("y"), 2, 6),
            ("path", 120, named("y"), 1, 8),
            ("path", 120, None, 1, 16),
        ];
        assert_eq!(found, expected);
        let alone =
            Point { statistic: crate::label::label(&statistic(&["app"])), ..points[0].clone() };
        assert!(of(&[alone]).is_empty(), "a statistic of one key is its own sum");
    }

    fn check(by: &[&str], question: &str, expected: Option<(&str, usize, usize)>) {
        let pairs = question.split('&').filter_map(|pair| pair.split_once('='));
        let query = Query::parse(&statistic(by), pairs, 1_000_000).unwrap();
        let found = query.of_sums();
        let found = found.as_ref().map(|of| (of.keys[0].as_str(), of.filters.len(), of.by.len()));
        assert_eq!(found, expected, "{question}");
    }

    #[test]
    fn a_question_about_one_of_several_keys_is_one_to_its_sums() {
        let two: &[&str] = &["app", "path"];
        check(two, "by=app", Some(("app", 0, 1)));
        check(two, "by=path&top=5", Some(("path", 0, 1)));
        check(two, "path=/x", Some(("path", 1, 0)));
        check(two, "path=/x&by=path", Some(("path", 1, 1)));
        check(two, "app=web&by=path", None);
        check(two, "by=app,path", None);
        check(two, "last=1h", None);
        check(&["app"], "by=app", None);
    }
}
