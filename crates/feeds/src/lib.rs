//! Sources of limits. A [`Feed`] keeps the limits of an authority as they are in its sources: files, and servers of
//! the discovery protocol (xDS), each with domains of its own.
//!
//! Owns the times of reloads and the log of changes. Knows no syntax of limits files and decides nothing.

#![allow(missing_docs, reason = "used in this workspace alone; a good name is not explained again")]

mod copied;
mod copy;
mod files;
mod in_force;
mod standing;
mod xds;

pub use files::{FileSettings, Watch};
pub use standing::{Refusal, Reload, SourceStanding, Standing};
pub use xds::{BackoffSettings, MESSAGE_BYTES_MAX, ServerAddress, Start, TlsSettings, XdsSettings};

use anyhow::{anyhow, ensure};
use copied::CopiedFeed;
use files::FilePart;
use in_force::{InForce, Part};
use std::fs::File;
use std::pin::Pin;
use std::sync::Arc;
use tidegate_authority::{Authority, Observer};
use tidegate_limits::{Defaults, LoadErrors, Rules};
use tokio::sync::watch;
use tokio::task::JoinSet;
use xds::XdsPart;

#[derive(Debug, Clone)]
pub struct Settings {
    pub files: Option<FileSettings>,
    pub xds: Vec<XdsSettings>,
    /// For settings that limits leave out.
    pub defaults: Defaults,
    /// Whether to keep a copy of the limits in force, for worker processes.
    pub keeps_copy: bool,
}

/// The sources of limits.
pub trait Feed: Send + Sync {
    /// Requests a reload, as SIGHUP does.
    fn reload(&self);

    /// Where the limits are from, and what became of the last ones. Of nothing in a process that gets copies.
    fn standing(&self) -> Standing;

    /// Copies of the limits in force, for processes that start with them: the last one, and each new one. None if the
    /// feed keeps none.
    fn copies(&self) -> watch::Receiver<Option<Arc<File>>>;

    /// Whether other processes follow the sources themselves. If not, they need each new copy.
    fn is_followed_by_each(&self) -> bool;

    /// Puts the limits of a copy in force. Does nothing in a process that follows the sources itself.
    fn replace_by_copy(&self, copy: File);

    /// Keeps the limits of `authority` as they are in the sources, until it is aborted.
    fn run(self: Arc<Self>, authority: Arc<Authority>) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// Opens all sources. Waits for the limits of servers as long as a start needs them. Mistakes in files go to standard
/// error.
pub fn open(
    settings: &Settings,
    observer: &Arc<dyn Observer>,
) -> anyhow::Result<(Arc<dyn Feed>, Rules)> {
    let files = settings.files.iter().map(|files| files.path.display().to_string());
    let names: Vec<String> =
        files.chain(settings.xds.iter().map(|xds| xds.server.to_string())).collect();
    ensure!(!names.is_empty(), "nothing is served without limits; set --limits");
    let in_force =
        InForce::new(settings.defaults.clone(), observer.clone(), settings.keeps_copy, names);
    let mut parts: Vec<Arc<dyn Part>> = Vec::new();
    let mut rules = None;
    if let Some(files) = &settings.files {
        let (part, source) = FilePart::open(files, 0)?;
        let started = in_force.start_with(0, source);
        rules = Some(started.map_err(|errors| mistakes(files, &errors))?);
        parts.push(Arc::new(part));
    }
    // All connect before any is waited for.
    let mut servers = Vec::new();
    for xds in &settings.xds {
        let index = parts.len();
        let part = Arc::new(XdsPart::open(xds, index, observer.clone())?);
        parts.push(part.clone());
        servers.push((index, xds.start, part));
    }
    for (index, start, part) in servers {
        part.first(start, |source| {
            rules = Some(in_force.start_with(index, source)?);
            Ok(())
        })?;
    }
    let rules = rules.map_or_else(|| in_force.start_without(), Ok)?;
    Ok((Arc::new(AllParts { in_force: Arc::new(in_force), parts }), rules))
}

/// Starts with the limits that another process has in force. Files are followed here, too; other limits come as
/// copies.
pub fn open_copy(
    settings: &Settings,
    observer: Arc<dyn Observer>,
    file: &File,
) -> anyhow::Result<(Arc<dyn Feed>, Rules)> {
    let Some(files) = settings.files.as_ref().filter(|_| settings.xds.is_empty()) else {
        let (feed, rules) = CopiedFeed::open(settings.defaults.clone(), observer, file)?;
        return Ok((Arc::new(feed), rules));
    };
    let source = copy::read(file, &files.path)?;
    let part = FilePart::from_copy(files, 0, &source);
    let names = vec![files.path.display().to_string()];
    let in_force = InForce::new(settings.defaults.clone(), observer, settings.keeps_copy, names);
    let rules = in_force.start_with(0, source).map_err(|errors| mistakes(files, &errors))?;
    Ok((Arc::new(AllParts { in_force: Arc::new(in_force), parts: vec![Arc::new(part)] }), rules))
}

/// Mistakes go to standard error, one a line, as `tidegate check` prints them.
fn mistakes(files: &FileSettings, errors: &LoadErrors) -> anyhow::Error {
    eprintln!("{errors}");
    anyhow!("nothing is served until {} has no mistake", files.path.display())
}

/// All sources of this process.
struct AllParts {
    in_force: Arc<InForce>,
    parts: Vec<Arc<dyn Part>>,
}

impl Feed for AllParts {
    fn reload(&self) {
        self.parts.iter().for_each(|part| part.reload());
    }

    fn standing(&self) -> Standing {
        self.in_force.standing()
    }

    fn copies(&self) -> watch::Receiver<Option<Arc<File>>> {
        self.in_force.copies()
    }

    fn is_followed_by_each(&self) -> bool {
        self.parts.iter().all(|part| part.is_followed_by_each())
    }

    fn replace_by_copy(&self, _copy: File) {}

    fn run(self: Arc<Self>, authority: Arc<Authority>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            // Aborting drops the set, which aborts all of it.
            let mut parts = JoinSet::new();
            for part in &self.parts {
                parts.spawn(part.clone().follow(self.in_force.clone(), authority.clone()));
            }
            while parts.join_next().await.is_some() {}
        })
    }
}
