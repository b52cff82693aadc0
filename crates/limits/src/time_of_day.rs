//! Times of day such as `03:00`.

use tidegate_core::Nanos;

/// The time since midnight that `text` names.
pub(crate) fn parse(text: &str) -> Option<Nanos> {
    let (hours, minutes) = hours_and_minutes(text)?;
    (hours < 24 && minutes < 60).then(|| Nanos::from_secs(hours * 3_600 + minutes * 60))
}

/// Two numbers of two digits each, separated by a colon.
pub(crate) fn hours_and_minutes(text: &str) -> Option<(u64, u64)> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |digits: &str| {
        let is_plain = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse::<u64>().ok().filter(|_| is_plain)
    };
    Some((number(hours)?, number(minutes)?))
}
