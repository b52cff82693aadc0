//! Frames (RFC 9113, sections 4 and 6): heads, flags, padding and settings. Independent of streams.

use crate::broken::Broken;

/// The first bytes of a client.
pub(crate) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(crate) const HEAD_BYTES: usize = 9;
/// The largest payload that a side accepts by default. This crate never raises it.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 16_384;
/// The largest payload that settings may allow.
pub(crate) const PAYLOAD_BYTES_LIMIT: u32 = (1 << 24) - 1;
pub(crate) const STREAM_ID_MAX: u32 = (1 << 31) - 1;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 0x1;
pub(crate) const ACK: u8 = 0x1;
pub(crate) const END_HEADERS: u8 = 0x4;
pub(crate) const PADDED: u8 = 0x8;
pub(crate) const WITH_PRIORITY: u8 = 0x20;

/// The first nine bytes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) length: usize,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

impl Head {
    #[inline]
    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    #[inline]
    fn parse(bytes: [u8; HEAD_BYTES]) -> Head {
        let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = bytes;
        Head {
            length: usize::from(l0) << 16 | usize::from(l1) << 8 | usize::from(l2),
            kind,
            flags,
            stream: u32::from_be_bytes([s0, s1, s2, s3]) & STREAM_ID_MAX,
        }
    }
}

/// Encodes a head. The length must fit 24 bits.
#[inline]
pub(crate) fn head(length: usize, kind: u8, flags: u8, stream: u32) -> [u8; HEAD_BYTES] {
    debug_assert!(length <= PAYLOAD_BYTES_LIMIT as usize);
    let length = length.to_le_bytes();
    let [s0, s1, s2, s3] = stream.to_be_bytes();
    [length[2], length[1], length[0], kind, flags, s0, s1, s2, s3]
}

/// The buffer of a partial frame is freed if it is larger.
const PARTIAL_BYTES_KEPT: usize = 4 * 1024;

/// Passes the head and the payload of each whole frame to `take`. The beginning of the last one waits in
/// `partial` for the next call.
///
/// # Errors
/// Those of `take`, and a frame that is too large. Cutting must stop then.
#[inline]
pub(crate) fn cut_all(
    mut input: &[u8],
    partial: &mut Vec<u8>,
    mut take: impl FnMut(Head, &[u8]) -> Result<(), Broken>,
) -> Result<(), Broken> {
    loop {
        if partial.is_empty() {
            let Some((head, payload, rest)) = cut(input)? else { break };
            input = rest;
            take(head, payload)?;
        } else {
            fill(partial, &mut input);
            let Some((head, payload, _)) = cut(partial)? else { return Ok(()) };
            take(head, payload)?;
            partial.clear();
            if partial.capacity() > PARTIAL_BYTES_KEPT {
                *partial = Vec::new();
            }
        }
    }
    partial.extend_from_slice(input);
    Ok(())
}

/// A frame's head, its payload, and the bytes after it.
pub(crate) type Cut<'a> = (Head, &'a [u8], &'a [u8]);

/// Cuts off the first frame. None while it is incomplete.
#[inline]
pub(crate) fn cut(input: &[u8]) -> Result<Option<Cut<'_>>, Broken> {
    let Some((&head, rest)) = input.split_first_chunk() else { return Ok(None) };
    let head = Head::parse(head);
    if head.length > PAYLOAD_BYTES_MAX {
        return Err(Broken::frame_size("a frame is larger than agreed"));
    }
    Ok(rest.split_at_checked(head.length).map(|(payload, rest)| (head, payload, rest)))
}

/// Moves input bytes to a partial frame until it is complete or all are moved.
fn fill(partial: &mut Vec<u8>, input: &mut &[u8]) {
    for _ in 0..2 {
        let wanted = match partial.first_chunk() {
            None => HEAD_BYTES,
            Some(&head) => HEAD_BYTES + Head::parse(head).length.min(PAYLOAD_BYTES_MAX),
        };
        let missing = wanted.saturating_sub(partial.len()).min(input.len());
        let (moved, rest) = input.split_at(missing);
        // Exactly a frame; doubling would allocate more.
        partial.reserve_exact(moved.len());
        partial.extend_from_slice(moved);
        *input = rest;
    }
}

/// The payload of a DATA or HEADERS frame without padding.
#[inline]
pub(crate) fn unpad(head: Head, payload: &[u8]) -> Result<&[u8], Broken> {
    if !head.has(PADDED) {
        return Ok(payload);
    }
    let unpadded = payload
        .split_first()
        .and_then(|(&padding, rest)| rest.get(..rest.len().checked_sub(usize::from(padding))?));
    unpadded.ok_or(Broken::protocol("padding is larger than its frame"))
}

/// The payload of a HEADERS frame without padding and priority.
#[inline]
pub(crate) fn header_block(head: Head, payload: &[u8]) -> Result<&[u8], Broken> {
    let block = unpad(head, payload)?;
    if !head.has(WITH_PRIORITY) {
        return Ok(block);
    }
    // Priorities are deprecated (section 5.3.2), and skipped without checks.
    let (_, block) =
        block.split_first_chunk::<5>().ok_or(Broken::frame_size("a HEADERS frame is too short"))?;
    Ok(block)
}

/// A payload of exactly four bytes.
pub(crate) fn word(payload: &[u8]) -> Result<u32, Broken> {
    let bytes: [u8; 4] =
        payload.try_into().map_err(|_| Broken::frame_size("a frame must have 4 bytes"))?;
    Ok(u32::from_be_bytes(bytes))
}

/// The relevant settings of a SETTINGS frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) header_table_size: Option<u32>,
    pub(crate) concurrent_streams_max: Option<u32>,
    pub(crate) initial_window_size: Option<u32>,
    /// Whether ENABLE_PUSH is 1 anywhere in the frame.
    pub(crate) enables_push: bool,
}

impl Settings {
    /// Parses a payload. If a setting occurs twice, the last one counts.
    pub(crate) fn parse(payload: &[u8]) -> Result<Settings, Broken> {
        let (chunks, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() {
            return Err(Broken::frame_size("a SETTINGS frame is cut off"));
        }
        let mut settings = Settings::default();
        for &[i0, i1, v0, v1, v2, v3] in chunks {
            let value = u32::from_be_bytes([v0, v1, v2, v3]);
            match u16::from_be_bytes([i0, i1]) {
                1 => settings.header_table_size = Some(value),
                2 if value > 1 => return Err(Broken::protocol("ENABLE_PUSH is neither 0 nor 1")),
                2 => settings.enables_push |= value == 1,
                3 => settings.concurrent_streams_max = Some(value),
                4 if value > STREAM_ID_MAX => {
                    return Err(Broken::flow_control("INITIAL_WINDOW_SIZE is beyond 2^31-1"));
                }
                4 => settings.initial_window_size = Some(value),
                5 if !(PAYLOAD_BYTES_MAX as u32..=PAYLOAD_BYTES_LIMIT).contains(&value) => {
                    return Err(Broken::protocol("MAX_FRAME_SIZE is below 2^14 or beyond 2^24-1"));
                }
                // MAX_FRAME_SIZE is only checked: larger frames than by default are never sent.
                _ => {}
            }
        }
        Ok(settings)
    }
}

/// Appends a SETTINGS frame with these pairs.
pub(crate) fn write_settings(settings: &[(u16, u32)], output: &mut Vec<u8>) {
    output.extend_from_slice(&head(settings.len() * 6, SETTINGS, 0, 0));
    for (identifier, value) in settings {
        output.extend_from_slice(&identifier.to_be_bytes());
        output.extend_from_slice(&value.to_be_bytes());
    }
}

/// Appends a HEADERS frame with the block that `write` appends.
pub(crate) fn write_headers(
    stream: u32,
    flags: u8,
    output: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>),
) {
    let start = output.len();
    output.extend_from_slice(&[0; HEAD_BYTES]);
    write(output);
    let length = output.len() - start - HEAD_BYTES;
    if let Some(place) = output.get_mut(start..start + HEAD_BYTES) {
        place.copy_from_slice(&head(length, HEADERS, flags, stream));
    }
}

/// Appends a frame with a payload of four bytes: RST_STREAM or WINDOW_UPDATE.
pub(crate) fn write_word(kind: u8, stream: u32, word: u32, output: &mut Vec<u8>) {
    output.extend_from_slice(&head(4, kind, 0, stream));
    output.extend_from_slice(&word.to_be_bytes());
}

/// Appends a PING.
pub(crate) fn write_ping(flags: u8, payload: [u8; 8], output: &mut Vec<u8>) {
    output.extend_from_slice(&head(8, PING, flags, 0));
    output.extend_from_slice(&payload);
}

/// Appends a GOAWAY.
pub(crate) fn write_goaway(last_stream: u32, code: u32, reason: &str, output: &mut Vec<u8>) {
    output.extend_from_slice(&head(8 + reason.len(), GOAWAY, 0, 0));
    output.extend_from_slice(&last_stream.to_be_bytes());
    output.extend_from_slice(&code.to_be_bytes());
    output.extend_from_slice(reason.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::frame;

    #[test]
    fn the_buffer_of_a_partial_frame_is_kept_up_to_4_kib() {
        for (frame_bytes, kept) in [(100, 100), (4096, 4096), (4097, 0)] {
            let frame = frame(PING, 0, 0, &vec![0; frame_bytes - HEAD_BYTES]);
            let (mut partial, mut whole) = (Vec::new(), 0);
            for piece in [&frame[..20], &frame[20..]] {
                let count = |_: Head, payload: &[u8]| {
                    whole += payload.len();
                    Ok(())
                };
                assert_eq!(cut_all(piece, &mut partial, count), Ok(()));
            }
            assert_eq!((whole, partial.len()), (frame_bytes - HEAD_BYTES, 0));
            assert_eq!(partial.capacity(), kept, "a frame of {frame_bytes} bytes");
        }
    }
}
