//! Numbers of an evaluation: 64-bit integers that never wrap, and doubles.

use super::Cause;
use super::values::Value;
use crate::config::when::Operator;
use std::cmp::Ordering;

/// Longer than any number; each use would read the whole text.
const TEXT_BYTES_MAX: usize = 128;

/// 2^63, the first double beyond all integers.
const INTS_END: f64 = 9_223_372_036_854_775_808.0;

/// The order of two numbers, which is none beside one that is not a number; none if one of the
/// values is no number.
pub(super) fn order(left: &Value<'_>, right: &Value<'_>) -> Option<Option<Ordering>> {
    Some(match (left, right) {
        (Value::Int(left), Value::Int(right)) => Some(left.cmp(right)),
        (Value::Double(left), Value::Double(right)) => left.partial_cmp(right),
        (Value::Int(left), Value::Double(right)) => order_of_both(*left, *right),
        (Value::Double(left), Value::Int(right)) => {
            order_of_both(*right, *left).map(Ordering::reverse)
        }
        _ => return None,
    })
}

/// Exact, also where a double cannot represent the integer.
fn order_of_both(int: i64, double: f64) -> Option<Ordering> {
    if double.is_nan() {
        return None;
    }
    if double >= INTS_END {
        return Some(Ordering::Less);
    }
    if double < -INTS_END {
        return Some(Ordering::Greater);
    }
    // The cast is exact: both are in range, and the fraction is cut.
    let whole = double.trunc() as i64;
    Some(int.cmp(&whole).then(0.0.partial_cmp(&double.fract())?))
}

pub(super) fn negated<'e>(value: &Value<'_>) -> Result<Value<'e>, Cause> {
    match value {
        Value::Int(number) => number.checked_neg().map(Value::Int).ok_or(Cause::Range),
        Value::Double(number) => Ok(Value::Double(-number)),
        _ => Err(Cause::Type),
    }
}

pub(super) fn computed<'e>(
    operator: Operator,
    left: &Value<'_>,
    right: &Value<'_>,
) -> Result<Value<'e>, Cause> {
    match (left, right) {
        (Value::Int(left), Value::Int(right)) => {
            let (left, right) = (*left, *right);
            let computed = match operator {
                Operator::Add => left.checked_add(right),
                Operator::Subtract => left.checked_sub(right),
                Operator::Multiply => left.checked_mul(right),
                Operator::Divide => left.checked_div(right),
                Operator::Remainder => left.checked_rem(right),
            };
            computed.map(Value::Int).ok_or(Cause::Range)
        }
        (Value::Double(left), Value::Double(right)) => Ok(Value::Double(match operator {
            Operator::Add => left + right,
            Operator::Subtract => left - right,
            Operator::Multiply => left * right,
            Operator::Divide => left / right,
            Operator::Remainder => return Err(Cause::Type),
        })),
        _ => Err(Cause::Type),
    }
}

/// As an integer; a fraction is cut.
pub(super) fn int<'e>(value: &Value<'_>, all: &[u8]) -> Result<Value<'e>, Cause> {
    Ok(Value::Int(match value {
        Value::Int(number) => *number,
        // The cast is exact but for the fraction.
        Value::Double(number) if number.abs() < INTS_END => *number as i64,
        Value::Double(_) => return Err(Cause::Range),
        text => parsed(text.bytes(all)?)?,
    }))
}

/// As a double, the nearest one.
pub(super) fn double<'e>(value: &Value<'_>, all: &[u8]) -> Result<Value<'e>, Cause> {
    Ok(Value::Double(match value {
        Value::Int(number) => *number as f64,
        Value::Double(number) => *number,
        text => parsed(text.bytes(all)?)?,
    }))
}

fn parsed<T: std::str::FromStr>(bytes: &[u8]) -> Result<T, Cause> {
    let text =
        bytes.get(..bytes.len().min(TEXT_BYTES_MAX)).filter(|text| text.len() == bytes.len());
    let text = text.and_then(|text| std::str::from_utf8(text).ok());
    text.and_then(|text| text.parse().ok()).ok_or(Cause::NotANumber)
}
