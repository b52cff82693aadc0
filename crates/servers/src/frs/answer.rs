//! Answers of the FRS, written by hand into one buffer: docs/reference/frs.xsd fixes their shape.

use super::request::Command;
use tidegate_authority::{NodeError, NodeWindows};
use tidegate_core::{Nanos, Timestamp, Verdict};
use tidegate_xml::{escape, is_character};

const DECLARATION: &[u8] = b"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
/// The usual length of an item with two windows.
const ITEM_BYTES: usize = 320;

pub(super) struct Answer {
    out: Vec<u8>,
    now: Timestamp,
}

impl Answer {
    pub(super) fn new(command: Command, items: usize, now: Timestamp) -> Answer {
        let mut out = Vec::with_capacity(100 + items * ITEM_BYTES);
        out.extend_from_slice(DECLARATION);
        out.extend_from_slice(b"<answer command=\"");
        out.extend_from_slice(command.name().as_bytes());
        out.extend_from_slice(b"\">\n");
        Answer { out, now }
    }

    /// Begins the answer to an item; one of the functions below ends it.
    pub(super) fn item(&mut self, business: &str, key: &str) {
        self.out.extend_from_slice(b"  <item");
        self.text("business", business);
        self.text("key", key);
    }

    pub(super) fn decided(&mut self, verdict: Verdict, windows: &NodeWindows<'_>) {
        self.text("verdict", if verdict == Verdict::Allow { "allow" } else { "deny" });
        self.windows(windows);
    }

    pub(super) fn done(&mut self, done: &str, windows: &NodeWindows<'_>) {
        self.text("done", done);
        self.windows(windows);
    }

    pub(super) fn failed(&mut self, error: &NodeError) {
        self.error(code_of(error), &error.to_string());
    }

    /// Ends an item that was not decided because another item of the same body could not be.
    pub(super) fn withheld(&mut self) {
        self.error("withheld", "nothing was counted, since another item could not be decided");
    }

    fn error(&mut self, code: &str, message: &str) {
        self.out.extend_from_slice(b">\n    <error");
        self.text("code", code);
        self.out.push(b'>');
        escape(message, &mut self.out);
        self.out.extend_from_slice(b"</error>\n  </item>\n");
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.out.extend_from_slice(b"</answer>\n");
        self.out
    }

    fn windows(&mut self, windows: &NodeWindows<'_>) {
        if windows.is_empty() {
            self.out.extend_from_slice(b"/>\n");
            return;
        }
        self.out.extend_from_slice(b">\n");
        for window in windows {
            self.out.extend_from_slice(b"    <window");
            self.text("name", window.name);
            self.number("limit", window.capacity.into());
            self.number("remaining", window.decision.remaining);
            self.number("count", window.count());
            if let Some(open) = window.open {
                self.time("start", open.start.as_nanos());
            }
            if let Some(last) = window.last {
                self.time("end", last.as_nanos());
            }
            let wait = window.decision.reset_at.saturating_since(self.now);
            self.time("resets", rounded_up(wait));
            self.out.extend_from_slice(b"/>\n");
        }
        self.out.extend_from_slice(b"  </item>\n");
    }

    fn text(&mut self, name: &str, value: &str) {
        self.name(name);
        escape(value, &mut self.out);
        self.out.push(b'"');
    }

    fn number(&mut self, name: &str, value: u64) {
        self.name(name);
        digits(value, 1, &mut self.out);
        self.out.push(b'"');
    }

    /// Seconds, with three fractional digits.
    fn time(&mut self, name: &str, nanos: u64) {
        self.name(name);
        digits(nanos / 1_000_000_000, 1, &mut self.out);
        self.out.push(b'.');
        digits(nanos / 1_000_000 % 1_000, 3, &mut self.out);
        self.out.push(b'"');
    }

    fn name(&mut self, name: &str) {
        self.out.push(b' ');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"=\"");
    }
}

/// Rounds up to a millisecond: a client that retries then must not be early.
fn rounded_up(wait: Nanos) -> u64 {
    wait.as_nanos().div_ceil(1_000_000).saturating_mul(1_000_000)
}

/// Appends a number, padded with zeros to `width` digits.
fn digits(mut number: u64, width: usize, out: &mut Vec<u8>) {
    // 2^64 has 20 digits.
    let (mut text, mut at) = ([b'0'; 20], 20);
    while number > 0 {
        at -= 1;
        text[at] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    out.extend_from_slice(&text[at.min(20 - width)..]);
}

/// The error code for programs.
pub(super) fn code_of(error: &NodeError) -> &'static str {
    match error {
        NodeError::UnknownBusiness => "unknown-business",
        NodeError::Exists => "exists",
        NodeError::NotFound => "not-found",
        NodeError::UnknownWindow { .. } => "unknown-window",
        NodeError::NotApplicable { .. } => "not-applicable",
        NodeError::CountAboveLimit { .. } | NodeError::Time { .. } => "invalid-window",
        NodeError::Undecided(_) => "undecided",
    }
}

/// The body of an answer that is only an error, with its line and column.
pub(super) fn error(code: &str, position: Option<(u64, u64)>, message: &str) -> Vec<u8> {
    let mut answer = Answer { out: DECLARATION.to_vec(), now: Timestamp::from_nanos(0) };
    answer.out.extend_from_slice(b"<error");
    answer.text("code", code);
    if let Some((line, column)) = position {
        answer.number("line", line);
        answer.number("column", column);
    }
    answer.out.push(b'>');
    // Replace characters that XML cannot express.
    let message: String = message.chars().map(|c| if is_character(c) { c } else { '?' }).collect();
    escape(&message, &mut answer.out);
    answer.out.extend_from_slice(b"</error>\n");
    answer.out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_without_padding_unless_asked() {
        for (number, width, text) in [
            (0, 1, "0"),
            (7, 1, "7"),
            (1_000, 1, "1000"),
            (u64::MAX, 1, "18446744073709551615"),
            (0, 3, "000"),
            (45, 3, "045"),
            (999, 3, "999"),
        ] {
            let mut out = Vec::new();
            digits(number, width, &mut out);
            assert_eq!(out, text.as_bytes(), "{number} in {width}");
        }
        assert_eq!(rounded_up(Nanos::new(1)), 1_000_000);
        assert_eq!(rounded_up(Nanos::new(2_000_000)), 2_000_000);
    }

    #[test]
    fn an_error_has_its_code_its_position_and_a_sentence() {
        let bytes = error("invalid", Some((3, 14)), "expected <a> & \"b\"\u{1}");
        let text = String::from_utf8(bytes).unwrap();
        let expected = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<error code=\"invalid\" line=\"3\" \
                        column=\"14\">expected &lt;a&gt; &amp; &quot;b&quot;?</error>\n";
        assert_eq!(text, expected);
    }
}
