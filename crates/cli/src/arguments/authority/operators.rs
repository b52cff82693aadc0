//! Flags of operators' commands for servers of shared counters.
//!
//! They are a part of those of `tidegate serve`, with the same meaning and variables. Only the servers must be named on
//! the command line: a variable of a sidecar must not turn a command for a data directory into one for all machines.

use super::AuthorityOptions;
use crate::commands::UsageError;
use clap::{Args, Parser};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use tidegate_process::SharedSettings;
use tidegate_remote::Settings;

/// How long a command waits for a first answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// An operator's command may wait longer than a request.
const TIMEOUT: &str = "2s";

#[derive(Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Shared counters")]
pub(crate) struct ServerOptions {
    /// Servers of shared counters instead of a data directory, as in `tidegate serve --authority`
    #[arg(long, value_name = "URL")]
    pub(crate) authority: Option<String>,

    /// Servers of limits per second, if they are others
    #[arg(long, value_name = "URL", requires = "authority")]
    authority_per_second: Option<String>,

    /// Start of every key [default: tidegate:]
    #[arg(long, value_name = "TEXT", requires = "authority")]
    authority_prefix: Option<String>,

    /// User at the servers
    #[arg(long, value_name = "NAME", requires = "authority")]
    authority_user: Option<String>,

    /// File with the password at the servers, or TIDEGATE_AUTHORITY_PASSWORD
    #[arg(long, value_name = "PATH", requires = "authority")]
    authority_password_file: Option<PathBuf>,

    /// CA certificates (PEM) of the servers
    #[arg(long, value_name = "PATH", requires = "authority")]
    authority_ca: Option<PathBuf>,

    /// Certificate (PEM) that is shown to the servers
    #[arg(long, value_name = "PATH", requires = "authority")]
    authority_cert: Option<PathBuf>,

    /// Private key (PEM) of that certificate
    #[arg(long, value_name = "PATH", requires = "authority")]
    authority_key: Option<PathBuf>,

    /// Accept a certificate of the CA whatever name it has
    #[arg(long, requires = "authority")]
    authority_skip_hostname: bool,
}

/// The flags of `tidegate serve` alone.
#[derive(Parser)]
struct OfServe {
    #[command(flatten)]
    options: AuthorityOptions,
}

impl ServerOptions {
    /// The settings of the servers, if they are named.
    pub(crate) fn settings(&self) -> anyhow::Result<Option<Settings>> {
        let Some(url) = &self.authority else { return Ok(None) };
        let shared = self.shared(url)?;
        Ok(Some(Settings { patience: PATIENCE, ..shared.servers }))
    }

    /// The same for commands that go through all entries of one set of servers.
    pub(crate) fn settings_of_one_set(&self) -> anyhow::Result<Option<Settings>> {
        if self.authority_per_second.is_some() {
            let message =
                "--authority-per-second has no effect here; name its servers by --authority";
            return Err(UsageError(message.to_owned()).into());
        }
        self.settings()
    }

    /// The settings of the servers of limits per second, if they are named.
    pub(crate) fn of_seconds(&self) -> anyhow::Result<Option<Settings>> {
        let (Some(url), Some(_)) = (&self.authority, &self.authority_per_second) else {
            return Ok(None);
        };
        let servers = self.shared(url)?.per_second;
        Ok(servers.map(|servers| Settings { patience: PATIENCE, ..servers }))
    }

    fn shared(&self, url: &str) -> anyhow::Result<SharedSettings> {
        let mut arguments: Vec<OsString> = vec!["tidegate".into()];
        let mut add = |flag: &str, value: &std::ffi::OsStr| {
            let mut argument = OsString::from(format!("--{flag}="));
            argument.push(value);
            arguments.push(argument);
        };
        add("authority", url.as_ref());
        add("authority-timeout", TIMEOUT.as_ref());
        let texts = [
            ("authority-prefix", &self.authority_prefix),
            ("authority-user", &self.authority_user),
            ("authority-per-second", &self.authority_per_second),
        ];
        for (flag, text) in texts.iter().filter_map(|(flag, text)| Some((flag, text.as_ref()?))) {
            add(flag, text.as_ref());
        }
        let paths = [
            ("authority-password-file", &self.authority_password_file),
            ("authority-ca", &self.authority_ca),
            ("authority-cert", &self.authority_cert),
            ("authority-key", &self.authority_key),
        ];
        for (flag, path) in paths.iter().filter_map(|(flag, path)| Some((flag, path.as_ref()?))) {
            add(flag, path.as_ref());
        }
        if self.authority_skip_hostname {
            arguments.push("--authority-skip-hostname".into());
        }
        let parsed = OfServe::try_parse_from(arguments)
            .map_err(|error| anyhow::anyhow!("{}", first_line(&error.to_string())))?;
        // No option is given in vain here: all but the URL are optional.
        let checked = parsed.options.check(std::iter::empty(), |_| false);
        checked.map_err(UsageError)?;
        let shared = parsed.options.settings()?;
        let Some(shared) = shared else { anyhow::bail!("--authority: expected servers") };
        Ok(shared)
    }
}

fn first_line(text: &str) -> &str {
    let line = text.lines().next().unwrap_or_default();
    line.trim_start_matches("error: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(url: &str) -> ServerOptions {
        ServerOptions { authority: Some(url.to_owned()), ..ServerOptions::default() }
    }

    #[test]
    fn the_flags_mean_what_they_mean_for_a_sidecar() {
        assert!(ServerOptions::default().settings().unwrap().is_none());
        let given = ServerOptions {
            authority_prefix: Some("shop:".to_owned()),
            ..options("redis://operator:secret@redis:7/3")
        };
        let settings = given.settings().unwrap().unwrap();
        assert_eq!((settings.prefix.as_str(), settings.database), ("shop:", 3));
        assert_eq!(settings.credentials.user.as_deref(), Some("operator"));
        assert_eq!(settings.timeout, Duration::from_secs(2));
        for (given, says) in [
            (options("http://redis"), "redis://"),
            (options("local"), "expected servers"),
            (
                ServerOptions { authority_ca: Some("ca.pem".into()), ..options("redis://redis") },
                "--authority-ca has no effect without TLS",
            ),
        ] {
            let error = format!("{:#}", given.settings().unwrap_err());
            assert!(error.contains(says), "{error}");
        }
    }
}
