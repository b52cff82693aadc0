//! One connection to one server, for parts of Tidegate that keep other things than shared counters there.
//!
//! Owns nothing but the connection: it is made as those of shared counters are, and its answers are bounded. Knows no key.
//! Refuses servers that are no primary, Sentinels and clusters.

use super::bounded::Allowance;
use super::dial::{Connection, Dialer, Task};
use super::open::{ask, check_role, eviction};
use crate::in_time::in_time;
use crate::retry::HANDSHAKE;
use crate::settings::{Servers, Settings};
use ::redis::aio::MultiplexedConnection;
use ::redis::{Pipeline, Value, cmd};
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::time::{Instant, timeout};

/// Opens connections to one server.
pub struct Links(Dialer);

/// An open connection. It is closed when it is dropped.
pub struct Link {
    commands: MultiplexedConnection,
    allowance: Allowance,
    task: Task,
    is_broken: AtomicBool,
    eviction: Option<String>,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LinkError(pub String);

impl Links {
    /// Connects to nothing yet.
    ///
    /// # Errors
    /// If the settings name no single server, or their certificates cannot be read.
    pub fn new(settings: &Settings) -> Result<Links, LinkError> {
        match settings.servers {
            Servers::Single(_) => Dialer::new(settings).map(Links).map_err(LinkError),
            Servers::Sentinel { .. } | Servers::Cluster { .. } | Servers::Memcached(_) => {
                Err(LinkError("a single server of Redis or Valkey is expected".to_owned()))
            }
        }
    }

    /// A new connection. Ends within two seconds.
    ///
    /// # Errors
    /// If there is none, or the server is no primary.
    pub async fn open(&self) -> Result<Link, LinkError> {
        let opening = async {
            let mut connection = self.0.dial().await?;
            check_role(&mut connection).await?;
            // Some services refuse INFO. Then nobody knows.
            let memory = ask(&mut connection, cmd("INFO").arg("memory")).await;
            let eviction = memory.ok().as_ref().and_then(eviction);
            let Connection { commands, allowance, task } = connection;
            Ok(Link { commands, allowance, task, is_broken: AtomicBool::new(false), eviction })
        };
        match timeout(HANDSHAKE, opening).await {
            Ok(opened) => {
                opened.map_err(|cause: crate::engine::Cause| LinkError(cause.to_string()))
            }
            Err(_) => {
                let waited = HANDSHAKE.as_secs();
                Err(LinkError(format!("no answer within {waited} s to a new connection")))
            }
        }
    }
}

impl Link {
    /// The policy by which the server may forget keys when its memory is full, as it was when the connection was made.
    #[must_use]
    pub fn eviction(&self) -> Option<&str> {
        self.eviction.as_deref()
    }

    /// Whether the connection serves: no answer was late, too long or none, and it is not closed.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.is_broken.load(Ordering::Relaxed) && !self.task.0.is_finished()
    }

    /// Never to be used again.
    pub fn break_off(&self) {
        self.is_broken.store(true, Ordering::Relaxed);
    }

    /// The answers to all commands of a pipeline, which have up to so many bytes together. An error of the server is an
    /// answer. After any other error the connection is of no use.
    ///
    /// # Errors
    /// If they do not arrive before the deadline, or are others than were asked for.
    pub async fn ask(
        &self,
        pipeline: &Pipeline,
        bytes: usize,
        deadline: Instant,
    ) -> Result<Vec<Value>, LinkError> {
        let count = pipeline.len();
        self.allowance.ask(bytes);
        let mut commands = self.commands.clone();
        let sent = commands.send_packed_commands(pipeline, 0, count);
        let answers = in_time(deadline, sent).await;
        self.allowance.answered();
        let error = match answers {
            Some(Ok(answers)) if answers.len() == count => return Ok(answers),
            Some(Ok(_)) => "the server gives another number of answers than of commands".to_owned(),
            Some(Err(_)) if self.allowance.is_exceeded() => {
                "the server sends more than it was asked for".to_owned()
            }
            Some(Err(error)) => error.to_string(),
            None => "the server has not answered in time".to_owned(),
        };
        self.break_off();
        Err(LinkError(error))
    }
}
