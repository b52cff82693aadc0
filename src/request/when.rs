//! Evaluates the conditions of entries.
//!
//! Values are ranges of what was read of the request, or borrow from the expression: evaluation
//! copies and allocates nothing. Each part is evaluated at most once, and only if the result
//! depends on it, so facts are read only then.
//!
//! A value of a client can make an evaluation fail. Then the entry applies, since a client must not
//! evade a limit by that.

mod number;
mod values;

use super::fact_reader::FactReader;
use crate::config::when::{Comparison, Constant, Expr, Form, Logical, OnError, TextTest, When};
use crate::host::RequestFacts;
use crate::matching::text::TextMatcher;
use std::cmp::Ordering;
use std::fmt::Display;
use std::ops::Range;
use values::{List, Map, Text, Value};

/// Why an evaluation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A header, property, key or element is absent.
    Absent,
    /// A value has another type than the expression needs.
    Type,
    /// A text is not a number, or is too long for one.
    NotANumber,
    /// A number is too large, or a divisor is 0.
    Range,
}

impl Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Cause::Absent => "a value is absent",
            Cause::Type => "a value has another type than the expression needs",
            Cause::NotANumber => "a string is not a number",
            Cause::Range => "a number is too large, or a divisor is 0",
        })
    }
}

/// Whether an entry with this condition applies to the request.
pub(super) fn applies<F: RequestFacts>(when: &When, reader: &mut FactReader<'_, F>) -> bool {
    match truth(&when.root, reader) {
        Ok(applies) => applies,
        Err(cause) => {
            reader.note_failure(&when.path, cause);
            when.on_error == OnError::Apply
        }
    }
}

fn truth<F: RequestFacts>(expr: &Expr, reader: &mut FactReader<'_, F>) -> Result<bool, Cause> {
    match value(expr, reader)? {
        Value::Bool(truth) => Ok(truth),
        _ => Err(Cause::Type),
    }
}

fn value<'e, F: RequestFacts>(
    expr: &'e Expr,
    reader: &mut FactReader<'_, F>,
) -> Result<Value<'e>, Cause> {
    Ok(match expr {
        Expr::Constant(constant) => Value::of(constant),
        Expr::List(items) => Value::List(List::Constant(items)),
        Expr::Map(entries) => Value::Map(Map::Constant(entries)),
        Expr::Variable(fact, form) => {
            let range = match form {
                Form::Bool | Form::Int => reader.range(fact),
                Form::Text | Form::UrlPath | Form::Query => reader.text_range(fact),
            };
            variable(reader.read_so_far(), range.ok_or(Cause::Absent)?, *form)?
        }
        Expr::Metadata(fact) => {
            let range = reader.range(fact).ok_or(Cause::Absent)?;
            Value::Map(Map::Namespaces(range))
        }
        Expr::Index(parts) => {
            let [operand, key] = &**parts;
            let (operand, key) = (value(operand, reader)?, value(key, reader)?);
            operand.at(&key, reader.read_so_far())?
        }
        Expr::Has(expr) => match value(expr, reader) {
            Ok(_) => Value::Bool(true),
            Err(Cause::Absent) => Value::Bool(false),
            Err(cause) => return Err(cause),
        },
        Expr::Not(expr) => Value::Bool(!truth(expr, reader)?),
        Expr::Negate(expr) => number::negated(&value(expr, reader)?)?,
        Expr::Logical(kind, parts) => Value::Bool(logical(*kind, parts, reader)?),
        Expr::Conditional(parts) => {
            let [condition, yes, no] = &**parts;
            let chosen = if truth(condition, reader)? { yes } else { no };
            value(chosen, reader)?
        }
        Expr::Compare(comparison, parts) => {
            let [left, right] = &**parts;
            let (left, right) = (value(left, reader)?, value(right, reader)?);
            Value::Bool(compare(*comparison, &left, &right, reader.read_so_far())?)
        }
        Expr::Compute(operator, parts) => {
            let [left, right] = &**parts;
            number::computed(*operator, &value(left, reader)?, &value(right, reader)?)?
        }
        Expr::In(parts) => {
            let [element, list] = &**parts;
            let (element, list) = (value(element, reader)?, value(list, reader)?);
            Value::Bool(list.has(&element, reader.read_so_far())?)
        }
        Expr::Matches(expr, matcher) => Value::Bool(matches(expr, matcher, reader)?),
        Expr::Test(test, parts) => {
            let [text, part] = &**parts;
            let (text, part) = (value(text, reader)?, value(part, reader)?);
            let all = reader.read_so_far();
            Value::Bool(passes(*test, text.bytes(all)?, part.bytes(all)?))
        }
        Expr::Size(expr) => value(expr, reader)?.size(reader.read_so_far())?,
        Expr::Int(expr) => number::int(&value(expr, reader)?, reader.read_so_far())?,
        Expr::Double(expr) => number::double(&value(expr, reader)?, reader.read_so_far())?,
    })
}

/// As in CEL: the side that decides alone makes up for a failure of the other.
fn logical<F: RequestFacts>(
    kind: Logical,
    parts: &[Expr; 2],
    reader: &mut FactReader<'_, F>,
) -> Result<bool, Cause> {
    let decisive = kind == Logical::Or;
    let [left, right] = parts;
    let left = truth(left, reader);
    if left == Ok(decisive) {
        return left;
    }
    let right = truth(right, reader);
    if right == Ok(decisive) {
        return right;
    }
    left.and(right)
}

/// A value of Envoy, by its form.
fn variable<'e>(all: &[u8], range: Range<usize>, form: Form) -> Result<Value<'e>, Cause> {
    let bytes = all.get(range.clone()).unwrap_or_default();
    let Range { start, end } = range;
    let at = |byte: u8, bytes: &[u8]| memchr::memchr(byte, bytes);
    Ok(match form {
        Form::Text => Value::Text(Text::Read(start..end)),
        Form::UrlPath => {
            let length = at(b'?', bytes).unwrap_or(bytes.len());
            Value::Text(Text::Read(start..start.saturating_add(length)))
        }
        Form::Query => {
            let skipped = at(b'?', bytes).map_or(bytes.len(), |at| at.saturating_add(1));
            let query = bytes.get(skipped..).unwrap_or_default();
            let length = at(b'#', query).unwrap_or(query.len());
            let start = start.saturating_add(skipped);
            Value::Text(Text::Read(start..start.saturating_add(length)))
        }
        Form::Int => {
            let number = bytes.try_into().map_err(|_| Cause::Type)?;
            Value::Int(i64::from_le_bytes(number))
        }
        Form::Bool => match bytes {
            [flag] => Value::Bool(*flag != 0),
            _ => return Err(Cause::Type),
        },
    })
}

fn compare(
    comparison: Comparison,
    left: &Value<'_>,
    right: &Value<'_>,
    all: &[u8],
) -> Result<bool, Cause> {
    match comparison {
        Comparison::Equal => return left.equals(right, all),
        Comparison::NotEqual => return left.equals(right, all).map(|equal| !equal),
        _ => {}
    }
    let order = match (left, right) {
        (Value::Text(left), Value::Text(right)) => Some(left.bytes(all).cmp(right.bytes(all))),
        // None beside a number that is not a number: nothing is above or below it.
        _ => number::order(left, right).ok_or(Cause::Type)?,
    };
    Ok(order.is_some_and(|order| match comparison {
        Comparison::Less => order == Ordering::Less,
        Comparison::LessEqual => order != Ordering::Greater,
        Comparison::Greater => order == Ordering::Greater,
        _ => order != Ordering::Less,
    }))
}

fn matches<F: RequestFacts>(
    expr: &Expr,
    matcher: &TextMatcher,
    reader: &mut FactReader<'_, F>,
) -> Result<bool, Cause> {
    let text = value(expr, reader)?;
    let bytes = text.bytes(reader.read_so_far())?;
    // Texts in metadata are UTF-8 by protobuf's rules, but nothing here checks them.
    if matches!(matcher, TextMatcher::Regex(_)) && std::str::from_utf8(bytes).is_err() {
        return Err(Cause::Type);
    }
    Ok(matcher.matches(bytes))
}

fn passes(test: TextTest, text: &[u8], part: &[u8]) -> bool {
    match test {
        TextTest::StartsWith => text.starts_with(part),
        TextTest::EndsWith => text.ends_with(part),
        TextTest::Contains => memchr::memmem::find(text, part).is_some(),
    }
}

impl<'e> Value<'e> {
    fn of(constant: &'e Constant) -> Value<'e> {
        match constant {
            Constant::Null => Value::Null,
            Constant::Bool(value) => Value::Bool(*value),
            Constant::Int(value) => Value::Int(*value),
            Constant::Double(value) => Value::Double(*value),
            Constant::Text(text) => Value::Text(Text::Constant(text)),
        }
    }
}
