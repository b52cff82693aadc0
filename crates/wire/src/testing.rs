//! For tests of this workspace: a short notation of asks and answers, and the reader of the conformance cases.
//!
//! The authority's unit tests and the end-to-end tests share it, so that one text is checked in process and over the
//! wire. Runs nothing itself.

mod cases;
mod json;
mod notation;

pub use cases::{Ask, Case, CasesError, Step, Times, cases_in, limits_files, read_cases};
pub use notation::{NotationError, parse, span, summary, summary_with_times};

#[cfg(test)]
mod tests;
