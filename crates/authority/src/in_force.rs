//! The limits in force, and what is derived from them.

use crate::debits::Debits;
use crate::leases::Denials;
use crate::observer::{LimitObserver, Observer};
use tidegate_limits::Rules;

/// Rules and what goes with them, swapped as one.
pub(crate) struct LimitsInForce {
    pub(crate) rules: Rules,
    pub(crate) observer: Box<dyn LimitObserver>,
    pub(crate) denials: Denials,
    pub(crate) debits: Debits,
}

impl LimitsInForce {
    pub(crate) fn new(rules: Rules, observer: &dyn Observer) -> Self {
        let observer = observer.limits_replaced(&rules);
        let (denials, debits) = (Denials::of(&rules), Debits::of(&rules));
        LimitsInForce { rules, observer, denials, debits }
    }
}
