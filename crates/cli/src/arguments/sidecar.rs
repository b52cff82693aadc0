//! Flags that name a running sidecar.

use super::statistics::token_text;
use clap::Args;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use tidegate_servers::Address;
use tidegate_tls::ClientFiles;

/// Which sidecar is asked.
#[derive(Debug, Args)]
pub(crate) struct SidecarOptions {
    /// HTTP address of the sidecar: host:port, https://host:port or unix:PATH
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub(crate) http: SidecarAddress,

    /// File with the token that the sidecar asks for beyond its machine. TIDEGATE_HTTP_TOKEN may have the token itself
    #[arg(long, value_name = "PATH", env = "TIDEGATE_HTTP_TOKEN_FILE")]
    pub(crate) http_token_file: Option<PathBuf>,

    #[arg(long, hide = true, env = "TIDEGATE_HTTP_TOKEN", hide_env_values = true)]
    pub(crate) http_token: Option<String>,

    /// CA certificates (PEM) for an https address; without them, those of the system
    #[arg(long, value_name = "PATH", env = "TIDEGATE_HTTP_CA")]
    pub(crate) http_ca: Option<PathBuf>,

    /// Certificate chain (PEM) to show at an https address, in place of the token
    #[arg(long, value_name = "PATH", env = "TIDEGATE_HTTP_CERT", requires = "http_key")]
    pub(crate) http_cert: Option<PathBuf>,

    /// Private key (PEM) of that certificate
    #[arg(long, value_name = "PATH", env = "TIDEGATE_HTTP_KEY", requires = "http_cert")]
    pub(crate) http_key: Option<PathBuf>,
}

/// Where a sidecar answers HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SidecarAddress {
    Http {
        authority: String,
    },
    /// The host is as in the certificate: of an IPv6 address without brackets.
    Https {
        authority: String,
        host: String,
    },
    Unix(PathBuf),
}

impl SidecarOptions {
    /// The token to show, without white space around it.
    pub(crate) fn token(&self) -> anyhow::Result<Option<String>> {
        let text = token_text(self.http_token_file.as_deref(), self.http_token.as_deref())?;
        Ok(text.map(|(text, _)| text.trim().to_owned()))
    }

    pub(crate) fn tls(&self) -> ClientFiles {
        ClientFiles {
            authorities: self.http_ca.clone(),
            client: self.http_cert.clone().zip(self.http_key.clone()),
        }
    }
}

impl FromStr for SidecarAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const EXPECTED: &str = "expected host:port, https://host:port or unix:PATH";
        let url = |rest: &str, default: u16| {
            let uri = hyper::Uri::try_from(format!("http://{rest}")).ok()?;
            let (host, authority) = (uri.host()?, uri.authority()?.as_str());
            let port = match authority.strip_prefix(host)? {
                "" => default,
                port => port.strip_prefix(':')?.parse().ok()?,
            };
            let is_whole = !host.is_empty() && uri.path() == "/" && uri.query().is_none();
            let name = host.trim_matches(['[', ']']).to_owned();
            is_whole.then(|| (format!("{host}:{port}"), name))
        };
        if let Some(rest) = text.strip_prefix("https://") {
            let (authority, host) = url(rest, 443).ok_or(EXPECTED)?;
            return Ok(SidecarAddress::Https { authority, host });
        }
        if let Some(rest) = text.strip_prefix("http://") {
            let (authority, _) = url(rest, 80).ok_or(EXPECTED)?;
            return Ok(SidecarAddress::Http { authority });
        }
        match text.parse::<Address>() {
            Ok(Address::Tcp(authority)) => Ok(SidecarAddress::Http { authority }),
            Ok(Address::Unix(path)) => Ok(SidecarAddress::Unix(path)),
            Ok(Address::Off) | Err(_) => Err(EXPECTED.to_owned()),
        }
    }
}

impl fmt::Display for SidecarAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SidecarAddress::Http { authority } => f.write_str(authority),
            SidecarAddress::Https { authority, .. } => write!(f, "https://{authority}"),
            SidecarAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, shown: &str, host: Option<&str>) {
        let address: SidecarAddress = text.parse().unwrap();
        assert_eq!(address.to_string(), shown, "{text}");
        let of_tls = match &address {
            SidecarAddress::Https { host, .. } => Some(host.as_str()),
            _ => None,
        };
        assert_eq!(of_tls, host, "{text}");
    }

    #[test]
    fn an_address_is_one_of_tcp_of_tls_or_a_socket() {
        check("127.0.0.1:8080", "127.0.0.1:8080", None);
        check("http://sidecar:81/", "sidecar:81", None);
        check("http://sidecar", "sidecar:80", None);
        check("https://sidecar.internal", "https://sidecar.internal:443", Some("sidecar.internal"));
        check("https://[::1]:8443/", "https://[::1]:8443", Some("::1"));
        check("unix:/run/http.sock", "unix:/run/http.sock", None);
        for text in [
            "",
            "off",
            "sidecar",
            "https://",
            "https://a:b",
            "https://a/console",
            "https://u@a:1",
            "https://a:1?x",
            "ftp://a:1",
            "unix:",
        ] {
            let error = text.parse::<SidecarAddress>().unwrap_err();
            assert_eq!(error, "expected host:port, https://host:port or unix:PATH", "{text}");
        }
    }
}
