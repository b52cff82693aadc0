//! The connection to the server of limits: TCP, TLS, HTTP/2.
//!
//! The files of TLS are read again for each connection, so renewed certificates are in use after the next one. Every
//! step has a time limit. A server that is gone without a word is found by probes of TCP: servers of gRPC close
//! connections on which HTTP/2 pings come more often than every five minutes.

use anyhow::{Context, ensure};
use hyper_util::rt::TokioIo;
use rustix::net::sockopt;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::fmt;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tidegate_tls::ClientFiles;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint, Uri};

/// For all steps together.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// A server is gone after 30 s of silence and six probes: a minute and a half.
const PROBE_AFTER: Duration = Duration::from_secs(30);
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
const PROBES: u32 = 6;

/// The address of a server, as `xds://HOST:PORT` or, with TLS, `xdss://HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerAddress {
    pub host: String,
    pub port: u16,
    pub is_tls: bool,
}

impl ServerAddress {
    /// `host:port`; IPv6 addresses are in brackets.
    pub fn parse(authority: &str, is_tls: bool) -> Result<ServerAddress, String> {
        let expected =
            || format!("expected host:port, such as envoy-gateway:18001, found {authority:?}");
        let uri = Uri::try_from(format!("http://{authority}/")).map_err(|_| expected())?;
        let is_whole = uri.authority().is_some_and(|whole| whole.as_str() == authority);
        let (Some(host), Some(port)) = (uri.host(), uri.port_u16()) else { return Err(expected()) };
        if !is_whole || host.is_empty() || authority.contains('@') {
            return Err(expected());
        }
        Ok(ServerAddress { host: host.trim_matches(['[', ']']).to_owned(), port, is_tls })
    }

    fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl FromStr for ServerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<ServerAddress, String> {
        let (scheme, authority) = text.split_once("://").unwrap_or_default();
        match scheme {
            "xds" | "xdss" => {
                ServerAddress::parse(authority.trim_end_matches('/'), scheme == "xdss")
            }
            _ => Err(format!("expected xds://host:port or xdss://host:port, found {text:?}")),
        }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.is_tls { "xdss" } else { "xds" }, self.authority())
    }
}

/// What the server must be, and what it is shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsSettings {
    pub files: ClientFiles,
    /// The name in the server's certificate, if it is not the host.
    pub server_name: Option<String>,
}

trait Stream: AsyncRead + AsyncWrite + Send {}
impl<S: AsyncRead + AsyncWrite + Send> Stream for S {}
type Connected = TokioIo<Pin<Box<dyn Stream>>>;

/// Connects, for one stream.
pub(super) async fn connect(address: &ServerAddress, tls: &TlsSettings) -> anyhow::Result<Channel> {
    let tls = if address.is_tls { Some(tls.for_host(&address.host).await?) } else { None };
    let endpoint = Endpoint::from_shared(format!("http://{}", address.authority()))?;
    let target = (address.clone(), tls);
    let connector = tower::service_fn(move |_: Uri| {
        let target = target.clone();
        async move { open(target).await.map_err(|error| std::io::Error::other(format!("{error:#}"))) }
    });
    let connecting = endpoint.connect_with_connector(connector);
    let connected = tokio::time::timeout(CONNECT_MAX, connecting).await;
    let connected =
        connected.map_err(|_| anyhow::anyhow!("no connection within {CONNECT_MAX:?}"))?;
    // The outer error only says that it is one of the transport.
    connected.map_err(|error| match std::error::Error::source(&error) {
        Some(source) => anyhow::anyhow!("{source}"),
        None => error.into(),
    })
}

async fn open(
    (address, tls): (ServerAddress, Option<(ClientConfig, ServerName<'static>)>),
) -> anyhow::Result<Connected> {
    let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&stream, true)?;
    #[cfg(target_os = "linux")]
    {
        sockopt::set_tcp_keepidle(&stream, PROBE_AFTER)?;
        sockopt::set_tcp_keepintvl(&stream, PROBE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(&stream, PROBES)?;
    }
    let Some((config, name)) = tls else { return Ok(TokioIo::new(Box::pin(stream))) };
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    ensure!(stream.get_ref().1.alpn_protocol() == Some(b"h2"), "the server does not speak HTTP/2");
    Ok(TokioIo::new(Box::pin(stream)))
}

impl TlsSettings {
    /// What the files say now, which are read on a thread that may block, and the name of the server.
    async fn for_host(&self, host: &str) -> anyhow::Result<(ClientConfig, ServerName<'static>)> {
        let name = self.server_name.clone().unwrap_or_else(|| host.to_owned());
        let name = ServerName::try_from(name).context("the name of the server")?;
        let files = self.files.clone();
        Ok((tokio::task::spawn_blocking(move || files.config(b"h2", "--xds-ca")).await??, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_scheme_a_host_and_a_port() {
        for text in ["xds://gateway:18001", "xdss://10.0.0.1:1", "xds://[::1]:65535"] {
            assert_eq!(text.parse::<ServerAddress>().unwrap().to_string(), text);
        }
        for text in [
            "gateway:18001",
            "http://gateway:1",
            "xds://gateway",
            "xds://:1",
            "xds://a:b",
            "xds://a:1/b",
            "xds://u@a:1",
            "xds://",
            "xds://a:99999",
            "",
        ] {
            let error = text.parse::<ServerAddress>().unwrap_err();
            assert!(error.starts_with("expected "), "{text}: {error}");
        }
    }
}
