//! From settings to a connection; and the primary that sentinels know.

use super::bounded::{Allowance, Bounded};
use crate::engine::Cause;
use crate::settings::{Address, Credentials, Servers, Settings};
use crate::stream::Streams;
use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, RedisConnectionInfo, Value, cmd};
use tokio::task::JoinHandle;

/// Opens connections.
pub(super) struct Dialer {
    servers: Servers,
    info: RedisConnectionInfo,
    streams: Streams,
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
        let streams = Streams::new(settings)?;
        let info = info(&settings.credentials).set_db(i64::from(settings.database));
        Ok(Dialer { servers: settings.servers.clone(), info, streams })
    }

    /// Connects to the present primary.
    pub(super) async fn dial(&self) -> Result<Connection, Cause> {
        match &self.servers {
            Servers::Single(address) => self.open(address, &self.info).await,
            Servers::Sentinel { sentinels, primary, credentials } => {
                let address = self.ask_sentinels(sentinels, primary, credentials).await?;
                self.open(&address, &self.info).await
            }
            Servers::Cluster { .. } => Err(Cause::new("a cluster has no primary")),
            Servers::Memcached(_) => Err(Cause::new("memcached is no Redis")),
        }
    }

    /// Connects to a node of a cluster.
    pub(super) async fn dial_node(&self, address: &Address) -> Result<Connection, Cause> {
        self.open(address, &self.info).await
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
        let stream = self.streams.open(address).await;
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
