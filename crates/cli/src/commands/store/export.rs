//! `tidegate store export`: every entry, one a line, in the order of storage.

use super::check_whole;
use super::entry::state_json;
use crate::arguments::store::ExportOptions;
use crate::output::Output;
use serde_json::json;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use tidegate_authority::clock;
use tidegate_store::{Class, Entry, StoredKey, View};

const SECOND: u64 = 1_000_000_000;

pub(crate) fn run(options: &ExportOptions, out: &mut Output) -> anyhow::Result<ExitCode> {
    let view = View::open(&options.dir)?;
    let now = clock::now().as_nanos();
    if !options.json {
        writeln!(out, "key\tclass\texpires_at\tstate")?;
    }
    let left_out = view.try_for_each(|class, key, entry| -> io::Result<()> {
        if entry.is_expired(now) && !options.expired {
            return Ok(());
        }
        if options.json {
            write_json(out, class, key, &entry)?;
        } else {
            write_line(out, class, key, &entry)?;
        }
        // The reader needs no more.
        if out.is_closed() { Err(ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    });
    match left_out {
        Err(_) if out.is_closed() => return Ok(ExitCode::SUCCESS),
        Err(error) => return Err(error.into()),
        Ok(0) => {}
        // The rest is valid, but the reader should know.
        Ok(left_out) => eprintln!(
            "tidegate: left out {left_out} flawed nodes; `tidegate store verify {}` lists them",
            options.dir.display()
        ),
    }
    check_whole(&view)?;
    Ok(ExitCode::SUCCESS)
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
