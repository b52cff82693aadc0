//! Counts about counters that machines share.

use crate::counter::{Counter, CounterFamily};
use crate::snapshot::{Family, Kind, Number, Samples, labels};
use tidegate_authority::Failure;

/// What an engine of shared counters has counted, and whether its server answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedCounts {
    pub is_up: bool,
    /// Updates that were committed.
    pub committed: u64,
    /// Commands that carried updates.
    pub commands: u64,
    /// Those that changed nothing, since another sidecar had changed a counter.
    pub lost: u64,
    /// Those that failed or could not be sent.
    pub failed: u64,
    pub reconnects: u64,
    /// Whether the servers of limits per second answer, if they are others. They count for `is_up`, too.
    pub per_second_is_up: Option<bool>,
}

/// What the authority does with shared counters.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedMetrics {
    pub(crate) refills: Counter,
    pub(crate) taken: Counter,
    pub(crate) returned: Counter,
    pub(crate) failed: Counter,
    /// By failure rule.
    without: CounterFamily<&'static str>,
}

impl SharedMetrics {
    pub(crate) fn decided_without(&self, failure: Failure) {
        let rule = match failure {
            Failure::Deny => "deny",
            Failure::Allow => "allow",
            Failure::Local => "local",
        };
        self.without.counter(&rule).inc();
    }

    /// None of them without an engine.
    pub(crate) fn families(&self, counts: &SharedCounts) -> Vec<Family> {
        let SharedCounts { is_up, committed, commands, lost, failed, reconnects, .. } = *counts;
        let counters = [
            ("shared_updates", "Updates of shared counters", Number::Whole(committed)),
            ("shared_commands", "Commands to servers of shared counters", Number::Whole(commands)),
            (
                "shared_commands_lost",
                "Commands that lost to an update of another sidecar and were sent anew",
                Number::Whole(lost),
            ),
            (
                "shared_commands_failed",
                "Commands to servers of shared counters that failed or could not be sent",
                Number::Whole(failed),
            ),
            (
                "shared_reconnects",
                "Connections to servers of shared counters that were made again",
                Number::Whole(reconnects),
            ),
            (
                "shared_refills",
                "Holdings that were refilled from shared counters",
                self.refills.value(),
            ),
            ("shared_taken_tokens", "Tokens taken from shared counters", self.taken.value()),
            (
                "shared_returned_tokens",
                "Unused tokens given back to shared counters",
                self.returned.value(),
            ),
            ("shared_failed", "Updates of shared counters that were not made", self.failed.value()),
        ];
        let counters =
            counters.map(|(name, help, value)| Family::single(name, help, Kind::Counter, value));
        let help = "Calls decided by the failure rule, since no server of shared counters answered";
        let samples: Samples = self.without.samples(|rule| labels([("rule", rule)]));
        let help_up = "Whether all servers of shared counters answer: 1, or 0";
        let up = Number::Whole(is_up.into());
        let mut families = Vec::from(counters);
        families.push(Family::new("shared_decided_without", help, Kind::Counter, samples));
        families.push(Family::single("shared_up", help_up, Kind::LowestGauge, up));
        if let Some(is_up) = counts.per_second_is_up {
            let help = "Whether the servers of limits per second answer: 1, or 0";
            let up = Number::Whole(is_up.into());
            families.push(Family::single("shared_per_second_up", help, Kind::LowestGauge, up));
        }
        families
    }
}
