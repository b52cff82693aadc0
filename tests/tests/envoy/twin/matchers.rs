//! Matchers of headers, query parameters and addresses, each with any of its options.

use super::dice::Dice;
use super::pools::{EXPRESSIONS, MATCHED_HEADERS, PARAMETERS, TEXTS};
use serde_json::{Value, json};

/// A matcher of one header.
pub(super) fn header_matcher(dice: &mut Dice) -> Value {
    let mut of = header_test(dice);
    of["name"] = json!(dice.pick(&MATCHED_HEADERS));
    for option in ["invert_match", "treat_missing_header_as_empty"] {
        if dice.one_in(3) {
            of[option] = json!(!dice.one_in(4));
        }
    }
    of
}

fn header_test(dice: &mut Dice) -> Value {
    match dice.below(12) {
        0 => json!({}),
        1 => json!({"present_match": dice.one_in(2)}),
        2 | 3 => json!({"range_match": range(dice)}),
        4 => json!({"exact_match": dice.pick(&TEXTS)}),
        5 => json!({"prefix_match": some_text(dice)}),
        6 => json!({"suffix_match": some_text(dice)}),
        7 => json!({"contains_match": some_text(dice)}),
        8 => json!({"safe_regex_match": regex(dice)}),
        _ => json!({"string_match": text_matcher(dice)}),
    }
}

/// A matcher of one query parameter.
pub(super) fn query_matcher(dice: &mut Dice) -> Value {
    let mut of = match dice.below(4) {
        0 => json!({}),
        1 => json!({"present_match": dice.one_in(2)}),
        _ => json!({"string_match": text_matcher(dice)}),
    };
    of["name"] = json!(dice.pick(&PARAMETERS));
    of
}

fn text_matcher(dice: &mut Dice) -> Value {
    let mut of = match dice.below(6) {
        0 => json!({"exact": dice.pick(&TEXTS)}),
        1 => json!({"prefix": some_text(dice)}),
        2 => json!({"suffix": some_text(dice)}),
        3 => json!({"contains": some_text(dice)}),
        _ => return json!({"safe_regex": regex(dice)}),
    };
    if dice.one_in(3) {
        of["ignore_case"] = json!(!dice.one_in(4));
    }
    of
}

fn regex(dice: &mut Dice) -> Value {
    let mut of = json!({"regex": dice.pick(&EXPRESSIONS)});
    if dice.one_in(4) {
        of["google_re2"] = json!({});
    }
    of
}

/// A text that is not empty.
fn some_text(dice: &mut Dice) -> &'static str {
    let (_, some) = TEXTS.split_first().expect("the first one is empty");
    dice.pick(some)
}

fn range(dice: &mut Dice) -> Value {
    let (start, end) = dice.pick(&[
        (json!(0), json!(10)),
        (json!(-5), json!(5)),
        (json!(7), json!(7)),
        (json!("1"), json!("43")),
        (json!(0), json!("9223372036854775807")),
        (json!("-9223372036854775808"), json!(0)),
    ]);
    json!({"start": start, "end": end})
}

/// A matcher of addresses.
pub(super) fn address_matcher(dice: &mut Dice) -> Value {
    let range = |dice: &mut Dice| {
        dice.pick(&[
            json!({"address_prefix": "10.0.0.0", "prefix_len": 8}),
            json!({"address_prefix": "203.0.113.9", "prefix_len": 24}),
            json!({"address_prefix": "127.0.0.1", "prefix_len": 32}),
            json!({"address_prefix": "0.0.0.0"}),
            json!({"address_prefix": "::"}),
            json!({"address_prefix": "2001:db8::", "prefix_len": 32}),
            json!({"address_prefix": "::ffff:10.0.0.0", "prefix_len": 104}),
            json!({"address_prefix": "2001:db8::7", "prefix_len": 128}),
        ])
    };
    let mut of = json!({"ranges": dice.some(1, 3, range)});
    if dice.one_in(3) {
        of["invert_match"] = json!(!dice.one_in(4));
    }
    of
}
