//! The header block of the client's requests, encoded in advance.

use crate::frame::{self, END_HEADERS};
use crate::hpack::encode::{Indexing, indexed, literal, size_update};
use crate::hpack::{ENTRY_OVERHEAD, TABLE_SIZE_INITIAL};

/// The first index of the dynamic table.
const DYNAMIC: usize = 62;

/// Whether the server's table contains the block's fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    Nothing,
    All,
    /// The server requested a table smaller than the default, and got a size update to 0.
    Never,
}

/// The encoded forms of the block.
#[derive(Debug)]
pub(super) struct Fields {
    /// Literals without indexing.
    plain: Vec<u8>,
    /// Literals with indexing.
    adding: Vec<u8>,
    /// References to the indexed fields. Empty if the table is too small for them.
    referring: Vec<u8>,
    held: Held,
}

impl Fields {
    pub(super) fn new(authority: &str, path: &str, metadata: &[(&str, &str)]) -> Fields {
        let names: Vec<String> = metadata.iter().map(|(name, _)| name.to_lowercase()).collect();
        let mut fields: Vec<(&str, &str)> = vec![
            (":authority", authority),
            (":path", path),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ];
        fields.extend(names.iter().zip(metadata).map(|(name, (_, value))| (name.as_str(), *value)));
        // `:method: POST` and `:scheme: http` are in the static table.
        let [mut plain, mut adding, mut referring] =
            [vec![0x83, 0x86], vec![0x83, 0x86], vec![0x83, 0x86]];
        let mut size = 0;
        for (age, (name, value)) in fields.iter().enumerate() {
            let (name, value) = (name.as_bytes(), value.as_bytes());
            literal(Indexing::Without, name, value, &mut plain);
            literal(Indexing::Add, name, value, &mut adding);
            indexed(DYNAMIC + fields.len() - 1 - age, &mut referring);
            size += name.len() + value.len() + ENTRY_OVERHEAD;
        }
        if size > TABLE_SIZE_INITIAL {
            referring.clear();
        }
        Fields { plain, adding, referring, held: Held::Nothing }
    }

    /// Appends the HEADERS frame of a call. `table_size` is the size that the server allows.
    pub(super) fn write(&mut self, stream: u32, table_size: usize, output: &mut Vec<u8>) {
        frame::write_headers(stream, END_HEADERS, output, |output| match self.held {
            _ if table_size < TABLE_SIZE_INITIAL && self.held != Held::Never => {
                self.held = Held::Never;
                size_update(0, output);
                output.extend_from_slice(&self.plain);
            }
            Held::All => output.extend_from_slice(&self.referring),
            Held::Nothing if !self.referring.is_empty() => {
                self.held = Held::All;
                output.extend_from_slice(&self.adding);
            }
            Held::Nothing | Held::Never => output.extend_from_slice(&self.plain),
        });
    }
}
