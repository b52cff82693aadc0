//! The log: its level, its format, and which process wrote a line.

use anyhow::{Context, anyhow};
use std::io::{self, IsTerminal, Write};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

#[derive(Debug, Clone)]
pub struct LogSettings {
    /// A level, or directives such as `info,h2=debug`.
    pub filter: String,
    pub format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Process {
    Main,
    Worker(u32),
}

/// Directives of workers: the supervisor, which watches the same files, logs these crates for all.
const SUPERVISOR_ONLY: &str = ",tidegate_feeds=off,tidegate_data_dir=off";

pub(crate) fn start(settings: &LogSettings, process: Process) -> anyhow::Result<()> {
    let filter = log_filter(&settings.filter, process)?;
    let format = settings.format;
    let writer = move || LogWriter { process, format };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    match format {
        LogFormat::Text => {
            log.with_target(false).with_ansi(io::stderr().is_terminal()).init();
        }
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}

/// A level, or directives. tracing takes an unknown word for a target, which would silence everything; refuse
/// it here.
fn log_filter(text: &str, process: Process) -> anyhow::Result<EnvFilter> {
    let is_word = |directive: &&str| !directive.contains(['=', '[']);
    let mut level = LevelFilter::OFF;
    for word in text.split(',').filter(is_word) {
        level = word.trim().parse().map_err(|_| {
            anyhow!(
                "--log {word:?}: expected off, error, warn, info, debug, trace, or target=level"
            )
        })?;
    }
    let names =
        |target: &str| text.split(',').any(|directive| directive.trim().starts_with(target));
    // notify warns whenever a watched directory is removed, which every change of a ConfigMap does.
    let is_noisy = level > LevelFilter::ERROR && !names("notify");
    let quiet = if is_noisy { ",notify=error" } else { "" };
    let once = match process {
        Process::Worker(_) if level <= LevelFilter::INFO && !names("tidegate") => SUPERVISOR_ONLY,
        Process::Worker(_) | Process::Main => "",
    };
    EnvFilter::try_new(format!("{text}{quiet}{once}"))
        .with_context(|| format!("--log {text:?} is not valid"))
}

/// Standard error; adds its number to each line of a worker.
struct LogWriter {
    process: Process,
    format: LogFormat,
}

impl Write for LogWriter {
    /// Expects one whole event, as tracing-subscriber writes them.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let mut stderr = io::stderr().lock();
        match self.process {
            Process::Main => stderr.write_all(event)?,
            Process::Worker(index) => stderr.write_all(&with_worker(event, index, self.format))?,
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

fn with_worker(event: &[u8], index: u32, format: LogFormat) -> Vec<u8> {
    let (before, after, mark) = match format {
        LogFormat::Json => match event.strip_prefix(b"{") {
            Some(rest) => (&b"{"[..], rest, format!("\"worker\":{index},")),
            None => (&b""[..], event, String::new()),
        },
        LogFormat::Text => {
            let line = event.strip_suffix(b"\n").unwrap_or(event);
            (line, &b"\n"[..], format!(" worker={index}"))
        }
    };
    [before, mark.as_bytes(), after].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, process: Process, expected: &[&str]) {
        let filter = log_filter(text, process).unwrap().to_string();
        let mut found: Vec<&str> = filter.split(',').collect();
        found.sort_unstable();
        assert_eq!(found, expected, "for {text}");
    }

    /// Regression: every change of a ConfigMap logged a warning of the notify crate that no operator could act on.
    #[test]
    fn the_watcher_is_quiet_unless_asked_for() {
        let check = |text, expected: &[&str]| check(text, Process::Main, expected);
        check("info", &["info", "notify=error"]);
        check("debug,h2=info", &["debug", "h2=info", "notify=error"]);
        check("info,notify=debug", &["info", "notify=debug"]);
        check("info,notify::inotify=warn", &["info", "notify::inotify=warn"]);
        // No directive raises a level.
        check("off", &["off"]);
        check("error", &["error"]);
        check("h2=info", &["h2=info"]);
        assert!(log_filter("inof", Process::Main).is_err());
    }

    #[test]
    fn workers_leave_what_all_see_to_the_supervisor_unless_asked() {
        let check = |text, expected: &[&str]| check(text, Process::Worker(0), expected);
        let once = ["tidegate_data_dir=off", "tidegate_feeds=off"];
        check("info", &["info", "notify=error", once[0], once[1]]);
        check("debug", &["debug", "notify=error"]);
        check("info,tidegate_feeds=info", &["info", "notify=error", "tidegate_feeds=info"]);
    }

    #[test]
    fn lines_of_workers_say_so() {
        let with_worker = |event: &str, format| {
            String::from_utf8(with_worker(event.as_bytes(), 3, format)).unwrap()
        };
        let json = with_worker("{\"level\":\"INFO\"}\n", LogFormat::Json);
        assert_eq!(json, "{\"worker\":3,\"level\":\"INFO\"}\n");
        assert_eq!(with_worker("INFO ready\n", LogFormat::Text), "INFO ready worker=3\n");
    }
}
