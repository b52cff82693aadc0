//! Several owners on one database, and its tables.

use super::*;
use crate::ColdError;

pub(super) async fn owners_do_not_see_each_other(server: &Server) {
    let settings = settings(server, "owners").await;
    let owners: Vec<Cold> =
        (0..4).map(|owner| Cold::open(&settings, owner << 90).unwrap()).collect();
    for (count, cold) in owners.iter().enumerate() {
        cold.put(0, &[row(1, count as u64 + 1)], NOW).await.unwrap();
    }
    owners[2].remove(0, &[(key(1), NOW)], NOW).await.unwrap();
    for (count, cold) in owners.iter().enumerate() {
        let expected = (count != 2).then(|| row(1, count as u64 + 1));
        assert_eq!(cold.fetch(0, &[key(1)], NOW).await.unwrap(), [expected]);
        assert_eq!(cold.page(0, None, NOW).await.unwrap().rows.len(), usize::from(count != 2));
    }
}

pub(super) async fn tables_are_made_once(server: &Server) {
    let settings = settings(server, "made").await;
    let put = async |settings: Settings, number| {
        // Four processes of each of two owners.
        let cold = Cold::open(&settings, number % 2).unwrap();
        cold.put(0, &[row(number, 1)], NOW).await.unwrap();
    };
    let putting: Vec<_> =
        (0..8).map(|number| tokio::spawn(put(settings.clone(), number))).collect();
    for putting in putting {
        putting.await.unwrap();
    }
    for owner in 0..2 {
        let cold = Cold::open(&settings, owner).unwrap();
        assert_eq!(cold.page(0, None, NOW).await.unwrap().rows.len(), 4);
    }
}

pub(super) async fn the_buckets_of_an_owner_stay_as_they_were(server: &Server) {
    let few = settings(server, "fixed").await;
    Cold::open(&few, 1).unwrap().put(0, &[row(1, 1)], NOW).await.unwrap();
    let many = Settings { buckets_log2: 20, ..few };
    let cold = Cold::open(&many, 1).unwrap();
    assert_eq!(cold.fetch(0, &[key(1)], NOW).await.unwrap(), [Some(row(1, 1))]);
    execute(&many, "UPDATE tidegate_cold_owners SET buckets = 77").await;
    let error = Cold::open(&many, 1).unwrap().fetch(0, &[key(1)], NOW).await.unwrap_err();
    assert!(error.to_string().ends_with(": 2^77 buckets are not possible"), "{error}");
}

pub(super) async fn tables_of_a_newer_program_are_left_alone(server: &Server) {
    let settings = settings(server, "newer").await;
    Cold::open(&settings, 1).unwrap().put(0, &[row(1, 1)], NOW).await.unwrap();
    execute(&settings, "UPDATE tidegate_cold_meta SET value = 9 WHERE name = 'schema'").await;
    let cold = Cold::open(&settings, 1).unwrap();
    let error = cold.put(0, &[row(1, 1)], NOW).await.unwrap_err();
    assert!(matches!(error, ColdError::Version { found: 9, known: 1 }));
    let expected = "the tables of idle counters have schema version 9, and this program knows up to 1; use a newer one";
    assert_eq!(error.to_string(), expected);
}

pub(super) async fn an_empty_database_in_place_of_the_old_one_is_used(server: &Server) {
    let settings = settings(server, "emptied").await;
    let cold = Cold::open(&settings, 1).unwrap();
    cold.put(0, &[row(1, 1)], NOW).await.unwrap();
    for sql in [
        "DROP TABLE tidegate_cold",
        "DROP TABLE tidegate_cold_owners",
        "DROP TABLE tidegate_cold_meta",
    ] {
        execute(&settings, sql).await;
    }
    assert_eq!(cold.fetch(0, &[key(1)], NOW).await.unwrap(), [None]);
    cold.put(0, &[row(1, 2)], NOW).await.unwrap();
    assert_eq!(cold.fetch(0, &[key(1)], NOW).await.unwrap(), [Some(row(1, 2))]);
}

#[test]
fn mistakes_are_refused_before_any_server_is_asked() {
    let check = |settings: Settings, expected: &str| {
        let error = Cold::open(&settings, 1).unwrap_err().to_string();
        assert_eq!(error, expected);
    };
    check(Settings::new([""; 0]), "name at least one database for idle counters");
    check(
        Settings::new(["redis://x"]),
        "expected a URL that begins with sqlite:, postgres:// or mysql://",
    );
    check(
        Settings::new([
            "mysql://a:b@db/x",
            "postgres://db/x",
            "mysql://c:d@db/x?ssl-mode=disabled",
        ]),
        "mysql://db/x and mysql://db/x are the same database; name it once",
    );
    let settings = Settings::new(["mysql://db/x"]);
    check(
        Settings { buckets_log2: 29, ..settings.clone() },
        "2^29 buckets are not allowed (2^0 to 2^28)",
    );
    check(
        Settings { timeout: Duration::ZERO, ..settings },
        "a timeout of zero lets no operation succeed",
    );
}

/// Moving a counter from one name to the other would write it and then remove it.
#[tokio::test]
async fn a_database_under_two_names_is_noticed() {
    let directory = tempfile::TempDir::new().unwrap();
    let url = |name: &str| tidegate_sql::sqlite_url(&directory.path().join(name));
    let cold = Cold::open(&Settings::new([url("x"), url("y"), url("./x")]), 1).unwrap();
    cold.put(0, &[row(1, 1)], NOW).await.unwrap();
    cold.put(1, &[row(1, 1)], NOW).await.unwrap();
    let error = cold.put(2, &[row(1, 1)], NOW).await.unwrap_err();
    assert!(matches!(error, ColdError::SameShard { .. }), "{error}");
    assert_eq!(cold.fetch(0, &[key(1)], NOW).await.unwrap(), [Some(row(1, 1))]);
}

#[tokio::test]
async fn only_its_user_reads_the_file() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::TempDir::new().unwrap();
    let url = tidegate_sql::sqlite_url(&directory.path().join("a % b?c#d.db"));
    let cold = Cold::open(&Settings::new([url]), 1).unwrap();
    assert_eq!(cold.shards(), 1);
    cold.put(0, &[row(1, 1)], NOW).await.unwrap();
    for entry in std::fs::read_dir(directory.path()).unwrap() {
        let entry = entry.unwrap();
        assert!(entry.file_name().to_str().unwrap().starts_with("a % b?c#d.db"), "{entry:?}");
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{entry:?}");
    }
    cold.close().await;
    assert!(matches!(cold.size(0).await, Err(ColdError::Closed)));
}
