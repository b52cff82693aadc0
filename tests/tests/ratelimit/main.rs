//! The rate limit service over the wire: what a request takes, what is answered, what is refused.

mod algorithms;
mod config;
mod corpus;
mod reports;
mod requests;
