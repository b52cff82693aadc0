//! Compiled conditions (`when`): expressions of CEL over the facts of a request.
//!
//! There are no loops, so an expression evaluates each of its parts at most once. Lists and maps
//! that it contains are constants, and no operation makes a text. So the work is bounded by the
//! expression and linear in the values, and the memory by the values.

use super::rate_limit::Fact;
use crate::matching::text::TextMatcher;

/// A condition of an entry of `rate_limits`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct When {
    /// The path of its field, for messages.
    pub(crate) path: String,
    /// A boolean expression.
    pub(crate) root: Expr,
    pub(crate) on_error: OnError,
}

/// The effect of a condition that cannot be evaluated. Clients can cause that, so then hits are
/// taken, but not refunded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnError {
    /// Its entry applies.
    Apply,
    /// Its entry does not.
    Skip,
}

/// A part of an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Expr {
    Constant(Constant),
    /// A list of constants.
    List(Vec<Constant>),
    /// A map of constants.
    Map(Vec<(Constant, Constant)>),
    /// A fact, which has this form in Envoy.
    Variable(Fact, Form),
    /// All dynamic metadata, as a map of namespaces.
    Metadata(Fact),
    /// An element of a list, or the value of a key of a map.
    Index(Box<[Expr; 2]>),
    /// Whether a value is present.
    Has(Box<Expr>),
    Not(Box<Expr>),
    Negate(Box<Expr>),
    Logical(Logical, Box<[Expr; 2]>),
    /// The second if the first holds, else the third.
    Conditional(Box<[Expr; 3]>),
    Compare(Comparison, Box<[Expr; 2]>),
    Compute(Operator, Box<[Expr; 2]>),
    /// Whether a list has an element, or a map has a key.
    In(Box<[Expr; 2]>),
    /// A test of a text by a constant.
    Matches(Box<Expr>, TextMatcher),
    /// A test of a text by another one.
    Test(TextTest, Box<[Expr; 2]>),
    /// The characters of a text, or the elements of a list or a map.
    Size(Box<Expr>),
    /// A number, or a text that has one, as an integer.
    Int(Box<Expr>),
    /// A number, or a text that has one, with a fraction.
    Double(Box<Expr>),
}

/// A constant.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Constant {
    Null,
    Bool(bool),
    Int(i64),
    /// Finite.
    Double(f64),
    Text(String),
}

// Doubles are finite.
impl Eq for Constant {}

/// The form in which Envoy returns a property or a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The bytes of a text.
    Text,
    /// The part of a path before its query.
    UrlPath,
    /// The query of a path, without its fragment.
    Query,
    /// Eight bytes, little-endian.
    Int,
    /// One byte.
    Bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Logical {
    And,
    Or,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextTest {
    StartsWith,
    EndsWith,
    Contains,
}
