//! A sidecar process from outside: its endpoints, its signals, its workers, its files.

mod clock;
mod console;
mod disks;
mod frs_endpoint;
mod grpc_js_client;
mod http2_conformance;
mod http_endpoint;
mod process;
mod python_client;
mod reload;
mod rls_endpoint;
mod scarce_memory;
mod statistics;
mod stopped_neighbour;
mod top;
mod traces;
mod workers;
mod xds;
