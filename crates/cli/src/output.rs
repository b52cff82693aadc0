//! Buffered standard output. A reader that closes the pipe early, such as `head`, is no error.

use serde_json::Value;
use std::io::{self, BufWriter, ErrorKind, Stdout, Write};

pub(crate) struct Output {
    stdout: BufWriter<Stdout>,
    is_closed: bool,
}

impl Output {
    pub(crate) fn new() -> Output {
        // A system call for each line would take most of the time of an export.
        let stdout = BufWriter::with_capacity(1 << 16, io::stdout());
        Output { stdout, is_closed: false }
    }

    /// Whether the reader has closed the pipe.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Prints a document, indented.
    pub(crate) fn json(&mut self, document: &Value) -> io::Result<()> {
        writeln!(self, "{document:#}")
    }

    /// Turns a broken pipe into success; all later output is dropped.
    fn ignore_closed<T>(&mut self, result: io::Result<T>, otherwise: T) -> io::Result<T> {
        match result {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.is_closed = true;
                Ok(otherwise)
            }
            result => result.map_err(|error| {
                let text = format!("cannot write to standard output: {error}");
                io::Error::new(error.kind(), text)
            }),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_closed {
            return Ok(bytes.len());
        }
        let written = self.stdout.write(bytes);
        self.ignore_closed(written, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.is_closed {
            return Ok(());
        }
        let flushed = self.stdout.flush();
        self.ignore_closed(flushed, ())
    }
}
