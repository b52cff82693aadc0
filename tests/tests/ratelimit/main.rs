//! The rate limit service over the wire: what a request takes, what is answered, what is refused.

mod algorithms;
mod config;
mod modes;
mod reports;
mod requests;
mod rules;
mod usage;
