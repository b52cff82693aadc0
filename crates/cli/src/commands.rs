//! The subcommands: what each does with its arguments, and what it prints.

pub(crate) mod check;
pub(crate) mod explain;
pub(crate) mod serve;
pub(crate) mod store;
