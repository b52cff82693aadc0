//! Choices drawn from the bytes of an input. After its end all choices are zero.

/// The remaining bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    pub(crate) fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    pub(crate) fn long(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// One of the choices.
    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }

    /// This many bytes, or all that remain.
    pub(crate) fn take(&mut self, bytes: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(bytes.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// As many bytes as the next byte says.
    pub(crate) fn short(&mut self) -> &'a [u8] {
        let bytes = usize::from(self.byte());
        self.take(bytes)
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

/// Cuts bytes into pieces of these sizes, cyclically.
pub(crate) fn pieces<'a>(bytes: &'a [u8], sizes: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut rest = bytes;
    let mut sizes = sizes.iter().cycle();
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        // The upper half of the sizes is coarse, up to a whole read of a socket.
        let size = match sizes.next().copied().unwrap_or(u8::MAX) {
            size @ 0..128 => usize::from(size) + 1,
            size => (usize::from(size) - 127) * 128,
        };
        let (piece, after) = rest.split_at(size.min(rest.len()));
        rest = after;
        Some(piece)
    })
}
