//! Writes an answer: camelCase, without defaults, enums by name, durations as `"12s"`.

use super::number::UNITS;
use serde_json::{Map, Number, Value};
use tidegate_wire::Kind;
use tidegate_wire::rls::{Code, DescriptorStatus, HeaderValue, RateLimit, RateLimitResponse};

/// The JSON of an answer. Fields that only Envoy's filter uses (a body, headers for the upstream) are never
/// set here, and leases are never requested.
pub(in crate::http) fn write(response: RateLimitResponse) -> String {
    let mut fields = Map::new();
    if let Some(code) = code(response.overall_code) {
        fields.insert("overallCode".to_owned(), code.into());
    }
    let statuses: Vec<Value> = response.statuses.into_iter().map(status).collect();
    if !statuses.is_empty() {
        fields.insert("statuses".to_owned(), statuses.into());
    }
    let headers: Vec<Value> = response.response_headers_to_add.into_iter().map(header).collect();
    if !headers.is_empty() {
        fields.insert("responseHeadersToAdd".to_owned(), headers.into());
    }
    if let Some(metadata) = response.dynamic_metadata {
        fields.insert("dynamicMetadata".to_owned(), of_struct(metadata));
    }
    Value::Object(fields).to_string()
}

fn status(status: DescriptorStatus) -> Value {
    let mut fields = Map::new();
    if let Some(code) = code(status.code) {
        fields.insert("code".to_owned(), code.into());
    }
    if let Some(limit) = status.current_limit {
        fields.insert("currentLimit".to_owned(), of_limit(limit));
    }
    if status.limit_remaining != 0 {
        fields.insert("limitRemaining".to_owned(), status.limit_remaining.into());
    }
    if let Some(until) = status.duration_until_reset {
        fields.insert("durationUntilReset".to_owned(), duration(until).into());
    }
    fields.into()
}

fn of_limit(limit: RateLimit) -> Value {
    let mut fields = Map::new();
    if !limit.name.is_empty() {
        fields.insert("name".to_owned(), limit.name.into());
    }
    if limit.requests_per_unit != 0 {
        fields.insert("requestsPerUnit".to_owned(), limit.requests_per_unit.into());
    }
    let unit = UNITS.iter().find(|(unit, _)| i32::from(*unit) == limit.unit && limit.unit != 0);
    if let Some((_, unit)) = unit {
        fields.insert("unit".to_owned(), (*unit).into());
    }
    fields.into()
}

fn header(header: HeaderValue) -> Value {
    let fields = [("key", header.key), ("value", header.value)];
    let fields = fields.into_iter().filter(|(_, text)| !text.is_empty());
    fields.map(|(name, text)| (name.to_owned(), text.into())).collect::<Map<_, _>>().into()
}

/// The name of a code; none for the default.
fn code(code: i32) -> Option<&'static str> {
    match Code::try_from(code) {
        Ok(Code::Ok) => Some("OK"),
        Ok(Code::OverLimit) => Some("OVER_LIMIT"),
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
