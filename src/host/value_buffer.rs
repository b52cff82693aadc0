//! Memory for the values that Envoy returns: Envoy requests memory from the filter, writes the
//! value there, and returns its address.
//!
//! Owns one buffer that is reused for every value, so that a locally decided request allocates
//! nothing for reading. Invariants: memory is given out only during a host call that has not
//! received any yet; the returned address is trusted only if it is the buffer's; while a value is
//! read, no other call can reach its memory.
//!
//! Sound without unsafe code: the buffer is a vector of initialised bytes. The filter does not
//! touch it between giving out its address and reading it, and Envoy only writes bytes.

use std::cell::Cell;
use std::ptr::null_mut;

/// The status of a host call, with the ABI's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Status(u32);

impl Status {
    const OK: Status = Status(0);
    #[cfg(target_arch = "wasm32")]
    pub(crate) const INTERNAL_FAILURE: Status = Status(10);
    /// The value is not in the buffer.
    const INVALID_MEMORY: Status = Status(6);

    pub(super) fn ok(self) -> Result<(), Status> {
        if self == Status::OK { Ok(()) } else { Err(self) }
    }
}

/// Memory that is kept for the next value. Enough for header values, an address and a slot of
/// leases; a larger value gets its own memory until it has been read.
const KEPT_BYTES_MAX: usize = 4_096;

thread_local! {
    /// The memory of the next value.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    /// Whether the current host call returns a value and has not requested memory yet.
    static AWAITED: Cell<bool> = const { Cell::new(false) };
}

/// Memory for a value of `size` bytes; null if no value is awaited or no memory is left. Envoy
/// treats null as a failed call.
///
/// Makes no host call: Envoy allows none at this point.
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
        // Zeroed, so that the bytes are initialised whatever Envoy writes.
        buffer.resize(wanted, 0);
    }
    let address = buffer.as_mut_ptr();
    BUFFER.set(buffer);
    address
}

/// Makes a host call that writes the address and size of a value, and passes that value to `read`.
pub(super) fn receive<T>(
    call: impl FnOnce(&mut usize, &mut usize) -> Status,
    read: impl FnOnce(&[u8]) -> T,
) -> Result<T, Status> {
    AWAITED.set(true);
    let (mut address, mut size) = (0, 0);
    let status = call(&mut address, &mut size);
    AWAITED.set(false);
    let buffer = BUFFER.take();
    // Envoy requests no memory for an empty value.
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

    /// Returns zeroes as Envoy returns a value.
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
    fn the_memory_of_a_large_value_is_freed() {
        let large = KEPT_BYTES_MAX + 1;
        assert_eq!(receive(give(large), <[u8]>::len), Ok(large));
        assert_eq!(kept(), 0);
    }

    #[test]
    fn a_nested_read_does_not_overwrite_the_outer_value() {
        let apart = receive(give(8), |outer| {
            receive(give(8), |inner| inner.as_ptr() != outer.as_ptr()).unwrap()
        });
        assert_eq!(apart, Ok(true));
        assert_eq!(receive(give(8), <[u8]>::len), Ok(8));
    }

    #[test]
    fn no_memory_is_given_out_without_a_call_that_awaits_it() {
        assert!(allocate(1).is_null());
        assert_eq!(receive(|_, _| Status(1), <[u8]>::len), Err(Status(1)));
        assert!(allocate(1).is_null());
        assert_eq!(receive(give(usize::MAX), <[u8]>::len), Err(Status(10)), "no memory");
    }

    #[test]
    fn an_address_outside_of_the_buffer_is_refused() {
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
