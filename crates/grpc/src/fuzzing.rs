//! Access for the fuzzer to private parts. Not for any other use.

use crate::hpack;

/// The decoder of header blocks that connections use, with a table of the default size.
#[derive(Debug)]
pub struct BlockDecoder(hpack::Decoder);

impl BlockDecoder {
    /// Decodes one whole block. Passes on each name and value, and whether HTTP allows their bytes, until the
    /// fields exceed `list_bytes_max` together. False if the block is invalid.
    pub fn decode(
        &mut self,
        block: &[u8],
        list_bytes_max: usize,
        mut take: impl FnMut(&[u8], &[u8], bool),
    ) -> bool {
        let take = |field: hpack::Field<'_>| {
            take(field.name, field.value, field.validity == hpack::Validity::Valid);
        };
        self.0.decode(block, list_bytes_max, take).is_ok()
    }
}

impl Default for BlockDecoder {
    fn default() -> Self {
        BlockDecoder(hpack::Decoder::new(hpack::TABLE_SIZE_INITIAL))
    }
}
