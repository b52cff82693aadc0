//! `tidegate store export`: every entry, one a line, in the order of storage.

use super::check_whole;
use super::cold::ColdRows;
use super::entry::state_json;
use super::names::{Name, Names};
use crate::arguments::store::ExportOptions;
use crate::output::Output;
use anyhow::Context;
use serde_json::{Value, json};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;
use tidegate_authority::{Counters, Hashing, clock};
use tidegate_remote::Settings;
use tidegate_store::{Class, Entry, Hashed, StoredKey, View};
use tidegate_tiers::look;

const SECOND: u64 = 1_000_000_000;

pub(crate) fn run(options: &ExportOptions, out: &mut Output) -> anyhow::Result<ExitCode> {
    options.cold.check_beside(&options.servers)?;
    let ended = match (options.servers.settings_of_one_set()?, &options.dir) {
        (Some(settings), _) => of_servers(options, &settings, out),
        (None, Some(dir)) => of_dir(options, dir, out),
        // clap requires one of them.
        (None, None) => Ok(()),
    };
    match ended {
        // The reader needs no more.
        Err(_) if out.is_closed() => Ok(ExitCode::SUCCESS),
        ended => ended.map(|()| ExitCode::SUCCESS),
    }
}

fn of_dir(options: &ExportOptions, dir: &Path, out: &mut Output) -> anyhow::Result<()> {
    let view = View::open(dir)?;
    let now = clock::now().as_nanos();
    let names = Names::of(&options.names, Some(dir), Hashing::undivided(view.seed()))?;
    let of = (options, names.as_ref());
    write_head(of, view.seed(), out)?;
    let seed = view.seed();
    let left_out = view.try_for_each(|class, key, entry| {
        // What is known of cold counters is no counter.
        match look::is_record(seed, &Hashed { hash: key.bits(), class }, &entry) {
            true => Ok(()),
            false => write(of, (class, key, &entry), now, out),
        }
    })?;
    if let Some(rows) = ColdRows::of(dir, &view, &options.cold)? {
        rows.for_each(&view, clock::now(), |key, entry| {
            write(of, (key.class, StoredKey::from_bits(key.hash), entry), now, out)
        })?;
    }
    if left_out > 0 {
        // The rest is valid, but the reader should know.
        eprintln!(
            "tidegate: left out {left_out} flawed nodes; `tidegate store verify {}` lists them",
            dir.display()
        );
    }
    check_whole(&view)
}

fn of_servers(
    options: &ExportOptions,
    settings: &Settings,
    out: &mut Output,
) -> anyhow::Result<()> {
    let remote = tidegate_remote::connect(settings.clone()).context("--authority")?;
    let now = remote.now().unwrap_or_else(clock::now).as_nanos();
    let names = Names::of(&options.names, None, Hashing::of(&remote))?;
    let of = (options, names.as_ref());
    write_head(of, remote.seed(), out)?;
    let unreadable = tidegate_remote::list(settings, |key, entry| {
        let stored = StoredKey::from_bits(key.hash);
        write(of, (key.class, stored, &entry), now, out)
    });
    let unreadable = unreadable.context("--authority")??;
    if unreadable > 0 {
        eprintln!("tidegate: left out {unreadable} values that are no counters");
    }
    Ok(())
}

/// What is asked for, and the names if they are.
type Asked<'a> = (&'a ExportOptions, Option<&'a Names>);

fn write_head((options, names): Asked<'_>, seed: u64, out: &mut Output) -> io::Result<()> {
    match (options.json, options.seed) {
        (true, true) => writeln!(out, "{}", json!({"seed": format!("{seed:016x}")})),
        (true, false) => Ok(()),
        (false, has_seed) => {
            if has_seed {
                writeln!(out, "seed\t{seed:016x}")?;
            }
            let name = if names.is_some() { "\tname" } else { "" };
            writeln!(out, "key\tclass\texpires_at\tstate{name}")
        }
    }
}

fn write(
    (options, names): Asked<'_>,
    (class, key, entry): (Class, StoredKey, &Entry),
    now: u64,
    out: &mut Output,
) -> io::Result<()> {
    if entry.is_expired(now) && !options.expired {
        return Ok(());
    }
    let name = names.map(|names| names.get(key.bits()));
    if options.json {
        write_json(out, (class, key, entry), name)?;
    } else {
        write_line(out, (class, key, entry), name)?;
    }
    // The reader needs no more.
    if out.is_closed() { Err(ErrorKind::BrokenPipe.into()) } else { Ok(()) }
}

/// Whether names are asked for, and that of a key if it is known.
type Named<'a> = Option<Option<&'a Name>>;

fn write_line(
    out: &mut Output,
    (class, key, entry): (Class, StoredKey, &Entry),
    name: Named<'_>,
) -> io::Result<()> {
    write!(out, "{key}\t{}\t{}\t", class.name(), entry.expires_at / SECOND)?;
    for (index, word) in entry.state.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        write!(out, "{comma}{word}")?;
    }
    if let Some(name) = name {
        write!(out, "\t{}", name.map(Name::text).unwrap_or_default())?;
    }
    writeln!(out)
}

fn write_json(
    out: &mut Output,
    (class, key, entry): (Class, StoredKey, &Entry),
    name: Named<'_>,
) -> io::Result<()> {
    let mut line = json!({
        "key": key.to_string(),
        "class": class.name(),
        "expires_at": entry.expires_at / SECOND,
        "state": state_json(entry),
    });
    if let Some(name) = name {
        line["name"] = name.map_or(Value::Null, Name::json);
    }
    writeln!(out, "{line}")
}
