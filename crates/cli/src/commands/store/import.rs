//! `tidegate store import`: the entries of an export, into another place with the same seed.
//!
//! Keys are hashes, so they mean something only beside their seed. An empty place gets the seed of the export. Reads all
//! lines before it changes anything. An entry that is there already stays, as nobody can tell what two counts of one key
//! have in common.

use super::join;
use crate::arguments::store::ImportOptions;
use crate::commands::UsageError;
use crate::output::Output;
use anyhow::{Context, anyhow, bail, ensure};
use serde_json::{Value, json};
use std::fs::File;
use std::future::poll_fn;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::pin::Pin;
use std::process::ExitCode;
use std::task::Poll;
use tidegate_authority::{Counters, Undecided, clock, wait};
use tidegate_core::Timestamp;
use tidegate_limits::describe::{count, grouped};
use tidegate_store::{
    Class, Cluster, Entries, Entry, Geometry, Hashed, OpenFailure, Options, STATE_WORDS_WIDE, View,
};

const SECOND: u64 = 1_000_000_000;
/// Entries that are written at the same time.
const AT_ONCE: usize = 256;
/// The longest line: a wide state has up to 33 words of 20 digits.
const LINE_MAX: u64 = 4_096;
const EMPTY_SEED: &str =
    "the export has no seed, without which its keys mean nothing; export again with --seed";

/// What was read.
struct Export {
    seed: u64,
    entries: Vec<(Hashed, Entry)>,
}

/// What became of the entries.
#[derive(Default)]
struct Done {
    imported: u64,
    replaced: u64,
    kept: u64,
    expired: u64,
}

pub(crate) fn run(options: &ImportOptions, out: &mut Output) -> anyhow::Result<ExitCode> {
    let settings = options.servers.settings_of_one_set()?;
    let (dir, file) = match (&settings, &options.words[..]) {
        (None, [dir, file]) => (Some(dir), file),
        (Some(_), [file]) => (None, file),
        (None, _) => {
            return Err(UsageError("expected DIR FILE, or --authority URL FILE".into()).into());
        }
        (Some(_), _) => {
            return Err(UsageError("expected FILE alone after --authority".into()).into());
        }
    };
    let export = read(file).with_context(|| file.display().to_string())?;
    let done = match (settings, dir) {
        (Some(settings), _) => {
            let remote = tidegate_remote::connect_with_seed(settings, export.seed);
            let remote = remote.context("--authority")?;
            let now = remote.now().unwrap_or_else(clock::now);
            write(&remote, &export.entries, options.replace, now)?
        }
        (None, Some(dir)) => {
            let store = open_dir(dir, options, export.seed)?;
            let done = write(&store, &export.entries, options.replace, clock::now())?;
            // The import counts once it would survive the end of the machine.
            store.sync().with_context(|| dir.display().to_string())?;
            done
        }
        (None, None) => bail!("a data directory or --authority is needed"),
    };
    if options.json {
        let Done { imported, replaced, kept, expired } = done;
        out.json(&json!({
            "imported": imported, "replaced": replaced, "kept": kept, "expired": expired,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let entries = if done.imported == 1 { "entry" } else { "entries" };
    writeln!(out, "imported {} {entries}", grouped(done.imported))?;
    for (number, what) in [
        (done.replaced, "replaced what was there"),
        (done.kept, "were there already and stay as they are; --replace replaces them"),
        (done.expired, "had expired, and were left out"),
    ] {
        if number > 0 {
            writeln!(out, "{} {what}", grouped(number))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The data directory, which is created with `seed` if there is none.
fn open_dir(dir: &Path, options: &ImportOptions, seed: u64) -> anyhow::Result<Cluster> {
    match View::open(dir) {
        Ok(view) => {
            ensure!(
                view.seed() == seed,
                "{}: its keys are hashed with another seed than those of the export; import into a new directory",
                dir.display()
            );
            ensure!(
                tidegate_process::cold_databases(dir).is_empty(),
                "{}: idle counters of it are in databases, where an import does not look; import into a new directory",
                dir.display()
            );
            join(dir, view)
        }
        Err(error) if matches!(error.failure, OpenFailure::NoCluster) => {
            let memory_dir = Some(options.memory_dir.clone());
            let mut of_new = Options { seed: Some(seed), memory_dir, ..Options::default() };
            if let Some(capacity) = options.capacity {
                of_new.narrow = Geometry::by_capacity(capacity, 0.8)?;
                let wide = (capacity / 256).max(64);
                of_new.wide = Some(Geometry::wide_by_capacity(wide, 0.8, STATE_WORDS_WIDE)?);
            }
            Ok(Cluster::open(dir, &of_new)?)
        }
        Err(error) => Err(error.into()),
    }
}

fn read(file: &Path) -> anyhow::Result<Export> {
    let input: Box<dyn Read> = match file.to_str() {
        Some("-") => Box::new(std::io::stdin()),
        _ => Box::new(File::open(file)?),
    };
    parse(BufReader::new(input))
}

fn parse(mut input: impl BufRead) -> anyhow::Result<Export> {
    let (mut seed, mut entries, mut number, mut line) = (None, Vec::new(), 0_u64, String::new());
    loop {
        line.clear();
        if input.by_ref().take(LINE_MAX).read_line(&mut line)? == 0 {
            break;
        }
        number += 1;
        let at = || format!("line {number}");
        let text = line.trim_end_matches(['\n', '\r']);
        if let Some(found) = seed_of(text) {
            ensure!(seed.is_none() && entries.is_empty(), "line {number}: a second seed");
            seed = Some(found.with_context(at)?);
        } else if text.starts_with('{') {
            entries.push(of_json(text).with_context(at)?);
        } else if !text.is_empty() && text != "key\tclass\texpires_at\tstate" {
            entries.push(of_columns(text).with_context(at)?);
        }
    }
    Ok(Export { seed: seed.ok_or_else(|| anyhow!(EMPTY_SEED))?, entries })
}

/// The seed, if the line is about one.
fn seed_of(line: &str) -> Option<anyhow::Result<u64>> {
    let json: Option<Value> = line.strip_prefix("{\"seed\"").and(serde_json::from_str(line).ok());
    let text = match &json {
        Some(json) => json.get("seed").and_then(Value::as_str).unwrap_or_default(),
        None => line.strip_prefix("seed\t")?,
    };
    let is_seed = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let seed = u64::from_str_radix(text, 16).ok().filter(|_| is_seed);
    Some(seed.context("expected a seed of 16 hex digits"))
}

fn of_columns(line: &str) -> anyhow::Result<(Hashed, Entry)> {
    let columns: Vec<&str> = line.split('\t').collect();
    let [key, class, expires_at, state] = columns[..] else {
        bail!("expected key, class, expires_at and state, as `tidegate store export` prints them");
    };
    entry_of(key, class, expires_at.parse().ok(), state.split(','))
}

fn of_json(line: &str) -> anyhow::Result<(Hashed, Entry)> {
    let line: Value = serde_json::from_str(line)?;
    let text = |name: &str| line.get(name).and_then(Value::as_str).unwrap_or_default();
    let state = line.get("state").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let words = state.iter().map(|word| word.as_str().unwrap_or_default());
    let expires_at = line.get("expires_at").and_then(Value::as_u64);
    entry_of(text("key"), text("class"), expires_at.and_then(|at| u32::try_from(at).ok()), words)
}

fn entry_of<'a>(
    key: &str,
    class: &str,
    expires_at: Option<u32>,
    words: impl Iterator<Item = &'a str>,
) -> anyhow::Result<(Hashed, Entry)> {
    let is_key = key.len() == 32 && key.bytes().all(|byte| byte.is_ascii_hexdigit());
    let hash = u128::from_str_radix(key, 16).ok().filter(|_| is_key);
    let hash = hash.context("expected a key of 32 hex digits")?;
    let class = Class::ALL.into_iter().find(|known| known.name() == class);
    let class = class.context("expected the class narrow or wide")?;
    let expires_at = expires_at.context("expected an expiry in seconds since 1970")?;
    let state = words.map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>();
    let state = state.filter(|state| state.iter().any(|word| *word != 0));
    let state = state.context("expected state words, not all of them zero")?;
    Ok((Hashed { hash, class }, Entry::new(&state, u64::from(expires_at) * SECOND)))
}

fn write(
    counters: &dyn Counters,
    entries: &[(Hashed, Entry)],
    replace: bool,
    now: Timestamp,
) -> anyhow::Result<Done> {
    let mut done = Done::default();
    for entries in entries.chunks(AT_ONCE) {
        let mut writing: Vec<_> = entries
            .iter()
            .map(|(key, entry)| Box::pin(write_one(counters, key, entry, replace, now)))
            .collect();
        let results = wait(all(&mut writing));
        let mut failed = None;
        for result in results {
            match result {
                Ok(count_in) => *count_in.of(&mut done) += 1,
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = failed {
            let imported = count(done.imported + done.replaced, "entry");
            return Err(anyhow!(error).context(format!(
                "{imported} imported before this; import the rest again when it is mended"
            )));
        }
    }
    Ok(done)
}

#[derive(Clone, Copy)]
enum Became {
    Imported,
    Replaced,
    Kept,
    Expired,
}

impl Became {
    fn of(self, done: &mut Done) -> &mut u64 {
        match self {
            Became::Imported => &mut done.imported,
            Became::Replaced => &mut done.replaced,
            Became::Kept => &mut done.kept,
            Became::Expired => &mut done.expired,
        }
    }
}

async fn write_one(
    counters: &dyn Counters,
    key: &Hashed,
    entry: &Entry,
    replace: bool,
    now: Timestamp,
) -> anyhow::Result<Became> {
    if entry.is_expired(now.as_nanos()) {
        return Ok(Became::Expired);
    }
    let (keys, mut became, mut is_too_long) = ([*key], Became::Kept, false);
    let mut update = |entries: &mut Entries<'_>| {
        let found = entries.get(0);
        became = match found.is_new() {
            true => Became::Imported,
            false if replace => Became::Replaced,
            false => Became::Kept,
        };
        let (state, rest) = entry.state.split_at(entry.state.len().min(found.state.len()));
        is_too_long = rest.iter().any(|word| *word != 0);
        if !matches!(became, Became::Kept) && !is_too_long {
            found.state.fill(0);
            found.state[..state.len()].copy_from_slice(state);
            *found.expires_at = entry.expires_at;
        }
    };
    let updated: Result<(), Undecided> = counters.update(&keys, now, &mut update).await;
    let shown = || format!("key {:032x}", key.hash);
    updated.with_context(shown)?;
    ensure!(
        !is_too_long,
        "{}: its state is too long for a {} node here",
        shown(),
        key.class.name()
    );
    Ok(became)
}

/// The outputs of all futures.
async fn all<F: Future>(futures: &mut [Pin<Box<F>>]) -> Vec<F::Output> {
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut is_pending = false;
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_none() {
                match future.as_mut().poll(context) {
                    Poll::Ready(ready) => *output = Some(ready),
                    Poll::Pending => is_pending = true,
                }
            }
        }
        if is_pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "c24f0e4074a36154d93fcb3c8cd8ca4f";

    fn check(text: &str, expected: Result<usize, &str>) {
        let parsed = parse(text.as_bytes()).map(|export| {
            assert_eq!(export.seed, 255, "{text}");
            export.entries.len()
        });
        match (parsed, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{text}"),
            (Err(error), Err(says)) => {
                let error = format!("{error:#}");
                assert!(error.contains(says), "{error}");
            }
            (found, _) => panic!("{text}: {found:?}"),
        }
    }

    #[test]
    fn an_export_is_read_as_a_whole_or_not_at_all() {
        let seed = "seed\t00000000000000ff\n";
        let head = format!("{seed}key\tclass\texpires_at\tstate\n");
        let line = format!("{KEY}\tnarrow\t1800000000\t1,2,0,0\n");
        check(&format!("{head}{line}{line}"), Ok(2));
        check(&head, Ok(0));
        let object = format!(
            "{{\"key\":\"{KEY}\",\"class\":\"wide\",\"expires_at\":1800000000,\"state\":[\"1\",\"2\"]}}\n"
        );
        check(&format!("{{\"seed\":\"00000000000000ff\"}}\n{object}"), Ok(1));
        check(&line, Err("export again with --seed"));
        for (wrong, says) in [
            (line.replace("c24f", "+24f"), "line 3: expected a key"),
            (line.replace("narrow", "thin"), "line 3: expected the class"),
            (line.replace("1800000000", "-1"), "line 3: expected an expiry"),
            (line.replace("1,2", "x,2"), "line 3: expected state words"),
            (line.replace("1,2", "0,0"), "line 3: expected state words, not all"),
            (format!("{KEY}\n"), "line 3: expected key, class"),
            (seed.to_owned(), "line 3: a second seed"),
            ("seed\tff\n".to_owned(), "line 3: a second seed"),
            ("{\n".to_owned(), "line 3: "),
        ] {
            check(&format!("{head}{wrong}{line}"), Err(says));
        }
        check("seed\tff\n", Err("line 1: expected a seed"));
    }
}
