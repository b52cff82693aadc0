//! Looks at cold counters that change nothing, for operators' commands.

use crate::record::{Record, record_key};
use crate::rows::{Away, Rows};
use tidegate_cold::Row;
use tidegate_store::{Entry, Hashed};

/// The key of the node that says whether rows of a counter count, while it is not hot.
#[must_use]
pub fn key_of_record(seed: u64, counter: &Hashed) -> Hashed {
    record_key(seed, counter)
}

/// Whether that node says that no row counts.
#[must_use]
pub fn is_absent(record: Option<&Entry>) -> bool {
    let record = record.and_then(|record| Record::read(&record.state));
    matches!(record, Some((_, Record::Absent | Record::Fetched { .. })))
}

/// Whether a node is such a record, and no counter.
#[must_use]
pub fn is_record(seed: u64, key: &Hashed, entry: &Entry) -> bool {
    Record::of_node(seed, key, &entry.state).is_some()
}

/// The row that counts for a counter that is not hot, if it has one.
///
/// # Errors
/// If a database does not answer.
pub async fn row(rows: &dyn Rows, key: &Hashed, now: u32) -> Result<Option<Row>, Away> {
    let mut newest: Option<Row> = None;
    for shard in 0..rows.shards().len() {
        let fetched = rows.fetch(shard, std::slice::from_ref(key), now).await?;
        for row in fetched.into_iter().flatten() {
            if newest.as_ref().is_none_or(|newest| newest.moved_at < row.moved_at) {
                newest = Some(row);
            }
        }
    }
    Ok(newest)
}
