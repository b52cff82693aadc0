//! Connections to one shard that were made and are not in use.
//!
//! Unlike a pool of `sqlx`, it says at once why there is no connection, and asks no server whether one still works before an
//! operation: that would cost each operation a round trip. Who finds one broken tries again.

use crate::ColdError;
use sqlx::{AnyConnection, Connection};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tidegate_sql::Connector;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// Between servers some firewall may forget a connection that is idle for minutes.
const IDLE_MAX: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Reads,
    Writes,
}

#[derive(Debug)]
pub(crate) struct Pool {
    connector: Connector,
    role: Role,
    room: Semaphore,
    /// The one that was used last comes last.
    idle: Mutex<Vec<(AnyConnection, Instant)>>,
}

/// A connection in use. Dropped, it is closed: what its operation left undone is undone by the server.
pub(crate) struct Held<'a> {
    pub(crate) connection: AnyConnection,
    /// Whether it is new, so that an error is not one of its past.
    pub(crate) is_new: bool,
    pool: &'a Pool,
    _room: SemaphorePermit<'a>,
}

impl Pool {
    pub(crate) fn new(connector: Connector, role: Role, connections: usize) -> Pool {
        Pool { connector, role, room: Semaphore::new(connections), idle: Mutex::default() }
    }

    pub(crate) async fn take(&self) -> Result<Held<'_>, ColdError> {
        let room = self.room.acquire().await.map_err(|_| ColdError::Closed)?;
        let idle = {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            idle.retain(|(_, since)| now.duration_since(*since) < IDLE_MAX);
            idle.pop()
        };
        let is_new = idle.is_none();
        let connection = match (idle, self.role) {
            (Some((connection, _)), _) => connection,
            (None, Role::Reads) => self.connector.connect_reader().await?,
            // A counter leaves the memory once its row is written.
            (None, Role::Writes) => self.connector.connect_durable_writer().await?,
        };
        Ok(Held { connection, is_new, pool: self, _room: room })
    }

    /// Closes connections that are not in use, since one of them was found broken.
    pub(crate) fn forget(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Closes all connections. Those in use are closed when they are given back.
    pub(crate) async fn close(&self) {
        self.room.close();
        let idle = std::mem::take(&mut *self.idle.lock().unwrap_or_else(PoisonError::into_inner));
        for (connection, _) in idle {
            // It is gone one way or the other.
            let _ = connection.close().await;
        }
    }
}

impl Held<'_> {
    pub(crate) fn give_back(self) {
        if !self.pool.room.is_closed() {
            let mut idle = self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.push((self.connection, Instant::now()));
        }
    }
}
