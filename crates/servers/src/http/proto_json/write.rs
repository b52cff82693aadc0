//! Writes an answer: camelCase, without defaults, enums by name, durations as `"12s"`.

use super::number::UNITS;
use serde_json::{Map, Number, Value};
use tidegate_wire::Kind;
use tidegate_wire::rls::{Code, DescriptorStatus, HeaderValue, RateLimit, RateLimitResponse};

/// The JSON of an answer. Fields that only Envoy's filter uses (a body, headers for the upstream) are never
/// set here, and leases are never requested.
pub(in crate::http) fn write(response: RateLimitResponse) -> String {
    let statuses: Vec<Value> = response.statuses.into_iter().map(status).collect();
    let headers: Vec<Value> = response.response_headers_to_add.into_iter().map(header).collect();
    let answer = message([
        ("overallCode", code(response.overall_code)),
        ("statuses", (!statuses.is_empty()).then(|| statuses.into())),
        ("responseHeadersToAdd", (!headers.is_empty()).then(|| headers.into())),
        ("dynamicMetadata", response.dynamic_metadata.map(of_struct)),
    ]);
    answer.to_string()
}

/// An object of the fields that are set.
fn message<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    let set = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    set.collect::<Map<_, _>>().into()
}

fn status(status: DescriptorStatus) -> Value {
    message([
        ("code", code(status.code)),
        ("currentLimit", status.current_limit.map(of_limit)),
        ("limitRemaining", count(status.limit_remaining)),
        ("durationUntilReset", status.duration_until_reset.map(|until| duration(until).into())),
    ])
}

fn of_limit(limit: RateLimit) -> Value {
    let unit = UNITS.iter().find(|(unit, _)| i32::from(*unit) == limit.unit && limit.unit != 0);
    message([
        ("name", text(limit.name)),
        ("requestsPerUnit", count(limit.requests_per_unit)),
        ("unit", unit.map(|(_, name)| (*name).into())),
    ])
}

fn header(header: HeaderValue) -> Value {
    message([("key", text(header.key)), ("value", text(header.value))])
}

fn text(text: String) -> Option<Value> {
    (!text.is_empty()).then(|| text.into())
}

fn count(count: u32) -> Option<Value> {
    (count != 0).then(|| count.into())
}

/// The name of a code; none for the default.
fn code(code: i32) -> Option<Value> {
    match Code::try_from(code) {
        Ok(Code::Ok) => Some("OK".into()),
        Ok(Code::OverLimit) => Some("OVER_LIMIT".into()),
        Ok(Code::Unknown) | Err(_) => None,
    }
}

/// Seconds, with a fraction of 0, 3, 6 or 9 digits.
fn duration(duration: prost_types::Duration) -> String {
    let (seconds, nanos) = (duration.seconds, duration.nanos);
    match nanos {
        0 => format!("{seconds}s"),
        nanos if nanos % 1_000_000 == 0 => format!("{seconds}.{:03}s", nanos / 1_000_000),
        nanos if nanos % 1_000 == 0 => format!("{seconds}.{:06}s", nanos / 1_000),
        nanos => format!("{seconds}.{nanos:09}s"),
    }
}

fn of_struct(fields: tidegate_wire::Struct) -> Value {
    let fields = fields.fields.into_iter().map(|(key, value)| (key, of_value(value)));
    fields.collect::<Map<_, _>>().into()
}

fn of_value(value: tidegate_wire::Value) -> Value {
    match value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(value)) => value.into(),
        Some(Kind::NumberValue(value)) => number(value),
        Some(Kind::StringValue(value)) => value.into(),
        Some(Kind::ListValue(list)) => list.values.into_iter().map(of_value).collect(),
        Some(Kind::StructValue(fields)) => of_struct(fields),
    }
}

/// Whole numbers without a fraction, if they are exact; null for values that JSON cannot express.
fn number(value: f64) -> Value {
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() <= EXACT_MAX {
        return (value as i64).into();
    }
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tidegate_core::{Answer, LimitView, Nanos, Status, Unit, Value as Metadata, Verdict};
    use tidegate_wire::response_to_wire;

    fn written(response: RateLimitResponse) -> Value {
        serde_json::from_str(&write(response)).unwrap()
    }

    #[test]
    fn an_answer_has_names_and_no_defaults() {
        let limit = |unit, name: &str| LimitView { requests: 9, unit, name: name.to_owned() };
        let status = |verdict, limit, remaining, secs| Status {
            verdict,
            limit: Some(limit),
            remaining,
            reset: Nanos::from_secs(secs),
            lease: None,
            details: None,
        };
        let metadata = Metadata::Map(vec![
            ("n".to_owned(), Metadata::List(vec![Metadata::Number(3.0), Metadata::Number(0.5)])),
            ("m".to_owned(), Metadata::Map(vec![("x".to_owned(), Metadata::Null)])),
            ("b".to_owned(), Metadata::Bool(false)),
            ("t".to_owned(), Metadata::Text("é".to_owned())),
        ]);
        let answer = Answer {
            verdict: Verdict::Deny,
            statuses: vec![
                status(Verdict::Deny, limit(Some(Unit::Week), "named"), 0, 12),
                status(Verdict::Allow, limit(None, ""), 4, 0),
                Status::NO_LIMIT,
                Status::UNLIMITED,
            ],
            metadata: Some(metadata),
        };
        let mut response = response_to_wire(&answer);
        response.response_headers_to_add =
            vec![HeaderValue { key: "a".to_owned(), value: "1".to_owned() }];
        let expected = json!({
            "overallCode": "OVER_LIMIT",
            "statuses": [
                {
                    "code": "OVER_LIMIT",
                    "currentLimit": {"name": "named", "requestsPerUnit": 9, "unit": "WEEK"},
                    "durationUntilReset": "12s",
                },
                {
                    "code": "OK",
                    "currentLimit": {"requestsPerUnit": 9},
                    "limitRemaining": 4,
                    "durationUntilReset": "0s",
                },
                {"code": "OK"},
                {"code": "OK", "limitRemaining": 4_294_967_295_u32},
            ],
            "responseHeadersToAdd": [{"key": "a", "value": "1"}],
            "dynamicMetadata": {"n": [3, 0.5], "m": {"x": null}, "b": false, "t": "é"},
        });
        assert_eq!(written(response), expected);
        assert_eq!(write(RateLimitResponse::default()), "{}");
    }

    #[test]
    fn fractions_have_a_multiple_of_three_digits() {
        for (nanos, text) in
            [(0, "1s"), (500_000_000, "1.500s"), (1_000, "1.000001s"), (1, "1.000000001s")]
        {
            assert_eq!(duration(prost_types::Duration { seconds: 1, nanos }), text);
        }
    }
}
