//! One host call in progress: admission, guest memory, results.
//!
//! Every access is bounds-checked and names the call that passed the bad pointer. Bytes handed
//! to the guest live in memory that the guest's own allocator gave out, as under Envoy, so a
//! guest that never frees them is seen to grow.

use wasmi::{Caller, Error};

use super::headers::Headers;
use super::state::{Exports, State};
use super::types::Status;

/// What a host call ends with; an error kills the guest.
pub(super) type Result<T> = std::result::Result<T, Error>;

/// A call from the guest, with access to its memory and to the host's state.
pub(super) struct Call<'a> {
    caller: Caller<'a, State>,
    name: &'static str,
}

/// Runs a proxy-wasm call if it is admitted and turns its status into the ABI's number.
pub(super) fn enter(
    caller: Caller<'_, State>,
    name: &'static str,
    body: impl FnOnce(&mut Call<'_>) -> Result<Status>,
) -> Result<u32> {
    enter_wasi(caller, name, |call| body(call).map(|status| status as u32))
}

/// Runs a WASI call if it is admitted; its result is an errno.
pub(super) fn enter_wasi(
    mut caller: Caller<'_, State>,
    name: &'static str,
    body: impl FnOnce(&mut Call<'_>) -> Result<u32>,
) -> Result<u32> {
    caller.data_mut().admit(name).map_err(Error::new)?;
    body(&mut Call { caller, name })
}

impl Call<'_> {
    pub(super) fn state(&mut self) -> &mut State {
        self.caller.data_mut()
    }

    /// An error that kills the guest and names this call.
    pub(super) fn refuse(&self, reason: impl std::fmt::Display) -> Error {
        let State { callback, .. } = self.caller.data();
        let active = self.caller.data().active();
        Error::new(format!("{} (in {callback} of {active}): {reason}", self.name))
    }

    /// Copies bytes out of the guest. A null pointer is fine for no bytes.
    pub(super) fn read(&self, start: u32, size: u32) -> Result<Vec<u8>> {
        let memory = self.exports()?.memory;
        let bytes = slice(memory.data(&self.caller), start, size);
        bytes.map(<[u8]>::to_vec).ok_or_else(|| self.bad_pointer(start, size))
    }

    /// Copies text out of the guest.
    pub(super) fn read_text(&self, start: u32, size: u32) -> Result<String> {
        let bytes = self.read(start, size)?;
        String::from_utf8(bytes).map_err(|error| self.refuse(error))
    }

    /// Reads header pairs in the ABI's form.
    pub(super) fn read_headers(&self, start: u32, size: u32) -> Result<Headers> {
        let bytes = self.read(start, size)?;
        Headers::decode(&bytes).map_err(|reason| self.refuse(reason))
    }

    pub(super) fn write_u32(&mut self, start: u32, number: u32) -> Result<()> {
        self.write(start, &number.to_le_bytes())
    }

    pub(super) fn write_u64(&mut self, start: u32, number: u64) -> Result<()> {
        self.write(start, &number.to_le_bytes())
    }

    pub(super) fn write(&mut self, start: u32, bytes: &[u8]) -> Result<()> {
        let memory = self.exports()?.memory;
        let size = self.size_of(bytes)?;
        let Some(target) = slice_mut(memory.data_mut(&mut self.caller), start, size) else {
            return Err(self.bad_pointer(start, size));
        };
        target.copy_from_slice(bytes);
        Ok(())
    }

    /// Allocates a copy of `bytes` in the guest and writes where it is. No bytes are a null
    /// pointer and no allocation, as in Envoy.
    pub(super) fn give(&mut self, bytes: &[u8], data_out: u32, size_out: u32) -> Result<()> {
        let size = self.size_of(bytes)?;
        let mut data = 0;
        if size > 0 {
            let allocate = self.exports()?.allocate;
            self.state().allocating = true;
            let allocated = allocate.call(&mut self.caller, size);
            self.state().allocating = false;
            data = allocated?;
            if data == 0 {
                return Err(self.refuse(format!("the guest has no memory for {size} bytes")));
            }
            self.write(data, bytes)?;
        }
        self.write_u32(data_out, data)?;
        self.write_u32(size_out, size)
    }

    fn exports(&self) -> Result<&Exports> {
        let exports = self.caller.data().exports.as_ref();
        exports.ok_or_else(|| self.refuse("called before the module was instantiated"))
    }

    fn size_of(&self, bytes: &[u8]) -> Result<u32> {
        u32::try_from(bytes.len()).map_err(|error| self.refuse(error))
    }

    fn bad_pointer(&self, start: u32, size: u32) -> Error {
        self.refuse(format!("bad pointer: {size} bytes at {start:#x} are not the guest's memory"))
    }
}

/// `size` bytes from `start`, unless they are outside the memory or start at null.
fn slice(memory: &[u8], start: u32, size: u32) -> Option<&[u8]> {
    if size == 0 {
        return Some(&[]);
    }
    let start = usize::try_from(start).ok().filter(|start| *start != 0)?;
    memory.get(start..)?.get(..usize::try_from(size).ok()?)
}

/// As `slice`, for writing.
fn slice_mut(memory: &mut [u8], start: u32, size: u32) -> Option<&mut [u8]> {
    if size == 0 {
        return Some(&mut []);
    }
    let start = usize::try_from(start).ok().filter(|start| *start != 0)?;
    memory.get_mut(start..)?.get_mut(..usize::try_from(size).ok()?)
}
