//! What is known at one moment, of one thread or of many processes: rates of descriptors, by groups. Passed between
//! processes, and merged.
//!
//! Merging keeps the bounds: a row that one side lacks may have had that side's floor there, so its error grows by it.

use crate::DECAY_SECONDS;
use crate::sketch::{Place, Weights};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use tidegate_authority::Met;

/// What is slower is as good as gone: that is a single hit after 69 seconds.
const RATE_MIN: f64 = 0.001 / DECAY_SECONDS;

/// What descriptors met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetKind {
    Rule,
    /// No rule of their domain.
    NoRule,
    /// A rule that another one of the request replaces.
    Replaced,
    /// A limit that they brought along.
    Override,
    UnknownDomain,
}

impl From<Met<'_>> for MetKind {
    fn from(met: Met<'_>) -> MetKind {
        match met {
            Met::Rule(_) => MetKind::Rule,
            Met::NoRule => MetKind::NoRule,
            Met::Replaced => MetKind::Replaced,
            Met::Override => MetKind::Override,
            Met::UnknownDomain => MetKind::UnknownDomain,
        }
    }
}

/// Hits a second, decayed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    pub allowed: f64,
    pub denied: f64,
    /// Denied by another limit of the request.
    pub elsewhere: f64,
    /// Of all these, those that the filter decided.
    pub in_envoy: f64,
}

/// A descriptor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub domain: String,
    pub entries: Vec<(String, String)>,
    /// Whether its name is not whole.
    pub is_cut: bool,
    /// What was counted for certain.
    pub rates: Rates,
    /// How much more there may have been, in hits a second.
    pub error: f64,
    /// Hits since it is among the heaviest.
    pub allowed: u64,
    pub denied: u64,
    /// The time until its hits can fit, as of its last denial.
    pub retry_ms: Option<u64>,
    /// The hits left under its tightest limit, and the capacity of that, when it was last decided by the sidecar.
    pub left: Option<(u64, u32)>,
}

/// Descriptors that met one rule; or none, of one domain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupSummary {
    pub met: MetKind,
    /// Empty if clients chose it; then it is in the rows.
    pub domain: String,
    pub rule: Option<String>,
    /// Of all its descriptors.
    pub rates: Rates,
    pub hottest: Vec<Row>,
    /// A descriptor that is not there has at most this rate.
    pub hottest_floor: f64,
    pub most_denied: Vec<Row>,
    pub most_denied_floor: f64,
}

/// What is known of all descriptors.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub groups: Vec<GroupSummary>,
}

/// What orders rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Hits,
    Denied,
}

impl Rates {
    #[must_use]
    pub fn hits(self) -> f64 {
        self.allowed + self.denied + self.elsewhere
    }

    fn add(&mut self, other: Rates) {
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.elsewhere += other.elsewhere;
        self.in_envoy += other.in_envoy;
    }
}

impl From<Weights> for Rates {
    fn from(weights: Weights) -> Rates {
        let Weights { allowed, denied, elsewhere, in_envoy } = weights;
        Rates { allowed, denied, elsewhere, in_envoy }
    }
}

impl Row {
    pub(crate) fn of(place: &Place, per_second: f64, now_ms: u64) -> Row {
        Row {
            domain: place.name.domain().to_owned(),
            entries: place.name.entries(),
            is_cut: place.name.is_cut(),
            rates: place.counted.scaled(per_second).into(),
            error: place.error * per_second,
            allowed: place.allowed,
            denied: place.denied,
            retry_ms: place.retry_at_ms.and_then(|at| at.checked_sub(now_ms)).filter(|ms| *ms > 0),
            left: place.left,
        }
    }

    /// What it is ordered by.
    #[must_use]
    pub fn rate(&self, order: Order) -> f64 {
        match order {
            Order::Hits => self.rates.hits(),
            Order::Denied => self.rates.denied,
        }
    }

    fn is_named_as(&self, other: &Row) -> bool {
        self.domain == other.domain && self.entries == other.entries
    }

    fn add(&mut self, other: &Row) {
        self.rates.add(other.rates);
        self.error += other.error;
        self.allowed = self.allowed.saturating_add(other.allowed);
        self.denied = self.denied.saturating_add(other.denied);
        self.retry_ms = self.retry_ms.max(other.retry_ms);
        self.is_cut |= other.is_cut;
        self.left = match (self.left, other.left) {
            (Some(own), Some(others)) => Some(own.min(others)),
            (own, others) => own.or(others),
        };
    }

    fn bytes(&self) -> usize {
        let entries = self.entries.iter();
        let entries: usize = entries.map(|(key, value)| key.len() + value.len()).sum();
        ROW_BYTES + self.domain.len() + entries
    }
}

/// The names and numbers of a row in JSON.
const ROW_BYTES: usize = 300;

impl GroupSummary {
    #[must_use]
    pub fn rows(&self, order: Order) -> &[Row] {
        match order {
            Order::Hits => &self.hottest,
            Order::Denied => &self.most_denied,
        }
    }

    fn merge(&mut self, other: GroupSummary) {
        self.rates.add(other.rates);
        let own = (&mut self.hottest, &mut self.hottest_floor);
        merge_rows(own, (other.hottest, other.hottest_floor));
        let own = (&mut self.most_denied, &mut self.most_denied_floor);
        merge_rows(own, (other.most_denied, other.most_denied_floor));
    }

    fn bytes(&self) -> usize {
        let rule = self.rule.as_ref().map_or(0, String::len);
        let rows = self.hottest.iter().chain(&self.most_denied);
        ROW_BYTES + self.domain.len() + rule + rows.map(Row::bytes).sum::<usize>()
    }

    /// Keeps this many rows of each order.
    fn truncate(&mut self, rows_max: usize) {
        let lists = [
            (&mut self.hottest, &mut self.hottest_floor, Order::Hits),
            (&mut self.most_denied, &mut self.most_denied_floor, Order::Denied),
        ];
        for (rows, floor, order) in lists {
            let upper = |row: &Row| row.rate(order) + row.error;
            rows.sort_by(|a, b| upper(b).total_cmp(&upper(a)));
            if let Some(first_gone) = rows.get(rows_max) {
                *floor = floor.max(upper(first_gone));
            }
            rows.truncate(rows_max);
        }
    }
}

fn merge_rows((rows, floor): (&mut Vec<Row>, &mut f64), (others, others_floor): (Vec<Row>, f64)) {
    if rows.is_empty() && *floor == 0.0 {
        (*rows, *floor) = (others, others_floor);
        return;
    }
    let key = |row: &Row| (row.domain.clone(), row.entries.clone());
    let mut others: HashMap<_, Row> = others.into_iter().map(|row| (key(&row), row)).collect();
    for row in rows.iter_mut() {
        match others.remove(&key(row)) {
            Some(other) => row.add(&other),
            None => row.error += others_floor,
        }
    }
    let own_floor = *floor;
    rows.extend(others.into_values().map(|row| Row { error: row.error + own_floor, ..row }));
    *floor += others_floor;
}

impl Summary {
    /// Adds what another thread or process knows.
    pub fn merge(&mut self, other: Summary) {
        let key = |group: &GroupSummary| (group.met, group.domain.clone(), group.rule.clone());
        let known: HashMap<_, usize> =
            self.groups.iter().enumerate().map(|(index, group)| (key(group), index)).collect();
        for group in other.groups {
            match known.get(&key(&group)) {
                Some(index) => self.groups[*index].merge(group),
                None => self.groups.push(group),
            }
        }
    }

    /// Leaves out what counts for nothing any more. Rows of one name, whose difference was cut off, become one.
    pub(crate) fn drop_faded(&mut self) {
        for group in &mut self.groups {
            for (rows, order) in
                [(&mut group.hottest, Order::Hits), (&mut group.most_denied, Order::Denied)]
            {
                rows.retain(|row| row.rate(order) >= RATE_MIN);
                let mut whole: Vec<Row> = Vec::with_capacity(rows.len());
                for row in rows.drain(..) {
                    let same = |known: &&mut Row| row.is_cut && known.is_named_as(&row);
                    match whole.iter_mut().find(same) {
                        Some(known) => known.add(&row),
                        None => whole.push(row),
                    }
                }
                *rows = whole;
            }
        }
        self.groups.retain(|group| group.rates.hits() >= RATE_MIN);
    }

    /// Leaves out the rows and then the groups with the lowest rates, until the rest takes at most `bytes_max` in a
    /// message, but for characters that need an escape there.
    pub fn bound(&mut self, bytes_max: usize) {
        let bytes = |groups: &[GroupSummary]| groups.iter().map(GroupSummary::bytes).sum::<usize>();
        let mut rows_max = crate::groups::PLACES_MAX;
        while bytes(&self.groups) > bytes_max && rows_max > 1 {
            rows_max /= 2;
            self.groups.iter_mut().for_each(|group| group.truncate(rows_max));
        }
        self.groups.sort_by(|a, b| b.rates.hits().total_cmp(&a.rates.hits()));
        let mut kept = 0;
        self.groups.retain(|group| {
            kept += group.bytes();
            kept <= bytes_max
        });
    }
}

#[cfg(test)]
mod tests;
