//! Words: how paths are spelt, and what to say about a word that is not known.

use std::borrow::Cow;

/// The beginning of a word that would fill the screen.
pub(super) fn shortened(word: &str) -> Cow<'_, str> {
    const CHARS_MAX: usize = 200;
    match word.char_indices().nth(CHARS_MAX) {
        None => word.into(),
        Some((end, _)) => format!("{}…", &word[..end]).into(),
    }
}

/// A word in quotes, or the beginning of it.
pub(super) fn quoted(word: &str) -> String {
    format!("{:?}", shortened(word))
}

/// Longer words than this are no misspelling of anything.
pub(super) const WORD_BYTES_MAX: usize = 64;

/// ` (did you mean …?)` when one of `known` is near enough to be meant, nothing otherwise.
pub(super) fn suggestion(word: &str, known: &[&str]) -> Cow<'static, str> {
    if word.len() > WORD_BYTES_MAX {
        return "".into();
    }
    // Two slips in a word are a misspelling, one in a short word; more are another word.
    let slips_max = if word.chars().count() < 5 { 1 } else { 2 };
    let word = word.to_ascii_lowercase();
    let near = known.iter().map(|known| (strsim::damerau_levenshtein(&word, known), known));
    match near.min() {
        Some((slips, known)) if slips <= slips_max => format!(" (did you mean `{known}`?)").into(),
        _ => "".into(),
    }
}

/// `a, b and c`.
pub(super) fn all(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

/// `a, b or c`.
pub(super) fn choice(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    }
}
