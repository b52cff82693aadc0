//! The built filter, and Envoy's own, in a real Envoy with a real sidecar behind it.

mod cel;
mod debits;
mod fields;
mod filter;
mod filter_options;
mod lease_faults;
mod leases;
mod machines;
mod native_filter;
mod native_usage;
mod replies;
mod reports;
mod requests;
mod routes;
mod translate;
mod twin;
mod values;
