//! What a new connection checks before it serves: the role of the server, and the seed.

use super::Inner;
use super::dial::Connection;
use super::random;
use super::script::SCRIPT;
use crate::engine::Cause;
use ::redis::{Cmd, Value, cmd};
use std::fmt;

/// The cause where `TIME` has another answer.
pub(super) const NO_TIME: &str = "the server answers TIME with something else";

/// A connection that may serve.
pub(super) struct Opened {
    pub(super) connection: Connection,
    /// The hash by which the server knows the script.
    pub(super) script: String,
}

/// The seed of the keys, as its text in the server: 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seed(u64);

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Inner {
    pub(super) async fn open(&self) -> Result<Opened, Cause> {
        let mut connection = self.dialer.dial().await?;
        check_role(&mut connection).await?;
        let micros = micros(&ask(&mut connection, &cmd("TIME")).await?);
        let micros = micros.ok_or_else(|| Cause::new(NO_TIME))?;
        self.shared.clock.observe(micros, self.shared.local());
        self.check_seed(&mut connection).await?;
        let load = ask(&mut connection, cmd("SCRIPT").arg("LOAD").arg(SCRIPT)).await?;
        match load {
            Value::BulkString(hash) if hash.len() == 40 && hash.is_ascii() => {
                let script = String::from_utf8_lossy(&hash).into_owned();
                Ok(Opened { connection, script })
            }
            _ => Err(Cause::new("the server answers SCRIPT LOAD with something else than a hash")),
        }
    }

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
        let name = self.calls.seed_name();
        let seed = match found {
            Value::BulkString(text) if text.len() == 16 => {
                str::from_utf8(text).ok().and_then(|text| u64::from_str_radix(text, 16).ok())
            }
            _ => None,
        };
        let Some(seed) = seed else {
            return Err(Cause::new(&format!(
                "key {name} of the server should be the seed of the counters' keys, 16 hexadecimal digits; delete it, \
                 or choose another prefix"
            )));
        };
        let own = *self.shared.seed.get_or_init(|| seed);
        if own == seed {
            return Ok(());
        }
        Err(Cause::new(&format!(
            "key {name} of the server is {}, but the keys of this sidecar are hashed with {}; restart the sidecar to \
             use the server's",
            Seed(seed),
            Seed(own)
        )))
    }
}

async fn check_role(connection: &mut Connection) -> Result<(), Cause> {
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

async fn ask(connection: &mut Connection, command: &Cmd) -> Result<Value, Cause> {
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
