//! Memory for the values that Envoy gives: it asks the filter for room, writes the value there, and says
//! where it is.
//!
//! Owns one piece of memory that is used for one value after the other, so that a request that is
//! decided locally allocates nothing for what is read of it. Invariants: room is given only while a host
//! call is under way that has not got any yet; what Envoy then says is believed only if it is within
//! that room; while a value is read, its memory is out of reach of any other call.
//!
//! Sound without unsafe code: the room is a vector of initialised bytes. Between giving its address
//! away and reading it nothing of the filter touches it, and what Envoy writes are bytes again.

use std::cell::Cell;
use std::ptr::null_mut;

/// What a host call says of itself; the numbers are those of the ABI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Status(u32);

impl Status {
    /// It was done.
    const OK: Status = Status(0);
    /// What was asked for failed.
    #[cfg(target_arch = "wasm32")]
    pub(crate) const INTERNAL_FAILURE: Status = Status(10);
    /// The value is not where it may be.
    const INVALID_MEMORY: Status = Status(6);

    pub(super) fn ok(self) -> Result<(), Status> {
        if self == Status::OK { Ok(()) } else { Err(self) }
    }
}

/// Buffer that is kept for the next value. What a request is decided by fits: header values, an address,
/// a slot of leases. A larger value has memory of its own, until it has been read.
const KEPT_BYTES_MAX: usize = 4_096;

thread_local! {
    /// Where the next value goes.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    /// Whether a host call is under way that gives a value, and has not asked for room yet.
    static AWAITED: Cell<bool> = const { Cell::new(false) };
}

/// Buffer for a value of `size` bytes; null when no value is awaited, or when there is no memory. Envoy
/// takes null for a failed call.
///
/// Makes no host call: Envoy allows none while it asks.
pub(super) fn allocate(size: usize) -> *mut u8 {
    if !AWAITED.replace(false) {
        return null_mut();
    }
    let mut buffer = BUFFER.take();
    let wanted = size.max(KEPT_BYTES_MAX);
    if buffer.len() < wanted {
        buffer.clear();
        if buffer.try_reserve_exact(wanted).is_err() {
            return null_mut();
        }
        // Zeroes, so that the bytes are initialised whatever Envoy writes.
        buffer.resize(wanted, 0);
    }
    let address = buffer.as_mut_ptr();
    BUFFER.set(buffer);
    address
}

/// Makes a host call that gives a value, at the address and of the size that it writes, and has the
/// value read.
pub(super) fn receive<T>(
    call: impl FnOnce(&mut usize, &mut usize) -> Status,
    read: impl FnOnce(&[u8]) -> T,
) -> Result<T, Status> {
    AWAITED.set(true);
    let (mut address, mut size) = (0, 0);
    let status = call(&mut address, &mut size);
    AWAITED.set(false);
    let buffer = BUFFER.take();
    // Envoy asks for no room for an empty value.
    let given = match size {
        0 => Some(&[][..]),
        size => buffer.get(..size).filter(|bytes| bytes.as_ptr().addr() == address),
    };
    let value = status.ok().and_then(|()| given.ok_or(Status::INVALID_MEMORY)).map(read);
    if buffer.len() <= KEPT_BYTES_MAX {
        BUFFER.set(buffer);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a value as Envoy does, of zeroes; returns its address too.
    fn give(size: usize) -> impl FnOnce(&mut usize, &mut usize) -> Status {
        move |address, size_out| {
            *address = allocate(size).addr();
            assert!(allocate(1).is_null(), "buffer for a second value");
            *size_out = size;
            if *address == 0 { Status(10) } else { Status::OK }
        }
    }

    fn kept() -> usize {
        let buffer = BUFFER.take();
        let kept = buffer.capacity();
        BUFFER.set(buffer);
        kept
    }

    #[test]
    fn one_piece_of_memory_serves_value_after_value() {
        let first = receive(give(100), |bytes| (bytes.as_ptr().addr(), bytes.len())).unwrap();
        let second = receive(give(KEPT_BYTES_MAX), |bytes| (bytes.as_ptr().addr(), bytes.len()));
        assert_eq!(second, Ok((first.0, KEPT_BYTES_MAX)));
        assert_eq!(first.1, 100);
        assert_eq!(kept(), KEPT_BYTES_MAX);
    }

    #[test]
    fn a_large_value_is_read_and_its_memory_given_up() {
        let large = KEPT_BYTES_MAX + 1;
        assert_eq!(receive(give(large), <[u8]>::len), Ok(large));
        assert_eq!(kept(), 0);
    }

    #[test]
    fn a_value_that_is_being_read_is_not_overwritten_by_the_next() {
        let apart = receive(give(8), |outer| {
            receive(give(8), |inner| inner.as_ptr() != outer.as_ptr()).unwrap()
        });
        assert_eq!(apart, Ok(true));
        assert_eq!(receive(give(8), <[u8]>::len), Ok(8));
    }

    #[test]
    fn without_a_call_that_awaits_a_value_there_is_no_room() {
        assert!(allocate(1).is_null());
        assert_eq!(receive(|_, _| Status(1), <[u8]>::len), Err(Status(1)));
        assert!(allocate(1).is_null());
        assert_eq!(receive(give(usize::MAX), <[u8]>::len), Err(Status(10)), "no memory");
    }

    #[test]
    fn what_is_not_in_the_room_is_not_believed() {
        let nowhere = |address: &mut usize, size: &mut usize| {
            (*address, *size) = (16, 1);
            Status::OK
        };
        assert_eq!(receive(nowhere, <[u8]>::len), Err(Status::INVALID_MEMORY));
        let too_long = |address: &mut usize, size: &mut usize| {
            (*address, *size) = (allocate(8).addr(), KEPT_BYTES_MAX + 1);
            Status::OK
        };
        assert_eq!(receive(too_long, <[u8]>::len), Err(Status::INVALID_MEMORY));
        let elsewhere = |address: &mut usize, size: &mut usize| {
            (*address, *size) = (allocate(8).addr().wrapping_add(1), 4);
            Status::OK
        };
        assert_eq!(receive(elsewhere, <[u8]>::len), Err(Status::INVALID_MEMORY));
        let empty = |_: &mut usize, _: &mut usize| Status::OK;
        assert_eq!(receive(empty, <[u8]>::len), Ok(0));
    }
}
