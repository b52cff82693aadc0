//! A limit as clients see it in headers, small enough to be stored with its lease.

use tidegate_core::{Status, Timestamp};

/// A limit as the sidecar reported it. The default is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LimitInfo {
    pub(crate) quota: u32,
    /// The window; 0 if it is not one of the named units.
    pub(crate) window_secs: u32,
    /// Hits left beyond the tokens at hand.
    pub(crate) remaining: u32,
    /// Time at which the quota is full again.
    pub(crate) resets_at: Timestamp,
    name: [u8; LimitInfo::NAME_BYTES_MAX],
    name_bytes: u8,
    known: bool,
}

impl Default for LimitInfo {
    fn default() -> Self {
        LimitInfo {
            quota: 0,
            window_secs: 0,
            remaining: 0,
            resets_at: Timestamp::default(),
            name: [0; LimitInfo::NAME_BYTES_MAX],
            name_bytes: 0,
            known: false,
        }
    }
}

impl LimitInfo {
    /// The longest stored name; a longer one is truncated.
    pub(crate) const NAME_BYTES_MAX: usize = 64;

    /// A limit of this name.
    pub(crate) fn new(name: &str) -> LimitInfo {
        let mut limit = LimitInfo { known: true, ..LimitInfo::default() };
        let end = name.floor_char_boundary(LimitInfo::NAME_BYTES_MAX);
        let kept = name.as_bytes().get(..end).unwrap_or_default();
        for (to, from) in limit.name.iter_mut().zip(kept) {
            *to = *from;
        }
        limit.name_bytes = u8::try_from(end).unwrap_or(0);
        limit
    }

    /// The limit in `status`; `keys` names it if it has no name.
    pub(crate) fn of_status(
        status: &Status,
        keys: impl Fn() -> String,
        now: Timestamp,
    ) -> LimitInfo {
        let Some(limit) = &status.limit else { return LimitInfo::default() };
        let named = if limit.name.is_empty() {
            LimitInfo::new(&keys())
        } else {
            LimitInfo::new(&limit.name)
        };
        let window = limit.unit.map_or(0, |unit| unit.period().as_secs_ceil());
        LimitInfo {
            quota: limit.requests,
            window_secs: u32::try_from(window).unwrap_or(0),
            remaining: status.remaining,
            resets_at: now.saturating_add(status.reset),
            ..named
        }
    }

    pub(crate) fn is_known(&self) -> bool {
        self.known
    }

    pub(crate) fn name(&self) -> &str {
        let bytes = self.name.get(..usize::from(self.name_bytes)).unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{LimitView, Nanos, Unit};

    #[test]
    fn a_limit_is_that_of_its_status_and_named_by_its_keys_if_it_has_no_name() {
        let view = |unit, name: &str| LimitView { requests: 9, unit, name: name.to_owned() };
        let status =
            |limit| Status { limit, remaining: 4, reset: Nanos::from_secs(5), ..Status::NO_LIMIT };
        let keys = || "a.b".to_owned();
        let now = Timestamp::from_nanos(7);
        for (unit, name, window_secs, named) in
            [(Some(Unit::Hour), "hourly", 3_600, "hourly"), (None, "", 0, "a.b")]
        {
            let limit = LimitInfo::of_status(&status(Some(view(unit, name))), keys, now);
            assert_eq!((limit.quota, limit.remaining, limit.window_secs), (9, 4, window_secs));
            assert_eq!((limit.name(), limit.resets_at.as_nanos()), (named, 5_000_000_007));
            assert!(limit.is_known());
        }
        assert_eq!(LimitInfo::of_status(&status(None), keys, now), LimitInfo::default());
    }

    #[test]
    fn a_name_is_cut_between_characters() {
        assert_eq!(LimitInfo::new("hourly").name(), "hourly");
        assert_eq!(LimitInfo::new(&"x".repeat(80)).name(), "x".repeat(64));
        assert_eq!(LimitInfo::new(&format!("{}é", "x".repeat(63))).name(), "x".repeat(63));
        assert!(!LimitInfo::default().is_known());
    }
}
