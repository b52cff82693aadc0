//! Counters that machines share: real servers of them.

mod servers;
