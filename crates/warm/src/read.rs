//! Reads: the rows of some keys, pages of all, and how much there is.

use crate::entry::{VALUE_BYTES_MAX, decode};
use crate::layout::{BITS_MAX, Bucket};
use crate::wire::Session;
use crate::{Warm, WarmError};
use redis::{Pipeline, Value, cmd};
use std::collections::BTreeMap;
use tidegate_cold::{Cursor, Page, Row, Size};
use tidegate_store::Hashed;
use tokio::time::Instant;

/// The bytes of a value, its field, and what surrounds them in an answer.
const ENTRY_BYTES: usize = VALUE_BYTES_MAX + 64;
/// The bytes of a number in an answer.
const NUMBER_BYTES: usize = 32;
/// The buckets that a page is looked for in: their sizes are one answer of 10 KiB.
const PAGE_BUCKETS: u32 = 1_024;
/// The entries of a page: 0.6 MiB of narrow ones, and at most 3.5 MiB.
const PAGE_ENTRIES: u64 = 8_192;
/// The entries of one bucket that can be read, as the answers of a connection are bounded.
const BUCKET_ENTRIES_MAX: u64 = 32_768;
/// The buckets whose sizes are asked for to know how much there is: all of them up to 5 million counters.
const SAMPLE: u32 = 262_144;
/// The sizes that are asked for at a time.
const SIZES: usize = 8_192;
/// The buckets whose memory is asked for.
const WEIGHED: usize = 1_024;
/// How often a read finds other buckets than before.
const TRIES: u32 = 3;

/// What is in some buckets.
#[derive(Default)]
struct Found {
    rows: Vec<Row>,
    /// With their versions.
    expired: Vec<(Hashed, u32)>,
}

impl Warm {
    pub(crate) async fn read(
        &self,
        keys: &[Hashed],
        now: u32,
        deadline: Instant,
    ) -> Result<Vec<Option<Row>>, WarmError> {
        for _ in 0..TRIES {
            let session = self.wire.session(deadline).await?;
            let bits = self.bits();
            let mut buckets: BTreeMap<Bucket, Vec<usize>> = BTreeMap::new();
            for (index, key) in keys.iter().enumerate() {
                buckets.entry(Bucket::of(key, bits)).or_default().push(index);
            }
            let mut pipeline = self.of_bits();
            for (bucket, indexes) in &buckets {
                let mut get = cmd("HMGET");
                get.arg(self.layout.key(*bucket));
                indexes.iter().for_each(|index| _ = get.arg(bucket.field(&keys[*index])));
                pipeline.add_command(get);
            }
            let bytes = (keys.len() + 1) * ENTRY_BYTES;
            let mut answers = session.ask(&pipeline, bytes, deadline).await?.into_iter();
            if !self.has_bits(&session, answers.next(), bits)? {
                continue;
            }
            let mut rows = vec![None; keys.len()];
            for ((bucket, indexes), answer) in buckets.into_iter().zip(answers) {
                let values = array(&session, answer, indexes.len(), "HMGET")?;
                for (index, value) in indexes.into_iter().zip(values) {
                    rows[index] = match value {
                        Value::Nil => None,
                        Value::BulkString(value) => {
                            let row = decode(keys[index], &value);
                            Some(row.ok_or_else(|| self.damaged(bucket))?)
                        }
                        _ => return Err(session.nonsense("HMGET")),
                    };
                    rows[index].take_if(|row| row.expires_at <= now);
                }
            }
            return Ok(rows);
        }
        Err(self.other_buckets())
    }

    pub(crate) async fn next_page(
        &self,
        after: Option<Cursor>,
        now: u32,
        deadline: Instant,
    ) -> Result<Page, WarmError> {
        let session = self.wire.session(deadline).await?;
        let (bits, first, sizes) = self.sizes(&session, after, deadline).await?;
        let (mut chosen, mut entries, mut next) = (Vec::new(), 0, None);
        let mut last = first;
        for (position, size) in (first..).zip(sizes) {
            if !chosen.is_empty() && entries + size > PAGE_ENTRIES {
                break;
            }
            last = position;
            entries += size;
            if size > 0
                && let Some(bucket) = Bucket::at(position, bits)
            {
                if size > BUCKET_ENTRIES_MAX {
                    return Err(self.damaged(bucket));
                }
                chosen.push(bucket);
            }
        }
        if last + 1 < Bucket::count(bits) {
            next = Some(Cursor(last));
        }
        let Found { rows, expired } =
            self.entries(&session, &chosen, entries, now, deadline).await?;
        if !expired.is_empty() {
            self.write_removals(&expired, deadline).await?;
        }
        Ok(Page { rows, next })
    }

    /// How many entries the next buckets have. Returns how many bits name a bucket, and the position of the first, too.
    async fn sizes(
        &self,
        session: &Session,
        after: Option<Cursor>,
        deadline: Instant,
    ) -> Result<(u8, u32, Vec<u64>), WarmError> {
        let first = after.map_or(0, |cursor| cursor.0.saturating_add(1));
        for _ in 0..TRIES {
            let bits = self.bits();
            let end = first.saturating_add(PAGE_BUCKETS).min(Bucket::count(bits));
            let mut pipeline = self.of_bits();
            for bucket in (first..end).filter_map(|position| Bucket::at(position, bits)) {
                pipeline.add_command(cmd("HLEN").arg(self.layout.key(bucket)).clone());
            }
            let bytes = ENTRY_BYTES + PAGE_BUCKETS as usize * NUMBER_BYTES;
            let mut answers = session.ask(&pipeline, bytes, deadline).await?.into_iter();
            if self.has_bits(session, answers.next(), bits)? {
                let sizes = answers.map(|answer| number(session, &answer, "HLEN"));
                return Ok((bits, first, sizes.collect::<Result<_, _>>()?));
            }
            if after.is_some() {
                // The positions of before are those of other buckets.
                return Err(self.other_buckets());
            }
        }
        Err(self.other_buckets())
    }

    /// The rows of buckets that have so many entries.
    async fn entries(
        &self,
        session: &Session,
        buckets: &[Bucket],
        entries: u64,
        now: u32,
        deadline: Instant,
    ) -> Result<Found, WarmError> {
        let mut pipeline = Pipeline::with_capacity(buckets.len());
        for bucket in buckets {
            pipeline.add_command(cmd("HGETALL").arg(self.layout.key(*bucket)).clone());
        }
        if buckets.is_empty() {
            return Ok(Found::default());
        }
        // Some may be written meanwhile.
        let bytes = (entries as usize + entries as usize / 2 + 1_000) * ENTRY_BYTES;
        let answers = session.ask(&pipeline, bytes, deadline).await?;
        let mut found = Found::default();
        for (bucket, answer) in buckets.iter().zip(answers) {
            for (field, value) in pairs(session, answer)? {
                let row = bucket.key_of(&field).and_then(|key| decode(key, &value));
                let row = row.ok_or_else(|| self.damaged(*bucket))?;
                match row.expires_at > now {
                    true => found.rows.push(row),
                    false => found.expired.push((row.key, row.moved_at)),
                }
            }
        }
        Ok(found)
    }

    pub(crate) async fn measure(&self, deadline: Instant) -> Result<Size, WarmError> {
        let session = self.wire.session(deadline).await?;
        // Learns how many buckets there are.
        self.sizes(&session, None, deadline).await?;
        let (bits, count) = (self.bits(), Bucket::count(self.bits()));
        let step = count.div_ceil(SAMPLE).max(1);
        let (mut counters, mut some) = (0, Vec::new());
        let positions: Vec<u32> = (0..count).step_by(step as usize).collect();
        for positions in positions.chunks(SIZES) {
            let buckets: Vec<Bucket> =
                positions.iter().filter_map(|position| Bucket::at(*position, bits)).collect();
            let mut pipeline = Pipeline::with_capacity(buckets.len());
            for bucket in &buckets {
                pipeline.add_command(cmd("HLEN").arg(self.layout.key(*bucket)).clone());
            }
            let bytes = pipeline.len() * NUMBER_BYTES;
            let answers = session.ask(&pipeline, bytes, deadline).await?;
            for (bucket, answer) in buckets.into_iter().zip(answers) {
                let size = number(&session, &answer, "HLEN")?;
                counters += size;
                if size > 0 && some.len() < WEIGHED {
                    some.push((bucket, size));
                }
            }
        }
        let (weighed, memory) = self.weigh(&session, &some, deadline).await?;
        let counters = counters.saturating_mul(u64::from(step));
        Ok(Size { counters, bytes: counters.saturating_mul(memory) / weighed.max(1) })
    }

    /// The entries of some buckets, and the memory that these take.
    async fn weigh(
        &self,
        session: &Session,
        some: &[(Bucket, u64)],
        deadline: Instant,
    ) -> Result<(u64, u64), WarmError> {
        let mut pipeline = Pipeline::with_capacity(some.len());
        for (bucket, _) in some {
            let key = self.layout.key(*bucket);
            pipeline.add_command(cmd("MEMORY").arg("USAGE").arg(key).clone());
        }
        if some.is_empty() {
            return Ok((0, 0));
        }
        let bytes = pipeline.len() * NUMBER_BYTES + ENTRY_BYTES;
        let (mut weighed, mut memory) = (0, 0);
        let answers = session.ask(&pipeline, bytes, deadline).await?;
        for ((_, size), answer) in some.iter().zip(answers) {
            // Some services refuse it, and a bucket may be gone. Then nobody knows.
            if let Value::Int(usage) = answer {
                (weighed, memory) = (weighed + size, memory + u64::try_from(usage).unwrap_or(0));
            }
        }
        Ok((weighed, memory))
    }

    /// A pipeline that begins with a look at the number of buckets.
    fn of_bits(&self) -> Pipeline {
        let mut pipeline = Pipeline::new();
        pipeline.add_command(cmd("HGET").arg(&self.layout.owner).arg("bits").clone());
        pipeline
    }

    /// Whether the server has as many buckets as this process thought. Otherwise it knows it now.
    pub(crate) fn has_bits(
        &self,
        session: &Session,
        answer: Option<Value>,
        bits: u8,
    ) -> Result<bool, WarmError> {
        let found = match answer {
            // Nobody has written.
            Some(Value::Nil) => return Ok(true),
            Some(Value::BulkString(text)) => {
                let number = str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
                number.filter(|bits| *bits <= BITS_MAX)
            }
            Some(Value::ServerError(error)) => return Err(session.refused(&error)),
            _ => return Err(session.nonsense("HGET")),
        };
        let key = || WarmError::Damaged { key: self.layout.owner.clone() };
        let found = found.ok_or_else(key)?;
        self.set_bits(found);
        Ok(found == bits)
    }

    fn damaged(&self, bucket: Bucket) -> WarmError {
        WarmError::Damaged { key: self.layout.key(bucket) }
    }

    pub(crate) fn other_buckets(&self) -> WarmError {
        WarmError::Buckets { key: self.layout.owner.clone() }
    }
}

fn array(
    session: &Session,
    answer: Value,
    len: usize,
    command: &'static str,
) -> Result<Vec<Value>, WarmError> {
    match answer {
        Value::Array(values) if values.len() == len => Ok(values),
        Value::ServerError(error) => Err(session.refused(&error)),
        _ => Err(session.nonsense(command)),
    }
}

pub(crate) fn number(
    session: &Session,
    answer: &Value,
    command: &'static str,
) -> Result<u64, WarmError> {
    match answer {
        Value::Int(number) => u64::try_from(*number).map_err(|_| session.nonsense(command)),
        Value::ServerError(error) => Err(session.refused(error)),
        _ => Err(session.nonsense(command)),
    }
}

/// A field and its value.
type Pair = (Vec<u8>, Vec<u8>);

fn pairs(session: &Session, answer: Value) -> Result<Vec<Pair>, WarmError> {
    let nonsense = || session.nonsense("HGETALL");
    let bytes = |value| match value {
        Value::BulkString(bytes) => Ok(bytes),
        _ => Err(nonsense()),
    };
    match answer {
        Value::Map(pairs) => {
            pairs.into_iter().map(|(field, value)| Ok((bytes(field)?, bytes(value)?))).collect()
        }
        Value::Array(all) if all.len() % 2 == 0 => {
            let mut all = all.into_iter();
            let mut pairs = Vec::with_capacity(all.len() / 2);
            while let (Some(field), Some(value)) = (all.next(), all.next()) {
                pairs.push((bytes(field)?, bytes(value)?));
            }
            Ok(pairs)
        }
        Value::ServerError(error) => Err(session.refused(&error)),
        _ => Err(nonsense()),
    }
}
