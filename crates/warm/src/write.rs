//! Writes: scripts that change entries of buckets, in pipelines.
//!
//! A server may execute a command long after its operation has failed: it stood still, and the command is in its memory. So
//! each connection that writes has taken a *fence* first: a random word, which takes the place of the one before, in a round
//! trip of its own. Each script carries the fence of its connection, and does nothing if it is not that of the server. A
//! process that has lost the fence to another one takes it again. So a command that is late finds another fence.

use crate::entry::encode;
use crate::layout::Bucket;
use crate::read::number;
use crate::wire::Session;
use crate::{Warm, WarmError};
use redis::{Cmd, Pipeline, Value, cmd};
use std::hash::{BuildHasher, RandomState};
use tidegate_cold::Row;
use tidegate_store::Hashed;
use tokio::time::Instant;

/// The entries of a script: it holds up everybody for less than a millisecond.
const SCRIPT_ENTRIES: usize = 128;
/// The entries from which on a bucket is tidied: less than those at which servers keep it as a table.
const FULL: usize = 96;
/// A hash is kept for so much longer than its entries, for clocks that differ. No entry counts by then.
const SLACK_SECONDS: u32 = 60;
/// The bytes of a number or an error in an answer.
const ANSWER_BYTES: usize = 512;
/// How often others may take the fence during an operation.
const TRIES: u32 = 5;

/// What a connection needs to write: the fence that it has taken, and the hashes by which the server knows the scripts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) fence: String,
    pub(crate) put: String,
    pub(crate) remove: String,
}

#[derive(Debug, Clone, Copy)]
enum Script {
    Put,
    Remove,
}

/// The entries of a bucket, as the arguments of a script.
struct Part<T> {
    bucket: Bucket,
    entries: Vec<(Vec<u8>, T)>,
}

impl Warm {
    /// Writes rows that have not expired.
    pub(crate) async fn write_rows(
        &self,
        rows: &[&Row],
        now: u32,
        deadline: Instant,
    ) -> Result<(), WarmError> {
        let mut entries = Vec::with_capacity(rows.len());
        for row in rows {
            let value = encode(row).ok_or(WarmError::TooLong { words: row.state.len() })?;
            entries.push((row.key, (value, row.expires_at)));
        }
        let part = |command: &mut Cmd, part: &Part<(Vec<u8>, u32)>| {
            let ends = part.entries.iter().map(|(_, (_, ends))| *ends).max().unwrap_or(now);
            command.arg(part.entries.len()).arg(ends.saturating_sub(now) + SLACK_SECONDS);
            for (field, (value, _)) in &part.entries {
                command.arg(field).arg(value);
            }
        };
        let more = |command: &mut Cmd| _ = command.arg(now).arg(FULL);
        self.write(Script::Put, &entries, more, part, deadline).await.map(drop)
    }

    pub(crate) async fn write_removals(
        &self,
        rows: &[(Hashed, u32)],
        deadline: Instant,
    ) -> Result<u64, WarmError> {
        let part = |command: &mut Cmd, part: &Part<u32>| {
            command.arg(part.entries.len());
            for (field, version) in &part.entries {
                command.arg(field).arg(version);
            }
        };
        self.write(Script::Remove, rows, |_| {}, part, deadline).await
    }

    /// Runs a script on entries, some at a time. Returns the sum of the answers.
    async fn write<T: Clone>(
        &self,
        script: Script,
        entries: &[(Hashed, T)],
        more: impl Fn(&mut Cmd),
        part: impl Fn(&mut Cmd, &Part<T>),
        deadline: Instant,
    ) -> Result<u64, WarmError> {
        let (mut sum, mut rest) = (0, entries.to_vec());
        // In the order of buckets; of two of one key the later one counts.
        rest.sort_by_key(|(key, _)| *key);
        for _ in 0..TRIES {
            let session = self.wire.session(deadline).await?;
            let claim = session.claim().clone();
            let claim = match claim {
                Some(claim) => claim,
                None => self.take_fence(&session, deadline).await?,
            };
            let script = match script {
                Script::Put => &claim.put,
                Script::Remove => &claim.remove,
            };
            let bits = self.bits();
            let chunks: Vec<&[(Hashed, T)]> = rest.chunks(SCRIPT_ENTRIES).collect();
            let mut pipeline = Pipeline::with_capacity(chunks.len());
            for entries in &chunks {
                let parts = parts(entries, bits);
                let mut call = cmd("EVALSHA");
                call.arg(script).arg(parts.len() + 1).arg(&self.layout.owner);
                parts.iter().for_each(|part| _ = call.arg(self.layout.key(part.bucket)));
                call.arg(&claim.fence).arg(bits);
                more(&mut call);
                parts.iter().for_each(|each| part(&mut call, each));
                pipeline.add_command(call);
            }
            let bytes = pipeline.len() * ANSWER_BYTES;
            let answers = session.ask(&pipeline, bytes, deadline).await?;
            let mut left = Vec::new();
            for (entries, answer) in chunks.into_iter().zip(answers) {
                let is_void = match &answer {
                    Value::Int(answer) => *answer == -1,
                    Value::ServerError(error) => error.code() == "NOSCRIPT",
                    _ => false,
                };
                if is_void {
                    // Unless another operation has taken the fence again.
                    session.claim().take_if(|taken| *taken == claim);
                    left.extend_from_slice(entries);
                } else {
                    sum += number(&session, &answer, "EVALSHA")?;
                }
            }
            if left.is_empty() {
                return Ok(sum);
            }
            rest = left;
        }
        Err(WarmError::Contended { tries: TRIES })
    }

    /// Takes the fence, loads the scripts, and learns how many buckets there are.
    async fn take_fence(&self, session: &Session, deadline: Instant) -> Result<Claim, WarmError> {
        let random = || RandomState::new().hash_one(0);
        let fence = format!("{:016x}{:016x}", random(), random());
        let (owner, bits) = (&self.layout.owner, self.bits());
        let mut pipeline = Pipeline::with_capacity(5);
        pipeline.add_command(cmd("HSETNX").arg(owner).arg("bits").arg(bits).clone());
        pipeline.add_command(cmd("HGET").arg(owner).arg("bits").clone());
        pipeline.add_command(cmd("HSET").arg(owner).arg("fence").arg(&fence).clone());
        for script in [include_str!("put.lua"), include_str!("remove.lua")] {
            pipeline.add_command(cmd("SCRIPT").arg("LOAD").arg(script).clone());
        }
        let mut answers = session.ask(&pipeline, 5 * ANSWER_BYTES, deadline).await?.into_iter();
        number(session, &answers.next().unwrap_or(Value::Nil), "HSETNX")?;
        self.has_bits(session, answers.next(), bits)?;
        number(session, &answers.next().unwrap_or(Value::Nil), "HSET")?;
        let mut hash = || match answers.next() {
            Some(Value::BulkString(hash)) if hash.len() == 40 && hash.is_ascii() => {
                Ok(String::from_utf8_lossy(&hash).into_owned())
            }
            Some(Value::ServerError(error)) => Err(session.refused(&error)),
            _ => Err(session.nonsense("SCRIPT LOAD")),
        };
        let claim = Claim { fence, put: hash()?, remove: hash()? };
        *session.claim() = Some(claim.clone());
        Ok(claim)
    }
}

/// Entries that are in the order of their buckets, bucket by bucket.
fn parts<T: Clone>(entries: &[(Hashed, T)], bits: u8) -> Vec<Part<T>> {
    let place = |key: &Hashed| Bucket::of(key, bits);
    let same = entries.chunk_by(|(one, _), (other, _)| place(one) == place(other));
    let part = |entries: &[(Hashed, T)]| {
        let bucket = place(&entries.first()?.0);
        let entries = entries.iter().map(|(key, entry)| (bucket.field(key), entry.clone()));
        Some(Part { bucket, entries: entries.collect() })
    };
    same.filter_map(part).collect()
}
