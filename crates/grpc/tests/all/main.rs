//! Connections of this crate against each other and against the h2 crate.

mod common;
mod h2_client;
mod h2_server;
mod own_pair;
