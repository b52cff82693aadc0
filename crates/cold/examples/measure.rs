//! What idle counters cost: bytes of a counter beside those of a plain table with a row for each, and the time of
//! operations. Prints a line for each figure; servers that are not installed are left out.
//!
//! `cargo run --release -p tidegate-cold --example measure [COUNTERS] [COUNTERS_A_BUCKET]`

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use sqlx::{AnyConnection, Connection, Executor, Row as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tidegate_cold::{Cold, Row, Settings};
use tidegate_sql::testing::{Kind, Server};
use tidegate_sql::{Dialect, chunks, rows};
use tidegate_store::Hashed;

/// 26 November 2026.
const NOW: u32 = 1_795_600_800;
const BATCH: usize = 1_000;

fn main() {
    let number = |index, default| {
        std::env::args().nth(index).map_or(default, |number| number.parse().unwrap())
    };
    let (counters, a_bucket) = (number(1, 200_000), number(2, 25));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        for kind in [Kind::Sqlite, Kind::Postgres, Kind::Mariadb] {
            if let Some(server) = Server::start(kind).await {
                measure(&server, counters, a_bucket).await;
            }
        }
    });
}

async fn measure(server: &Server, counters: usize, a_bucket: usize) {
    let kind = server.kind;
    let buckets_log2 = (counters / a_bucket).next_power_of_two().ilog2();
    let url = server.create_database("plain").await;
    let mut plain = Plain::new(&url, kind, "").await;
    // The most compact form that SQLite has for such a table.
    let url = server.create_database("compact").await;
    let mut compact = match kind {
        Kind::Sqlite => Some(Plain::new(&url, kind, "WITHOUT ROWID").await),
        _ => None,
    };
    let url = server.create_database("cold").await;
    let settings = Settings {
        timeout: Duration::from_secs(60),
        buckets_log2: u8::try_from(buckets_log2).unwrap(),
        ..Settings::new([url.clone()])
    };
    let cold = Cold::open(&settings, 1).unwrap();
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut all: Vec<(u64, Row)> = (0..counters).map(|index| counter(index, &mut random)).collect();
    for (rounds, name) in [(0..1, "written once"), (1..4, "written four times")] {
        for round in rounds {
            // Otherwise nothing would change, and nothing be written.
            all.iter_mut().for_each(|(_, row)| row.moved_at += round);
            for batch in all.chunks(BATCH) {
                plain.put(batch).await;
                if let Some(compact) = &mut compact {
                    compact.put(batch).await;
                }
                let rows: Vec<Row> = batch.iter().map(|(_, row)| row.clone()).collect();
                cold.put(0, &rows, NOW).await.unwrap();
            }
        }
        let sizes = (bytes(kind, &url, "tidegate_cold").await, plain.bytes().await);
        let [ours, theirs] = [sizes.0, sizes.1].map(|bytes| bytes as f64 / counters as f64);
        println!("{kind:?}, {name}: {ours:.1} bytes a counter, {theirs:.1} in a plain table");
        if let Some(compact) = &compact {
            let theirs = compact.bytes().await as f64 / counters as f64;
            println!("{kind:?}, {name}: {theirs:.1} in a plain table WITHOUT ROWID");
        }
    }
    let size = cold.size(0).await.unwrap();
    println!("{kind:?}: {:.1} of them in entries", size.bytes as f64 / size.counters as f64);
    for (name, settings) in [("the same", settings), ("2^21", usual(server).await)] {
        let cold = Cold::open(&settings, 1).unwrap();
        time(&cold, &all, &format!("{kind:?}, {name} buckets")).await;
    }
}

async fn usual(server: &Server) -> Settings {
    let url = server.create_database("usual").await;
    Settings { timeout: Duration::from_secs(60), ..Settings::new([url]) }
}

/// The time of operations in batches, and of a single key.
async fn time(cold: &Cold, all: &[(u64, Row)], name: &str) {
    let again = |row: &Row| Row { moved_at: row.moved_at + 1, ..row.clone() };
    let rows: Vec<Row> = all.iter().map(|(_, row)| again(row)).collect();
    let since = Instant::now();
    for rows in rows.chunks(BATCH) {
        cold.put(0, rows, NOW).await.unwrap();
    }
    report(name, "put", all.len(), since);
    let since = Instant::now();
    for rows in rows.chunks(BATCH) {
        let keys: Vec<Hashed> = rows.iter().map(|row| row.key).collect();
        assert!(cold.fetch(0, &keys, NOW).await.unwrap().iter().all(Option::is_some));
    }
    report(name, "fetched", all.len(), since);
    let mut times: Vec<Duration> = Vec::new();
    for row in rows.iter().step_by(rows.len() / 2_000 + 1) {
        let since = Instant::now();
        assert!(cold.fetch(0, &[row.key], NOW).await.unwrap()[0].is_some());
        times.push(since.elapsed());
    }
    times.sort_unstable();
    let [median, late] = [50, 99].map(|percent| times[times.len() * percent / 100]);
    println!("{name}: one key in {median:.0?}, 99 % within {late:.0?}");
    let since = Instant::now();
    let mut after = None;
    let mut listed = 0;
    loop {
        let page = cold.page(0, after, NOW).await.unwrap();
        listed += page.rows.len();
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    report(name, "listed", listed, since);
    let since = Instant::now();
    for rows in rows.chunks(BATCH) {
        let versions: Vec<_> = rows.iter().map(|row| (row.key, row.moved_at)).collect();
        cold.remove(0, &versions, NOW).await.unwrap();
    }
    report(name, "removed", all.len(), since);
}

fn report(name: &str, what: &str, counters: usize, since: Instant) {
    println!("{name}: {:.0} counters/s {what}", counters as f64 / since.elapsed().as_secs_f64());
}

/// A counter of a window of an hour, by the number of its user.
fn counter(index: usize, random: &mut Xoshiro256PlusPlus) -> (u64, Row) {
    let hash = u128::from(random.next_u64()) << 64 | u128::from(random.next_u64());
    let moved_at = NOW - u32::try_from(random.next_u64() % 86_400).unwrap();
    let end = moved_at + 3_600;
    let state = [random.next_u64() % 1_000, u64::from(end)].into_iter().collect();
    let row = Row { key: Hashed::narrow(hash), state, expires_at: NOW + 86_400, moved_at };
    // Up to 8 digits, each once: the second number is a prime.
    (index as u64 * 48_271 % 99_999_989, row)
}

/// A table with a row for each counter.
struct Plain {
    connection: AnyConnection,
    dialect: Dialect,
    kind: Kind,
    url: String,
}

impl Plain {
    async fn new(url: &str, kind: Kind, end: &str) -> Plain {
        sqlx::any::install_default_drivers();
        let mut connection = AnyConnection::connect(url).await.unwrap();
        let create = format!(
            "CREATE TABLE plain (name VARCHAR(200) PRIMARY KEY, count BIGINT NOT NULL, \
             until BIGINT NOT NULL, version BIGINT NOT NULL) {end}"
        );
        let dialect = Dialect::of(url).unwrap();
        connection.execute(dialect.sql(&create)).await.unwrap();
        Plain { connection, dialect, kind, url: url.to_owned() }
    }

    async fn put(&mut self, counters: &[(u64, Row)]) {
        let dialect = self.dialect;
        let mut transaction = self.connection.begin_with(dialect.begin()).await.unwrap();
        for chunk in chunks(counters) {
            let new = |column: &str| match dialect {
                Dialect::Mysql => format!("{column} = VALUES({column})"),
                _ => format!("{column} = excluded.{column}"),
            };
            let sql = format!(
                "INSERT INTO plain (name, count, until, version) VALUES {} {} {}",
                rows(chunk.len(), 4),
                dialect.on_conflict("name"),
                ["count", "until", "version"].map(new).join(", ")
            );
            let mut insert = sqlx::query(dialect.sql(&sql));
            for (user, row) in chunk {
                insert = insert.bind(format!("shop.example|user|{user}"));
                insert = insert.bind(row.state[0].cast_signed()).bind(row.state[1].cast_signed());
                insert = insert.bind(i64::from(row.moved_at));
            }
            insert.execute(&mut *transaction).await.unwrap();
        }
        transaction.commit().await.unwrap();
    }

    async fn bytes(&self) -> u64 {
        bytes(self.kind, &self.url, "plain").await
    }
}

/// The bytes of a table with its indexes, without any that the server would give back by itself.
async fn bytes(kind: Kind, url: &str, table: &str) -> u64 {
    let mut connection = AnyConnection::connect(url).await.unwrap();
    let sql = match kind {
        Kind::Sqlite => {
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").await.unwrap();
            let file = url.strip_prefix("sqlite://").unwrap().split('?').next().unwrap();
            return std::fs::metadata(PathBuf::from(file)).unwrap().len();
        }
        Kind::Postgres => format!("SELECT pg_total_relation_size('{table}')"),
        Kind::Mariadb => {
            let analyze = format!("ANALYZE TABLE {table}");
            connection.execute(Dialect::Mysql.sql(&analyze)).await.unwrap();
            format!(
                "SELECT CAST(data_length + index_length AS SIGNED) FROM information_schema.tables \
                 WHERE table_name = '{table}' AND table_schema = DATABASE()"
            )
        }
    };
    let row = connection.fetch_one(Dialect::of(url).unwrap().sql(&sql)).await.unwrap();
    row.get::<i64, _>(0).cast_unsigned()
}
