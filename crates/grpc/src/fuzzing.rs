//! What the fuzzer may see of what is private here. Not for any other use.

use crate::hpack;

/// The decoder of header blocks, as the connections use it.
#[derive(Debug)]
pub struct BlockDecoder(hpack::Decoder);

impl BlockDecoder {
    /// A decoder with a table of the usual size.
    #[must_use]
    pub fn new() -> BlockDecoder {
        BlockDecoder(hpack::Decoder::new(hpack::TABLE_SIZE_INITIAL))
    }

    /// Decodes one whole block: the name and the value of each field, and whether HTTP allows their bytes,
    /// for as long as the fields are no larger than `list_bytes_max` together. False when it cannot be
    /// decoded.
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
        BlockDecoder::new()
    }
}
