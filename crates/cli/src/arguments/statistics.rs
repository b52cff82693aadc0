//! Flags for statistics, and for reading them from other machines.

use super::authority::contents;
use crate::commands::UsageError;
use anyhow::Context;
use clap::Args;
use std::path::{Path, PathBuf};
use tidegate_process::{STATISTICS_FILE, StatisticsSettings};
use tidegate_servers::http::Token;
use tidegate_statistics::database;
use tidegate_statistics::retention::{Calendar, Retention};

/// Where statistics are kept, and who may read them.
#[derive(Debug, Args)]
pub(crate) struct StatisticsOptions {
    /// Database for the statistics that limits files declare: sqlite:PATH, postgres://USER:PASSWORD@HOST/NAME,
    /// mysql://USER:PASSWORD@HOST/NAME, or off. The default is SQLite in the data directory. Sidecars with one
    /// database add up
    #[arg(long, value_name = "URL", env = "TIDEGATE_STATISTICS", hide_env_values = true)]
    pub(crate) statistics: Option<String>,

    /// Time zone whose days statistics are thinned by, such as Europe/Berlin or +08:00
    #[arg(
        long,
        value_name = "ZONE",
        env = "TIDEGATE_STATISTICS_TIMEZONE",
        default_value = "UTC",
        value_parser = Calendar::parse
    )]
    pub(crate) statistics_timezone: Calendar,

    /// For how many days points of each width are kept: any of 1m=1d,5m=2d,1h=31d,1d=366d,1w=3660d, which are the
    /// defaults
    #[arg(long, value_name = "WIDTH=DAYS,...", env = "TIDEGATE_STATISTICS_RETENTION")]
    pub(crate) statistics_retention: Option<Retention>,

    /// File with the token that opens the console and /v1 at an --http address beyond this machine, and that every
    /// change of counters takes. TIDEGATE_HTTP_TOKEN may have the token itself
    #[arg(
        long,
        value_name = "PATH",
        env = "TIDEGATE_HTTP_TOKEN_FILE",
        conflicts_with = "http_token"
    )]
    pub(crate) http_token_file: Option<PathBuf>,

    #[arg(long, hide = true, env = "TIDEGATE_HTTP_TOKEN", hide_env_values = true)]
    pub(crate) http_token: Option<String>,
}

impl StatisticsOptions {
    pub(crate) fn settings(&self) -> anyhow::Result<StatisticsSettings> {
        let calendar = self.statistics_timezone.clone();
        let retention = self.statistics_retention.unwrap_or_default();
        let url = match self.statistics.as_deref() {
            None => return Ok(StatisticsSettings::DataDir(calendar, retention)),
            Some("off") => return Ok(StatisticsSettings::Off),
            Some(url) => url,
        };
        let mut settings = database_at(url)?;
        (settings.calendar, settings.retention) = (calendar, retention);
        Ok(StatisticsSettings::Database(settings))
    }

    pub(crate) fn token(&self) -> anyhow::Result<Option<Token>> {
        let text = token_text(self.http_token_file.as_deref(), self.http_token.as_deref())?;
        let Some((text, source)) = text else { return Ok(None) };
        let token = Token::new(&text).map_err(|error| UsageError(format!("{source}: {error}")))?;
        Ok(Some(token))
    }
}

/// The text of a token, and what it is from.
pub(super) fn token_text(
    file: Option<&Path>,
    variable: Option<&str>,
) -> anyhow::Result<Option<(String, &'static str)>> {
    match (file, variable) {
        (Some(path), _) => {
            let text = contents(path, "--http-token-file")?;
            let text = String::from_utf8(text).ok().context("--http-token-file: not UTF-8")?;
            Ok(Some((text, "--http-token-file")))
        }
        (None, Some(token)) => Ok(Some((token.to_owned(), "TIDEGATE_HTTP_TOKEN"))),
        (None, None) => Ok(None),
    }
}

/// What was counted, and how it is shown.
#[derive(Debug, Args)]
pub(crate) struct StatsOptions {
    /// Name of the statistic; without it, all that were counted are listed
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Only series with this value
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) filters: Vec<String>,

    /// Range up to now: 15m, 24h, 30d
    #[arg(long, value_name = "TIME", conflicts_with_all = ["from", "to"])]
    pub(crate) last: Option<String>,

    /// Start of the range: 2026-11-25T10:00:00Z, or seconds since 1970
    #[arg(long, value_name = "TIME")]
    pub(crate) from: Option<String>,

    /// End of the range
    #[arg(long, value_name = "TIME")]
    pub(crate) to: Option<String>,

    /// The time that each point covers, such as 5m, 1h, 1d or auto
    #[arg(long, value_name = "STEP")]
    pub(crate) step: Option<String>,

    /// A series for each value of these keys
    #[arg(long, value_name = "KEY,...")]
    pub(crate) by: Option<String>,

    /// The largest series, 1 to 100
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) top: Option<u32>,

    /// What is largest: requests, allowed or denied
    #[arg(long, value_name = "COUNT")]
    pub(crate) order: Option<String>,

    /// Data directory of a sidecar, whose statistics.sqlite is read
    #[arg(long, value_name = "DIR", env = "TIDEGATE_DATA_DIR")]
    pub(crate) data_dir: Option<PathBuf>,

    /// Database of a fleet, as for `tidegate serve`
    #[arg(long, value_name = "URL", env = "TIDEGATE_STATISTICS", hide_env_values = true)]
    pub(crate) statistics: Option<String>,

    /// Time zone of the times that are shown
    #[arg(
        long,
        value_name = "ZONE",
        env = "TIDEGATE_STATISTICS_TIMEZONE",
        default_value = "UTC",
        value_parser = Calendar::parse
    )]
    pub(crate) statistics_timezone: Calendar,

    /// Print one JSON document, as /v1/statistics does
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,

    /// Print a line for each point, with commas
    #[arg(long)]
    pub(crate) csv: bool,
}

impl StatsOptions {
    /// The database to ask.
    pub(crate) fn database(&self) -> anyhow::Result<database::Settings> {
        let mut settings = match (&self.statistics, &self.data_dir) {
            (Some(url), _) => database_at(url)?,
            (None, Some(dir)) => {
                let file = dir.join(STATISTICS_FILE);
                // It would be made.
                anyhow::ensure!(
                    file.is_file(),
                    "{}: no statistics were kept here; the limits declare none, or the sidecar has --statistics",
                    file.display()
                );
                database::Settings::sqlite(&file)
            }
            (None, None) => {
                let text = "give --data-dir DIR of a sidecar, or --statistics URL of its database";
                return Err(UsageError(text.to_owned()).into());
            }
        };
        settings.calendar = self.statistics_timezone.clone();
        Ok(settings)
    }
}

pub(super) fn database_at(url: &str) -> anyhow::Result<database::Settings> {
    let settings = match url.strip_prefix("sqlite:") {
        Some(path) if !path.is_empty() => {
            database::Settings::sqlite(Path::new(path.strip_prefix("//").unwrap_or(path)))
        }
        _ => database::Settings::new(url),
    };
    settings.check().map_err(|error| UsageError(format!("--statistics: {error}")))?;
    Ok(settings)
}
