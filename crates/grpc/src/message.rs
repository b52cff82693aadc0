//! The envelope of messages (gRPC over HTTP/2): a flag, a length, and the message.

/// Bytes before each message.
pub(crate) const PREFIX_BYTES: usize = 5;

/// What a body begins with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Cut<'a> {
    /// A message, with its flag, and what follows.
    Whole { flag: u8, message: &'a [u8], rest: &'a [u8] },
    /// Less than a message.
    Part,
    /// A message that is too large.
    TooLarge,
}

/// Cuts the first message off.
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

/// Moves bytes of a body behind what has arrived of a message, until it is whole or all are moved.
/// A length beyond the bound moves no more than its prefix. Takes no memory beyond the whole message, and
/// none much before its bytes.
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

/// The prefix of a message that is not compressed.
#[inline]
pub(crate) fn prefix(length: usize) -> [u8; PREFIX_BYTES] {
    // A message that is beyond 4 GiB fits no bound that anybody sets.
    let [l0, l1, l2, l3] = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    [0, l0, l1, l2, l3]
}
