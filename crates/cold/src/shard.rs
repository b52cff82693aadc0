//! One database: its connections, what it knows of the owner, and tries of an operation.

use crate::ColdError;
use crate::owner::{Owner, register};
use crate::pool::{Pool, Role};
use sqlx::{AnyConnection, Connection};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tidegate_sql::{Connector, Dialect, SqlError, make_private, shown};
use tokio::time::timeout;

/// SQLite and its readers share a file, and a server a machine: more would only wait there.
const READERS: usize = 4;
/// Transactions of one process would mostly wait for each other, as each of them is at many buckets.
const WRITERS: usize = 1;
/// Each try that fails means that another transaction went on.
const TRIES: u32 = 16;

/// What can be done within one transaction, or one statement. It is run again after failures that are not final.
pub(crate) trait Operation: Sync {
    type Answer: Send;
    const ROLE: Role;

    fn run(
        &self,
        connection: &mut AnyConnection,
        dialect: Dialect,
        owner: Owner,
    ) -> impl Future<Output = Result<Self::Answer, Failure>> + Send;
}

/// Why a try failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Another transaction was first.
    Conflict,
    Sql(sqlx::Error),
    Final(ColdError),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Failure {
        Failure::Sql(error)
    }
}

impl From<ColdError> for Failure {
    fn from(error: ColdError) -> Failure {
        Failure::Final(error)
    }
}

/// What is to be done after a failure.
enum Then {
    Again,
    Fail(ColdError),
}

/// The identities of databases, by the shards that were found to be there.
pub(crate) type Databases = Arc<std::sync::Mutex<Vec<(i64, String)>>>;

#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) name: String,
    url: String,
    connector: Connector,
    readers: Pool,
    writers: Pool,
    owner: u128,
    /// Of a new owner.
    bits: u8,
    /// None until the database was reached.
    registered: tokio::sync::Mutex<Option<Owner>>,
    databases: Databases,
    timeout: Duration,
    patience: Duration,
}

impl Shard {
    pub(crate) fn new(
        url: &str,
        (timeout, patience): (Duration, Duration),
        owner: u128,
        bits: u8,
        databases: Databases,
    ) -> Result<Shard, ColdError> {
        let within = |time| {
            let connector = Connector::new(url, time)?;
            let settings = bounds(connector.dialect(), time);
            Ok::<_, ColdError>(connector.with_settings(settings))
        };
        let connector = within(timeout)?;
        Ok(Shard {
            name: shown(url),
            url: url.to_owned(),
            readers: Pool::new(connector.clone(), Role::Reads, READERS),
            writers: Pool::new(within(patience)?, Role::Writes, WRITERS),
            connector,
            owner,
            bits,
            registered: tokio::sync::Mutex::default(),
            databases,
            timeout,
            patience,
        })
    }

    /// Tries a fetch until it succeeds, fails for good, or its time is over.
    pub(crate) async fn fetch<O: Operation>(&self, operation: &O) -> Result<O::Answer, ColdError> {
        self.run(operation, self.timeout).await
    }

    /// The same for what nobody waits for.
    pub(crate) async fn work<O: Operation>(&self, operation: &O) -> Result<O::Answer, ColdError> {
        self.run(operation, self.patience).await
    }

    async fn run<O: Operation>(
        &self,
        operation: &O,
        within: Duration,
    ) -> Result<O::Answer, ColdError> {
        if let Ok(result) = timeout(within, self.tries(operation)).await {
            return result;
        }
        // A server that vanished answers on none of its connections.
        self.pool(O::ROLE).forget();
        Err(SqlError::Slow(within).into())
    }

    async fn tries<O: Operation>(&self, operation: &O) -> Result<O::Answer, ColdError> {
        let dialect = self.connector.dialect();
        for _ in 0..TRIES {
            let owner = self.registered().await?;
            let mut held = self.pool(O::ROLE).take().await?;
            let failure = match operation.run(&mut held.connection, dialect, owner).await {
                Ok(answer) => {
                    held.give_back();
                    return Ok(answer);
                }
                Err(failure) => failure,
            };
            if let Then::Fail(error) = self.judge(O::ROLE, held.is_new, failure).await {
                return Err(error);
            }
        }
        Err(ColdError::Contended { tries: TRIES })
    }

    async fn judge(&self, role: Role, is_new: bool, failure: Failure) -> Then {
        let dialect = self.connector.dialect();
        match failure {
            Failure::Conflict => Then::Again,
            Failure::Final(error) => Then::Fail(error),
            Failure::Sql(error) if dialect.is_conflict(&error) => Then::Again,
            Failure::Sql(error) if dialect.is_disconnected(&error) && !is_new => {
                self.pool(role).forget();
                Then::Again
            }
            Failure::Sql(error) if dialect.is_table_missing(&error) => {
                // Somebody replaced the database by an empty one.
                *self.registered.lock().await = None;
                Then::Again
            }
            Failure::Sql(error) => Then::Fail(SqlError::of(dialect, &error).into()),
        }
    }

    fn pool(&self, role: Role) -> &Pool {
        match role {
            Role::Reads => &self.readers,
            Role::Writes => &self.writers,
        }
    }

    /// The owner as the database knows it. The first operations wait for one of them to make the tables.
    async fn registered(&self) -> Result<Owner, ColdError> {
        let mut registered = self.registered.lock().await;
        if let Some(owner) = *registered {
            return Ok(owner);
        }
        if let Some(file) = self.file() {
            // If it cannot be made, SQLite says so.
            let _ = make_private(file.as_ref());
        }
        let mut connection = self.connector.connect().await?;
        let dialect = self.connector.dialect();
        let owner = register(&mut connection, dialect, self.owner, self.bits).await?;
        // The row is there, whatever becomes of the connection.
        let _ = connection.close().await;
        self.check_database(owner.database)?;
        *registered = Some(owner);
        Ok(owner)
    }

    /// The file of SQLite, if it may have to be made.
    fn file(&self) -> Option<std::path::PathBuf> {
        let is_made = self.url.split_once('?').is_some_and(|(_, query)| query.contains("mode=rwc"));
        let options = self.url.parse::<sqlx::sqlite::SqliteConnectOptions>();
        let options = options.ok().filter(|_| is_made && self.url.starts_with("sqlite:"))?;
        Some(options.get_filename().to_owned())
    }

    /// A counter that moves between two names of one database would be written and then removed.
    fn check_database(&self, identity: i64) -> Result<(), ColdError> {
        let mut databases = self.databases.lock().unwrap_or_else(PoisonError::into_inner);
        let same = databases.iter().find(|(of, name)| *of == identity && *name != self.name);
        if let Some((_, first)) = same {
            let (first, second) = (first.clone(), self.name.clone());
            return Err(ColdError::SameShard { first, second });
        }
        databases.retain(|(_, name)| *name != self.name);
        databases.push((identity, self.name.clone()));
        Ok(())
    }

    pub(crate) async fn close(&self) {
        self.readers.close().await;
        self.writers.close().await;
    }
}

/// Settings by which a server ends what is not waited for any more.
fn bounds(dialect: Dialect, timeout: Duration) -> Vec<String> {
    let millis = timeout.as_millis().clamp(1, 3_600_000);
    match dialect {
        Dialect::Sqlite => vec![format!("PRAGMA busy_timeout = {millis}")],
        Dialect::Postgres => {
            ["lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"]
                .map(|name| format!("SET {name} = {millis}"))
                .to_vec()
        }
        // In whole seconds.
        Dialect::Mysql => {
            vec![format!("SET SESSION innodb_lock_wait_timeout = {}", millis.div_ceil(1_000))]
        }
    }
}
