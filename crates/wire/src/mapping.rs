//! Converts between RLS messages and core types. Owns every default of the wire.

use crate::error::{DESCRIPTORS_MAX, ENTRIES_MAX, WireError};
use crate::{lease, rls};
use prost::Message;
use prost_types::value::Kind;
use tidegate_core::{
    Answer, Descriptor, Direction, Entry, FurtherLimit, Hits, LimitOverride, LimitView, Nanos,
    Request, Status, StatusDetails, Unit, Value, Verdict,
};

/// Converts a request from its wire form.
///
/// # Errors
/// When the domain is missing, when there are no descriptors or too many, when one has no entries or too
/// many, or when a limit has an unknown unit.
pub fn request_from_wire(request: rls::RateLimitRequest) -> Result<Request, WireError> {
    if request.domain.is_empty() {
        return Err(WireError::EmptyDomain);
    }
    if request.descriptors.is_empty() {
        return Err(WireError::NoDescriptors);
    }
    if request.descriptors.len() > DESCRIPTORS_MAX {
        return Err(WireError::TooManyDescriptors);
    }
    let descriptors = request.descriptors.into_iter().enumerate();
    Ok(Request {
        domain: request.domain,
        descriptors: descriptors
            .map(|(index, descriptor)| descriptor_from_wire(index, descriptor))
            .collect::<Result<_, _>>()?,
        hits: Hits::new(u64::from(request.hits_addend.max(1))),
    })
}

fn descriptor_from_wire(
    index: usize,
    descriptor: rls::RateLimitDescriptor,
) -> Result<Descriptor, WireError> {
    if descriptor.entries.is_empty() {
        return Err(WireError::NoEntries(index));
    }
    if descriptor.entries.len() > ENTRIES_MAX {
        return Err(WireError::TooManyEntries { descriptor: index });
    }
    if let Some(entry) = descriptor.entries.iter().position(|entry| entry.key.is_empty()) {
        return Err(WireError::EmptyKey { descriptor: index, entry });
    }
    let limit = descriptor.limit.map(|limit| override_from_wire(index, limit)).transpose()?;
    let entries = descriptor.entries.into_iter();
    Ok(Descriptor {
        entries: entries.map(|entry| Entry { key: entry.key, value: entry.value }).collect(),
        hits: descriptor.hits_addend.map(Hits::new),
        direction: match descriptor.is_negative_hits {
            true => Direction::Refund,
            false => Direction::Take,
        },
        limit,
    })
}

fn override_from_wire(
    descriptor: usize,
    limit: rls::RateLimitOverride,
) -> Result<LimitOverride, WireError> {
    // The enum of overrides shares its numbers with the answer's.
    let unit = unit_from_wire(limit.unit)
        .ok_or(WireError::UnknownUnit { descriptor, unit: limit.unit })?;
    Ok(LimitOverride { requests: limit.requests_per_unit, unit })
}

/// Encodes a request, for clients. Hits that the request as a whole cannot carry (0, or more than 32 bits)
/// go with each descriptor.
#[must_use]
pub fn encode_request(request: &Request) -> Vec<u8> {
    let whole = u32::try_from(request.hits.get()).ok().filter(|hits| *hits > 0);
    let for_each = if whole.is_some() { None } else { Some(request.hits) };
    let descriptor = |descriptor: &Descriptor| rls::RateLimitDescriptor {
        entries: descriptor
            .entries
            .iter()
            .map(|entry| rls::DescriptorEntry {
                key: entry.key.clone(),
                value: entry.value.clone(),
            })
            .collect(),
        limit: descriptor.limit.map(|limit| rls::RateLimitOverride {
            requests_per_unit: limit.requests,
            unit: unit_to_wire(Some(limit.unit)).into(),
        }),
        hits_addend: descriptor.hits.or(for_each).map(Hits::get),
        is_negative_hits: descriptor.direction == Direction::Refund,
    };
    rls::RateLimitRequest {
        domain: request.domain.clone(),
        descriptors: request.descriptors.iter().map(descriptor).collect(),
        hits_addend: whole.unwrap_or(1),
    }
    .encode_to_vec()
}

/// Converts an answer to its wire form. Times are whole seconds, rounded up: Envoy's own filter drops the
/// fraction, and clients must not come back early. Clients that understand leases get the exact time.
#[must_use]
pub fn response_to_wire(answer: &Answer) -> rls::RateLimitResponse {
    rls::RateLimitResponse {
        overall_code: code(answer.verdict).into(),
        statuses: answer.statuses.iter().map(status_to_wire).collect(),
        dynamic_metadata: answer.metadata.as_ref().map(struct_to_wire),
        ..rls::RateLimitResponse::default()
    }
}

/// A struct. Anything but a map becomes an empty one.
pub(crate) fn struct_to_wire(value: &Value) -> prost_types::Struct {
    let fields = match value {
        Value::Map(fields) => fields.as_slice(),
        _ => &[],
    };
    let fields = fields.iter().map(|(key, value)| (key.clone(), value_to_wire(value)));
    prost_types::Struct { fields: fields.collect() }
}

fn value_to_wire(value: &Value) -> prost_types::Value {
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(value) => Kind::BoolValue(*value),
        Value::Number(value) => Kind::NumberValue(*value),
        Value::Text(value) => Kind::StringValue(value.clone()),
        Value::List(values) => Kind::ListValue(prost_types::ListValue {
            values: values.iter().map(value_to_wire).collect(),
        }),
        Value::Map(_) => Kind::StructValue(struct_to_wire(value)),
    };
    prost_types::Value { kind: Some(kind) }
}

fn status_to_wire(status: &Status) -> rls::DescriptorStatus {
    let details = status.details.as_deref();
    let further = details.map_or(&[][..], |details| details.further.as_slice());
    rls::DescriptorStatus {
        code: code(status.verdict).into(),
        current_limit: status.limit.as_ref().map(limit_to_wire),
        limit_remaining: status.remaining,
        duration_until_reset: status
            .limit
            .is_some()
            .then(|| duration_to_wire(reset_to_wire(status, status.reset))),
        quota: status.lease.as_ref().map(lease::to_wire),
        further_limits: further.iter().map(|limit| further_to_wire(status, limit)).collect(),
        shadow_denied: details.is_some_and(|details| details.without_shadow == Verdict::Deny),
        uncounted: status.is_uncounted(),
    }
}

fn limit_to_wire(limit: &LimitView) -> rls::RateLimit {
    rls::RateLimit {
        requests_per_unit: limit.requests,
        unit: unit_to_wire(limit.unit).into(),
        name: limit.name.clone(),
    }
}

fn further_to_wire(status: &Status, further: &FurtherLimit) -> rls::FurtherLimit {
    rls::FurtherLimit {
        limit: Some(limit_to_wire(&further.limit)),
        remaining: further.remaining,
        duration_until_reset: Some(duration_to_wire(reset_to_wire(status, further.reset))),
        is_over: further.verdict == Verdict::Deny,
    }
}

/// A time until a reset in `status`, in the form of the wire.
pub(crate) fn reset_to_wire(status: &Status, reset: Nanos) -> Nanos {
    match status.lease {
        None => Nanos::from_secs(reset.as_secs_ceil()),
        Some(_) => reset,
    }
}

/// Decodes an answer, for clients. Bytes may be anything: invalid fields are read as absent, and only a
/// missing verdict is an error. For its additions see [`Additions`](crate::Additions).
///
/// # Errors
/// When the bytes are not a `RateLimitResponse`, or its `overall_code` is neither of the two.
pub fn decode_answer(bytes: &[u8]) -> Result<Answer, WireError> {
    let response = rls::ResponseToFilter::decode(bytes)?;
    Ok(Answer {
        verdict: verdict(response.overall_code)
            .ok_or(WireError::UnknownCode(response.overall_code))?,
        statuses: response.statuses.into_iter().map(status_from_wire).collect(),
        metadata: None,
    })
}

fn status_from_wire(status: rls::DescriptorStatus) -> Status {
    let has_flags = status.shadow_denied || status.uncounted;
    let details = (has_flags || !status.further_limits.is_empty()).then(|| {
        let flags = (status.shadow_denied, status.uncounted);
        Box::new(details_from_wire(status.further_limits, flags))
    });
    Status {
        details,
        verdict: verdict(status.code).unwrap_or(Verdict::Allow),
        remaining: status.limit_remaining,
        reset: status.duration_until_reset.map_or(Nanos::ZERO, duration_from_wire),
        lease: status.quota.as_ref().and_then(lease::from_wire),
        limit: status.current_limit.map(limit_from_wire),
    }
}

fn limit_from_wire(limit: rls::RateLimit) -> LimitView {
    LimitView {
        requests: limit.requests_per_unit,
        unit: unit_from_wire(limit.unit),
        name: limit.name,
    }
}

#[cold]
fn details_from_wire(
    further: Vec<rls::FurtherLimit>,
    (shadow_denied, is_uncounted): (bool, bool),
) -> StatusDetails {
    let verdict = |denied| if denied { Verdict::Deny } else { Verdict::Allow };
    let further = further.into_iter().take(StatusDetails::FURTHER_MAX).filter_map(|further| {
        Some(FurtherLimit {
            limit: limit_from_wire(further.limit?),
            remaining: further.remaining,
            reset: further.duration_until_reset.map_or(Nanos::ZERO, duration_from_wire),
            verdict: verdict(further.is_over),
        })
    });
    let (further, without_shadow) = (further.collect(), verdict(shadow_denied));
    StatusDetails { further, without_shadow, is_uncounted }
}

fn duration_to_wire(span: Nanos) -> prost_types::Duration {
    let (seconds, nanos) = (span.as_nanos() / 1_000_000_000, span.as_nanos() % 1_000_000_000);
    // Below 2^35 seconds, and below 2^30 ns.
    prost_types::Duration { seconds: seconds as i64, nanos: nanos as i32 }
}

fn duration_from_wire(duration: prost_types::Duration) -> Nanos {
    let secs = Nanos::from_secs(u64::try_from(duration.seconds).unwrap_or(0));
    let nanos = u64::try_from(duration.nanos).unwrap_or(0);
    Nanos::new(secs.as_nanos().saturating_add(nanos))
}

pub(crate) fn code(verdict: Verdict) -> rls::Code {
    match verdict {
        Verdict::Allow => rls::Code::Ok,
        Verdict::Deny => rls::Code::OverLimit,
    }
}

fn verdict(code: i32) -> Option<Verdict> {
    match rls::Code::try_from(code) {
        Ok(rls::Code::Ok) => Some(Verdict::Allow),
        Ok(rls::Code::OverLimit) => Some(Verdict::Deny),
        Ok(rls::Code::Unknown) | Err(_) => None,
    }
}

pub(crate) fn unit_to_wire(unit: Option<Unit>) -> rls::RateLimitUnit {
    match unit {
        None => rls::RateLimitUnit::Unknown,
        Some(Unit::Second) => rls::RateLimitUnit::Second,
        Some(Unit::Minute) => rls::RateLimitUnit::Minute,
        Some(Unit::Hour) => rls::RateLimitUnit::Hour,
        Some(Unit::Day) => rls::RateLimitUnit::Day,
        Some(Unit::Week) => rls::RateLimitUnit::Week,
        Some(Unit::Month) => rls::RateLimitUnit::Month,
        Some(Unit::Year) => rls::RateLimitUnit::Year,
    }
}

pub(crate) fn unit_from_wire(unit: i32) -> Option<Unit> {
    let unit = rls::RateLimitUnit::try_from(unit).ok()?;
    Unit::ALL.into_iter().find(|candidate| unit_to_wire(Some(*candidate)) == unit)
}
