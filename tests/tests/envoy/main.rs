//! The built filter, and Envoy's own, in a real Envoy with a real sidecar behind it.

mod debits;
mod filter;
mod filter_options;
mod lease_faults;
mod leases;
mod native_filter;
mod native_usage;
mod requests;
