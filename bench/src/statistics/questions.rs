//! The questions of the console's pages, each over all its ranges.

use super::SUITE;
use crate::progress;
use crate::report::Row;
use anyhow::ensure;
use std::time::Instant;
use tidegate_statistics::Declared;
use tidegate_statistics::database::Database;
use tidegate_statistics::respond::respond;

const RANGES: [&str; 6] = ["1h", "1d", "7d", "31d", "366d", "3660d"];
/// Name, statistic and parameters of each question. Its app is a popular one, with as many rows as there can be.
const QUESTIONS: [(&str, &str, &str); 13] = [
    ("all apps", "app-calls", ""),
    ("one app", "app-calls", "app=app-2"),
    ("largest apps", "app-calls", "by=app"),
    ("most denied apps", "app-calls", "by=app&order=denied"),
    ("interfaces of an app", "app-interface", "by=interface&app=app-2"),
    ("apps of an interface", "app-interface", "by=app&interface=/v1/2"),
    ("apps of all interfaces", "app-interface", "by=app"),
    ("interfaces of all apps", "app-interface", "by=interface"),
    ("all interfaces of an app", "app-interface", "app=app-2"),
    ("largest interfaces", "app-interface", "by=app,interface"),
    ("users of all apps", "app-users", ""),
    ("users of an app", "app-users", "app=app-2"),
    ("apps with users", "app-users", "by=app"),
];
const ROUNDS: usize = 3;

pub(super) async fn measure(
    database: &Database,
    declared: &Declared,
    now: u64,
) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (case, name, parameters) in QUESTIONS {
        for range in RANGES {
            progress::show(&format!("Asking for {case}, {range}"));
            let query = format!("{parameters}&last={range}");
            let mut took = Vec::new();
            for _ in 0..ROUNDS {
                let begun = Instant::now();
                let answer =
                    respond(declared, Some(database), (name, &query), now.cast_signed()).await;
                ensure!(answer.status == 200, "{case}, {range}: {}", answer.body);
                ensure!(answer.body["series"][0].is_object(), "{case}, {range}: no series");
                took.push(begun.elapsed().as_secs_f64() * 1e3);
            }
            let case = format!("{case}, {range}");
            rows.push(Row::new(SUITE, case, ("answer", "ms"), crate::figures::median(&took)));
        }
    }
    Ok(rows)
}
