//! The last events of a run, stored cheaply and formatted when it fails.

use std::collections::VecDeque;
use std::fmt;

/// Two hundred milliseconds of a busy scenario.
const KEPT: usize = 400;

#[derive(Debug, Clone, Copy)]
struct Note {
    at: u64,
    what: &'static str,
    numbers: [u64; 4],
}

#[derive(Debug, Default)]
pub(crate) struct Trace {
    notes: VecDeque<Note>,
    digest: u64,
}

impl Trace {
    /// Records an event. `what` names it and its numbers.
    pub(crate) fn note(&mut self, at: u64, what: &'static str, numbers: [u64; 4]) {
        if self.notes.len() == KEPT {
            self.notes.pop_front();
        }
        for number in [at, numbers[0], numbers[1]] {
            self.digest =
                (self.digest ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
        self.notes.push_back(Note { at, what, numbers });
    }

    /// Equal for two runs only if they had the same events.
    #[must_use]
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Note { at, what, numbers: [a, b, c, d] } in &self.notes {
            let (seconds, nanos) = (at / 1_000_000_000, at % 1_000_000_000);
            writeln!(f, "{seconds:>6}.{nanos:09}  {what}: {a} {b} {c} {d}")?;
        }
        Ok(())
    }
}
