//! The gRPC envelope of messages: a flag, a length, and the message.

/// Bytes of the prefix.
pub(crate) const PREFIX_BYTES: usize = 5;

/// The beginning of a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Cut<'a> {
    /// A message with its flag, and the bytes after it.
    Whole { flag: u8, message: &'a [u8], rest: &'a [u8] },
    /// Less than a message.
    Part,
    /// A message that is too large.
    TooLarge,
}

/// Cuts off the first message.
#[inline]
pub(crate) fn cut(body: &[u8], message_bytes_max: usize) -> Cut<'_> {
    let Some((&[flag, l0, l1, l2, l3], rest)) = body.split_first_chunk::<PREFIX_BYTES>() else {
        return Cut::Part;
    };
    let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
    if length > message_bytes_max {
        return Cut::TooLarge;
    }
    match rest.split_at_checked(length) {
        Some((message, rest)) => Cut::Whole { flag, message, rest },
        None => Cut::Part,
    }
}

/// Moves bytes of a body to a partial message until it is complete or all are moved. Of a message that is too
/// large only the prefix is moved. Allocates no more than the message needs, and little ahead of its bytes.
pub(crate) fn fill(begun: &mut Vec<u8>, body: &mut &[u8], message_bytes_max: usize) {
    for _ in 0..2 {
        let wanted = match begun.first_chunk::<PREFIX_BYTES>() {
            None => PREFIX_BYTES,
            Some(&[_, l0, l1, l2, l3]) => {
                let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
                if length > message_bytes_max { PREFIX_BYTES } else { PREFIX_BYTES + length }
            }
        };
        let missing = wanted.saturating_sub(begun.len()).min(body.len());
        let (moved, rest) = body.split_at(missing);
        let needed = begun.len() + moved.len();
        if needed > begun.capacity() {
            let capacity = needed.max(begun.capacity() * 2).min(wanted.max(needed));
            begun.reserve_exact(capacity - begun.len());
        }
        begun.extend_from_slice(moved);
        *body = rest;
    }
}

/// The prefix of an uncompressed message.
#[inline]
pub(crate) fn prefix(length: usize) -> [u8; PREFIX_BYTES] {
    // 4 GiB exceed any sensible limit.
    let [l0, l1, l2, l3] = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    [0, l0, l1, l2, l3]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_at_their_length() {
        let body = [0, 0, 0, 0, 2, b'a', b'b', b'c'];
        for bytes in 0..7 {
            assert_eq!(cut(&body[..bytes], 2), Cut::Part);
        }
        let whole = |rest| Cut::Whole { flag: 0, message: b"ab", rest };
        assert_eq!((cut(&body[..7], 2), cut(&body, 2)), (whole(b""), whole(b"c")));
        assert_eq!(cut(&body, 1), Cut::TooLarge);
        assert_eq!(cut(&[9, 0, 0, 0, 0], 0), Cut::Whole { flag: 9, message: b"", rest: b"" });
        assert_eq!(cut(&[0, 255, 255, 255, 255], 1 << 31), Cut::TooLarge);
    }

    /// However a message arrives, its buffer is never larger than the message, and grows in few steps.
    #[test]
    fn a_partial_message_takes_the_memory_of_its_bytes() {
        let mut body = prefix(10_000).to_vec();
        body.extend((0..10_003).map(|at| at as u8));
        for piece_bytes in [1, 2, 7, 1000, 20_000] {
            let (mut begun, mut grown) = (Vec::new(), 0);
            let mut left = 0;
            for mut piece in body.chunks(piece_bytes) {
                let before = begun.capacity();
                fill(&mut begun, &mut piece, 10_000);
                grown += usize::from(begun.capacity() != before);
                assert!(begun.capacity() <= 10_005);
                assert!(begun.capacity() <= 2 * begun.len() + 8);
                left += piece.len();
            }
            assert_eq!((&begun[..], left), (&body[..10_005], 3));
            assert!(grown <= 16, "{grown} times");
        }
        // Of a message that is too large, only the prefix.
        let (mut begun, mut piece) = (Vec::new(), &body[..]);
        fill(&mut begun, &mut piece, 9_999);
        assert_eq!((begun.len(), piece.len()), (5, 10_003));
    }
}
