//! Matchers of request values, compiled from the configuration, and the parts
//! of values: parameters of a query, cookies of a header.
//!
//! Pure, and defined for any bytes: a client's value can fail to match, but do nothing else.
//! Refuses to read requests: `request` passes the values.

pub mod address;
pub mod cookies;
pub mod pattern;
pub mod query;
pub mod text;
pub mod value;
