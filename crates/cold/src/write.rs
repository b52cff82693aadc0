//! Changes of counters: one transaction, whose buckets are read, changed and written.
//!
//! Buckets are locked in the order of their ids before they are read. A bucket that does not exist cannot be locked, so its
//! insert says whether another transaction has made it meanwhile; if so, the whole transaction runs again. A bucket that is
//! left without counters is deleted, and every bucket that is changed loses what has expired.

use crate::bucket::{Place, encode};
use crate::owner::Owner;
use crate::pool::Role;
use crate::read::{decoded, select};
use crate::shard::{Failure, Operation};
use crate::{ColdError, Row};
use sqlx::{AnyConnection, Connection};
use std::collections::HashMap;
use tidegate_sql::{Dialect, SqlError, chunks, rows};
use tidegate_store::Hashed;

/// The change of one counter.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Edit<'a> {
    Put(&'a Row),
    /// Unless it was written again, so that it has a later version.
    Remove(Hashed, u32),
    /// Of the key's bucket, only what has expired is dropped.
    Tidy(Hashed),
}

impl Edit<'_> {
    fn key(&self) -> Hashed {
        match self {
            Edit::Put(row) => row.key,
            Edit::Remove(key, _) | Edit::Tidy(key) => *key,
        }
    }
}

pub(crate) struct Write<'a> {
    /// In ascending order of their keys. Of two of one key the later one counts.
    edits: Vec<Edit<'a>>,
    now: u32,
}

/// The buckets that a transaction changes: those to insert, to replace and to delete.
#[derive(Default)]
struct Changed {
    new: Vec<(i64, Vec<u8>)>,
    replaced: Vec<(i64, Vec<u8>)>,
    deleted: Vec<i64>,
}

impl<'a> Write<'a> {
    pub(crate) fn new(mut edits: Vec<Edit<'a>>, now: u32) -> Write<'a> {
        edits.sort_by_key(Edit::key);
        Write { edits, now }
    }

    /// Changes some buckets. Returns how many counters were removed by an edit.
    async fn change(
        &self,
        connection: &mut AnyConnection,
        dialect: Dialect,
        owner: Owner,
        buckets: &[(Place, &[Edit<'_>])],
    ) -> Result<u64, Failure> {
        let ids: Vec<i64> = buckets.iter().map(|(place, _)| place.id).collect();
        let found = select(connection, dialect, owner, &ids, dialect.for_update()).await?;
        let found: HashMap<i64, Vec<u8>> =
            found.into_iter().map(|(place, bytes)| (place.id, bytes)).collect();
        let mut changed = Changed::default();
        let mut removed = 0;
        for (place, edits) in buckets {
            let before = found.get(&place.id);
            let mut rows = match before {
                Some(bytes) => decoded(*place, bytes)?,
                None => Vec::new(),
            };
            removed += apply(&mut rows, edits);
            rows.retain(|row| row.expires_at > self.now);
            let bytes = (!rows.is_empty()).then(|| encode(*place, &rows));
            match (before, bytes) {
                (None, None) => {}
                (None, Some(bytes)) => changed.new.push((place.id, bytes)),
                (Some(_), None) => changed.deleted.push(place.id),
                (Some(before), Some(bytes)) if *before == bytes => {}
                (Some(_), Some(bytes)) => changed.replaced.push((place.id, bytes)),
            }
        }
        changed.write(connection, dialect).await?;
        Ok(removed)
    }
}

impl Operation for Write<'_> {
    type Answer = u64;
    const ROLE: Role = Role::Writes;

    async fn run(
        &self,
        connection: &mut AnyConnection,
        dialect: Dialect,
        owner: Owner,
    ) -> Result<u64, Failure> {
        let place = |edit: &Edit<'_>| owner.place(edit.key().hash);
        let buckets = self.edits.chunk_by(|one, other| place(one) == place(other));
        let buckets: Vec<(Place, &[Edit<'_>])> =
            buckets.filter_map(|edits| Some((place(edits.first()?), edits))).collect();
        let mut transaction = connection.begin_with(dialect.begin()).await?;
        let mut removed = 0;
        for chunk in chunks(&buckets) {
            removed += self.change(&mut transaction, dialect, owner, chunk).await?;
        }
        match transaction.commit().await {
            Ok(()) => Ok(removed),
            Err(error) if dialect.is_conflict(&error) => Err(error.into()),
            // It may be done. Another process may have changed the rows since, and a second try would undo that.
            Err(error) => Err(ColdError::from(SqlError::of(dialect, &error)).into()),
        }
    }
}

impl Changed {
    async fn write(self, connection: &mut AnyConnection, dialect: Dialect) -> Result<(), Failure> {
        for chunk in chunks(&self.new) {
            let insert = dialect.insert_new("tidegate_cold", "id, entries", &rows(chunk.len(), 2));
            if execute(connection, dialect, &insert, chunk).await? < chunk.len() as u64 {
                return Err(Failure::Conflict);
            }
        }
        for chunk in chunks(&self.replaced) {
            let new =
                if dialect == Dialect::Mysql { "VALUES(entries)" } else { "excluded.entries" };
            let insert = format!(
                "INSERT INTO tidegate_cold (id, entries) VALUES {} {} entries = {new}",
                rows(chunk.len(), 2),
                dialect.on_conflict("id")
            );
            execute(connection, dialect, &insert, chunk).await?;
        }
        for chunk in chunks(&self.deleted) {
            let sql = format!("DELETE FROM tidegate_cold WHERE id IN {}", rows(1, chunk.len()));
            let mut delete = sqlx::query(dialect.sql(&sql));
            for id in chunk {
                delete = delete.bind(*id);
            }
            delete.execute(&mut *connection).await?;
        }
        Ok(())
    }
}

/// Returns how many rows were changed.
async fn execute(
    connection: &mut AnyConnection,
    dialect: Dialect,
    sql: &str,
    buckets: &[(i64, Vec<u8>)],
) -> sqlx::Result<u64> {
    let mut insert = sqlx::query(dialect.sql(sql));
    for (id, entries) in buckets {
        insert = insert.bind(*id).bind(entries.clone());
    }
    Ok(insert.execute(connection).await?.rows_affected())
}

/// Changes the rows of a bucket, which are in ascending order of their keys, as the edits are. Returns how many were removed.
fn apply(rows: &mut Vec<Row>, edits: &[Edit<'_>]) -> u64 {
    let mut removed = 0;
    for edit in edits {
        let found = rows.binary_search_by_key(&edit.key(), |row| row.key);
        match (edit, found) {
            (Edit::Put(row), Ok(index)) => rows[index] = (*row).clone(),
            (Edit::Put(row), Err(index)) => rows.insert(index, (*row).clone()),
            (Edit::Remove(_, version), Ok(index)) if rows[index].moved_at <= *version => {
                rows.remove(index);
                removed += 1;
            }
            (Edit::Remove(..) | Edit::Tidy(_), _) => {}
        }
    }
    removed
}
