//! What waits to be written: one buffer, written from its front.

/// A buffer that is empty and larger than this gives its memory back: what 128 answers of usual size take.
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

    /// The memory that it has.
    #[inline]
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Gives all memory back that holds nothing.
    pub(crate) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
    }

    /// The buffer, to be appended to.
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
            // Moving the rest is paid for by as many bytes that were written.
            self.bytes.drain(..self.written);
            self.written = 0;
        }
    }
}
