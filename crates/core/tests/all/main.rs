//! The contract of every limit, case by case and against slow twins. One program: a binary for each file would be
//! linked and started by itself.

mod after_the_fact;
mod buckets;
mod decide_all;
mod exact_times;
mod leases;
mod sliding;
mod slow_buckets;
mod slow_contract;
mod slow_sliding;
mod slow_windows;
mod units_and_keys;
mod windows;
