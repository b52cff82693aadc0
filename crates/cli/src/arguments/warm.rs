//! Flags for the server that idle counters move to first.

use super::authority::{certificates, password, url};
use super::times;
use crate::commands::UsageError;
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate_remote::{Servers, Settings, Tls};

const EXPECTED: &str = "expected redis://HOST:PORT, unix:PATH or off; rediss:// is with TLS. The warm server is a single one";
const PREFIX: &str = "tidegate:";
/// What begins the prefix in the name of a server that has another one.
const PREFIX_IN_NAME: &str = "?prefix=";
/// It is not used: it shapes the buckets of a server that has none, and commands write nothing there before a sidecar has.
const COUNTERS: u64 = 10_000_000;

/// The warm level.
#[derive(Debug, Args)]
pub(crate) struct WarmOptions {
    /// Redis or Valkey that idle counters move to before they go on to --cold, or instead: redis://HOST:PORT (rediss:// with
    /// TLS; USER:PASSWORD@ may stand before the host), unix:PATH, or off
    #[arg(long, value_name = "URL", env = "TIDEGATE_WARM", hide_env_values = true)]
    warm: Option<String>,

    /// How long a counter stays in the warm server before it goes on to --cold: 1s to 10 years
    #[arg(
        long,
        value_name = "TIME",
        env = "TIDEGATE_WARM_IDLE",
        default_value = "1h",
        value_parser = times::idle
    )]
    pub(crate) warm_idle: Duration,

    /// File with the password at the warm server. TIDEGATE_WARM_PASSWORD may have the password itself
    #[arg(
        long,
        value_name = "PATH",
        env = "TIDEGATE_WARM_PASSWORD_FILE",
        conflicts_with = "warm_password"
    )]
    warm_password_file: Option<PathBuf>,

    #[arg(long, hide = true, env = "TIDEGATE_WARM_PASSWORD", hide_env_values = true)]
    warm_password: Option<String>,

    /// CA certificates (PEM) of the warm server; those of the system without it
    #[arg(long, value_name = "PATH", env = "TIDEGATE_WARM_CA")]
    warm_ca: Option<PathBuf>,

    /// Start of every key in the warm server
    #[arg(long, value_name = "TEXT", env = "TIDEGATE_WARM_PREFIX", default_value = PREFIX)]
    warm_prefix: String,
}

/// The warm server of a data directory, for operators' commands.
#[derive(Debug, Default, Clone, PartialEq, Eq, Args)]
#[command(next_help_heading = "Cold counters")]
pub(crate) struct WarmPlace {
    /// Redis or Valkey with idle counters of the data directory, as in `tidegate serve --warm`, or off to leave it out. By
    /// default the one that its sidecar has
    #[arg(long, value_name = "URL")]
    warm: Option<String>,

    /// File with the password at the warm server, or TIDEGATE_WARM_PASSWORD
    #[arg(long, value_name = "PATH", conflicts_with = "warm_password")]
    warm_password_file: Option<PathBuf>,

    #[arg(long, hide = true, env = "TIDEGATE_WARM_PASSWORD", hide_env_values = true)]
    warm_password: Option<String>,

    /// CA certificates (PEM) of the warm server; those of the system without it
    #[arg(long, value_name = "PATH")]
    warm_ca: Option<PathBuf>,

    /// Start of every key in the warm server, as in `tidegate serve --warm-prefix`
    #[arg(long, value_name = "TEXT")]
    warm_prefix: Option<String>,
}

/// A server as flags name it.
struct Named<'o> {
    url: &'o str,
    password_file: Option<&'o Path>,
    password: Option<&'o str>,
    ca: Option<&'o Path>,
    prefix: &'o str,
    timeout: Duration,
}

impl WarmOptions {
    /// None if there is no warm level.
    pub(super) fn server(&self, timeout: Duration) -> anyhow::Result<Option<Settings>> {
        let Some(url) = self.warm.as_deref() else { return Ok(None) };
        let named = Named {
            url,
            password_file: self.warm_password_file.as_deref(),
            password: self.warm_password.as_deref(),
            ca: self.warm_ca.as_deref(),
            prefix: &self.warm_prefix,
            timeout,
        };
        named.settings()
    }
}

impl WarmPlace {
    pub(super) fn is_named(&self) -> bool {
        self.warm.is_some()
    }

    /// The server that is named, or the one that the sidecar of the data directory has left a name of.
    pub(super) fn settings(
        &self,
        left: Option<&str>,
        timeout: Duration,
    ) -> anyhow::Result<Option<tidegate_warm::Settings>> {
        let Some(name) = self.warm.as_deref().or(left) else { return Ok(None) };
        let (url, of_name) = name.split_once(PREFIX_IN_NAME).unwrap_or((name, PREFIX));
        let named = Named {
            url,
            password_file: self.warm_password_file.as_deref(),
            password: self.warm_password.as_deref(),
            ca: self.warm_ca.as_deref(),
            prefix: self.warm_prefix.as_deref().unwrap_or(of_name),
            timeout,
        };
        Ok(named.settings()?.map(|server| tidegate_warm::Settings::new(server, COUNTERS)))
    }
}

impl Named<'_> {
    fn settings(&self) -> anyhow::Result<Option<Settings>> {
        if matches!(self.url, "" | "off") {
            return Ok(None);
        }
        if !is_warm(self.url) {
            return Err(mistake(EXPECTED));
        }
        // Without the URL, which may have a password.
        let location = url::parse(self.url).map_err(|text| mistake(&text))?;
        let location = location.ok_or_else(|| mistake(EXPECTED))?;
        let address = location.single().ok_or_else(|| mistake(EXPECTED))?.clone();
        let mut credentials = location.credentials;
        let given = match self.password_file {
            Some(path) => Some(password(path, "--warm-password-file")?),
            None => self.password.map(str::to_owned),
        };
        if given.is_some() && credentials.password.is_some() {
            return Err(mistake("its URL has a password, and another one is given; name one"));
        }
        credentials.password = given.or(credentials.password);
        if credentials.user.is_some() && credentials.password.is_none() {
            return Err(mistake("a user needs a password: --warm-password-file"));
        }
        if self.ca.is_some() && !location.is_tls {
            return Err(mistake("--warm-ca has no effect without TLS; write rediss://"));
        }
        let tls = || {
            let ca = certificates(self.ca, "--warm-ca")?;
            anyhow::Ok(Tls { ca, client: None, skips_hostname: false })
        };
        Ok(Some(Settings {
            credentials,
            database: location.database,
            tls: location.is_tls.then(tls).transpose()?,
            prefix: self.prefix.to_owned(),
            timeout: self.timeout,
            ..Settings::new(Servers::Single(address))
        }))
    }
}

/// Whether a URL names a server of this kind, and no database.
pub(super) fn is_warm(url: &str) -> bool {
    const SCHEMES: [&str; 6] =
        ["redis://", "rediss://", "valkey://", "valkeys://", "unix:", "redis+unix:"];
    SCHEMES.iter().any(|scheme| url.starts_with(scheme))
}

fn mistake(text: &str) -> anyhow::Error {
    UsageError(format!("--warm: {text}")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(url: &str) -> WarmPlace {
        WarmPlace { warm: Some(url.to_owned()), ..WarmPlace::default() }
    }

    #[test]
    fn commands_find_the_server_by_its_name() {
        let second = Duration::from_secs(1);
        let none = WarmPlace::default();
        assert!(none.settings(None, second).unwrap().is_none());
        for name in ["redis://cache:6379/2?prefix=shop:", "redis://[::1]:1", "unix:/run/redis.sock"]
        {
            let found = none.settings(Some(name), second).unwrap().unwrap();
            assert_eq!(found.name(), name);
        }
        assert!(place("off").settings(Some("redis://cache"), second).unwrap().is_none());
        let given = WarmPlace { warm_password: Some("s3cret".into()), ..none };
        let found = given.settings(Some("redis://cache"), second).unwrap().unwrap();
        assert_eq!(found.server.credentials.password.as_deref(), Some("s3cret"));
    }

    #[test]
    fn mistakes_say_what_to_do_without_passwords() {
        for (url, says) in [
            ("redis+sentinel://a/primary", "a single one"),
            ("redis+cluster://a", "a single one"),
            ("memcached://a", "a single one"),
            ("postgres://a/b", "expected redis://"),
            ("local", "expected redis://"),
            ("redis://a,b", "several addresses"),
            ("redis://user@a", "needs a password"),
            ("redis://:s3cret@a:99999", "port"),
        ] {
            let error = place(url).settings(None, Duration::from_secs(1)).unwrap_err().to_string();
            assert!(error.starts_with("--warm: ") && error.contains(says), "{url}: {error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
        let twice = WarmPlace { warm_password: Some("b".into()), ..place("redis://:a@host") };
        assert!(twice.settings(None, Duration::from_secs(1)).is_err());
        let in_vain = WarmPlace { warm_ca: Some("ca.pem".into()), ..place("redis://host") };
        assert!(in_vain.settings(None, Duration::from_secs(1)).is_err());
    }
}
