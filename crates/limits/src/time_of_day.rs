//! Times of day such as `03:00`.

use crate::text::whole_number;
use tidegate_core::Nanos;

/// The time since midnight that `text` names.
pub(crate) fn parse(text: &str) -> Option<Nanos> {
    let (hours, minutes) = hours_and_minutes(text)?;
    (hours < 24 && minutes < 60).then(|| Nanos::from_secs(hours * 3_600 + minutes * 60))
}

/// Two numbers of two digits each, separated by a colon.
pub(crate) fn hours_and_minutes(text: &str) -> Option<(u64, u64)> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |digits: &str| whole_number(digits).filter(|_| digits.len() == 2);
    Some((number(hours)?, number(minutes)?))
}
