//! Limits as clients see them in headers, small enough to be stored with a lease.
//!
//! A descriptor has one [`LimitInfo`], its tightest limit. The others of a descriptor that meets
//! several are apart, in [`FurtherLimits`], so that a descriptor with one limit does not pay for
//! them.

use tidegate_core::{FurtherLimit, LimitView, Nanos, Status, StatusDetails, Timestamp, Verdict};

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
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unknown,
    Known,
    /// Known, and had no room for the hits of the last call. Only of further limits: the tightest
    /// one has the verdict of its descriptor.
    Over,
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
            kind: Kind::Unknown,
        }
    }
}

impl LimitInfo {
    /// The longest stored name; a longer one is truncated.
    pub(crate) const NAME_BYTES_MAX: usize = 64;

    /// A limit of this name.
    pub(crate) fn new(name: &str) -> LimitInfo {
        let mut limit = LimitInfo { kind: Kind::Known, ..LimitInfo::default() };
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
        LimitInfo::of(limit, status.remaining, status.reset, keys, now)
    }

    fn of(
        limit: &LimitView,
        remaining: u32,
        reset: Nanos,
        keys: impl Fn() -> String,
        now: Timestamp,
    ) -> LimitInfo {
        let named = if limit.name.is_empty() {
            LimitInfo::new(&keys())
        } else {
            LimitInfo::new(&limit.name)
        };
        let window = limit.unit.map_or(0, |unit| unit.period().as_secs_ceil());
        LimitInfo {
            quota: limit.requests,
            window_secs: u32::try_from(window).unwrap_or(0),
            remaining,
            resets_at: now.saturating_add(reset),
            ..named
        }
    }

    pub(crate) fn is_known(&self) -> bool {
        self.kind != Kind::Unknown
    }

    /// The verdict of a further limit in the last call.
    pub(crate) fn verdict(&self) -> Verdict {
        if self.kind == Kind::Over { Verdict::Deny } else { Verdict::Allow }
    }

    /// The same limit with this verdict.
    pub(crate) fn with_verdict(self, verdict: Verdict) -> LimitInfo {
        let kind = match verdict {
            Verdict::Allow => Kind::Known,
            Verdict::Deny => Kind::Over,
        };
        LimitInfo { kind, ..self }
    }

    pub(crate) fn name(&self) -> &str {
        let bytes = self.name.get(..usize::from(self.name_bytes)).unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

/// The limits that a descriptor meets besides its tightest; none for nearly all descriptors.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct FurtherLimits(
    /// Unknown limits stand for none. A pointer of one word, which fits where records have padding.
    Option<Box<[LimitInfo; FurtherLimits::MAX]>>,
);

impl FurtherLimits {
    pub(crate) const MAX: usize = StatusDetails::FURTHER_MAX;

    /// Those in `status`; `keys` names them if they have no name.
    pub(crate) fn of_status(
        status: &Status,
        keys: impl Fn() -> String,
        now: Timestamp,
    ) -> FurtherLimits {
        match &status.details {
            Some(details) => FurtherLimits::of_details(&details.further, keys, now),
            None => FurtherLimits::default(),
        }
    }

    #[cold]
    fn of_details(
        further: &[FurtherLimit],
        keys: impl Fn() -> String,
        now: Timestamp,
    ) -> FurtherLimits {
        let limits = further.iter().map(|FurtherLimit { limit, remaining, reset, verdict }| {
            LimitInfo::of(limit, *remaining, *reset, &keys, now).with_verdict(*verdict)
        });
        limits.collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &LimitInfo> {
        let known = self.0.iter().flat_map(|limits| limits.iter());
        known.filter(|limit| limit.is_known())
    }

    /// The same, where each limit has this many hits more.
    pub(crate) fn with_more(&self, hits: u64) -> FurtherLimits {
        let mut more = self.clone();
        for limit in more.0.iter_mut().flat_map(|limits| limits.iter_mut()) {
            let remaining = u64::from(limit.remaining).saturating_add(hits);
            limit.remaining = u32::try_from(remaining).unwrap_or(u32::MAX);
        }
        more
    }
}

/// At most [`FurtherLimits::MAX`] known limits; none of the rest is kept.
impl FromIterator<LimitInfo> for FurtherLimits {
    fn from_iter<T: IntoIterator<Item = LimitInfo>>(limits: T) -> Self {
        let mut limits = limits.into_iter().peekable();
        if limits.peek().is_none() {
            return FurtherLimits::default();
        }
        let mut kept = Box::new([LimitInfo::default(); FurtherLimits::MAX]);
        for (to, limit) in kept.iter_mut().zip(limits) {
            *to = limit;
        }
        FurtherLimits(Some(kept))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Unit;

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

    #[test]
    fn further_limits_are_those_of_a_status_up_to_three() {
        let further = |name: &str, remaining, verdict| FurtherLimit {
            limit: LimitView { requests: 9, unit: None, name: name.to_owned() },
            remaining,
            reset: Nanos::from_secs(5),
            verdict,
        };
        let of = |further: Vec<FurtherLimit>| {
            let details =
                StatusDetails { further, without_shadow: Verdict::Allow, is_uncounted: false };
            let status = Status { details: Some(Box::new(details)), ..Status::NO_LIMIT };
            FurtherLimits::of_status(&status, || "a.b".to_owned(), Timestamp::from_nanos(7))
        };
        let all = [("x", 4), ("", 5), ("y", u32::MAX), ("z", 7)];
        let all = all.map(|(name, left)| further(name, left, Verdict::Allow));
        let kept = of(all.to_vec());
        let shown = |limits: &FurtherLimits| -> Vec<(String, u32)> {
            limits.iter().map(|limit| (limit.name().to_owned(), limit.remaining)).collect()
        };
        let named =
            |all: [(&str, u32); 3]| all.map(|(name, left)| (name.to_owned(), left)).to_vec();
        assert_eq!(shown(&kept), named([("x", 4), ("a.b", 5), ("y", u32::MAX)]));
        assert_eq!(shown(&kept.with_more(3)), named([("x", 7), ("a.b", 8), ("y", u32::MAX)]));
        let limit = *kept.iter().next().expect("a limit");
        assert_eq!((limit.resets_at.as_nanos(), limit.verdict()), (5_000_000_007, Verdict::Allow));
        let over = of(vec![further("x", 0, Verdict::Deny)]);
        assert_eq!(over.iter().map(LimitInfo::verdict).collect::<Vec<_>>(), [Verdict::Deny]);
        assert!(of(Vec::new()).is_empty() && !over.is_empty());
        let plain = FurtherLimits::of_status(&Status::NO_LIMIT, String::new, limit.resets_at);
        assert!(plain.is_empty() && size_of::<FurtherLimits>() == size_of::<usize>());
    }
}
