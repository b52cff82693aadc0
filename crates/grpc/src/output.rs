//! Bytes to write: one buffer, written from its front.

/// An empty buffer larger than this is freed. 128 typical answers fit.
const KEPT_BYTES_MAX: usize = 16 * 1024;

#[derive(Debug, Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    written: usize,
}

impl Output {
    #[inline]
    pub(crate) fn waiting(&self) -> &[u8] {
        self.bytes.get(self.written..).unwrap_or_default()
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.written
    }

    /// Bytes of memory, by capacity.
    #[inline]
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Frees unused memory.
    pub(crate) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
    }

    /// The buffer to append to.
    #[inline]
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    pub(crate) fn written(&mut self, bytes: usize) {
        self.written = self.written.saturating_add(bytes).min(self.bytes.len());
        if self.written == self.bytes.len() {
            self.bytes.clear();
            self.written = 0;
            self.bytes.shrink_to(KEPT_BYTES_MAX);
        } else if self.written > self.bytes.len() / 2 {
            // Moving the rest costs no more than the bytes written before.
            self.bytes.drain(..self.written);
            self.written = 0;
        }
    }
}
