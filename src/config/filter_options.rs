//! Options of Envoy's own rate limit filter, with its names and meaning.

/// A share of requests (`envoy.type.v3.FractionalPercent`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fraction {
    /// With the denominator or more, all of them.
    pub(crate) numerator: u32,
    /// 100, 10,000 or 1,000,000.
    pub(crate) denominator: u32,
}

impl Fraction {
    /// All requests.
    pub const ALL: Fraction = Fraction { numerator: 100, denominator: 100 };

    /// Whether this share includes a request with this random number, which is drawn only if the
    /// share is neither none nor all.
    pub(crate) fn includes(self, random: impl FnOnce() -> u64) -> bool {
        match self.numerator {
            0 => false,
            numerator if numerator >= self.denominator => true,
            numerator => {
                let drawn = random().checked_rem(self.denominator.into());
                drawn.is_some_and(|drawn| drawn < numerator.into())
            }
        }
    }
}

/// The requests that a filter looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection {
    /// Only those of this type.
    pub request_type: RequestType,
    /// The share of these (`filter_enabled`).
    pub enabled: Fraction,
}

/// The type of a request, by Envoy's header `x-envoy-internal`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestType {
    /// All.
    Both,
    /// Those that Envoy calls internal.
    Internal,
    /// All others.
    External,
}

/// A header that is added to denials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedHeader {
    /// In lower case.
    pub name: String,
    /// Without line ends.
    pub value: String,
    /// Applies if the denial already has this header.
    pub action: AppendAction,
}

/// How a header joins one of the same name (`HeaderValueOption.HeaderAppendAction`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendAction {
    /// Keeps both.
    AppendOrAdd,
    /// Keeps the existing one.
    AddIfAbsent,
    /// Replaces the existing one, or adds this one.
    OverwriteOrAdd,
    /// Replaces the existing one; adds nothing otherwise.
    OverwriteIfExists,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_includes_the_numbers_below_its_numerator() {
        let includes = |numerator, denominator, random| {
            Fraction { numerator, denominator }.includes(|| random)
        };
        assert!(includes(30, 100, 29) && includes(30, 100, 129) && includes(1, 1_000_000, 0));
        assert!(!includes(30, 100, 30) && !includes(30, 100, 199) && !includes(1, 1_000_000, 1));
    }

    #[test]
    fn nothing_is_drawn_for_none_or_all() {
        let includes = |numerator| Fraction { numerator, denominator: 100 }.includes(|| panic!());
        assert_eq!([0, 100, 101].map(includes), [false, true, true]);
        assert!(Fraction::ALL.includes(|| panic!()));
    }
}
