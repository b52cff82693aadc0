//! The filter's counters and gauges among Envoy's stats.
//!
//! Counted in the worker and flushed at each tick: a host call per request would cost more than the
//! decision. Counters and gauges are flushed as differences, since all workers add to the same
//! metric; a gauge is the sum of their shares. A worker removes its shares when its plugin ends
//! ([`Stats::end`]). The shares of a crashed virtual machine stay in Envoy's gauges.
//!
//! Plugins share their metrics, in one virtual machine or in several, unless they have a
//! `stat_prefix` each.

use crate::host::Host;

/// The kinds of Envoy's metrics that the filter uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Rises and falls; the sum of all workers' shares.
    Gauge,
}

/// Declares metrics, each with its name, which Envoy prefixes with `wasmcustom.`.
macro_rules! metrics {
    ($(#[$doc:meta])* $set:ident {
        $($(#[$of_metric:meta])* $metric:ident = $name:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $set {
            $($(#[$of_metric])* $metric,)*
        }

        impl $set {
            pub(crate) const NAMES: [&str; [$($name),*].len()] =
                [$($name),*];
        }
    };
}

metrics! {
    /// A counter.
    Counter {
        /// Requests allowed by local state.
        AllowedLocal = "allowed_local",
        /// Requests allowed by a response that they waited for.
        AllowedAsked = "allowed_asked",
        /// Requests denied by local state.
        DeniedLocal = "denied_local",
        /// Requests denied by a response that they waited for.
        DeniedAsked = "denied_asked",
        /// Requests allowed because the sidecar did not answer.
        FailureAllowed = "failure_allowed",
        /// Requests denied because the sidecar did not answer.
        FailureDenied = "failure_denied",
        /// Requests allowed because of overload.
        OverloadAllowed = "overload_allowed",
        /// Requests denied because of overload.
        OverloadDenied = "overload_denied",
        /// Denials that only shadow mode of the filter or `filter_enforced` prevented; a request may
        /// have one of each.
        ShadowDenied = "shadow_denied",
        /// Requests that passed only because a rule of the sidecar is in shadow.
        RuleShadowDenied = "rule_shadow_denied",
        /// Requests that local state could not decide.
        LeaseMisses = "lease_misses",
        /// Leases granted.
        LeasesGranted = "leases_granted",
        /// Tokens returned.
        TokensReturned = "tokens_returned",
        /// Writes of shared data lost to another worker.
        Conflicts = "conflicts",
        /// Calls sent.
        Asks = "asks",
        /// Failed calls, for any of the causes below.
        AskErrors = "ask_errors",
        /// Calls that could not be sent, or whose connection failed.
        AsksUnreachable = "asks_unreachable",
        /// Calls pending when the sidecar had answered none for a while.
        AsksUnanswered = "asks_unanswered",
        /// Calls that ended with an unexpected status or a malformed response.
        AsksFailed = "asks_failed",
        /// Calls that were not answered in time.
        AsksLate = "asks_late",
        /// Calls that the sidecar had no room for.
        AsksShed = "asks_shed",
        /// Calls that the sidecar refused.
        AsksRefused = "asks_refused",
        /// Calls about a counter that a stopped process holds.
        AsksStuck = "asks_stuck",
        /// Calls beyond Envoy's circuit breaker or the connection's limit.
        AsksOverflowed = "asks_overflowed",
        /// Requests that found no room to wait.
        WaitingFull = "waiting_full",
        /// Hits debited when their streams had ended.
        Debits = "debits",
        /// Hits of ended streams that could not be debited.
        DebitsLost = "debits_lost",
        /// Hits that were decided here and that the sidecar was not told of.
        ReportsLost = "reports_lost",
    }
}

metrics! {
    /// A gauge: each worker has a share.
    Gauge {
        /// Paused requests.
        Waiting = "waiting",
        /// Leases known to this worker.
        LeasesHeld = "leases_held",
        /// Workers that make no calls since the sidecar does not answer.
        BreakersOpen = "breakers_open",
    }
}

/// The metrics of a worker.
#[derive(Debug, Default)]
pub struct Stats {
    counts: [Stat; Counter::NAMES.len()],
    levels: [Stat; Gauge::NAMES.len()],
    /// Conditions that could not be evaluated.
    #[cfg(feature = "cel")]
    conditions: Stat,
}

#[derive(Debug, Default)]
struct Stat {
    /// Envoy's id; none if Envoy gave none.
    metric: Option<u32>,
    /// The current value in this worker.
    value: i64,
    /// The part of `value` that Envoy has.
    reported: i64,
}

impl Stat {
    fn flush(&mut self, host: &impl Host) {
        let change = self.value.saturating_sub(self.reported);
        if let Some(metric) = self.metric.filter(|_| change != 0) {
            host.add_to_metric(metric, change);
        }
        self.reported = self.value;
    }
}

impl Stats {
    /// Defines the metrics in Envoy, under the plugin's prefix. Once in the life of a worker: each
    /// definition costs Envoy memory.
    pub fn define(&mut self, host: &impl Host, prefix: &str) {
        let named = |name: &str| match prefix {
            "" => format!("tidegate.{name}"),
            prefix => format!("tidegate.{prefix}.{name}"),
        };
        for (stat, name) in self.counts.iter_mut().zip(Counter::NAMES) {
            stat.metric = host.define_metric(MetricKind::Counter, &named(name));
        }
        for (stat, name) in self.levels.iter_mut().zip(Gauge::NAMES) {
            stat.metric = host.define_metric(MetricKind::Gauge, &named(name));
        }
        #[cfg(feature = "cel")]
        {
            let name = named("condition_errors");
            self.conditions.metric = host.define_metric(MetricKind::Counter, &name);
        }
    }

    /// Adds to the conditions that could not be evaluated.
    #[cfg(feature = "cel")]
    pub(crate) fn count_conditions(&mut self, amount: u64) {
        self.conditions.value = self.conditions.value.saturating_add_unsigned(amount);
    }

    /// Adds one to a counter.
    pub fn count(&mut self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Adds to a counter.
    pub fn add(&mut self, counter: Counter, amount: u64) {
        if let Some(count) = self.counts.get_mut(counter as usize) {
            count.value = count.value.saturating_add_unsigned(amount);
        }
    }

    /// Sets this worker's share of a gauge.
    pub fn set(&mut self, gauge: Gauge, value: i64) {
        if let Some(level) = self.levels.get_mut(gauge as usize) {
            level.value = value;
        }
    }

    /// Sends Envoy all changes since the last flush.
    pub fn flush(&mut self, host: &impl Host) {
        for stat in self.counts.iter_mut().chain(&mut self.levels) {
            stat.flush(host);
        }
        #[cfg(feature = "cel")]
        self.conditions.flush(host);
    }

    /// Flushes, and removes the worker's shares of the gauges.
    pub fn end(&mut self, host: &impl Host) {
        for level in &mut self.levels {
            level.value = 0;
        }
        self.flush(host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{Call, CallId, Conflict, LogLevel, SharedValue, StreamId, Unsent};
    use crate::host::{Header, NamedHeader, Reply};
    use std::cell::RefCell;
    use tidegate_core::Timestamp;

    /// An Envoy that has metrics and nothing else.
    #[derive(Default)]
    struct Admin {
        stats: RefCell<Vec<(MetricKind, String, i64)>>,
        /// All additions since the last look.
        added: RefCell<Vec<(String, i64)>>,
        refuses: bool,
    }

    impl Admin {
        fn added(&self) -> Vec<(String, i64)> {
            std::mem::take(&mut self.added.borrow_mut())
        }

        fn value(&self, name: &str) -> i64 {
            let stats = self.stats.borrow();
            stats.iter().find(|(_, known, _)| known == name).expect("a defined stat").2
        }
    }

    impl Host for Admin {
        fn define_metric(&self, kind: MetricKind, name: &str) -> Option<u32> {
            if self.refuses {
                return None;
            }
            let mut stats = self.stats.borrow_mut();
            let known = stats.iter().position(|(_, known, _)| known == name);
            let index = known.unwrap_or(stats.len());
            if known.is_none() {
                stats.push((kind, name.to_owned(), 0));
            }
            // Never 0, as in Envoy.
            u32::try_from(index.wrapping_add(1)).ok()
        }

        fn add_to_metric(&self, metric: u32, amount: i64) {
            let (kind, name, value) =
                &mut self.stats.borrow_mut()[(metric as usize).wrapping_sub(1)];
            assert!(amount > 0 || (*kind == MetricKind::Gauge && amount != 0), "{name} {amount}");
            *value = value.wrapping_add(amount);
            self.added.borrow_mut().push((name.clone(), amount));
        }

        fn now(&self) -> Timestamp {
            Timestamp::from_nanos(0)
        }
        fn random(&self) -> u64 {
            0
        }
        fn shared(&self, _: &str) -> SharedValue {
            SharedValue::default()
        }
        fn set_shared(&self, _: &str, _: &[u8], _: u32) -> Result<(), Conflict> {
            Err(Conflict)
        }
        fn call(&self, _: &Call<'_>) -> Result<CallId, Unsent> {
            Err(Unsent::Refused)
        }
        fn cancel(&self, _: CallId) {}
        fn wake(&self) -> bool {
            false
        }
        fn resume(&self, _: StreamId) {}
        fn reply(&self, _: StreamId, _: &Reply) {}
        fn request_header<T>(&self, _: StreamId, _: &str, _: impl FnOnce(&[u8]) -> T) -> Option<T> {
            None
        }
        fn add_response_headers(&self, _: &[Header]) {}
        fn append_response_headers(&self, _: &[NamedHeader]) {}
        fn append_request_headers(&self, _: StreamId, _: &[NamedHeader]) {}
        fn set_filter_state(&self, _: StreamId, _: &str, _: &str) {}
        fn log(&self, _: LogLevel, _: &str) {}
    }

    fn defined(host: &Admin) -> Stats {
        let mut stats = Stats::default();
        stats.define(host, "");
        stats
    }

    #[test]
    fn plugins_with_prefixes_have_metrics_of_their_own() {
        let host = Admin::default();
        let [mut edge, mut inner] = ["edge", "in.ner"].map(|prefix| {
            let mut stats = Stats::default();
            stats.define(&host, prefix);
            stats
        });
        edge.count(Counter::Asks);
        inner.add(Counter::Asks, 2);
        edge.flush(&host);
        inner.flush(&host);
        let of = |name: &str, amount| (name.to_owned(), amount);
        assert_eq!(host.added(), [of("tidegate.edge.asks", 1), of("tidegate.in.ner.asks", 2)]);
    }

    #[test]
    fn only_changed_metrics_are_reported_as_differences() {
        let host = Admin::default();
        let mut stats = defined(&host);
        stats.flush(&host);
        assert_eq!(host.added(), []);
        stats.count(Counter::AllowedLocal);
        stats.add(Counter::AllowedLocal, 2);
        stats.add(Counter::AskErrors, 5);
        stats.set(Gauge::Waiting, 4);
        stats.flush(&host);
        let reported = |name: &str, amount| (name.to_owned(), amount);
        let first = ["tidegate.allowed_local", "tidegate.ask_errors", "tidegate.waiting"];
        assert_eq!(
            host.added(),
            [reported(first[0], 3), reported(first[1], 5), reported(first[2], 4)]
        );
        stats.count(Counter::AllowedLocal);
        stats.set(Gauge::Waiting, 1);
        stats.flush(&host);
        assert_eq!(host.added(), [reported(first[0], 1), reported(first[2], -3)]);
        stats.flush(&host);
        assert_eq!(host.added(), []);
    }

    #[test]
    fn a_gauge_is_the_sum_of_the_workers_and_loses_the_share_of_one_that_ends() {
        let host = Admin::default();
        let (mut one, mut two) = (defined(&host), defined(&host));
        one.set(Gauge::LeasesHeld, 7);
        one.count(Counter::Asks);
        two.set(Gauge::LeasesHeld, 5);
        one.flush(&host);
        two.flush(&host);
        assert_eq!(host.value("tidegate.leases_held"), 12);
        one.count(Counter::Asks);
        one.end(&host);
        assert_eq!(host.value("tidegate.leases_held"), 5);
        assert_eq!(host.value("tidegate.asks"), 2, "what it counted stays");
    }

    #[test]
    fn every_stat_has_the_name_of_its_place() {
        let host = Admin::default();
        let mut stats = defined(&host);
        let counts = [
            (Counter::AllowedLocal, "allowed_local"),
            (Counter::AllowedAsked, "allowed_asked"),
            (Counter::DeniedLocal, "denied_local"),
            (Counter::DeniedAsked, "denied_asked"),
            (Counter::FailureAllowed, "failure_allowed"),
            (Counter::FailureDenied, "failure_denied"),
            (Counter::OverloadAllowed, "overload_allowed"),
            (Counter::OverloadDenied, "overload_denied"),
            (Counter::ShadowDenied, "shadow_denied"),
            (Counter::RuleShadowDenied, "rule_shadow_denied"),
            (Counter::LeaseMisses, "lease_misses"),
            (Counter::LeasesGranted, "leases_granted"),
            (Counter::TokensReturned, "tokens_returned"),
            (Counter::Conflicts, "conflicts"),
            (Counter::Asks, "asks"),
            (Counter::AskErrors, "ask_errors"),
            (Counter::AsksUnreachable, "asks_unreachable"),
            (Counter::AsksUnanswered, "asks_unanswered"),
            (Counter::AsksFailed, "asks_failed"),
            (Counter::AsksLate, "asks_late"),
            (Counter::AsksShed, "asks_shed"),
            (Counter::AsksRefused, "asks_refused"),
            (Counter::AsksStuck, "asks_stuck"),
            (Counter::AsksOverflowed, "asks_overflowed"),
            (Counter::WaitingFull, "waiting_full"),
            (Counter::Debits, "debits"),
            (Counter::DebitsLost, "debits_lost"),
            (Counter::ReportsLost, "reports_lost"),
        ];
        for (count, name) in counts {
            stats.count(count);
            stats.flush(&host);
            assert_eq!(host.added(), [(format!("tidegate.{name}"), 1)]);
        }
        let levels = [
            (Gauge::Waiting, "waiting"),
            (Gauge::LeasesHeld, "leases_held"),
            (Gauge::BreakersOpen, "breakers_open"),
        ];
        for (level, name) in levels {
            stats.set(level, 2);
            stats.flush(&host);
            assert_eq!(host.added(), [(format!("tidegate.{name}"), 2)]);
        }
        let conditions = usize::from(cfg!(feature = "cel"));
        assert_eq!(host.stats.borrow().len(), counts.len() + levels.len() + conditions);
    }

    #[test]
    fn undefined_metrics_are_not_reported() {
        let host = Admin { refuses: true, ..Admin::default() };
        let mut stats = defined(&host);
        stats.count(Counter::Asks);
        stats.end(&host);
        assert_eq!(host.added(), []);
    }
}
