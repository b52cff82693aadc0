//! Integers of header compression (RFC 7541, section 5.1).

/// Bits after the prefix: four bytes of seven. All valid lengths and indexes are far below 2^28.
const SHIFT_MAX: u32 = 21;

/// Decodes an integer in the lowest `prefix_bits` (1 to 8) of the first byte and the bytes after it. None if
/// it is cut off or above 2^28.
#[inline]
pub(crate) fn decode(prefix_bits: u32, input: &mut &[u8]) -> Option<usize> {
    let (&first, mut rest) = input.split_first()?;
    let mask = (1_u32 << prefix_bits) - 1;
    let mut value = u32::from(first) & mask;
    if value == mask {
        let mut shift = 0;
        loop {
            let (&byte, after) = rest.split_first()?;
            rest = after;
            value += u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
            shift += 7;
            if shift > SHIFT_MAX {
                return None;
            }
        }
    }
    *input = rest;
    usize::try_from(value).ok()
}

/// Appends an integer. `first` holds the bits above the prefix.
pub(crate) fn encode(prefix_bits: u32, first: u8, value: usize, output: &mut Vec<u8>) {
    let mask = (1_usize << prefix_bits) - 1;
    if value < mask {
        output.push(first | low_byte(value));
        return;
    }
    output.push(first | low_byte(mask));
    let mut rest = value - mask;
    while rest >= 0x80 {
        output.push(low_byte(rest & 0x7f) | 0x80);
        rest >>= 7;
    }
    output.push(low_byte(rest));
}

const fn low_byte(value: usize) -> u8 {
    value.to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// RFC 7541, appendix C.1.
    #[test]
    fn the_examples_of_the_rfc_hold() {
        check(5, 10, &[0b0_1010]);
        check(5, 1337, &[0b1_1111, 0b1001_1010, 0b0000_1010]);
        check(8, 42, &[0b0010_1010]);
    }

    fn check(prefix_bits: u32, value: usize, bytes: &[u8]) {
        let mut output = Vec::new();
        encode(prefix_bits, 0, value, &mut output);
        assert_eq!(output, bytes);
        assert_eq!(decode(prefix_bits, &mut &bytes[..]), Some(value));
    }

    /// Around each number of bytes that an integer may take.
    #[test]
    fn integers_at_the_bounds_of_their_bytes() {
        for prefix_bits in 1..=8 {
            let mask = (1_usize << prefix_bits) - 1;
            for (value, bytes) in [
                (mask - 1, 1),
                (mask, 2),
                (mask + 0x7f, 2),
                (mask + 0x80, 3),
                (mask + 0x3fff, 3),
                (mask + 0x4000, 4),
                (mask + 0x1f_ffff, 4),
                (mask + 0x20_0000, 5),
                (mask + 0xfff_ffff, 5),
            ] {
                let mut output = Vec::new();
                encode(prefix_bits, 0, value, &mut output);
                assert_eq!(output.len(), bytes, "{value} with {prefix_bits} bits");
                assert_eq!(decode(prefix_bits, &mut &output[..]), Some(value));
                output.pop();
                assert_eq!(decode(prefix_bits, &mut &output[..]), None);
            }
            let mut output = Vec::new();
            encode(prefix_bits, 0, mask + 0x1000_0000, &mut output);
            assert_eq!(decode(prefix_bits, &mut &output[..]), None);
        }
    }

    #[test]
    fn endless_and_cut_integers_are_refused() {
        assert_eq!(decode(7, &mut &[0xff, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00][..]), None);
        assert_eq!(decode(7, &mut &[0xff, 0xff, 0xff, 0xff, 0xff, 0x0f][..]), None);
        assert_eq!(decode(7, &mut &[0xff, 0x80][..]), None);
        assert_eq!(decode(7, &mut &[][..]), None);
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(prefix_bits in 1_u32..=8, value in 0_usize..1 << 28) {
            let mut output = Vec::new();
            encode(prefix_bits, 0, value, &mut output);
            output.push(0xaa);
            let mut input = &output[..];
            prop_assert_eq!(decode(prefix_bits, &mut input), Some(value));
            prop_assert_eq!(input, &[0xaa]);
        }
    }
}
