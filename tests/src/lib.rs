//! Everything needed to run the whole of Tidegate as a user does: the built artifacts, a real
//! Envoy, a sidecar process, an upstream, and HTTP clients. The demo and the end-to-end tests
//! are written with it.
//!
//! Processes listen on loopback at ports that the system picks, log to files in a directory of
//! their own, and are ended by process id when their handle is dropped.

pub mod ads;
pub mod artifacts;
pub mod bare_root;
pub mod bootstrap;
pub mod burst;
pub mod certificates;
pub mod client;
pub mod collector;
pub mod command;
pub mod corpus;
pub mod decisions;
pub mod disk;
pub mod envoy;
pub mod frames;
pub mod load;
pub mod memory;
pub mod not_run;
pub mod plugin;
mod ports;
pub mod process;
pub mod proxy;
pub mod rls;
pub mod scarcity;
pub mod service;
mod shared_envoy;
pub mod shared_servers;
pub mod sidecar;
pub mod stack;
pub mod upstream;
pub mod wait;
