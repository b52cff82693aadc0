//! What holds for all limits, whatever they say themselves.

use std::num::NonZeroU32;
use tidegate_core::{Denied, Enforcement, Nanos};

/// What holds for all rules, whatever they say themselves.
#[derive(Debug, Clone, Copy)]
pub struct Modes {
    pub shadow: GlobalShadow,
    pub quota: GlobalQuota,
    pub metadata: DynamicMetadata,
    /// What becomes of denied requests at limits that they bring along; a rule's limits say it themselves.
    pub denied: Denied,
    /// How long leases last at most; none are given without.
    pub lease_ttl: Option<Nanos>,
    /// How many processes of one service grant leases; each has its share of the room for them.
    pub lessors: NonZeroU32,
}

impl Default for Modes {
    fn default() -> Modes {
        Modes {
            shadow: GlobalShadow::default(),
            quota: GlobalQuota::default(),
            metadata: DynamicMetadata::default(),
            denied: Denied::default(),
            lease_ttl: None,
            lessors: NonZeroU32::MIN,
        }
    }
}

/// Whether denials are only reported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GlobalShadow {
    #[default]
    Off,
    On,
}

/// Whether every rule that is not in shadow is a quota.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GlobalQuota {
    #[default]
    Off,
    On,
}

/// Whether answers tell what was applied, and the metadata of its rules.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DynamicMetadata {
    #[default]
    Off,
    On,
}

impl Modes {
    pub(crate) fn enforcement(self, own: Enforcement) -> Enforcement {
        match (self.shadow, self.quota, own) {
            (GlobalShadow::On, _, _) => Enforcement::Shadow,
            (_, GlobalQuota::On, Enforcement::Enforce) => Enforcement::Quota,
            _ => own,
        }
    }
}
