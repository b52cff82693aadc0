//! The wire form of leases. Requests carry wanted and returned tokens in their metadata; the `quota` of a
//! status grants a lease.
//!
//! | metadata | call | meaning |
//! | --- | --- | --- |
//! | `tidegate-lease` | request | wanted tokens, `50`, or for each descriptor `50,0,10`. Its presence means that the client understands leases |
//! | `tidegate-waiting` | request | tokens for requests that wait for the answer, in the same form; absent is none |
//! | `tidegate-proxy` | request | the Envoy process, 16 hex digits |
//! | `tidegate-clock` | request | the client's clock at the request, in nanoseconds; the ends of leases are in it |
//! | `tidegate-headers` | request | the headers about limits that the client writes itself: `ietf` (absent means the same), `draft03`, `off` |
//! | `tidegate-return` | return | the lease of each descriptor, 16 hex digits each, separated by commas |
//! | `tidegate-debit` | debit | the hits have happened and count even if they do not fit. The sequence of debits, 16 hex digits |
//! | `tidegate-streams` | debit | how many descriptors each stream has, such as `1,2,1`; absent is one for each |
//! | `tidegate-age` | debit | milliseconds since the hits were taken, one number or one for each descriptor; absent is 0 |
//! | `tidegate-call` | all | the client's number for the call, 16 hex digits, the same for retries |

use crate::error::WireError;
use crate::rls;
use tidegate_core::{DebitRequest, HeaderForm, Lease, LeaseRequest, LeaseReturn, Nanos, Timestamp};

const LEASE: &str = "tidegate-lease";
const WAITING: &str = "tidegate-waiting";
const PROXY: &str = "tidegate-proxy";
const CLOCK: &str = "tidegate-clock";
const CALL: &str = "tidegate-call";
const RETURN: &str = "tidegate-return";
const HEADERS: &str = "tidegate-headers";

/// The forms of headers that a client may write.
const FORMS: [(&str, HeaderForm); 3] =
    [("ietf", HeaderForm::Ietf), ("draft03", HeaderForm::Draft03), ("off", HeaderForm::Off)];
const DEBIT: &str = "tidegate-debit";
const STREAMS: &str = "tidegate-streams";
const AGE: &str = "tidegate-age";

const NUMBERS: &str = "one number, or one for each descriptor";
const IDS: &str = "16 hex digits for each descriptor";
const PARTS: &str = "numbers above 0 that add up to the descriptors";

const NANOS_PER_MILLI: u64 = 1_000_000;

/// The metadata of a lease request.
#[must_use]
pub fn lease_request_metadata(request: &LeaseRequest) -> Vec<(&'static str, String)> {
    let mut metadata = vec![
        (LEASE, list(&request.wanted, u64::to_string)),
        (CALL, hex(&request.call)),
        (PROXY, hex(&request.proxy)),
        (CLOCK, request.clock.as_nanos().to_string()),
    ];
    if request.waiting.iter().any(|waiting| *waiting > 0) {
        metadata.push((WAITING, list(&request.waiting, u64::to_string)));
    }
    let known = FORMS.iter().find(|(_, form)| *form == request.headers);
    if let Some((name, _)) = known.filter(|_| request.headers != HeaderForm::default()) {
        metadata.push((HEADERS, (*name).to_owned()));
    }
    metadata
}

/// Parses the lease request of a call with this many descriptors. None if the client does not understand
/// leases. `value_of` returns the call's metadata by name.
///
/// # Errors
/// When a value is malformed.
pub fn lease_request_from<'a>(
    descriptors: usize,
    value_of: impl Fn(&'static str) -> Option<&'a [u8]>,
) -> Result<Option<LeaseRequest>, WireError> {
    let Some(wanted) = value_of(LEASE) else {
        return Ok(None);
    };
    let wanted = numbers(LEASE, wanted, descriptors)?;
    let waiting = match value_of(WAITING) {
        Some(waiting) => numbers(WAITING, waiting, descriptors)?,
        None => vec![0; descriptors],
    };
    let number = |name| number(name, value_of(name).unwrap_or_default());
    let clock = value_of(CLOCK).unwrap_or_default();
    let clock = parse(CLOCK, clock, "a number of nanoseconds", |text| text.parse().ok())?;
    let clock = Timestamp::from_nanos(clock);
    let headers = match value_of(HEADERS) {
        Some(form) => parse(HEADERS, form, "ietf, draft03 or off", |text| {
            FORMS.iter().find(|(name, _)| *name == text).map(|(_, form)| *form)
        })?,
        None => HeaderForm::default(),
    };
    let (call, proxy) = (number(CALL)?, number(PROXY)?);
    Ok(Some(LeaseRequest { call, proxy, clock, wanted, waiting, headers }))
}

/// The metadata of a return: its number, and the lease of each descriptor.
#[must_use]
pub fn returned_metadata(call: u64, leases: &[u64]) -> Vec<(&'static str, String)> {
    vec![(RETURN, list(leases, hex)), (CALL, hex(&call))]
}

/// Parses the return of a call with this many descriptors. None if the call is not a return.
///
/// # Errors
/// When a value is malformed.
pub fn returned_from<'a>(
    descriptors: usize,
    value_of: impl Fn(&'static str) -> Option<&'a [u8]>,
) -> Result<Option<LeaseReturn>, WireError> {
    let Some(leases) = value_of(RETURN) else {
        return Ok(None);
    };
    let leases = parse(RETURN, leases, IDS, |text| {
        let ids = text.split(',').map(|id| u64::from_str_radix(id.trim(), 16).ok());
        ids.take(descriptors.saturating_add(1))
            .collect::<Option<Vec<u64>>>()
            .filter(|ids| ids.len() == descriptors)
    })?;
    let call = number(CALL, value_of(CALL).unwrap_or_default())?;
    Ok(Some(LeaseReturn { call, leases }))
}

/// The metadata of a debit, which may request leases. Both have the same number.
#[must_use]
pub fn debit_metadata(
    debit: &DebitRequest,
    lease: Option<&LeaseRequest>,
) -> Vec<(&'static str, String)> {
    let mut metadata = match lease {
        Some(lease) => lease_request_metadata(lease),
        None => vec![(CALL, hex(&debit.call))],
    };
    metadata.push((DEBIT, hex(&debit.sequence)));
    if debit.streams.iter().any(|descriptors| *descriptors != 1) {
        metadata.push((STREAMS, list(&debit.streams, usize::to_string)));
    }
    if debit.ages.iter().any(|age| *age != Nanos::ZERO) {
        // Rounded up: of older hits, less is refunded.
        let millis = |age: &Nanos| age.as_nanos().div_ceil(NANOS_PER_MILLI).to_string();
        metadata.push((AGE, list(&debit.ages, millis)));
    }
    metadata
}

/// Parses the debit of a call with this many descriptors. None if the call is not a debit.
///
/// # Errors
/// When a value is malformed.
pub fn debit_from<'a>(
    descriptors: usize,
    value_of: impl Fn(&'static str) -> Option<&'a [u8]>,
) -> Result<Option<DebitRequest>, WireError> {
    let Some(sequence) = value_of(DEBIT) else {
        return Ok(None);
    };
    let sequence = number(DEBIT, sequence)?;
    let call = number(CALL, value_of(CALL).unwrap_or_default())?;
    let streams = match value_of(STREAMS) {
        Some(streams) => parts(streams, descriptors)?,
        None => vec![1; descriptors],
    };
    let ages = match value_of(AGE) {
        Some(ages) => numbers(AGE, ages, descriptors)?,
        None => vec![0; descriptors],
    };
    let ages = ages.into_iter().map(|millis| Nanos::new(millis.saturating_mul(NANOS_PER_MILLI)));
    Ok(Some(DebitRequest { call, sequence, streams, ages: ages.collect() }))
}

pub(crate) fn to_wire(lease: &Lease) -> rls::Quota {
    let nanos = lease.valid_until.as_nanos();
    // Below 2^35 seconds, and below 2^30 ns.
    let (seconds, nanos) = ((nanos / 1_000_000_000) as i64, (nanos % 1_000_000_000) as i32);
    rls::Quota {
        requests: lease.tokens,
        valid_until: Some(prost_types::Timestamp { seconds, nanos }),
        id: hex(&lease.id),
    }
}

/// An invalid quota is read as no lease.
pub(crate) fn from_wire(quota: &rls::Quota) -> Option<Lease> {
    let valid_until = quota.valid_until?;
    let seconds = u64::try_from(valid_until.seconds).ok()?;
    let nanos = u64::try_from(valid_until.nanos).ok()?;
    let nanos = seconds.checked_mul(1_000_000_000)?.checked_add(nanos)?;
    Some(Lease {
        id: u64::from_str_radix(&quota.id, 16).ok()?,
        tokens: quota.requests,
        valid_until: Timestamp::from_nanos(nanos),
    })
}

fn number(name: &'static str, value: &[u8]) -> Result<u64, WireError> {
    parse(name, value, "16 hex digits", |text| u64::from_str_radix(text, 16).ok())
}

fn hex(number: &u64) -> String {
    format!("{number:016x}")
}

fn list<T>(items: &[T], text: impl Fn(&T) -> String) -> String {
    items.iter().map(text).collect::<Vec<_>>().join(",")
}

fn numbers(name: &'static str, value: &[u8], descriptors: usize) -> Result<Vec<u64>, WireError> {
    parse(name, value, NUMBERS, |text| {
        let numbers = text.split(',').map(|number| number.trim().parse::<u64>().ok());
        let numbers = numbers.take(descriptors.saturating_add(1)).collect::<Option<Vec<u64>>>()?;
        match numbers.as_slice() {
            [number] => Some(vec![*number; descriptors]),
            _ => Some(numbers).filter(|numbers| numbers.len() == descriptors),
        }
    })
}

/// Numbers above 0 with this sum.
fn parts(value: &[u8], sum: usize) -> Result<Vec<usize>, WireError> {
    parse(STREAMS, value, PARTS, |text| {
        let numbers = text.split(',').map(|number| number.trim().parse::<usize>().ok());
        let numbers = numbers.take(sum.saturating_add(1)).collect::<Option<Vec<usize>>>()?;
        let total = numbers.iter().fold(0_usize, |total, number| total.saturating_add(*number));
        (total == sum && !numbers.contains(&0)).then_some(numbers)
    })
}

fn parse<T>(
    name: &'static str,
    value: &[u8],
    expected: &'static str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<T, WireError> {
    let read = std::str::from_utf8(value).ok().and_then(read);
    read.ok_or_else(|| {
        let value = value.get(..value.len().min(64)).unwrap_or_default();
        let value = String::from_utf8_lossy(value).into_owned();
        WireError::Metadata { name, value, expected }
    })
}
