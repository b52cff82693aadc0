//! Settings that override every limit.

use std::num::NonZeroU32;
use tidegate_core::{DeniedHits, Enforcement, HeaderForm, LeaseRequest, Nanos};

/// Settings that override every rule.
#[derive(Debug, Clone, Copy)]
pub struct Modes {
    pub shadow: GlobalShadow,
    pub quota: GlobalQuota,
    pub metadata: DynamicMetadata,
    /// The headers about limits that answers carry.
    pub headers: HeaderForm,
    /// Whether denied hits count at limits in requests. A rule's limits say so themselves.
    pub denied: DeniedHits,
    /// The longest lease. Without it no lease is granted.
    pub lease_ttl: Option<Nanos>,
    /// The number of processes of this service that grant leases. Each has an equal share of their room.
    pub lessors: NonZeroU32,
}

impl Default for Modes {
    fn default() -> Modes {
        Modes {
            shadow: GlobalShadow::default(),
            quota: GlobalQuota::default(),
            metadata: DynamicMetadata::default(),
            headers: HeaderForm::Off,
            denied: DeniedHits::default(),
            lease_ttl: None,
            lessors: NonZeroU32::MIN,
        }
    }
}

/// Whether denials are reported and not enforced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GlobalShadow {
    #[default]
    Off,
    On,
}

/// Whether every rule outside shadow mode is a quota.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GlobalQuota {
    #[default]
    Off,
    On,
}

/// Whether answers carry the parsed request and the metadata of its rules.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DynamicMetadata {
    #[default]
    Off,
    On,
}

impl Modes {
    pub(crate) fn enforcement(self, own: Enforcement) -> Enforcement {
        match self.shadow {
            GlobalShadow::On => Enforcement::Shadow,
            GlobalShadow::Off => self.enforcement_without_shadow(own),
        }
    }

    /// The enforcement of a rule if the global shadow mode were off.
    pub(crate) fn enforcement_without_shadow(self, own: Enforcement) -> Enforcement {
        match (self.quota, own) {
            (GlobalQuota::On, Enforcement::Enforce) => Enforcement::Quota,
            _ => own,
        }
    }

    /// The longest lease for this client. None if each of its requests needs an answer of its own: for
    /// metadata about the request, or for headers that the client does not write itself.
    pub(crate) fn lease_ttl_for(self, ask: &LeaseRequest) -> Option<Nanos> {
        let writes_all = self.headers == HeaderForm::Off || self.headers == ask.headers;
        self.lease_ttl.filter(|_| writes_all && self.metadata == DynamicMetadata::Off)
    }
}
