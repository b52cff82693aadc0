//! From settings to a stream: TCP, a Unix socket, TLS; and the primary that sentinels know.

use super::any_name::AnyName;
use super::bounded::{Allowance, Bounded};
use crate::engine::Cause;
use crate::settings::{Address, Credentials, Servers, Settings, Tls};
use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, RedisConnectionInfo, Value, cmd};
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Opens connections.
pub(super) struct Dialer {
    servers: Servers,
    info: RedisConnectionInfo,
    tls: Option<TlsConnector>,
}

/// A connection that has been made, and its task. Dropping it closes the connection.
pub(super) struct Connection {
    pub(super) commands: MultiplexedConnection,
    pub(super) allowance: Allowance,
    pub(super) task: Task,
}

/// A task that ends with its owner.
pub(super) struct Task(pub(super) JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Dialer {
    pub(super) fn new(settings: &Settings) -> Result<Dialer, String> {
        if let Servers::Sentinel { sentinels, .. } = &settings.servers
            && sentinels.is_empty()
        {
            return Err("no address of a sentinel is given".to_owned());
        }
        let tls = settings.tls.as_ref().map(connector).transpose()?;
        let info = info(&settings.credentials).set_db(i64::from(settings.database));
        Ok(Dialer { servers: settings.servers.clone(), info, tls })
    }

    /// Connects to the present primary.
    pub(super) async fn dial(&self) -> Result<Connection, Cause> {
        match &self.servers {
            Servers::Single(address) => self.open(address, &self.info).await,
            Servers::Sentinel { sentinels, primary, credentials } => {
                let address = self.ask_sentinels(sentinels, primary, credentials).await?;
                self.open(&address, &self.info).await
            }
        }
    }

    async fn ask_sentinels(
        &self,
        sentinels: &[Address],
        primary: &str,
        credentials: &Credentials,
    ) -> Result<Address, Cause> {
        let mut cause = Cause::new("no sentinel answers");
        for sentinel in sentinels {
            match self.ask_sentinel(sentinel, primary, credentials).await {
                Ok(address) => return Ok(address),
                Err(error) => cause = Cause::new(&format!("sentinel {sentinel}: {error}")),
            }
        }
        Err(cause)
    }

    async fn ask_sentinel(
        &self,
        sentinel: &Address,
        primary: &str,
        credentials: &Credentials,
    ) -> Result<Address, Cause> {
        let mut connection = self.open(sentinel, &info(credentials)).await?;
        let mut ask = cmd("SENTINEL");
        ask.arg("get-master-addr-by-name").arg(primary);
        let answer = connection.commands.send_packed_command(&ask).await;
        let nonsense = || Cause::new(&format!("it knows no primary {primary:?}"));
        let Value::Array(parts) = answer.map_err(|error| Cause::new(&error.to_string()))? else {
            return Err(nonsense());
        };
        match &parts[..] {
            [Value::BulkString(host), Value::BulkString(port)] => {
                let (host, port) = (str::from_utf8(host), str::from_utf8(port));
                let host = host.map_err(|_| nonsense())?.to_owned();
                let port = port.ok().and_then(|port| port.parse().ok()).ok_or_else(nonsense)?;
                Ok(Address::Tcp { host, port })
            }
            _ => Err(nonsense()),
        }
    }

    async fn open(
        &self,
        address: &Address,
        info: &RedisConnectionInfo,
    ) -> Result<Connection, Cause> {
        let stream = self.stream(address).await;
        let stream = stream.map_err(|error| Cause::new(&format!("{address}: {error}")))?;
        let allowance = Allowance::new();
        // An answer that is late is a matter of the flight.
        let config =
            AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
        let stream = Bounded::new(stream, allowance.clone());
        let made = MultiplexedConnection::new_with_config(info, stream, config).await;
        let (commands, task) = made.map_err(|error| Cause::new(&format!("{address}: {error}")))?;
        Ok(Connection { commands, allowance, task: Task(tokio::spawn(task)) })
    }

    async fn stream(&self, address: &Address) -> std::io::Result<Box<dyn Stream>> {
        let (host, stream) = match address {
            Address::Unix(path) => return Ok(Box::new(UnixStream::connect(path).await?)),
            Address::Tcp { host, port } => {
                (host, TcpStream::connect((host.as_str(), *port)).await?)
            }
        };
        stream.set_nodelay(true)?;
        match &self.tls {
            None => Ok(Box::new(stream)),
            Some(tls) => {
                let name = ServerName::try_from(host.clone()).map_err(std::io::Error::other)?;
                Ok(Box::new(tls.connect(name, stream).await?))
            }
        }
    }
}

fn info(credentials: &Credentials) -> RedisConnectionInfo {
    let mut info =
        RedisConnectionInfo::default().set_lib_name("tidegate", env!("CARGO_PKG_VERSION"));
    if let Some(user) = &credentials.user {
        info = info.set_username(user);
    }
    if let Some(password) = &credentials.password {
        info = info.set_password(password);
    }
    info
}

fn connector(tls: &Tls) -> Result<TlsConnector, String> {
    let certificates = |what: &str, pem: &[u8]| {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        match found {
            Ok(found) if !found.is_empty() => Ok(found),
            Ok(_) => Err(format!("{what}: no certificate in PEM")),
            Err(error) => Err(format!("{what}: {error}")),
        }
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates("the authorities of the servers", &tls.ca)? {
        roots
            .add(certificate)
            .map_err(|error| format!("the authorities of the servers: {error}"))?;
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match tls.skips_hostname {
        false => builder.with_root_certificates(roots),
        true => {
            let verifier = AnyName::new(roots, provider)?;
            builder.dangerous().with_custom_certificate_verifier(verifier)
        }
    };
    let config = match &tls.client {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates("the client's certificate", certificate)?;
            let key = PrivateKeyDer::from_pem_slice(key)
                .map_err(|_| "the client's key: no private key in PEM".to_owned())?;
            builder.with_client_auth_cert(chain, key).map_err(|error| {
                format!("the client's certificate and key do not go together: {error}")
            })?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}
