//! What the options of shared counters mean together: their mistakes, and their settings.

use super::AuthorityOptions;
use super::files::{certificates, contents, password};
use super::settings::Servers;
use super::url::{self, Location};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;
use tidegate_process::SharedSettings;
use tidegate_remote::{Credentials, Settings, Tls};

/// The options beside `--authority-per-second`.
const PER_SECOND_IDS: [&str; 8] = [
    "authority_per_second_user",
    "authority_per_second_password_file",
    "authority_per_second_password",
    "authority_per_second_sentinel_user",
    "authority_per_second_sentinel_password_file",
    "authority_per_second_sentinel_password",
    "authority_per_second_timeout",
    "authority_per_second_connections",
];

/// The servers for one kind of limits, as options name them.
struct Role<'o> {
    /// Its flag; those beside it begin with the same words.
    flag: &'static str,
    url: &'o str,
    user: Option<&'o str>,
    password: Secret<'o>,
    sentinel_user: Option<&'o str>,
    sentinel_password: Secret<'o>,
    timeout: Duration,
    connections: u32,
}

/// A password, or the file that has it.
#[derive(Clone, Copy)]
struct Secret<'o> {
    file: Option<&'o PathBuf>,
    text: Option<&'o str>,
}

impl Secret<'_> {
    fn is_given(self) -> bool {
        self.file.is_some() || self.text.is_some()
    }

    fn read(self, flag: &str) -> anyhow::Result<Option<String>> {
        match (self.file, self.text) {
            (Some(path), _) => password(path, &format!("{flag}-file")).map(Some),
            (None, text) => Ok(text.map(str::to_owned)),
        }
    }
}

impl AuthorityOptions {
    /// The mistakes that options make together. `is_given` says whether an option comes from the command line or a
    /// variable of its own. Reads no file.
    pub(crate) fn check<'i>(
        &self,
        ids: impl Iterator<Item = &'i str>,
        is_given: impl Fn(&str) -> bool,
    ) -> Result<(), String> {
        let Some(role) = self.main() else {
            let mut others = ids.filter(|id| id.starts_with("authority_"));
            return match others.find(|id| is_given(id)) {
                None => Ok(()),
                Some(id) => Err(format!(
                    "--{} needs servers: --authority URL, such as redis://127.0.0.1:6379",
                    id.replace('_', "-")
                )),
            };
        };
        let Some(main) = role.location()? else { return Ok(()) };
        let mut locations = vec![main];
        if let Some(role) = self.other() {
            let none = || format!("{} local: expected servers", role.flag);
            locations.push(role.location()?.ok_or_else(none)?);
        } else if let Some(id) = PER_SECOND_IDS.into_iter().find(|id| is_given(id)) {
            return Err(format!(
                "--{} needs servers: --authority-per-second URL",
                id.replace('_', "-")
            ));
        }
        match (&self.authority_cert, &self.authority_key) {
            (Some(_), None) => return Err("--authority-cert needs --authority-key".to_owned()),
            (None, Some(_)) => return Err("--authority-key needs --authority-cert".to_owned()),
            _ => {}
        }
        let is_memcached =
            |location: &Location| matches!(location.servers, Servers::Memcached { .. });
        if self.authority_replicas > 0 && locations.iter().all(is_memcached) {
            return Err("--authority-replicas has no effect: memcached has no replicas".to_owned());
        }
        if locations.iter().any(|location| location.is_tls) {
            return Ok(());
        }
        let tls = [
            ("--authority-ca", self.authority_ca.is_some()),
            ("--authority-cert", self.authority_cert.is_some()),
            ("--authority-skip-hostname", self.authority_skip_hostname),
        ];
        match tls.into_iter().find(|(_, is_set)| *is_set) {
            None => Ok(()),
            Some((flag, _)) => Err(format!(
                "{flag} has no effect without TLS: write rediss:// instead of redis:// in --authority"
            )),
        }
    }

    /// The settings, with the contents of files; none if counters are of this machine alone.
    pub(crate) fn settings(&self) -> anyhow::Result<Option<SharedSettings>> {
        let Some(role) = self.main() else { return Ok(None) };
        let Some(servers) = self.settings_of(&role)? else { return Ok(None) };
        let (failure, fails_health) = (self.authority_failure.into(), self.authority_health);
        let per_second = self.other().map(|role| self.settings_of(&role)).transpose()?.flatten();
        Ok(Some(SharedSettings { servers, per_second, failure, fails_health }))
    }

    fn settings_of(&self, role: &Role<'_>) -> anyhow::Result<Option<Settings>> {
        let Some(mut location) = role.location().map_err(anyhow::Error::msg)? else {
            return Ok(None);
        };
        let given = Credentials {
            user: role.user.map(str::to_owned),
            password: role.password.read(&format!("{}-password", role.flag))?,
        };
        if given != Credentials::default() {
            location.credentials = given;
        }
        let of_sentinels = Credentials {
            user: role.sentinel_user.map(str::to_owned),
            password: role.sentinel_password.read(&format!("{}-sentinel-password", role.flag))?,
        };
        Ok(Some(Settings {
            credentials: location.credentials,
            database: location.database,
            tls: location.is_tls.then(|| self.tls()).transpose()?,
            prefix: self.authority_prefix.clone(),
            connections: NonZeroUsize::new(role.connections as usize).unwrap_or(NonZeroUsize::MIN),
            timeout: role.timeout,
            replicas: self.authority_replicas,
            jitter: self.authority_expiry_jitter,
            ..Settings::new(location.servers.with(of_sentinels))
        }))
    }

    fn tls(&self) -> anyhow::Result<Tls> {
        let client = match self.authority_cert.as_ref().zip(self.authority_key.as_ref()) {
            None => None,
            Some((cert, key)) => {
                Some((contents(cert, "--authority-cert")?, contents(key, "--authority-key")?))
            }
        };
        let ca = certificates(self.authority_ca.as_deref(), "--authority-ca")?;
        Ok(Tls { ca, client, skips_hostname: self.authority_skip_hostname })
    }

    fn main(&self) -> Option<Role<'_>> {
        Some(Role {
            flag: "--authority",
            url: self.authority.as_deref()?,
            user: self.authority_user.as_deref(),
            password: Secret {
                file: self.authority_password_file.as_ref(),
                text: self.authority_password.as_deref(),
            },
            sentinel_user: self.authority_sentinel_user.as_deref(),
            sentinel_password: Secret {
                file: self.authority_sentinel_password_file.as_ref(),
                text: self.authority_sentinel_password.as_deref(),
            },
            timeout: self.authority_timeout,
            connections: self.authority_connections,
        })
    }

    fn other(&self) -> Option<Role<'_>> {
        let options = &self.per_second;
        Some(Role {
            flag: "--authority-per-second",
            url: options.authority.as_deref()?,
            user: options.user.as_deref(),
            password: Secret {
                file: options.password_file.as_ref(),
                text: options.password.as_deref(),
            },
            sentinel_user: options.sentinel_user.as_deref(),
            sentinel_password: Secret {
                file: options.sentinel_password_file.as_ref(),
                text: options.sentinel_password.as_deref(),
            },
            timeout: options.timeout.unwrap_or(self.authority_timeout),
            connections: options.connections.unwrap_or(self.authority_connections),
        })
    }
}

impl Role<'_> {
    /// What the URL says, if the other options go with it.
    fn location(&self) -> Result<Option<Location>, String> {
        let flag = self.flag;
        // Without the URL, which may have a password.
        let mistake = |mistake| format!("{flag}: {mistake}");
        let Some(location) = url::parse(self.url).map_err(mistake)? else { return Ok(None) };
        let is_given = self.user.is_some() || self.password.is_given();
        if is_given && matches!(location.servers, Servers::Memcached { .. }) {
            return Err(format!("{flag}-user, {flag}-password-file: memcached has no users here"));
        }
        if is_given && location.credentials != Credentials::default() {
            return Err(format!(
                "{flag}-user, {flag}-password-file: the URL of {flag} has a user or a password, too; \
                 give both in one place"
            ));
        }
        let has_user = self.user.is_some() || location.credentials.user.is_some();
        if has_user && !self.password.is_given() && location.credentials.password.is_none() {
            return Err(format!("{flag}: a user needs a password: {flag}-password-file"));
        }
        let has_sentinel = matches!(location.servers, Servers::Sentinel { .. });
        if (self.sentinel_user.is_some() || self.sentinel_password.is_given()) && !has_sentinel {
            return Err(format!(
                "{flag}-sentinel-user, {flag}-sentinel-password-file: {flag} names no Sentinels; \
                 write redis+sentinel://HOST:PORT,HOST:PORT/PRIMARY"
            ));
        }
        if self.sentinel_user.is_some() && !self.sentinel_password.is_given() {
            return Err(format!(
                "{flag}-sentinel-user needs a password: {flag}-sentinel-password-file"
            ));
        }
        Ok(Some(location))
    }
}
