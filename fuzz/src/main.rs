//! Coverage-guided fuzzing: one program with every target. The environment variable `TARGET` selects one.
//!
//! Each target has an oracle: an independent decoder, the same input in other pieces, or a limit on CPU time
//! and memory. See docs/internals/fuzzing.md.

#![no_main]

mod frames;
mod header_blocks;
mod input;
mod memory;
mod seeds;
mod targets;
mod twin;
mod work;

use std::sync::OnceLock;
use targets::Target;

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

static TARGET: OnceLock<&'static Target> = OnceLock::new();

/// Selects the target. With `SEEDS=directory`, writes its seeds there and exits.
fn begin() {
    let name = std::env::var("TARGET").unwrap_or_default();
    let Some(target) = targets::ALL.iter().find(|target| target.name == name) else {
        let names: Vec<&str> = targets::ALL.iter().map(|target| target.name).collect();
        eprintln!("unknown target \"{name}\"; set TARGET to one of: {}", names.join(", "));
        std::process::exit(2);
    };
    if let Some(directory) = std::env::var_os("SEEDS") {
        let result = seeds::write(directory.as_ref(), &(target.seeds)());
        result.unwrap_or_else(|error| panic!("cannot write seeds: {error}"));
        std::process::exit(0);
    }
    TARGET.get_or_init(|| target);
}

libfuzzer_sys::fuzz_target!(init: begin(), |input: &[u8]| {
    if let Some(target) = TARGET.get() {
        (target.run)(input);
    }
});
