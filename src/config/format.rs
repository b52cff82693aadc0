//! Compiled formats: texts with Envoy's substitution commands, such as `%REQ(x-user)%`.
//!
//! `read::format` compiles them, so that a request costs one reading of each fact and no parsing.

use super::rate_limit::Fact;

/// A text with commands. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format(pub(crate) Vec<Piece>);

/// A part of a format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// The same text for every request.
    Text(String),
    /// A value of the request.
    Command(Command),
}

/// A substitution command: the value of a fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The fact.
    pub(crate) fact: Fact,
    /// The fact that replaces an absent one (`%REQ(A?B)%`).
    pub(crate) or: Option<Fact>,
    /// The form of its value.
    pub(crate) show: Show,
    /// The bytes of the value that are used: `%REQ(A):n%`.
    pub(crate) length_max: Option<usize>,
}

/// The form of a value, from the bytes that Envoy has for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    /// The bytes.
    Bytes,
    /// A path up to its query.
    WithoutQuery,
    /// An address without its port.
    WithoutPort,
    /// A number of 64 bits as a decimal.
    Whole,
    /// A value of metadata: a text, or a number or a boolean as a text.
    Metadata,
}

/// When a format is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// When the headers of a request have arrived.
    Request,
    /// When the stream ends, for costs that are known only then.
    End,
}

/// The longest length of a command, which is the longest value that is not shortened.
pub(crate) const LENGTH_MAX: usize = 1024;
