//! Names and values in the ABI's form: their number, all sizes, then each string with a NUL after it.
//! Numbers have four bytes, the lowest first.
//!
//! Refuses to change or check a name or a value.

use super::Header;

/// These pairs, `own` first.
pub(crate) fn encoded(own: &[Header], added: &[(String, String)]) -> Vec<u8> {
    let size = |part: usize| u32::try_from(part).unwrap_or(u32::MAX).to_le_bytes();
    // The count, then per pair two sizes and two NULs.
    let mut room: usize = 4;
    for_each(own, added, |name, value| {
        let pair = name.len().saturating_add(value.len()).saturating_add(10);
        room = room.saturating_add(pair);
    });
    let mut bytes = Vec::with_capacity(room);
    bytes.extend(size(own.len().saturating_add(added.len())));
    for_each(own, added, |name, value| {
        bytes.extend(size(name.len()));
        bytes.extend(size(value.len()));
    });
    for_each(own, added, |name, value| {
        for part in [name, value] {
            bytes.extend(part.as_bytes());
            bytes.push(0);
        }
    });
    bytes
}

/// Two loops take fewer instructions than one over both lists.
fn for_each(own: &[Header], added: &[(String, String)], mut act: impl FnMut(&str, &str)) {
    for (name, value) in own {
        act(name, value);
    }
    for (name, value) in added {
        act(name, value);
    }
}
