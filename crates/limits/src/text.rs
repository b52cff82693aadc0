//! Formats words for messages: quotes, lists, suggestions.

use std::borrow::Cow;
use std::str::FromStr;

/// The beginning of a word that is too long for a message.
pub(super) fn shortened(word: &str) -> Cow<'_, str> {
    const CHARS_MAX: usize = 200;
    match word.char_indices().nth(CHARS_MAX) {
        None => word.into(),
        Some((end, _)) => format!("{}…", &word[..end]).into(),
    }
}

/// A word in quotes, shortened if necessary.
pub(super) fn quoted(word: &str) -> String {
    format!("{:?}", shortened(word))
}

/// Longer words are not treated as misspellings.
pub(super) const WORD_BYTES_MAX: usize = 64;

/// ` (did you mean …?)` if one of `known` is near enough, otherwise nothing.
pub fn suggestion(word: &str, known: &[&str]) -> Cow<'static, str> {
    if word.len() > WORD_BYTES_MAX {
        return "".into();
    }
    // Two edits are a misspelling, or one in a short word.
    let slips_max = if word.chars().count() < 5 { 1 } else { 2 };
    let word = word.to_ascii_lowercase();
    let near = known.iter().map(|known| (strsim::damerau_levenshtein(&word, known), known));
    match near.min() {
        Some((slips, known)) if slips <= slips_max => format!(" (did you mean `{known}`?)").into(),
        _ => "".into(),
    }
}

/// `a, b and c`, or with another conjunction.
pub(super) fn listed(conjunction: &str, words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [most @ .., last] => format!("{} {conjunction} {last}", most.join(", ")),
    }
}

/// A number of digits alone: unlike `parse`, it refuses a sign.
pub fn whole_number<N: FromStr>(digits: &str) -> Option<N> {
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_plain)
}
