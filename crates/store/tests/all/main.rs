//! The cluster from outside: its twin, threads and processes that share it, and every way to lose a part of it.

mod checkpoints;
mod clock;
mod common;
mod fuzz_image;
mod kill;
mod load;
mod model;
mod moved;
mod open;
mod overlap;
mod power_loss;
mod stuck;
mod threads;
