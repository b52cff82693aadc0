//! The console: its pages (`assets`), and answers to the questions that they ask, as JSON.
//!
//! `overview` and `rules` are of counts that others keep, `key` is of one descriptor and its counters, `limits` of the
//! limits in force and their changes. Every answer is bounded, whatever is asked. Keeps nothing by itself, and knows no server: its
//! caller has the endpoint, says who may ask, and who may change.

#![allow(missing_docs, reason = "used in this workspace alone; a good name is not explained again")]

pub mod assets;
pub mod key;
pub mod limits;
pub mod overview;
pub mod rules;
#[cfg(test)]
mod testing;

use serde_json::{Value, json};

/// A parameter of a question, decoded.
pub type Parameter = (String, String);

/// An answer: a status of HTTP, and JSON.
#[derive(Debug, Clone, PartialEq)]
pub struct Response {
    pub status: u16,
    pub body: Value,
}

impl Response {
    pub(crate) fn ok(body: Value) -> Response {
        Response { status: 200, body }
    }

    /// The answer to a question that has a mistake, or that cannot be answered now.
    #[must_use]
    pub fn error(status: u16, message: &str) -> Response {
        Response { status, body: json!({ "error": message }) }
    }
}

/// The message for a parameter that does not exist.
fn no_parameter(name: &str, known: &str) -> String {
    let name: String = name.chars().take(63).collect();
    format!("{name:?} is no parameter: {known}")
}
