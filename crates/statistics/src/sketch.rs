//! The number of different values, by a HyperLogLog sketch.
//!
//! A sketch is a list of hashes while there are few values, and 8 KB at most. The hash has no secret, so a client who
//! chooses values by their hashes can make the number wrong; nothing is decided by it.

use datasketches::hll::{HllSketch, HllType, HllUnion};
use std::fmt;

/// 2^14 registers of half a byte: a standard error of 1.04 / sqrt(2^14) = 0.8 %, so 2 % is two and a half of them.
const LG_REGISTERS: u8 = 14;
/// A sketch as bytes is smaller: 8 KB of registers, the list of those that do not fit, and a header.
const SKETCH_BYTES_MAX: usize = 64 * 1024;

/// A set of values. It knows their number, and not the values.
#[derive(Clone, PartialEq)]
pub struct Sketch(HllSketch);

/// The values of many sketches together. Adding to it is cheaper than merging sketches, which have to be packed again.
pub(crate) struct Union(HllUnion);

impl Default for Union {
    fn default() -> Self {
        #[expect(clippy::expect_used, reason = "the number of registers is in range")]
        let union = HllUnion::new(LG_REGISTERS).expect("valid registers");
        Union(union)
    }
}

impl Union {
    pub(crate) fn add(&mut self, sketch: &Sketch) {
        self.0.update(&sketch.0);
    }

    /// The number of different values, about.
    #[must_use]
    pub(crate) fn count(&self) -> u64 {
        self.0.estimate().round() as u64
    }
}

/// Bytes that are no sketch of this kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no sketch of distinct values: {0}")]
pub struct SketchError(String);

impl Default for Sketch {
    fn default() -> Self {
        #[expect(clippy::expect_used, reason = "the number of registers is in range")]
        let sketch = HllSketch::new(LG_REGISTERS, HllType::Hll4).expect("valid registers");
        Sketch(sketch)
    }
}

impl Sketch {
    pub fn add(&mut self, value: &str) {
        self.0.update(value);
    }

    /// Adds the values of another one.
    pub fn merge(&mut self, other: &Sketch) {
        if other.0.is_empty() {
            return;
        }
        if self.0.is_empty() {
            self.0.clone_from(&other.0);
            return;
        }
        let mut union = Union::default();
        union.add(self);
        union.add(other);
        self.0 = union.0.to_sketch(HllType::Hll4);
    }

    /// The number of different values, about.
    #[must_use]
    pub fn count(&self) -> u64 {
        // Conversion saturates; an estimate is neither negative nor large.
        self.0.estimate().round() as u64
    }

    /// The size in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.estimated_size()
    }

    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.0.serialize()
    }

    /// # Errors
    /// If the bytes are not those of a sketch with this number of registers.
    pub fn decode(bytes: &[u8]) -> Result<Sketch, SketchError> {
        if bytes.len() > SKETCH_BYTES_MAX {
            return Err(SketchError(format!("{} bytes are too many", bytes.len())));
        }
        let sketch =
            HllSketch::deserialize(bytes).map_err(|error| SketchError(error.to_string()))?;
        if sketch.lg_config_k() != LG_REGISTERS {
            return Err(SketchError(format!("2^{} registers", sketch.lg_config_k())));
        }
        Ok(Sketch(sketch))
    }
}

impl fmt::Debug for Sketch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sketch({})", self.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: std::ops::Range<u64>) -> Sketch {
        let mut sketch = Sketch::default();
        values.for_each(|value| sketch.add(&format!("user-{value}")));
        sketch
    }

    #[track_caller]
    fn check_near(sketch: &Sketch, expected: u64) {
        let error = sketch.count().abs_diff(expected) as f64 / expected as f64;
        assert!(error <= 0.02, "{} instead of {expected}", sketch.count());
    }

    #[test]
    fn a_count_is_within_two_percent() {
        for expected in [1, 2, 10, 100, 1_000, 10_000, 100_000, 300_000] {
            check_near(&of(0..expected), expected);
        }
        assert_eq!(Sketch::default().count(), 0);
        // As many times as one likes.
        let mut again = of(0..500);
        again.merge(&of(0..500));
        check_near(&again, 500);
    }

    #[test]
    fn merged_sketches_count_each_value_once() {
        let mut all = Sketch::default();
        // 20 parts that overlap by half, small and large ones alike.
        for part in 0..20_u64 {
            all.merge(&of(part * 5_000..part * 5_000 + 10_000));
        }
        check_near(&all, 105_000);
        let mut few = of(0..3);
        few.merge(&of(2..6));
        assert_eq!(few.count(), 6);
        few.merge(&all);
        check_near(&few, 105_000);
        let mut union = Union::default();
        (0..20).for_each(|part| union.add(&of(part * 500..part * 500 + 1_000)));
        assert!(union.count().abs_diff(10_500) <= 210, "{}", union.count());
        assert_eq!(Union::default().count(), 0);
    }

    #[test]
    fn a_sketch_survives_its_bytes_and_is_small() {
        for (values, bytes_max) in
            [(0, 16), (5, 64), (100, 1_024), (10_000, 9_000), (300_000, 9_000)]
        {
            let sketch = of(0..values);
            let bytes = sketch.encode();
            assert!(bytes.len() <= bytes_max, "{values}: {}", bytes.len());
            assert_eq!(Sketch::decode(&bytes).unwrap(), sketch, "{values}");
            assert!(sketch.bytes() <= 64 * 1024, "{values}: {}", sketch.bytes());
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        for (bytes, message) in [
            (vec![], "no sketch of distinct values: "),
            (vec![0; 70_000], "no sketch of distinct values: 70000 bytes are too many"),
            (HllSketch::new(12, HllType::Hll4).unwrap().serialize(), "2^12 registers"),
        ] {
            let error = Sketch::decode(&bytes).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        // Whatever is cut or flipped is refused, or is some sketch: never a panic.
        for bytes in [of(0..5).encode(), of(0..200).encode(), of(0..20_000).encode()] {
            for at in 0..bytes.len().min(300) {
                let _ = Sketch::decode(&bytes[..at]);
                for bit in 0..8 {
                    let mut wrong = bytes.clone();
                    wrong[at] ^= 1 << bit;
                    if let Ok(mut sketch) = Sketch::decode(&wrong) {
                        sketch.add("x");
                        sketch.merge(&of(0..100));
                        let _ = (sketch.count(), sketch.encode());
                    }
                }
            }
        }
    }
}
