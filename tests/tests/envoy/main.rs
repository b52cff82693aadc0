//! The built filter, and Envoy's own, in a real Envoy with a real sidecar behind it.

mod cel;
mod debits;
mod envoy_gateway;
mod fields;
mod filter;
mod filter_options;
mod istio_sample;
mod lease_faults;
mod leases;
mod machines;
mod native_filter;
mod native_usage;
mod replies;
mod reports;
mod requests;
mod routes;
mod statistics;
mod statistics_fleet;
mod tallies;
mod top;
mod translate;
mod twin;
mod values;
