//! Databases that are new, of another version, or not there.

use super::scene::*;
use crate::database::{Database, DatabaseError, Settings};
use crate::testing::{Databases, Kind, Server};
use tidegate_sql::SqlError;

pub(super) async fn tables_are_made_once(server: &Server) {
    let settings = server.create("made").await;
    let opening: Vec<_> = (0..8).map(|_| tokio::spawn(Database::open(settings.clone()))).collect();
    let mut seeds = Vec::new();
    for opening in opening {
        seeds.push(opening.await.unwrap().unwrap().seed);
    }
    assert!(seeds.iter().all(|seed| *seed == seeds[0] && *seed != 0), "{seeds:?}");
}

pub(super) async fn tables_of_another_program_are_left_alone(server: &Server) {
    let database = server.database("newer").await;
    let sql = "UPDATE tidegate_meta SET value = 9 WHERE name = 'schema'";
    sqlx::query(sql).execute(&database.pool).await.unwrap();
    let error = Database::open(database.settings.clone()).await.unwrap_err().to_string();
    let expected =
        "the statistics have schema version 9, and this program knows up to 4; use a newer one";
    assert_eq!(error, expected);
    let sql = "UPDATE tidegate_meta SET value = 1 WHERE name = 'schema'";
    sqlx::query(sql).execute(&database.pool).await.unwrap();
    let error = Database::open(database.settings.clone()).await.unwrap_err().to_string();
    let expected = "the statistics have schema version 1, of a program before the first release; name a new database";
    assert_eq!(error, expected);
}

async fn error(url: &str) -> String {
    let error = Database::open(Settings::new(url)).await.unwrap_err();
    assert!(!error.is_refusal());
    error.to_string()
}

#[tokio::test]
async fn a_url_that_cannot_be_is_refused_at_once() {
    for url in ["", "redis://x", "/var/lib/x.db", "postgres"] {
        assert!(
            matches!(Settings::new(url).check(), Err(DatabaseError::Sql(SqlError::Url))),
            "{url}"
        );
        assert!(error(url).await.starts_with("expected a URL that begins with"), "{url}");
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_made_says_why() {
    let server = Server::start(Kind::Sqlite).await.unwrap();
    let error = error(&server.url("none/statistics.db")).await;
    assert!(
        error.ends_with("; check that its directory exists, and that this user may write there"),
        "{error}"
    );
}

#[tokio::test]
async fn servers_that_refuse_say_what_to_do() {
    for kind in [Kind::Postgres, Kind::Mariadb] {
        let Some(mut server) = Server::start(kind).await else { continue };
        let wrong = server.url("postgres").replace("se%40cret", "wrong");
        let password = error(&wrong).await;
        assert!(password.ends_with("; check the user and the password in the URL"), "{password}");
        assert!(!password.contains("wrong"), "{password}");
        let missing = error(&server.url("missing")).await;
        assert!(missing.contains("database"), "{missing}");
        assert!(
            missing.contains("; create the database") || missing.contains("; check the database"),
            "{missing}"
        );
        let url = server.url("gone");
        server.kill();
        let gone = error(&url).await;
        assert!(
            gone.ends_with("; check that the server runs, and its host and port in the URL"),
            "{gone}"
        );
    }
}

/// Another user's database, in which it may read only.
#[tokio::test]
async fn a_user_who_may_not_create_tables_is_told() {
    let Some(server) = Server::start(Kind::Postgres).await else { return };
    use sqlx::{Connection, Executor};
    let settings = server.create("narrow").await;
    let mut owner = server.administrator().await;
    owner.execute("CREATE USER reader PASSWORD 'r'").await.unwrap();
    let url = settings.url.replace("tide:se%40cret", "reader:r");
    let error = error(&url).await;
    assert!(
        error.ends_with("; let the user create and change tables in the database's schema"),
        "{error}"
    );
    // Once the tables are there, a user who may only read them gets answers.
    let database = Database::open(settings.clone()).await.unwrap();
    let points = [point("s", NOW - 60, &["web"], counts(1, 0, 1))];
    write(&database, part(1, 1), &points).await;
    let mut owner = sqlx::AnyConnection::connect(&settings.url).await.unwrap();
    owner.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader").await.unwrap();
    let reader = Database::open(Settings::new(url)).await.unwrap();
    assert_eq!(total(&reader, "s").await.total, counts(1, 0, 1));
    let error = reader.write(part(2, 1), &points, NOW).await.unwrap_err().to_string();
    assert!(error.starts_with("permission denied"), "{error}");
}

#[tokio::test]
async fn only_its_user_reads_the_file() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::TempDir::new().unwrap();
    let file = dir.path().join("a % b?c#d.db");
    let database = Database::open(Settings::sqlite(&file)).await.unwrap();
    write(&database, part(1, 1), &[point("s", NOW - 60, &["web"], counts(1, 0, 1))]).await;
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{:?}", entry.file_name());
        assert!(entry.file_name().to_str().unwrap().starts_with("a % b?c#d.db"), "{entry:?}");
    }
}

#[tokio::test]
async fn a_damaged_file_is_named() {
    let server = Server::start(Kind::Sqlite).await.unwrap();
    let url = server.url("damaged.db");
    let file = url.strip_prefix("sqlite://").unwrap().split('?').next().unwrap();
    std::fs::write(file, vec![7_u8; 8_192]).unwrap();
    let error = error(&url).await;
    assert!(error.ends_with("; move the file away, and a new one is made"), "{error}");
}

/// Answers come from connections that cannot change anything.
#[tokio::test]
async fn readers_only_read() {
    for kind in [Kind::Sqlite, Kind::Postgres] {
        let Some(server) = Server::start(kind).await else { continue };
        let database = server.database("readers").await;
        let sql = "UPDATE tidegate_meta SET value = 0";
        assert!(sqlx::query(sql).execute(&database.readers).await.is_err(), "{kind:?}");
        assert_eq!(total(&database, "s").await.total, counts(0, 0, 0));
    }
}

#[tokio::test]
async fn a_server_proves_its_name_where_the_url_asks_for_it() {
    let Some(mut server) = Server::start(Kind::Postgres).await else { return };
    let settings = server.create("tls").await;
    let certificate = server.with_tls().await;
    let root = certificate.display().to_string();
    let verified = |host: &str| {
        let url = settings.url.replace("127.0.0.1", host);
        format!("{url}?sslmode=verify-full&sslrootcert={root}")
    };
    let database = Database::open(Settings::new(verified("localhost"))).await.unwrap();
    write(&database, part(1, 1), &[point("s", NOW - 60, &["web"], counts(1, 0, 1))]).await;
    let sql = "SELECT COUNT(*) FROM pg_stat_ssl WHERE ssl AND pid = pg_backend_pid()";
    let row = sqlx::query(sql).fetch_one(&database.pool).await.unwrap();
    assert_eq!(sqlx::Row::get::<i64, _>(&row, 0), 1);
    assert_eq!(total(&database, "s").await.total, counts(1, 0, 1));
    // The certificate has no such name, and those of public authorities are no help.
    for url in [verified("127.0.0.1"), format!("{}?sslmode=verify-full", settings.url)] {
        let error = error(&url).await;
        assert!(error.ends_with("and the server's certificate"), "{error}");
    }
}

#[tokio::test]
async fn a_database_without_all_characters_is_refused() {
    let Some(server) = Server::start(Kind::Postgres).await else { return };
    let mut administrator = server.administrator().await;
    let sql = "CREATE DATABASE tide_latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0";
    sqlx::query(sql).execute(&mut administrator).await.unwrap();
    let error = error(&server.url("latin")).await;
    assert!(error.starts_with("the database has the encoding LATIN1"), "{error}");
}
