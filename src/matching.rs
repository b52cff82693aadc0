//! Tests of what a request says, compiled from the configuration: texts, headers, query parameters
//! and addresses.
//!
//! Pure, and total over any bytes: what a client sends can make a test fail, but nothing else.

pub mod address;
pub mod header;
pub mod pattern;
pub mod query;
pub mod text;
