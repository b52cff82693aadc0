//! How a connection is made and set up. A connection is made once: who wants to try again does so.

use crate::{Dialect, SqlError};
use sqlx::any::{AnyConnectOptions, AnyPoolOptions};
use sqlx::{AnyConnection, AnyPool, AssertSqlSafe, Connection, Executor, SqlSafeStr};
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

/// Two seconds of tries.
const SET_UP_TRIES: u32 = 100;
const SET_UP_PAUSE: Duration = Duration::from_millis(20);

/// Makes connections to one database.
#[derive(Debug, Clone)]
pub struct Connector {
    dialect: Dialect,
    options: AnyConnectOptions,
    /// A connection is made within this time, or not at all.
    within: Duration,
    /// Further statements for each new connection.
    settings: Vec<String>,
}

impl Connector {
    /// # Errors
    /// If the URL is none of these databases.
    pub fn new(url: &str, within: Duration) -> Result<Connector, SqlError> {
        let dialect = Dialect::of(url)?;
        sqlx::any::install_default_drivers();
        let options = AnyConnectOptions::from_str(url);
        let options = options.map_err(|error| SqlError::of(dialect, &error))?;
        // Statements with thousands of parameters have no place in a log.
        let options = sqlx::ConnectOptions::disable_statement_logging(options);
        Ok(Connector { dialect, options, within, settings: Vec::new() })
    }

    /// Runs these statements on each new connection, after those of its dialect. They are never made of a value.
    #[must_use]
    pub fn with_settings(mut self, settings: Vec<String>) -> Connector {
        self.settings = settings;
        self
    }

    #[must_use]
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// A connection with the settings that all have.
    ///
    /// # Errors
    /// If the server cannot be reached in time, or refuses the user.
    pub async fn connect(&self) -> Result<AnyConnection, SqlError> {
        let error = |error| SqlError::of(self.dialect, &error);
        let connecting = AnyConnection::connect_with(&self.options);
        let mut connection = match tokio::time::timeout(self.within, connecting).await {
            Ok(connection) => connection.map_err(error)?,
            Err(_) => return Err(SqlError::Slow(self.within)),
        };
        self.set_up(&mut connection).await.map_err(error)?;
        Ok(connection)
    }

    /// A connection that writes.
    ///
    /// # Errors
    /// Those of [`Self::connect`].
    pub async fn connect_writer(&self) -> Result<AnyConnection, SqlError> {
        let mut connection = self.connect().await?;
        let set_up = set_up_writer(&mut connection, self.dialect).await;
        set_up.map_err(|error| SqlError::of(self.dialect, &error))?;
        Ok(connection)
    }

    /// A connection for changes that the end of the machine must not undo.
    ///
    /// # Errors
    /// As [`Connector::connect`].
    pub async fn connect_durable_writer(&self) -> Result<AnyConnection, SqlError> {
        let mut connection = self.connect_writer().await?;
        for setting in self.dialect.durable_settings() {
            let set = connection.execute(*setting).await;
            set.map_err(|error| SqlError::of(self.dialect, &error))?;
        }
        Ok(connection)
    }

    /// A connection that changes nothing. A statement ends soon after its answer is given up.
    ///
    /// # Errors
    /// Those of [`Self::connect`].
    pub async fn connect_reader(&self) -> Result<AnyConnection, SqlError> {
        let mut connection = self.connect().await?;
        let set_up = set_up_reader(&mut connection, self.dialect).await;
        set_up.map_err(|error| SqlError::of(self.dialect, &error))?;
        Ok(connection)
    }

    /// Connections that write, made when they are first needed.
    #[must_use]
    pub fn writers(&self, connections: u32) -> AnyPool {
        let connector = self.clone();
        let pool = self.pool(connections).after_connect(move |connection, _| {
            let connector = connector.clone();
            Box::pin(async move {
                connector.set_up(connection).await?;
                set_up_writer(connection, connector.dialect).await
            })
        });
        pool.connect_lazy_with(self.options.clone())
    }

    /// Connections for answers, made when they are first needed.
    #[must_use]
    pub fn readers(&self, connections: u32) -> AnyPool {
        let connector = self.clone();
        let pool = self.pool(connections).after_connect(move |connection, _| {
            let connector = connector.clone();
            Box::pin(async move {
                connector.set_up(connection).await?;
                set_up_reader(connection, connector.dialect).await
            })
        });
        pool.connect_lazy_with(self.options.clone())
    }

    fn pool(&self, connections: u32) -> AnyPoolOptions {
        AnyPoolOptions::new().max_connections(connections).acquire_timeout(self.within)
    }

    async fn set_up(&self, connection: &mut AnyConnection) -> sqlx::Result<()> {
        for setting in self.dialect.settings() {
            let mut tries = 0;
            // SQLite refuses to become a write-ahead log at once, without its timeout, while another process does the
            // same.
            while let Err(error) = connection.execute(*setting).await {
                tries += 1;
                if tries == SET_UP_TRIES || !self.dialect.is_locked(&error) {
                    return Err(error);
                }
                tokio::time::sleep(SET_UP_PAUSE).await;
            }
        }
        for setting in &self.settings {
            let setting = AssertSqlSafe(setting.clone()).into_sql_str();
            connection.execute(setting).await?;
        }
        Ok(())
    }
}

async fn set_up_writer(connection: &mut AnyConnection, dialect: Dialect) -> sqlx::Result<()> {
    for setting in dialect.writer_settings() {
        connection.execute(*setting).await?;
    }
    Ok(())
}

async fn set_up_reader(connection: &mut AnyConnection, dialect: Dialect) -> sqlx::Result<()> {
    // Of these the server knows one; MariaDB and MySQL have different ones.
    let mut outcome = Ok(());
    for setting in dialect.reader_settings() {
        outcome = connection.execute(*setting).await.map(drop);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

/// The URL of a file of SQLite, which is made if it is missing.
#[must_use]
pub fn sqlite_url(file: &Path) -> String {
    // A path may have characters that mean something in a URL.
    let escaped: String = file
        .to_string_lossy()
        .chars()
        .map(|c| match c {
            '%' => "%25".to_owned(),
            '?' => "%3F".to_owned(),
            '#' => "%23".to_owned(),
            c => c.to_string(),
        })
        .collect();
    format!("sqlite://{escaped}?mode=rwc")
}

/// Makes the file of SQLite, if it is missing, so that only this user reads it. SQLite would let everybody read it, and
/// gives its other files the same mode.
///
/// # Errors
/// If it cannot be made. SQLite says why when it opens the file.
pub fn make_private(file: &Path) -> io::Result<()> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(file).map(drop)
}
