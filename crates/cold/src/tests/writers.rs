//! Several processes of one owner write at once. Each has connections of its own.

use super::*;

const WRITERS: u128 = 6;
const ROUNDS: u128 = 25;
/// Counters of one transaction.
const ROWS: u128 = 8;

/// Each writer puts counters of its own, and removes all but the first of each transaction again.
async fn write(cold: Cold, writer: u128) {
    for round in 0..ROUNDS {
        let numbers = (0..ROWS).map(|index| (writer * ROUNDS + round) * ROWS + index);
        let rows: Vec<Row> = numbers.map(|number| row(number, 1)).collect();
        cold.put(0, &rows, NOW).await.unwrap();
        let others: Vec<(Hashed, u32)> =
            rows.iter().skip(1).map(|row| (row.key, row.moved_at)).collect();
        assert_eq!(cold.remove(0, &others, NOW).await.unwrap(), others.len() as u64);
    }
    cold.close().await;
}

async fn all_write(server: &Server, name: &str, buckets_log2: u8) {
    let settings = Settings { buckets_log2, ..settings(server, name).await };
    let writing: Vec<_> = (0..WRITERS)
        .map(|writer| tokio::spawn(write(Cold::open(&settings, 1).unwrap(), writer)))
        .collect();
    for writing in writing {
        writing.await.unwrap();
    }
    let cold = Cold::open(&settings, 1).unwrap();
    let keys: Vec<Hashed> = (0..WRITERS * ROUNDS * ROWS).map(key).collect();
    let found = cold.fetch(0, &keys, NOW).await.unwrap();
    for (number, found) in found.iter().enumerate() {
        assert_eq!(found.is_some(), (number as u128).is_multiple_of(ROWS), "{name}: {number}");
    }
}

pub(super) async fn writers_of_one_bucket_lose_nothing(server: &Server) {
    all_write(server, "bucket", 0).await;
}

/// Each transaction is at several buckets. Some of them come and go under the writers.
pub(super) async fn writers_of_all_buckets_lose_nothing(server: &Server) {
    all_write(server, "buckets", 7).await;
}
