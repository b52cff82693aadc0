//! `tidegate check`: every mistake in a limits file or directory, or in an `srv.xml`, one a line; with `--diff`,
//! the meaning of a change of the limits for callers.
//!
//! Findings go to standard output, as they are the result; standard error is for errors of the command itself.

use crate::arguments::CheckOptions;
use crate::commands::{EXIT_USAGE, exit_code, with_output};
use crate::defaults::srv;
use crate::output::Output;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use tidegate_limits::describe::count;
use tidegate_limits::diff::{Change, ChangeKind, Changes, Snapshot, compare_rules};
use tidegate_limits::usage_based;
use tidegate_limits::{self as rules, Diagnostic, LoadErrors, Loaded, Pipes, Source, escaped};
use tidegate_limits::{Rules, Statistic};

pub(crate) fn run(options: &CheckOptions) -> ExitCode {
    let failure = if options.diff.is_empty() { 1 } else { EXIT_USAGE };
    let checked = with_output(|out| match (&options.path, &options.diff[..]) {
        (_, [old, new]) => {
            let [old, new] = [old, new].map(|path| rules::load(path, options.read.defaults()));
            Ok(diff(options, old, new, out)?)
        }
        (Some(path), _) => {
            let source = match path == Path::new("-") {
                true => Source::read_from(io::stdin().lock()),
                false => Source::read(path, Pipes::Allow),
            };
            Ok(match srv_xml(&source) {
                Some(bytes) => check_srv(options, source.path(), bytes, out)?,
                None => {
                    let loaded = rules::load_source(&source, options.read.defaults());
                    check(options, source.path(), loaded, out)?
                }
            })
        }
        // clap requires one of them.
        (None, _) => Ok(ExitCode::from(EXIT_USAGE)),
    });
    exit_code(checked, failure)
}

fn check(
    options: &CheckOptions,
    path: &Path,
    loaded: Result<Loaded, LoadErrors>,
    out: &mut Output,
) -> io::Result<ExitCode> {
    let (rules, warnings, errors) = match loaded {
        Ok(mut loaded) => match usage_based::warn(&mut loaded, path, &options.usage_based) {
            Ok(()) => (Some(loaded.rules), loaded.warnings, Vec::new()),
            Err(errors) => (None, Vec::new(), errors),
        },
        Err(LoadErrors(errors)) => (None, Vec::new(), errors),
    };
    let is_strict = options.strict && !warnings.is_empty();
    let is_ok = errors.is_empty() && !is_strict;
    if options.json {
        out.json(&json!({
            "ok": is_ok,
            "errors": all_json(&errors),
            "warnings": all_json(&warnings),
            "domains": rules.as_ref().map_or_else(Vec::new, domains_json),
            "statistics": rules.as_ref().map_or_else(Vec::new, statistics_json),
        }))?;
    } else {
        for error in &errors {
            writeln!(out, "{error}")?;
        }
        for warning in &warnings {
            writeln!(out, "{}: warning: {}", warning.location(), warning.message)?;
        }
        writeln!(out, "{}", summary(rules.as_ref(), &errors, &warnings, is_strict))?;
    }
    Ok(if is_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The bytes of an `srv.xml` given by its own path; in a directory of limits it is a mistake.
fn srv_xml(source: &Source) -> Option<&[u8]> {
    let [file] = source.files().ok()? else { return None };
    let bytes = file.bytes.as_deref().ok()?;
    (file.path == source.path() && srv::is_srv(bytes)).then_some(bytes)
}

fn check_srv(
    options: &CheckOptions,
    path: &Path,
    bytes: &[u8],
    out: &mut Output,
) -> io::Result<ExitCode> {
    let (flags, errors) = match srv::parse(path, bytes) {
        Ok(srv) => (srv.flags(), Vec::new()),
        Err(errors) => (Vec::new(), errors),
    };
    if options.json {
        let flags = flags.iter().map(|flag| (flag.id.to_owned(), json!(flag.value)));
        out.json(&json!({
            "ok": errors.is_empty(),
            "errors": all_json(&errors),
            "warnings": [],
            "flags": Value::Object(flags.collect()),
        }))?;
    } else if errors.is_empty() {
        let flags: String =
            flags.iter().map(|flag| format!(" --{} {}", flag.id, flag.value)).collect();
        let flags = if flags.is_empty() { " nothing" } else { &flags };
        writeln!(out, "ok: an srv.xml, which sets{flags}")?;
    } else {
        for error in &errors {
            writeln!(out, "{error}")?;
        }
        writeln!(out, "{} in the srv.xml", counted(&errors, "error"))?;
    }
    Ok(if errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn summary(
    rules: Option<&Rules>,
    errors: &[Diagnostic],
    warnings: &[Diagnostic],
    is_strict: bool,
) -> String {
    let Some(rules) = rules else {
        return format!("{} in the limits", counted(errors, "error"));
    };
    let warned = counted(warnings, "warning");
    if is_strict {
        return format!("{warned} in the limits, errors with --strict");
    }
    let names = rules.domain_names();
    let (limits, domains) = (counted(&rules.limits(), "limit"), counted(&names, "domain"));
    let warned = if warnings.is_empty() { String::new() } else { format!("; {warned}") };
    let statistics = match rules.statistics() {
        [] => String::new(),
        all => format!(", {}", counted(all, "statistic")),
    };
    format!("ok: {limits} in {domains} ({}){statistics}{warned}", names.join(", "))
}

fn counted<T>(things: &[T], noun: &str) -> String {
    count(things.len() as u64, noun)
}

/// Mistakes or warnings.
fn all_json(all: &[Diagnostic]) -> Value {
    let one = |error: &Diagnostic| {
        json!({
            "file": error.file.display().to_string(),
            "line": error.position.map(|(line, _)| line),
            "column": error.position.map(|(_, column)| column),
            "message": error.message,
        })
    };
    all.iter().map(one).collect()
}

fn domains_json(rules: &Rules) -> Vec<Value> {
    let all = rules.rules();
    let domain = |name: &&str| {
        let path = escaped(name);
        let of_domain = all.iter().filter(|rule| rule.path.split('/').next() == Some(&path));
        let (count, limits) = of_domain
            .fold((0, 0), |(count, limits), rule| (count + 1, limits + rule.limits().len()));
        json!({"name": name, "limits": limits, "rules": count})
    };
    rules.domain_names().iter().map(domain).collect()
}

fn statistics_json(rules: &Rules) -> Vec<Value> {
    let statistic = |statistic: &Arc<Statistic>| {
        let Statistic { name, domain, by, distinct } = &**statistic;
        json!({"name": name, "domain": **domain, "by": by, "distinct": distinct})
    };
    rules.statistics().iter().map(statistic).collect()
}

fn diff(
    options: &CheckOptions,
    old: Result<Loaded, LoadErrors>,
    new: Result<Loaded, LoadErrors>,
    out: &mut Output,
) -> io::Result<ExitCode> {
    let (old, new) = match (old, new) {
        (Ok(old), Ok(new)) => (old.rules, new.rules),
        (old, new) => {
            let errors: Vec<Diagnostic> = [old, new]
                .into_iter()
                .filter_map(Result::err)
                .flat_map(|errors| errors.0)
                .collect();
            if options.json {
                out.json(&json!({"errors": all_json(&errors)}))?;
            } else {
                eprintln!("{}", LoadErrors(errors));
            }
            return Ok(ExitCode::from(EXIT_USAGE));
        }
    };
    let changes = compare_rules(&old, &new);
    if options.json {
        let list: Vec<Value> = changes.0.iter().map(change_json).collect();
        out.json(&json!({"same": changes.is_empty(), "changes": list}))?;
    } else {
        print_changes(&changes, &Snapshot::of(&new), out)?;
    }
    Ok(if changes.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn change_json(change: &Change) -> Value {
    let kind = match change.kind {
        ChangeKind::Added => "added",
        ChangeKind::Removed => "removed",
        ChangeKind::Changed => "changed",
    };
    json!({"path": change.path, "change": kind, "what": change.what, "means": change.means})
}

fn print_changes(changes: &Changes, new: &Snapshot, out: &mut Output) -> io::Result<()> {
    if changes.is_empty() {
        let (limits, domains) =
            (count(new.limits() as u64, "limit"), count(new.domains() as u64, "domain"));
        return writeln!(out, "no change for anybody: {limits} in {domains}");
    }
    for change in &changes.0 {
        let sign = match change.kind {
            ChangeKind::Added => '+',
            ChangeKind::Removed => '-',
            ChangeKind::Changed => '~',
        };
        writeln!(out, "{sign} {}: {}", change.path, change.what)?;
        writeln!(out, "    {}", change.means)?;
    }
    let kinds = [
        ("added", ChangeKind::Added),
        ("removed", ChangeKind::Removed),
        ("changed", ChangeKind::Changed),
    ];
    let counts = kinds.map(|(name, kind)| (name, changes.count(kind)));
    let parts: Vec<String> = counts
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    writeln!(out, "{}", parts.join(", "))
}
