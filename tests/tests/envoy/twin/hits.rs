//! The hits of entries, and their limits.

use super::configuration::{COST, DEBIT};
use super::dice::Dice;
use serde_json::{Value, json};

pub(super) fn hits_addend(dice: &mut Dice) -> Value {
    match dice.below(2) {
        0 => json!({"number": dice.pick(&[0, 1, 5, 1_000_000_000])}),
        _ => json!({"format": dice.pick(&[
            format!("%REQ({COST})%"),
            format!("%REQ(x-none?{COST})%"),
            "%DYNAMIC_METADATA(dyn:seven)%".to_owned(),
        ])}),
    }
}

/// Hits that are counted at the end of a stream.
pub(super) fn late_hits(dice: &mut Dice) -> Value {
    match dice.below(3) {
        0 => json!({"number": dice.pick(&[0, 1, 5, 1_000_000_000])}),
        _ => json!({"format": dice.pick(&[
            format!("%REQ({DEBIT})%"),
            format!("%RESP({DEBIT})%"),
            format!("%RESP(x-none?{DEBIT})%"),
            "%RESP(x-none)%".to_owned(),
            "%DYNAMIC_METADATA(dyn:seven)%".to_owned(),
            "%BYTES_SENT%".to_owned(),
        ])}),
    }
}

/// Whether late hits depend on whether the request is denied.
pub(super) fn depends_on_reply(hits: &Value) -> bool {
    let format = hits["format"].as_str().unwrap_or_default();
    hits["is_negative_hits"] == true || format.contains("RESP") || format.contains("BYTES")
}

/// A limit of its own, fixed or from dynamic metadata; the last two are ignored.
pub(super) fn limit(dice: &mut Dice) -> Value {
    let metadata = |key: &str| {
        let key = json!({"key": "dyn", "path": [{"key": key}]});
        json!({"dynamic_metadata": {"metadata_key": key}})
    };
    match dice.below(4) {
        0 => json!({"rate_limit": {"requests_per_unit": 7, "unit": "DAY"}}),
        1 => metadata("limit"),
        2 => metadata("no_limit"),
        _ => metadata("none"),
    }
}
