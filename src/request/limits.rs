//! Overrides of limits. One that cannot be read is none, as in Envoy.

use super::descriptors::Descriptors;
use super::fact_reader::FactReader;
use crate::config::LimitSource;
use crate::config::encoded::encoded_override;
use crate::config::read::limit::UNIT_NAMES;
use crate::host::RequestFacts;

#[cold]
#[inline(never)]
pub(super) fn append_override<F: RequestFacts>(
    source: &LimitSource,
    reader: &mut FactReader<'_, F>,
    descriptors: &mut Descriptors,
) {
    match source {
        LimitSource::Constant(encoded) => descriptors.append_override(&encoded.0),
        LimitSource::Metadata { requests_per_unit, unit } => {
            let requests = reader.value(requests_per_unit).and_then(requests_of);
            let unit = reader.value(unit).and_then(unit_of);
            if let (Some(requests), Some(unit)) = (requests, unit) {
                descriptors.append_override(&encoded_override(requests, unit));
            }
        }
    }
}

/// A number of requests, without its fraction. Eight letters are a text, which is no number for
/// Envoy.
fn requests_of(value: &[u8]) -> Option<u32> {
    let number = f64::from_le_bytes(value.try_into().ok()?);
    let is_text = value.iter().all(|byte| matches!(byte, b' '..=b'~'));
    let fits = (0.0..=f64::from(u32::MAX)).contains(&number);
    // The cast saturates.
    (fits && !is_text).then_some(number as u32)
}

/// The number of a unit.
fn unit_of(value: &[u8]) -> Option<u8> {
    let number = UNIT_NAMES.iter().position(|name| name.as_bytes() == value)?;
    u8::try_from(number.checked_sub(1)?).ok()
}
