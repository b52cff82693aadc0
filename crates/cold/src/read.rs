//! Operations that change nothing: rows of keys, pages of all keys, and how much there is.

use crate::bucket::{Place, decode};
use crate::owner::Owner;
use crate::pool::Role;
use crate::shard::{Failure, Operation};
use crate::{ColdError, Row, Size};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row as _};
use std::collections::HashMap;
use tidegate_sql::{Dialect, chunks, rows};
use tidegate_store::Hashed;

/// Buckets of a page: 3,000 keys of a usual bucket, which are read in a millisecond.
const PAGE_BUCKETS: usize = 64;
/// Buckets that a size is estimated by. If they are as full as by chance, the error is 4 % at one counter a bucket, and less
/// at more.
const SAMPLE_BUCKETS: usize = 512;

pub(crate) struct Fetch<'a> {
    pub(crate) keys: &'a [Hashed],
    pub(crate) now: u32,
}

impl Operation for Fetch<'_> {
    type Answer = Vec<Option<Row>>;
    const ROLE: Role = Role::Reads;

    async fn run(
        &self,
        connection: &mut AnyConnection,
        dialect: Dialect,
        owner: Owner,
    ) -> Result<Vec<Option<Row>>, Failure> {
        let mut ids: Vec<i64> = self.keys.iter().map(|key| owner.place(key.hash).id).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut buckets = HashMap::new();
        for chunk in chunks(&ids) {
            for (place, bytes) in select(connection, dialect, owner, chunk, "").await? {
                buckets.insert(place.id, decoded(place, &bytes)?);
            }
        }
        let found = self.keys.iter().map(|key| {
            let bucket: &Vec<Row> = buckets.get(&owner.place(key.hash).id)?;
            let index = bucket.binary_search_by_key(key, |row| row.key).ok()?;
            bucket.get(index).filter(|row| row.expires_at > self.now).cloned()
        });
        Ok(found.collect())
    }
}

/// The next buckets of a shard.
pub(crate) struct Next {
    pub(crate) after: Option<u32>,
}

/// Buckets in ascending order, and whether there may be more.
pub(crate) struct Buckets {
    pub(crate) all: Vec<(Place, Vec<Row>)>,
    pub(crate) is_last: bool,
}

impl Operation for Next {
    type Answer = Buckets;
    const ROLE: Role = Role::Reads;

    async fn run(
        &self,
        connection: &mut AnyConnection,
        dialect: Dialect,
        owner: Owner,
    ) -> Result<Buckets, Failure> {
        let first = match self.after {
            Some(after) => owner.id(after).saturating_add(1),
            None => owner.id(0),
        };
        let found = range(connection, dialect, owner, first, PAGE_BUCKETS).await?;
        let is_last = found.len() < PAGE_BUCKETS;
        let mut all = Vec::with_capacity(found.len());
        for (place, bytes) in found {
            all.push((place, decoded(place, &bytes)?));
        }
        Ok(Buckets { all, is_last })
    }
}

pub(crate) struct Measure;

impl Operation for Measure {
    type Answer = Size;
    const ROLE: Role = Role::Reads;

    async fn run(
        &self,
        connection: &mut AnyConnection,
        dialect: Dialect,
        owner: Owner,
    ) -> Result<Size, Failure> {
        let found = range(connection, dialect, owner, owner.id(0), SAMPLE_BUCKETS).await?;
        let (mut counters, mut bytes) = (0, 0);
        for (place, entries) in &found {
            counters += decoded(*place, entries)?.len() as u64;
            bytes += entries.len() as u64;
        }
        // Hashes are spread evenly, so the first buckets stand for all.
        let covered = match found.last() {
            Some((last, _)) if found.len() == SAMPLE_BUCKETS => u64::from(last.bucket) + 1,
            _ => owner.buckets(),
        };
        let scaled = |count: u64| {
            let scaled = u128::from(count) * u128::from(owner.buckets()) / u128::from(covered);
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };
        Ok(Size { counters: scaled(counters), bytes: scaled(bytes) })
    }
}

/// The buckets of these ids that are there.
pub(crate) async fn select(
    connection: &mut AnyConnection,
    dialect: Dialect,
    owner: Owner,
    ids: &[i64],
    lock: &str,
) -> sqlx::Result<Vec<(Place, Vec<u8>)>> {
    let parameters = rows(1, ids.len());
    // All writers lock rows in the same order.
    let order = if lock.is_empty() { "" } else { "ORDER BY id" };
    let sql =
        format!("SELECT id, entries FROM tidegate_cold WHERE id IN {parameters} {order} {lock}");
    let mut select = sqlx::query(dialect.sql(&sql));
    for id in ids {
        select = select.bind(*id);
    }
    let found = select.fetch_all(connection).await?;
    found.iter().map(|row| entries(row, owner)).collect()
}

/// Some buckets from an id on, in ascending order.
async fn range(
    connection: &mut AnyConnection,
    dialect: Dialect,
    owner: Owner,
    first: i64,
    most: usize,
) -> sqlx::Result<Vec<(Place, Vec<u8>)>> {
    let sql = format!(
        "SELECT id, entries FROM tidegate_cold WHERE id BETWEEN ? AND ? ORDER BY id LIMIT {most}"
    );
    let select = sqlx::query(dialect.sql(&sql)).bind(first).bind(owner.id(u32::MAX));
    let found = select.fetch_all(connection).await?;
    found.iter().map(|row| entries(row, owner)).collect()
}

fn entries(row: &AnyRow, owner: Owner) -> sqlx::Result<(Place, Vec<u8>)> {
    Ok((owner.place_of_row(row.try_get(0)?), row.try_get(1)?))
}

pub(crate) fn decoded(place: Place, bytes: &[u8]) -> Result<Vec<Row>, ColdError> {
    decode(place, bytes).map_err(|flaw| ColdError::Damaged { id: place.id, flaw })
}
