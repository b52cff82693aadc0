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
