//! Rows that somebody else has changed.

use super::*;
use crate::{ColdError, Flaw};

pub(super) async fn damage_is_named_and_changes_nothing(server: &Server) {
    let settings = Settings { buckets_log2: 1, ..settings(server, "damaged").await };
    let cold = Cold::open(&settings, 1).unwrap();
    let (low, high) = (Hashed::narrow(1), Hashed::narrow(u128::MAX));
    let row = |key| Row { key, ..row(1, 1) };
    cold.put(0, &[row(low), row(high)], NOW).await.unwrap();
    // Nothing but its last byte tells that the bytes of the first bucket are damaged.
    let sql = match server.kind {
        Kind::Sqlite => {
            "UPDATE tidegate_cold SET entries = CAST(substr(entries, 1, length(entries) - 1) || x'09' AS BLOB) \
             WHERE id = (SELECT MAX(id) FROM tidegate_cold)"
        }
        Kind::Postgres => {
            "UPDATE tidegate_cold SET entries = set_byte(entries, length(entries) - 1, 9) \
             WHERE id = (SELECT MAX(id) FROM tidegate_cold)"
        }
        Kind::Mariadb => {
            "UPDATE tidegate_cold SET entries = INSERT(entries, LENGTH(entries), 1, x'09') \
             ORDER BY id DESC LIMIT 1"
        }
    };
    execute(&settings, sql).await;
    let expected = async |error: ColdError| {
        assert!(matches!(error, ColdError::Damaged { flaw: Flaw::Checksum, .. }), "{error}");
        let error = error.to_string();
        assert!(error.starts_with("row ") && error.contains(" of tidegate_cold is damaged: "));
    };
    expected(cold.fetch(0, &[low, high], NOW).await.unwrap_err()).await;
    expected(cold.page(0, None, NOW).await.unwrap_err()).await;
    expected(cold.size(0).await.unwrap_err()).await;
    // A change that meets it changes no other bucket either.
    let newer = |key| Row { moved_at: NOW + 1, ..row(key) };
    expected(cold.put(0, &[newer(low), newer(high)], NOW).await.unwrap_err()).await;
    expected(cold.remove(0, &[(low, NOW), (high, NOW)], NOW).await.unwrap_err()).await;
    // The others are there, and the connections in order.
    assert_eq!(cold.fetch(0, &[low], NOW).await.unwrap(), [Some(row(low))]);
    cold.put(0, &[newer(low)], NOW).await.unwrap();
    assert_eq!(cold.fetch(0, &[low], NOW).await.unwrap(), [Some(newer(low))]);
}
