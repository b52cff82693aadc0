//! The meta commands of memcached 1.6 as bytes, and its answers.
//!
//! Each command has a number, which comes back with its answer: a server that skips or repeats an answer is found out.
//! Refuses lines and values that are longer than any answer to these commands.

use std::fmt::Write;

/// The longest value that is read: as long as a server keeps by default.
pub(super) const VALUE_MAX: usize = 1024 * 1024;
/// The longest line that is read. The lines of `stats` are shorter.
pub(super) const LINE_MAX: usize = 2_048;
/// Longer times to live are taken for times of the Unix epoch.
const RELATIVE_MAX: u64 = 30 * 24 * 60 * 60;

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// Done; with the version of the value that was stored.
    Done(Option<u64>),
    Value {
        bytes: Vec<u8>,
        version: u64,
    },
    /// There is no such key.
    Missing,
    /// It was not to be there, and is.
    NotStored,
    /// It has another version.
    Changed,
    Version(String),
    Stat(String, String),
    End,
    /// The server cannot do it now.
    Refused(String),
    /// It does not understand the command.
    Misunderstood(String),
}

/// An answer with the number of its command, if it has one, and its length.
pub(super) type Read = (Answer, Option<u32>, usize);

/// What is to be stored, and the second of the Unix epoch at which it ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Store<'v> {
    pub(super) value: &'v [u8],
    pub(super) ends: Option<u64>,
}

/// Reads a value and its version.
pub(super) fn get(out: &mut Vec<u8>, name: &str, number: u32) {
    line(out, format_args!("mg {name} v c O{number}"));
}

/// Stores a value where there is none. It is `now` by the server, in seconds.
pub(super) fn add(out: &mut Vec<u8>, name: &str, store: Store<'_>, now: u64, number: u32) {
    set(out, name, store, now, "ME", number);
}

/// Stores a value in place of the one with this version.
pub(super) fn replace(
    out: &mut Vec<u8>,
    name: &str,
    (store, version): (Store<'_>, u64),
    now: u64,
    number: u32,
) {
    set(out, name, store, now, &format!("C{version}"), number);
}

fn set(out: &mut Vec<u8>, name: &str, store: Store<'_>, now: u64, how: &str, number: u32) {
    let Store { value, ends } = store;
    let ttl = ends.map_or(0, |ends| match ends.saturating_sub(now).max(1) {
        relative @ ..=RELATIVE_MAX => relative,
        _ => ends,
    });
    line(out, format_args!("ms {name} {} {how} c T{ttl} O{number}", value.len()));
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Deletes the value with this version.
pub(super) fn delete(out: &mut Vec<u8>, name: &str, version: u64, number: u32) {
    line(out, format_args!("md {name} C{version} O{number}"));
}

pub(super) fn version(out: &mut Vec<u8>) {
    line(out, format_args!("version"));
}

/// Is answered by lines up to [`Answer::End`].
pub(super) fn stats(out: &mut Vec<u8>) {
    line(out, format_args!("stats"));
}

fn line(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    let mut line = String::with_capacity(128);
    // Writing to a string cannot fail.
    let _ = line.write_fmt(text);
    out.extend_from_slice(line.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// The first answer in `bytes`; none if it is not complete. An error says that these are no answers.
pub(super) fn read(bytes: &[u8]) -> Result<Option<Read>, &'static str> {
    let searched = bytes.get(..LINE_MAX).unwrap_or(bytes);
    let Some(end) = searched.iter().position(|byte| *byte == b'\n') else {
        return match bytes.len() {
            ..LINE_MAX => Ok(None),
            _ => Err("its line is too long"),
        };
    };
    let (line, used) = (&bytes[..end], end + 1);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let line = str::from_utf8(line).map_err(|_| "its line is no text")?;
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    let answer = match word {
        "VA" => return value(rest, bytes, used),
        "HD" => Answer::Done(flag(rest, 'c')?),
        "EN" | "NF" => Answer::Missing,
        "NS" => Answer::NotStored,
        "EX" => Answer::Changed,
        "END" => Answer::End,
        "VERSION" => Answer::Version(rest.to_owned()),
        "STAT" => {
            let (name, value) = rest.split_once(' ').unwrap_or((rest, ""));
            Answer::Stat(name.to_owned(), value.to_owned())
        }
        "SERVER_ERROR" => Answer::Refused(line.to_owned()),
        "CLIENT_ERROR" | "ERROR" => Answer::Misunderstood(line.to_owned()),
        _ => return Err("its first word is unknown"),
    };
    let number = match answer {
        Answer::Done(_) | Answer::Missing | Answer::NotStored | Answer::Changed => flag(rest, 'O')?,
        _ => None,
    };
    Ok(Some((answer, number, used)))
}

/// The answer with a value: its length, flags, and the value in the next line.
fn value(rest: &str, bytes: &[u8], used: usize) -> Result<Option<Read>, &'static str> {
    let (length, flags) = rest.split_once(' ').unwrap_or((rest, ""));
    let length: usize = length.parse().map_err(|_| "its value has no length")?;
    if length > VALUE_MAX {
        return Err("its value is too long");
    }
    let version = flag(flags, 'c')?.ok_or("its value has no version")?;
    let number = flag(flags, 'O')?;
    let end = used + length;
    let Some(after) = bytes.get(end..end + 2) else { return Ok(None) };
    if after != b"\r\n" {
        return Err("its value has another length than it says");
    }
    let bytes = bytes[used..end].to_vec();
    Ok(Some((Answer::Value { bytes, version }, number, end + 2)))
}

/// The number behind a flag, if the flag is there.
fn flag<T: std::str::FromStr>(flags: &str, name: char) -> Result<Option<T>, &'static str> {
    let found = flags.split(' ').find_map(|flag| flag.strip_prefix(name));
    found.map(|number| number.parse().map_err(|_| "a flag is no number")).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(bytes: &[u8], expected: &Result<Option<Read>, &'static str>) {
        assert_eq!(read(bytes), *expected, "{:?}", String::from_utf8_lossy(bytes));
    }

    fn answer(
        answer: Answer,
        number: Option<u32>,
        used: usize,
    ) -> Result<Option<Read>, &'static str> {
        Ok(Some((answer, number, used)))
    }

    #[test]
    fn answers() {
        check(b"HD\r\n", &answer(Answer::Done(None), None, 4));
        check(b"HD c7 O12\r\nEN", &answer(Answer::Done(Some(7)), Some(12), 11));
        check(b"EN\r\n", &answer(Answer::Missing, None, 4));
        check(b"NF c0 O3\r\n", &answer(Answer::Missing, Some(3), 10));
        check(b"NS c0 O3\r\n", &answer(Answer::NotStored, Some(3), 10));
        check(b"EX c0 O3\r\n", &answer(Answer::Changed, Some(3), 10));
        let value = |bytes: &[u8]| Answer::Value { bytes: bytes.to_vec(), version: 9 };
        check(b"VA 3 c9 O1\r\na\nb\r\nHD\r\n", &answer(value(b"a\nb"), Some(1), 17));
        check(b"VA 0 c9\r\n\r\n", &answer(value(b""), None, 11));
        check(b"VERSION 1.6.18\r\n", &answer(Answer::Version("1.6.18".to_owned()), None, 16));
        let stat = Answer::Stat("time".to_owned(), "17".to_owned());
        check(b"STAT time 17\r\n", &answer(stat, None, 14));
        check(b"END\r\n", &answer(Answer::End, None, 5));
        let refused = Answer::Refused("SERVER_ERROR out of memory".to_owned());
        check(b"SERVER_ERROR out of memory\r\n", &answer(refused, None, 28));
        check(b"ERROR\r\n", &answer(Answer::Misunderstood("ERROR".to_owned()), None, 7));
    }

    #[test]
    fn answers_that_are_not_complete_are_waited_for() {
        for bytes in [&b""[..], b"H", b"HD c7", b"HD c7\r", b"VA 3 c9\r\nab", b"VA 3 c9\r\nabc\r"] {
            check(bytes, &Ok(None));
        }
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        for bytes in [
            &b"\r\n"[..],
            b"HELLO\r\n",
            b"\xff\xfe\r\n",
            b"HD cx\r\n",
            b"HD c99999999999999999999\r\n",
            b"EN O-1\r\n",
            b"VA\r\n",
            b"VA -1 c9\r\n",
            b"VA 3\r\nabc\r\n",
            b"VA 3 c9\r\nabcd\r\n",
            b"VA 1048577 c9\r\n",
            b"VA 18446744073709551615 c9\r\n",
            &[b'x'; LINE_MAX],
        ] {
            assert!(read(bytes).is_err(), "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn times_to_live_are_relative_as_long_as_servers_take_them_so() {
        let check = |ends: Option<u64>, expected: &str| {
            let mut out = Vec::new();
            add(&mut out, "k", Store { value: b"ab", ends }, 1_000, 5);
            assert_eq!(out, format!("ms k 2 ME c {expected} O5\r\nab\r\n").as_bytes());
        };
        check(None, "T0");
        check(Some(1_060), "T60");
        check(Some(1_000), "T1");
        check(Some(10), "T1");
        check(Some(1_000 + RELATIVE_MAX), "T2592000");
        check(Some(1_001 + RELATIVE_MAX), "T2593001");
    }

    proptest! {
        /// Whatever a server sends, and however it is cut.
        #[test]
        fn bytes_are_read_in_bounds(
            bytes in prop::collection::vec(
                prop_oneof![
                    any::<u8>().prop_map(|byte| vec![byte]),
                    Just(b"VA ".to_vec()), Just(b"HD".to_vec()), Just(b" c7".to_vec()), Just(b" O1".to_vec()),
                    Just(b"\r\n".to_vec()), Just(b"3".to_vec()), Just(b"SERVER_ERROR x".to_vec()),
                ],
                0..12,
            ),
        ) {
            let bytes = bytes.concat();
            if let Ok(Some((answer, _, used))) = read(&bytes) {
                prop_assert!(used <= bytes.len());
                // The same bytes with more behind them are the same answer.
                let more = [&bytes[..], b"HD\r\n"].concat();
                prop_assert_eq!(read(&more).unwrap().map(|read| (read.0, read.2)), Some((answer, used)));
                for cut in 0..used {
                    prop_assert!(!matches!(read(&bytes[..cut]), Ok(Some(_))), "cut at {}", cut);
                }
            }
        }
    }
}
