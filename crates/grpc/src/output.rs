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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The slow twin: the bytes that are not written yet.
        #[test]
        fn what_is_appended_is_written_in_order(
            steps in prop::collection::vec((0_usize..3000, 0_usize..3000), 1..40),
        ) {
            let (mut output, mut twin) = (Output::default(), Vec::new());
            for (turn, (appended, written)) in steps.into_iter().enumerate() {
                let bytes = vec![turn as u8; appended];
                output.buffer().extend_from_slice(&bytes);
                twin.extend(bytes);
                output.written(written);
                twin.drain(..written.min(twin.len()));
                prop_assert_eq!(output.waiting(), &twin[..]);
                prop_assert_eq!(output.len(), twin.len());
                prop_assert!(output.bytes.len() <= 2 * twin.len(), "written bytes are dropped");
                prop_assert!(output.capacity_bytes() >= twin.len());
            }
        }
    }

    /// So each byte is moved once at most, on average.
    #[test]
    fn unwritten_bytes_move_only_when_they_are_the_lesser_half() {
        let mut output = Output::default();
        output.buffer().extend(0..100);
        for (written, held) in [(25, 100), (25, 100), (1, 49), (24, 49), (1, 24)] {
            output.written(written);
            assert_eq!(output.bytes.len(), held);
        }
        assert_eq!(output.waiting(), (76..100).collect::<Vec<u8>>());
    }

    #[test]
    fn an_empty_buffer_keeps_16_kib() {
        let mut output = Output::default();
        for (bytes, kept) in [(16 << 10, 16 << 10), (1 << 20, 16 << 10)] {
            output.buffer().extend(vec![0; bytes]);
            output.written(bytes - 1);
            assert_eq!(output.len(), 1);
            output.written(1);
            assert_eq!(output.capacity_bytes(), kept);
        }
        output.shrink();
        assert_eq!(output.capacity_bytes(), 0);
    }
}
