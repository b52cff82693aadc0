//! The subcommands: what each does and prints.

pub(crate) mod check;
pub(crate) mod explain;
pub(crate) mod serve;
pub(crate) mod store;
