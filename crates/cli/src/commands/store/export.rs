//! `tidegate store export`: every entry, one a line, as it is found.

use super::entry::state_json;
use super::{Verdict, check_whole};
use crate::arguments::store::ExportOptions;
use crate::output::Output;
use serde_json::json;
use std::io::{self, Write};
use tidegate_authority::clock;
use tidegate_store::{Class, Entry, StoredKey, View};

const SECOND: u64 = 1_000_000_000;

/// Why the visit of entries ends early.
enum Stop {
    /// Nobody reads any more.
    Unread,
    Failed(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        Stop::Failed(error)
    }
}

pub(crate) fn run(options: &ExportOptions, out: &mut Output) -> anyhow::Result<Verdict> {
    let view = View::open(&options.dir)?;
    let now = clock::now().as_nanos();
    if !options.json {
        writeln!(out, "key\tclass\texpires_at\tstate")?;
    }
    let left_out = view.try_for_each(|class, key, entry| {
        if entry.is_expired(now) && !options.expired {
            return Ok(());
        }
        if options.json {
            write_json(out, class, key, &entry)?;
        } else {
            write_line(out, class, key, &entry)?;
        }
        if out.is_closed() { Err(Stop::Unread) } else { Ok(()) }
    });
    match left_out {
        Err(Stop::Failed(error)) => return Err(error.into()),
        Err(Stop::Unread) => return Ok(Verdict::Good),
        Ok(0) => {}
        // The rest is still good; those that read it should know.
        Ok(left_out) => eprintln!(
            "tidegate: {left_out} flawed nodes were left out; `tidegate store verify {}` names them",
            options.dir.display()
        ),
    }
    check_whole(&view)?;
    Ok(Verdict::Good)
}

fn write_line(out: &mut Output, class: Class, key: StoredKey, entry: &Entry) -> io::Result<()> {
    write!(out, "{key}\t{}\t{}\t", class.name(), entry.expires_at / SECOND)?;
    for (index, word) in entry.state.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        write!(out, "{comma}{word}")?;
    }
    writeln!(out)
}

fn write_json(out: &mut Output, class: Class, key: StoredKey, entry: &Entry) -> io::Result<()> {
    let line = json!({
        "key": key.to_string(),
        "class": class.name(),
        "expires_at": entry.expires_at / SECOND,
        "state": state_json(entry),
    });
    writeln!(out, "{line}")
}
