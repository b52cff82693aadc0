//! Several engines and one slow server: whatever happens, what was acknowledged is there exactly once.

mod history;
mod orders;
mod world;

use super::*;
use crate::image::Retention;

const RETENTION: Retention = Retention { slack_secs: 10, jitter_secs: 5 };

fn rules(patience: u64) -> Rules {
    Rules { patience, retention: RETENTION, layout: Layout::Each, keys_max: 256 }
}
