//! The limits in force, and what is derived from them.

use crate::debits::Debits;
use crate::holdings::HeldQuotas;
use crate::leases::Denials;
use crate::observer::{LimitObserver, Observer};
use tidegate_limits::Rules;

/// Rules and what goes with them, swapped as one.
pub(crate) struct LimitsInForce {
    pub(crate) rules: Rules,
    pub(crate) observer: Box<dyn LimitObserver>,
    pub(crate) denials: Denials,
    pub(crate) debits: Debits,
    /// None without shared counters.
    pub(crate) held: Option<HeldQuotas>,
}

/// Whether machines share counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    Alone,
    Shared,
}

impl LimitsInForce {
    pub(crate) fn new(rules: Rules, observer: &dyn Observer, sharing: Sharing) -> Self {
        let observer = observer.limits_replaced(&rules);
        let (denials, debits) = (Denials::of(&rules), Debits::of(&rules));
        let held = (sharing == Sharing::Shared).then(|| HeldQuotas::of(&rules));
        LimitsInForce { rules, observer, denials, debits, held }
    }
}
