//! Writes a protobuf Struct as JSON, for access logs.
//!
//! The service chose the bytes: depth and length are bounded, and what is no Struct, or too long, is
//! no text at all.

use crate::config::structured::{Field, field};

/// The deepest nesting of values.
const DEPTH_MAX: u32 = 16;

/// The JSON of a serialized Struct, if it has at most `bytes_max` bytes.
pub(super) fn json_of_struct(bytes: &[u8], bytes_max: usize) -> Option<String> {
    // Shorter bytes than these cannot have a longer text than six times as many.
    if bytes.len() > bytes_max {
        return None;
    }
    let mut json = String::new();
    object(bytes, DEPTH_MAX, &mut json)?;
    (json.len() <= bytes_max).then_some(json)
}

fn object(mut bytes: &[u8], depth: u32, json: &mut String) -> Option<()> {
    json.push('{');
    while !bytes.is_empty() {
        if let (1, Field::Bytes(entry)) = field(&mut bytes)? {
            separate(json, '{');
            member(entry, depth, json)?;
        }
    }
    json.push('}');
    Some(())
}

fn member(mut bytes: &[u8], depth: u32, json: &mut String) -> Option<()> {
    let (mut name, mut member) = (&b""[..], &b""[..]);
    while !bytes.is_empty() {
        match field(&mut bytes)? {
            (1, Field::Bytes(key)) => name = key,
            (2, Field::Bytes(value)) => member = value,
            _ => {}
        }
    }
    text(name, json)?;
    json.push(':');
    value(member, depth, json)
}

/// A `Value`: a oneof, whose last field counts.
fn value(mut bytes: &[u8], depth: u32, json: &mut String) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    let mut last = None;
    while !bytes.is_empty() {
        last = Some(field(&mut bytes)?);
    }
    match last {
        Some((2, Field::Double(double))) => number(double, json),
        Some((3, Field::Bytes(bytes))) => text(bytes, json)?,
        Some((4, Field::Number(flag))) => json.push_str(if flag == 0 { "false" } else { "true" }),
        Some((5, Field::Bytes(bytes))) => object(bytes, depth, json)?,
        Some((6, Field::Bytes(bytes))) => list(bytes, depth, json)?,
        _ => json.push_str("null"),
    }
    Some(())
}

fn list(mut bytes: &[u8], depth: u32, json: &mut String) -> Option<()> {
    json.push('[');
    while !bytes.is_empty() {
        if let (1, Field::Bytes(item)) = field(&mut bytes)? {
            separate(json, '[');
            value(item, depth, json)?;
        }
    }
    json.push(']');
    Some(())
}

fn separate(json: &mut String, first: char) {
    if !json.ends_with(first) {
        json.push(',');
    }
}

/// With up to six decimal places: the library's code for doubles would be a good part of the module.
/// Numbers from 2^53 on are not exact, and become `null` as those that JSON does not have.
fn number(double: f64, json: &mut String) {
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    const PLACES: usize = 6;
    const MILLIONS: u64 = 1_000_000;
    if double.is_nan() || double.abs() >= EXACT_MAX {
        return json.push_str("null");
    }
    if double < 0.0 {
        json.push('-');
    }
    let (whole, rest) = (double.abs().trunc(), double.abs().fract());
    // Below 2^53, and at most a million.
    let (mut whole, mut millionths) = (whole as u64, (rest * 1_000_000.0).round() as u64);
    if millionths == MILLIONS {
        (whole, millionths) = (whole.saturating_add(1), 0);
    }
    json.push_str(&whole.to_string());
    if millionths > 0 {
        let places = format!("{millionths:0PLACES$}");
        json.push('.');
        json.push_str(places.trim_end_matches('0'));
    }
}

fn text(bytes: &[u8], json: &mut String) -> Option<()> {
    json.push('"');
    for char in std::str::from_utf8(bytes).ok()?.chars() {
        match char {
            '"' | '\\' => json.extend(['\\', char]),
            '\0'..='\u{1f}' | '\u{7f}' => json.push_str(&format!("\\u{:04x}", u32::from(char))),
            char => json.push(char),
        }
    }
    json.push('"');
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::structured::tests::struct_of_json;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn written(value: &Value) -> Option<Value> {
        let json = json_of_struct(&struct_of_json(value), 4_096)?;
        Some(serde_json::from_str(&json).expect("JSON"))
    }

    #[test]
    fn values_are_written_as_they_are() {
        let value = json!({
            "text": "a\"b\\c\n\u{7f}é", "yes": true, "no": false, "none": null, "": {},
            "numbers": [0, 3, -2, 0.5, -0.25, 1.000001, 9_007_199_254_740_991_u64],
            "list": [[], [{"deep": ["x"]}]],
        });
        let text = |value: &Value| value.to_string().replace(".0,", ",");
        let written = written(&value).expect("JSON");
        // Whole doubles have lost their point.
        assert_eq!(text(&written), text(&serde_json::from_str(&value.to_string()).unwrap()));
    }

    #[test]
    fn numbers_that_json_lacks_or_doubles_blur_are_null_and_others_are_rounded() {
        let of = |number: f64| {
            let mut json = String::new();
            super::number(number, &mut json);
            json
        };
        let table = [
            (f64::NAN, "null"),
            (f64::INFINITY, "null"),
            (-9_007_199_254_740_992.0, "null"),
            (0.999_999_9, "1"),
            (1e-9, "0"),
            (2.000_01, "2.00001"),
            (-1.5, "-1.5"),
        ];
        for (number, expected) in table {
            assert_eq!(of(number), expected);
        }
    }

    #[test]
    fn what_is_too_long_or_too_deep_is_no_text() {
        let nested = |levels| (0..levels).fold(json!(1), |inner, _| json!({"k": inner}));
        assert!(written(&nested(15)).is_some());
        assert_eq!(written(&nested(17)), None);
        let long = struct_of_json(&json!({"k": "x".repeat(93)}));
        assert_eq!(json_of_struct(&long, 101).map(|json| json.len()), None);
        let long = struct_of_json(&json!({"k": "x".repeat(80)}));
        assert!(json_of_struct(&long, 101).is_some());
        let escaped = struct_of_json(&json!({"k": "\u{1}".repeat(80)}));
        assert_eq!(json_of_struct(&escaped, 101), None, "the text counts");
    }

    proptest! {
        #[test]
        fn any_bytes_are_json_or_nothing(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(json) = json_of_struct(&bytes, 4_096) {
                prop_assert!(serde_json::from_str::<Value>(&json).is_ok(), "{json}");
            }
        }
    }
}
