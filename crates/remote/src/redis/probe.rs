//! What a connection asks now and then: the time of the server, and the seed.
//!
//! Writes the seed back to a server that has lost it. Refuses to go on with a server that has another one.

use super::fly::Wire;
use super::open::{NO_TIME, micros, server_error};
use crate::engine::Cause;
use ::redis::{Pipeline, Value, cmd};
use tokio::time::Instant;

const PROBE_BYTES: usize = 2_048;

impl Wire {
    /// Learns the server's time, and compares its seed with ours. Writes ours if it has none any more.
    pub(super) async fn probe(mut self) -> Result<(), Cause> {
        let deadline = Instant::now() + self.timeout;
        let inner = self.node.inner.clone();
        let (name, time) = (inner.calls.seed_name(), cmd("TIME"));
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.add_command(time);
        if self.node.has_seed() {
            pipeline.add_command(cmd("GET").arg(&name).clone());
        }
        let answers = self.ask(&pipeline, pipeline.len(), PROBE_BYTES, deadline).await?;
        let local = self.shared.local();
        let Some(time) = answers.first() else { return Ok(()) };
        match (time, micros(time)) {
            (Value::ServerError(error), _) => return Err(server_error(error)),
            (_, None) => return Err(Cause::new(NO_TIME)),
            (_, Some(micros)) => self.shared.clock.observe(self.node.door.lane, micros, local),
        }
        let Some(seed) = answers.get(1) else { return Ok(()) };
        match seed {
            // The slot of the seed has moved.
            Value::ServerError(error)
                if self.node.address.is_some() && is_of_slots(error.code()) =>
            {
                inner.look_again();
                Ok(())
            }
            Value::ServerError(error) => Err(server_error(error)),
            Value::Nil => {
                tracing::warn!("the server of the shared counters has lost its data");
                let mut pipeline = Pipeline::with_capacity(2);
                pipeline.add_command(inner.write_seed());
                pipeline.add_command(cmd("GET").arg(&name).clone());
                let answers = self.ask(&pipeline, 2, PROBE_BYTES, deadline).await?;
                match &answers[..] {
                    [Value::ServerError(error), _] => Err(server_error(error)),
                    [_, seed] => inner.compare_seed(seed),
                    _ => Ok(()),
                }
            }
            seed => inner.compare_seed(seed),
        }
    }
}

/// Whether an error is about the slot of a key.
fn is_of_slots(code: &str) -> bool {
    matches!(code, "MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN")
}
