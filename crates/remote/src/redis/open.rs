//! What a new connection checks before it serves: the role of the server, and the seed.

use super::dial::Connection;
use super::script::SCRIPT;
use super::{Inner, Node};
use crate::engine::Cause;
use crate::retry::random;
use crate::seed::Seed;
use crate::slots::slot;
use ::redis::{Cmd, Value, cmd};
use std::sync::atomic::Ordering;

/// The cause where `TIME` has another answer.
pub(super) const NO_TIME: &str = "the server answers TIME with something else";

/// A connection that may serve.
pub(super) struct Opened {
    pub(super) connection: Connection,
    /// The hash by which the server knows the script.
    pub(super) script: String,
}

impl Node {
    pub(super) async fn open(&self) -> Result<Opened, Cause> {
        let shared = &self.inner.shared;
        let mut connection = match &self.address {
            None => self.inner.dialer.dial().await?,
            Some(address) => self.inner.dialer.dial_node(address).await?,
        };
        check_role(&mut connection).await?;
        let micros = micros(&ask(&mut connection, &cmd("TIME")).await?);
        let micros = micros.ok_or_else(|| Cause::new(NO_TIME))?;
        shared.clock.observe(self.door.lane, micros, shared.local());
        if self.has_seed() {
            self.inner.check_seed(&mut connection).await?;
        }
        self.warn(&mut connection).await;
        let load = ask(&mut connection, cmd("SCRIPT").arg("LOAD").arg(SCRIPT)).await?;
        match load {
            Value::BulkString(hash) if hash.len() == 40 && hash.is_ascii() => {
                let script = String::from_utf8_lossy(&hash).into_owned();
                Ok(Opened { connection, script })
            }
            _ => Err(Cause::new("the server answers SCRIPT LOAD with something else than a hash")),
        }
    }

    /// Whether the seed is on this server.
    pub(super) fn has_seed(&self) -> bool {
        let slot = slot(self.inner.calls.seed_name().as_bytes());
        self.inner.shared.lane_of(slot) == self.door.lane
    }

    /// Warns of a server that may forget counters to make room.
    async fn warn(&self, connection: &mut Connection) {
        // Some services refuse INFO. Then nobody knows.
        let memory = ask(connection, cmd("INFO").arg("memory")).await;
        let warning = memory.ok().as_ref().and_then(eviction);
        let warning = warning.map(|policy| {
            let of = self.address.as_ref().map_or_else(String::new, |node| format!(" at {node}"));
            format!(
                "the server{of} may forget counters when its memory is full: maxmemory-policy is {policy}; set noeviction"
            )
        });
        if self.inner.shared.warn(&self.door, warning.clone())
            && let Some(warning) = warning
        {
            tracing::warn!("{warning}");
        }
    }
}

impl Inner {
    /// Reads the seed, or writes the one that this process has.
    async fn check_seed(&self, connection: &mut Connection) -> Result<(), Cause> {
        let name = self.calls.seed_name();
        let mut found = ask(connection, cmd("GET").arg(&name)).await?;
        if found == Value::Nil {
            ask(connection, &self.write_seed()).await?;
            found = ask(connection, cmd("GET").arg(&name)).await?;
        }
        self.compare_seed(&found)
    }

    /// The command that writes our seed, or a new one, unless the server has one.
    pub(super) fn write_seed(&self) -> Cmd {
        let own = Seed(self.shared.seed.get().copied().unwrap_or_else(random));
        cmd("SET").arg(self.calls.seed_name()).arg(own.to_string()).arg("NX").clone()
    }

    /// Compares the seed in the server with ours. Whatever the server has first becomes ours.
    pub(super) fn compare_seed(&self, found: &Value) -> Result<(), Cause> {
        let compared = self.compared(found);
        self.has_compared.fetch_or(compared.is_ok(), Ordering::Relaxed);
        // The other nodes of a cluster have no seed to compare.
        self.shared.refuse(compared.clone().err());
        compared
    }

    fn compared(&self, found: &Value) -> Result<(), Cause> {
        let text = match found {
            Value::BulkString(text) => &text[..],
            // No seed either.
            _ => &[],
        };
        let compared = self.shared.compare_seed(&self.calls.prefix, text);
        compared.map_err(|wrong| Cause::new(&wrong.to_string()))
    }
}

pub(super) async fn check_role(connection: &mut Connection) -> Result<(), Cause> {
    // Some services refuse ROLE. Then the first update tells whether the server can be written.
    let Ok(Value::Array(role)) = connection.commands.send_packed_command(&cmd("ROLE")).await else {
        return Ok(());
    };
    match role.first() {
        Some(Value::BulkString(role)) if role != b"master" => {
            let role = String::from_utf8_lossy(role).into_owned();
            Err(Cause::new(&format!("the server is no primary: its role is {role}")))
        }
        _ => Ok(()),
    }
}

pub(super) async fn ask(connection: &mut Connection, command: &Cmd) -> Result<Value, Cause> {
    match connection.commands.send_packed_command(command).await {
        Ok(Value::ServerError(error)) => Err(server_error(&error)),
        Ok(value) => Ok(value),
        Err(error) => Err(Cause::new(&error.to_string())),
    }
}

/// The error that a server answers with, in its words.
pub(super) fn server_error(error: &::redis::ServerError) -> Cause {
    Cause::new(&format!("{} {}", error.code(), error.details().unwrap_or_default()))
}

/// The policy by which a server may forget keys that expire, if it has one, by its answer to `INFO memory`.
pub(super) fn eviction(memory: &Value) -> Option<String> {
    let text = match memory {
        Value::BulkString(text) => str::from_utf8(text).ok()?,
        Value::VerbatimString { text, .. } => text,
        _ => return None,
    };
    let field = |name: &str| {
        let mut lines = text.lines().map(str::trim_end);
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    };
    let policy = field("maxmemory_policy").filter(|policy| *policy != "noeviction")?;
    let is_limited = field("maxmemory").is_some_and(|bytes| bytes != "0");
    is_limited.then(|| Cause::new(policy).to_string())
}

/// The answer to `TIME`, in microseconds.
pub(super) fn micros(time: &Value) -> Option<u64> {
    let number = |value: &Value| match value {
        Value::BulkString(text) => str::from_utf8(text).ok()?.parse::<u64>().ok(),
        _ => None,
    };
    let Value::Array(time) = time else { return None };
    let [secs, micros] = &time[..] else { return None };
    number(secs)?.checked_mul(1_000_000)?.checked_add(number(micros)?)
}
