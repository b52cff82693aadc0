//! Flags for counters that are kept in databases while they are idle.

use super::authority::ServerOptions;
use super::times;
use super::warm::{WarmOptions, WarmPlace, is_warm};
use crate::commands::UsageError;
use clap::{Args, ValueEnum};
use std::path::Path;
use std::time::Duration;
use tidegate_process::{COLD_FILE, ColdLevels, ColdSettings};
use tidegate_tiers::{Missing, MovesSettings};

/// Counters in a bucket of a full database, at least; at most twice as many. With 48 and more, few buckets fit into a page of
/// SQLite: 61 took 66 bytes for a counter, and 31 took 48.
const PER_BUCKET: u64 = 24;
/// An operation of a database that hangs is given up before a request that waits for it.
const FETCH_MARGIN: Duration = Duration::from_millis(200);
/// An operator's command may wait longer than a request.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);

/// Counters that are idle.
#[derive(Debug, Args)]
pub(crate) struct ColdOptions {
    /// Databases that idle counters move to: sqlite:PATH, postgres://USER:PASSWORD@HOST/NAME,
    /// mysql://USER:PASSWORD@HOST/NAME, data-dir for SQLite in the data directory, or off. Several share the counters; give
    /// the flag several times, or separate them by spaces
    #[arg(
        long,
        value_name = "URL",
        env = "TIDEGATE_COLD",
        hide_env_values = true,
        value_delimiter = ' ',
        default_value = "off"
    )]
    pub(crate) cold: Vec<String>,

    /// What becomes of requests whose counters may be in a database that does not answer
    #[arg(long, value_name = "RULE", env = "TIDEGATE_COLD_FAILURE", default_value = "deny")]
    pub(crate) cold_failure: ColdFailure,

    /// How long a counter is idle before it moves: 1s to 10 years. The fuller the memory is, the sooner counters move
    #[arg(
        long,
        value_name = "TIME",
        env = "TIDEGATE_COLD_IDLE",
        default_value = "10m",
        value_parser = times::idle
    )]
    pub(crate) cold_idle: Duration,

    /// How many counters may be in databases and in the warm server, for the filters in memory (3 bytes each) that spare new
    /// counters a look-up. With more, some look-ups are in vain
    #[arg(
        long,
        value_name = "N",
        env = "TIDEGATE_COLD_CAPACITY",
        default_value_t = 10_000_000,
        value_parser = clap::value_parser!(u64).range(1_000..=100_000_000_000)
    )]
    pub(crate) cold_capacity: u64,

    /// The most counters that move in a second
    #[arg(
        long,
        value_name = "N",
        env = "TIDEGATE_COLD_MOVES",
        default_value_t = 20_000,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub(crate) cold_moves: u32,

    /// How long a look-up in a database may take: 1ms to 60s. A request for a cold counter waits for one, or two if many wait
    #[arg(
        long,
        value_name = "TIME",
        env = "TIDEGATE_COLD_TIMEOUT",
        default_value = "1s",
        value_parser = times::answer
    )]
    pub(crate) cold_timeout: Duration,

    #[command(flatten)]
    pub(crate) warm: WarmOptions,
}

/// Databases with the cold counters of a data directory, for operators' commands.
#[derive(Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Cold counters")]
pub(crate) struct ColdPlaces {
    /// Databases with the idle counters of the data directory, as in `tidegate serve --cold`, or off to leave them out. By
    /// default the files of SQLite that its sidecar has
    #[arg(long, value_name = "URL", value_delimiter = ' ')]
    pub(crate) cold: Vec<String>,

    #[command(flatten)]
    pub(crate) warm: WarmPlace,
}

impl ColdPlaces {
    /// Refuses to name databases beside servers of shared counters, whose counters do not move.
    pub(crate) fn check_beside(&self, servers: &ServerOptions) -> Result<(), UsageError> {
        match servers.authority.is_some() && (!self.cold.is_empty() || self.warm.is_named()) {
            true => Err(UsageError(
                "--cold and --warm are of a data directory; leave them out beside --authority"
                    .to_owned(),
            )),
            false => Ok(()),
        }
    }

    /// Where idle counters of the data directory `dir` are.
    pub(crate) fn levels(&self, dir: &Path) -> anyhow::Result<ColdLevels> {
        let left = tidegate_process::cold_databases(dir);
        let (warm, left): (Vec<String>, Vec<String>) =
            left.into_iter().partition(|name| is_warm(name));
        let warm = self.warm.settings(warm.first().map(String::as_str), COMMAND_TIMEOUT)?;
        Ok(ColdLevels { warm, cold: self.databases(dir, left)? })
    }

    /// The databases of the data directory `dir`, in which its sidecar has left counters in `left`.
    fn databases(
        &self,
        dir: &Path,
        left: Vec<String>,
    ) -> anyhow::Result<Option<tidegate_cold::Settings>> {
        let named = match self.cold.is_empty() {
            false => self.cold.clone(),
            true if left.iter().all(|url| url.starts_with("sqlite:")) => left,
            true => {
                return Err(mistake(&format!(
                    "idle counters of {} are in {}; name them here with their users and passwords, or off to leave \
                     them out",
                    dir.display(),
                    left.join(" ")
                )));
            }
        };
        let urls = urls(&named, dir)?;
        if urls.is_empty() {
            return Ok(None);
        }
        let settings = tidegate_cold::Settings {
            timeout: COMMAND_TIMEOUT,
            ..tidegate_cold::Settings::new(urls)
        };
        settings.check().map_err(|error| mistake(&error.to_string()))?;
        Ok(Some(settings))
    }
}

fn mistake(text: &str) -> anyhow::Error {
    UsageError(format!("--cold: {text}")).into()
}

/// The URLs of databases that are named for a data directory; none if they are off.
fn urls(named: &[String], dir: &Path) -> anyhow::Result<Vec<String>> {
    let named: Vec<&str> = named.iter().map(String::as_str).filter(|url| !url.is_empty()).collect();
    if named.iter().all(|url| *url == "off") {
        return Ok(Vec::new());
    }
    if named.contains(&"off") {
        return Err(mistake("off stands alone"));
    }
    let file = |path: &Path| match std::path::absolute(path) {
        // A shard has one name, wherever a process is started.
        Ok(path) => Ok(tidegate_sql::sqlite_url(&path)),
        Err(error) => Err(mistake(&format!("{}: {error}", path.display()))),
    };
    let url = |named: &&str| match named.strip_prefix("sqlite:") {
        _ if *named == "data-dir" => file(&dir.join(COLD_FILE)),
        Some(path) if path.contains('?') => Err(mistake(&format!(
            "{named}: a file takes no options; leave out \"?\" and what follows"
        ))),
        Some(path) if !path.is_empty() => file(Path::new(path.strip_prefix("//").unwrap_or(path))),
        _ => Ok((*named).to_owned()),
    };
    named.iter().map(url).collect()
}

/// What becomes of a request while the database of a counter does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColdFailure {
    /// Deny it
    Deny,
    /// Let the limits in question allow it, uncounted
    Allow,
    /// Let the limits in question begin to count anew
    Fresh,
}

impl From<ColdFailure> for Missing {
    fn from(failure: ColdFailure) -> Missing {
        match failure {
            ColdFailure::Deny => Missing::Deny,
            ColdFailure::Allow => Missing::Allow,
            ColdFailure::Fresh => Missing::Fresh,
        }
    }
}

impl ColdOptions {
    /// None if idle counters stay in memory.
    pub(crate) fn settings(
        &self,
        data_dir: Option<&Path>,
        is_shared: bool,
    ) -> anyhow::Result<Option<ColdSettings>> {
        let urls = urls(&self.cold, data_dir.unwrap_or(Path::new(".")))?;
        let warm = self.warm.server(self.cold_timeout)?;
        if urls.is_empty() && warm.is_none() {
            return Ok(None);
        }
        let of_flag = |text: &str| match urls.is_empty() {
            true => UsageError(format!("--warm: {text}")).into(),
            false => mistake(text),
        };
        if data_dir.is_none() {
            return Err(of_flag("needs a data directory; --data-dir is off"));
        }
        if is_shared {
            return Err(of_flag(
                "counters of an --authority are in its servers, and do not move; leave out one of the two",
            ));
        }
        // As filters have it.
        let each = self.cold_capacity / (urls.len() as u64 + u64::from(warm.is_some())).max(1);
        let warm = warm.map(|server| tidegate_warm::Settings::new(server, each));
        let cold = (!urls.is_empty()).then(|| tidegate_cold::Settings {
            timeout: self.cold_timeout,
            buckets_log2: (each / PER_BUCKET).max(1).ilog2().clamp(8, 28) as u8,
            ..tidegate_cold::Settings::new(urls)
        });
        if let Some(cold) = &cold {
            cold.check().map_err(|error| mistake(&error.to_string()))?;
        }
        let tiers = tidegate_tiers::Settings {
            capacity: self.cold_capacity,
            missing: self.cold_failure.into(),
            timeout: self.cold_timeout + FETCH_MARGIN,
        };
        let (idle, per_second) = (self.cold_idle, self.cold_moves);
        let moves = MovesSettings { idle, per_second, warm: self.warm.warm_idle };
        Ok(Some(ColdSettings { levels: ColdLevels { warm, cold }, tiers, moves }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        cold: ColdOptions,
    }

    fn settings(
        arguments: &[&str],
        dir: Option<&Path>,
        is_shared: bool,
    ) -> Result<Option<ColdSettings>, String> {
        let all = std::iter::once(&"tidegate").chain(arguments);
        let parsed = Only::try_parse_from(all).map_err(|error| error.to_string())?;
        parsed.cold.settings(dir, is_shared).map_err(|error| error.to_string())
    }

    #[test]
    fn databases_are_named_by_flags_or_a_list() {
        let dir = Some(Path::new("/data"));
        assert!(settings(&[], dir, true).unwrap().is_none());
        assert!(settings(&["--cold", "off"], None, false).unwrap().is_none());
        let one = settings(&["--cold", "data-dir"], dir, false).unwrap().unwrap();
        assert_eq!(one.levels.cold.unwrap().urls, ["sqlite:///data/cold.sqlite?mode=rwc"]);
        let urls = ["postgres://tide:s3cret@one/counters", "mysql://two/counters"];
        let flags = ["--cold", urls[0], "--cold", urls[1], "--cold-failure", "fresh"];
        let two = settings(&flags, dir, false).unwrap().unwrap();
        assert_eq!(two.tiers.missing, Missing::Fresh);
        assert_eq!(two.levels.cold.unwrap().urls, urls);
        let listed = settings(&["--cold", &urls.join(" ")], dir, false).unwrap().unwrap();
        assert_eq!(listed.levels.cold.unwrap().urls, urls);
    }

    #[test]
    fn a_warm_server_is_above_databases_or_alone() {
        let dir = Some(Path::new("/data"));
        let flags = ["--warm", "redis://:s3cret@cache/2", "--warm-idle", "5m"];
        let alone = settings(&flags, dir, false).unwrap().unwrap();
        assert!(alone.levels.cold.is_none());
        let warm = alone.levels.warm.unwrap();
        assert_eq!(warm.name(), "redis://cache:6379/2");
        assert_eq!(warm.server.credentials.password.as_deref(), Some("s3cret"));
        assert_eq!(warm.server.timeout, Duration::from_secs(1));
        assert_eq!(alone.moves.warm, Duration::from_secs(300));
        let flags = [&flags[..], &["--cold", "data-dir"]].concat();
        let both = settings(&flags, dir, false).unwrap().unwrap();
        assert!(both.levels.cold.is_some() && both.levels.warm.is_some());
        assert!(settings(&["--warm", "off"], None, false).unwrap().is_none());
        let error = settings(&["--warm", "redis://a"], None, false).unwrap_err();
        assert!(error.contains("--warm: needs a data directory"), "{error}");
    }

    #[test]
    fn databases_are_not_named_beside_an_authority() {
        #[derive(Parser)]
        struct Command {
            #[command(flatten)]
            servers: ServerOptions,
            #[command(flatten)]
            cold: ColdPlaces,
        }
        let is_refused = |arguments: &[&str]| {
            let all = std::iter::once(&"tidegate").chain(arguments);
            let Command { servers, cold } = Command::try_parse_from(all).unwrap();
            cold.check_beside(&servers).is_err()
        };
        let authority = ["--authority", "redis://a"];
        assert!(is_refused(&[&authority[..], &["--cold", "data-dir"]].concat()));
        assert!(is_refused(&[&authority[..], &["--warm", "redis://b"]].concat()));
        assert!(!is_refused(&authority) && !is_refused(&["--cold", "data-dir"]));
    }

    #[test]
    fn mistakes_name_the_flag_and_what_to_do() {
        let dir = Some(Path::new("/data"));
        for (arguments, dir, is_shared, says) in [
            (vec!["--cold", "data-dir"], None, false, "needs a data directory"),
            (vec!["--cold", "data-dir"], dir, true, "leave out one of the two"),
            (vec!["--cold", "off data-dir"], dir, false, "off stands alone"),
            (vec!["--cold", "redis://a"], dir, false, "sqlite:, postgres:// or mysql://"),
            (vec!["--cold", "data-dir data-dir"], dir, false, "name it once"),
            (vec!["--cold", "data-dir", "--cold-idle", "1ms"], dir, false, "1s"),
        ] {
            let error = settings(&arguments, dir, is_shared).unwrap_err();
            assert!(error.contains(says) && error.contains("--cold"), "{error}");
        }
    }
}
