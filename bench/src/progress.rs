//! What is going on, for whoever waits: a line that is written over, on a terminal only.

use std::io::{IsTerminal, Write};

const WIDTH: usize = 78;

/// Shows `doing` until the next of these.
pub(crate) fn show(doing: &str) {
    let mut terminal = std::io::stderr();
    if terminal.is_terminal() {
        // A figure is worth more than a line of progress that could not be written.
        let _ = write!(terminal, "\r{doing:<WIDTH$}").and_then(|()| terminal.flush());
    }
}

/// Makes way for a table.
pub(crate) fn clear() {
    show("");
    if std::io::stderr().is_terminal() {
        eprint!("\r");
    }
}
