//! A progress line, on terminals only.

use std::io::{IsTerminal, Write};

const WIDTH: usize = 78;

/// Shows `doing` until the next call.
pub(crate) fn show(doing: &str) {
    let mut terminal = std::io::stderr();
    if terminal.is_terminal() {
        // A failed write of progress does not end a measurement.
        let _ = write!(terminal, "\r{doing:<WIDTH$}").and_then(|()| terminal.flush());
    }
}

/// Clears the line.
pub(crate) fn clear() {
    show("");
    if std::io::stderr().is_terminal() {
        eprint!("\r");
    }
}
