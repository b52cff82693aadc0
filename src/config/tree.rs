//! The values of a configuration, whichever format it has.

/// A value. All numbers in a configuration are integers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Tree {
    Null,
    Flag(bool),
    Whole(i64),
    /// A number that is not an integer, or too large to be exact.
    OtherNumber,
    Text(String),
    List(Vec<Tree>),
    /// A name may be there twice, in both spellings.
    Object(Vec<(String, Tree)>),
}

/// The name of a field. Protobuf's JSON, and so what Kubernetes tools write, has `lowerCamelCase`
/// for `snake_case`.
pub(super) fn field_name(written: String) -> String {
    if written.contains('_') || !written.starts_with(|first: char| first.is_ascii_lowercase()) {
        return written;
    }
    let mut name = String::with_capacity(written.len().saturating_add(4));
    for char in written.chars() {
        if char.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(char.to_ascii_lowercase());
    }
    name
}

impl Tree {
    /// A Struct has only doubles; an integral one was written as an integer.
    pub(super) fn number(value: f64) -> Tree {
        // Doubles are exact up to 2^53, and no number in a configuration is larger.
        const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
        let whole = value as i64;
        if value.abs() <= EXACT_MAX && whole as f64 == value {
            Tree::Whole(whole)
        } else {
            Tree::OtherNumber
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_camel_case_are_those_in_snake_case() {
        let table = [
            ("rateLimits", "rate_limits"),
            ("v4PrefixMaskLen", "v4_prefix_mask_len"),
            ("googleRe2", "google_re2"),
            ("rate_limits", "rate_limits"),
            ("domain", "domain"),
            // No name that protobuf's JSON has.
            ("RateLimits", "RateLimits"),
            ("rate_Limits", "rate_Limits"),
            ("", ""),
        ];
        for (written, name) in table {
            assert_eq!(field_name(written.to_owned()), name);
        }
    }
}
