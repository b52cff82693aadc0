//! Servers that stand still, are killed, come back, or are not there at all.

use super::*;
use crate::ColdError;
use tidegate_sql::SqlError;
use tidegate_sql::testing::until;
use tokio::time::timeout;

/// Short for an operation, and long for a server that answers.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Many times what an operation takes that ends in time.
const IN_TIME: Duration = Duration::from_secs(30);

async fn works(cold: &Cold) -> bool {
    cold.put(0, &[row(1, 2)], NOW).await.is_ok()
        && cold.fetch(0, &[key(1)], NOW).await.is_ok_and(|found| found == [Some(row(1, 2))])
}

async fn works_again(cold: &Cold) {
    assert!(timeout(LONG, until(|| works(cold))).await.is_ok(), "not in time");
}

/// The error of each operation, in time.
async fn errors(cold: &Cold) -> Vec<ColdError> {
    let (rows, keys, versions) = ([row(1, 3)], [key(1)], [(key(9), NOW)]);
    let all = async {
        tokio::join!(
            cold.put(0, &rows, NOW),
            cold.fetch(0, &keys, NOW),
            cold.remove(0, &versions, NOW),
            cold.page(0, None, NOW),
        )
    };
    let (put, fetch, remove, page) = timeout(IN_TIME, all).await.expect("in time");
    vec![put.unwrap_err(), fetch.unwrap_err(), remove.unwrap_err(), page.unwrap_err()]
}

async fn outages(kind: Kind) {
    let Some(mut server) = Server::start(kind).await else { return };
    let settings =
        Settings { timeout: TIMEOUT, patience: TIMEOUT, ..settings(&server, "outages").await };
    let cold = Cold::open(&settings, 1).unwrap();
    works_again(&cold).await;

    server.pause();
    for error in errors(&cold).await {
        assert!(matches!(error, ColdError::Sql(SqlError::Slow(_))), "{error}");
    }
    assert_eq!(errors(&cold).await[0].to_string(), "no answer within 3 s");
    server.resume();
    works_again(&cold).await;

    // Its connections broke while nobody used them, and no operation notices that.
    let patient = Settings { timeout: LONG, patience: LONG, ..settings.clone() };
    let patient = Cold::open(&patient, 3).unwrap();
    works_again(&patient).await;
    server.kill();
    server.restart().await;
    assert!(works(&patient).await, "{kind:?}");
    works_again(&cold).await;

    server.kill();
    for error in errors(&cold).await {
        let advice = "; check that the server runs, and its host and port in the URL";
        assert!(error.to_string().ends_with(advice), "{error}");
    }
    // Without the server it opens, and works once the server is there.
    let other = Cold::open(&settings, 2).unwrap();
    assert!(!works(&other).await);
    server.restart().await;
    works_again(&cold).await;
    works_again(&other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_comes_back() {
    outages(Kind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_comes_back() {
    outages(Kind::Mariadb).await;
}

/// Another transaction has locks on what is to be changed, and does not end.
async fn locked(kind: Kind) {
    use sqlx::{Connection, Executor};
    let Some(server) = Server::start(kind).await else { return };
    let settings =
        Settings { timeout: TIMEOUT, patience: TIMEOUT, ..settings(&server, "locked").await };
    let cold = Cold::open(&settings, 1).unwrap();
    works_again(&cold).await;
    let patient = Settings { timeout: LONG, patience: LONG, ..settings.clone() };
    let patient = Cold::open(&patient, 1).unwrap();
    works_again(&patient).await;
    let mut other = sqlx::AnyConnection::connect(&settings.urls[0]).await.unwrap();
    other.execute(if kind == Kind::Sqlite { "BEGIN IMMEDIATE" } else { "BEGIN" }).await.unwrap();
    other.execute("UPDATE tidegate_cold SET id = id").await.unwrap();
    let put = timeout(IN_TIME, cold.put(0, &[row(1, 3)], NOW)).await.expect("in time");
    let error = put.unwrap_err();
    // The server ends the statement after the same time.
    let is_in_time = match &error {
        ColdError::Sql(SqlError::Slow(within)) => *within == TIMEOUT,
        error => matches!(error, ColdError::Sql(SqlError::Server { .. })),
    };
    assert!(is_in_time, "{error}");
    // Readers wait for nobody.
    let found = timeout(IN_TIME, patient.fetch(0, &[key(1)], NOW)).await.expect("in time");
    assert_eq!(found.unwrap(), [Some(row(1, 2))]);
    other.execute("ROLLBACK").await.unwrap();
    works_again(&cold).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_on_sqlite_is_waited_for_in_vain() {
    locked(Kind::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_on_postgres_is_waited_for_in_vain() {
    locked(Kind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_on_mariadb_is_waited_for_in_vain() {
    locked(Kind::Mariadb).await;
}

/// Operations that nobody waits for any more leave the connections in order, and buckets whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_that_are_given_up_leave_no_trace() {
    for kind in [Kind::Sqlite, Kind::Postgres, Kind::Mariadb] {
        let Some(server) = Server::start(kind).await else { continue };
        let cold = cold(&server, "dropped").await;
        let rows: Vec<Row> = (0..500).map(|number| row(number, 1)).collect();
        for step in 0..200 {
            let given_up = Duration::from_micros(50 * step);
            let _ = timeout(given_up, cold.put(0, &rows, NOW)).await;
            let _ = timeout(given_up, cold.fetch(0, &[key(1)], NOW)).await;
        }
        let found = cold.page(0, None, NOW).await.unwrap().rows.len();
        assert!(found == 0 || found == rows.len(), "{kind:?}: {found}");
        works_again(&cold).await;
    }
}
