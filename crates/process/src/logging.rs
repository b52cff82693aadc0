//! The log: its level, its format, and which of several processes a line is of.

use anyhow::{Context, anyhow};
use std::io::{self, IsTerminal, Write};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// What is logged, and how.
#[derive(Debug, Clone)]
pub struct LogSettings {
    /// A level, or directives such as `info,h2=debug`.
    pub filter: String,
    pub format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Whose log it is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Process {
    /// The one that the user started
    Started,
    /// The worker of this number
    Worker(u32),
}

/// What workers leave to the supervisor to tell, which watches the same files.
const TOLD_ONCE: &str = ",tidegate_feeds=off,tidegate_data_dir=off";

pub(crate) fn start(settings: &LogSettings, process: Process) -> anyhow::Result<()> {
    let filter = log_filter(&settings.filter, process)?;
    let format = settings.format;
    let writer = move || Marked { process, format };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    match format {
        LogFormat::Text => {
            log.with_target(false).with_ansi(io::stderr().is_terminal()).init();
        }
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}

/// A level, or directives. An unknown word would be taken for a target of that name, and so
/// silence everything; it is refused here.
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
    // It warns of each directory whose watch went with it, as with every change of a ConfigMap.
    let is_noisy = level > LevelFilter::ERROR && !names("notify");
    let quiet = if is_noisy { ",notify=error" } else { "" };
    let once = match process {
        Process::Worker(_) if level <= LevelFilter::INFO && !names("tidegate") => TOLD_ONCE,
        Process::Worker(_) | Process::Started => "",
    };
    EnvFilter::try_new(format!("{text}{quiet}{once}"))
        .with_context(|| format!("--log {text:?} is not understood"))
}

/// Standard error, where each line of a worker says so.
struct Marked {
    process: Process,
    format: LogFormat,
}

impl Write for Marked {
    /// Takes one event at a time, which is how they are written.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let mut stderr = io::stderr().lock();
        match self.process {
            Process::Started => stderr.write_all(event)?,
            Process::Worker(index) => stderr.write_all(&marked(event, index, self.format))?,
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

fn marked(event: &[u8], index: u32, format: LogFormat) -> Vec<u8> {
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

    /// With every change of a ConfigMap the log had a warning of the notify crate that nobody could
    /// do anything about.
    #[test]
    fn the_watcher_is_quiet_unless_asked_for() {
        let check = |text, expected: &[&str]| check(text, Process::Started, expected);
        check("info", &["info", "notify=error"]);
        check("debug,h2=info", &["debug", "h2=info", "notify=error"]);
        check("info,notify=debug", &["info", "notify=debug"]);
        check("info,notify::inotify=warn", &["info", "notify::inotify=warn"]);
        // Nothing is made louder.
        check("off", &["off"]);
        check("error", &["error"]);
        check("h2=info", &["h2=info"]);
        assert!(log_filter("inof", Process::Started).is_err());
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
        let marked =
            |event: &str, format| String::from_utf8(marked(event.as_bytes(), 3, format)).unwrap();
        let json = marked("{\"level\":\"INFO\"}\n", LogFormat::Json);
        assert_eq!(json, "{\"worker\":3,\"level\":\"INFO\"}\n");
        assert_eq!(marked("INFO ready\n", LogFormat::Text), "INFO ready worker=3\n");
    }
}
