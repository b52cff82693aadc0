//! Several processes of one owner write at once. Each has connections of its own.

use super::*;

const WRITERS: u128 = 6;
const ROUNDS: u128 = 25;
/// Counters of one transaction.
const ROWS: u128 = 8;

/// Each writer puts counters of its own, and removes the odd ones again.
async fn write(cold: Cold, writer: u128) {
    for round in 0..ROUNDS {
        let numbers = (0..ROWS).map(|index| (writer * ROUNDS + round) * ROWS + index);
        let rows: Vec<Row> = numbers.map(|number| row(number, 1)).collect();
        cold.put(0, &rows, NOW).await.unwrap();
        let odd: Vec<(Hashed, u32)> =
            rows.iter().skip(1).step_by(2).map(|row| (row.key, row.moved_at)).collect();
        assert_eq!(cold.remove(0, &odd, NOW).await.unwrap(), odd.len() as u64);
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
        assert_eq!(found.is_some(), number % 2 == 0, "{name}: {number}");
    }
}

pub(super) async fn writers_of_one_bucket_lose_nothing(server: &Server) {
    all_write(server, "bucket", 0).await;
}

/// Buckets come and go under the writers, and each transaction is at several.
pub(super) async fn writers_of_all_buckets_lose_nothing(server: &Server) {
    all_write(server, "buckets", 5).await;
}
