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
    /// Without duplicate keys.
    Object(Vec<(String, Tree)>),
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
