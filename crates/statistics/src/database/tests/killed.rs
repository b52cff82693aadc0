//! A writer that is killed between any two statements, also of rolling up.

use super::scene::*;
use crate::database::{Database, Settings, Thinner};
use crate::testing::{Databases, Server};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The URL for the process that is killed.
const VARIABLE: &str = "STATISTICS_TEST_WRITER";
const APPS: usize = 30;

/// The time of a part. Hours pass from part to part, so each process rolls some of them up.
fn time(sequence: u64) -> i64 {
    NOW - 20 * 3_600 + 1_200 * sequence.cast_signed()
}

pub(super) async fn a_killed_writer_leaves_whole_parts(server: &Server) {
    let database = server.database("killed").await;
    roll_from(&database, time(0)).await;
    let mut sequence = 0;
    for round in 0..5 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "database::tests::killed::the_writer_that_is_killed", "--nocapture"])
            .env(VARIABLE, format!("{sequence} {}", database.settings.url))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // Killed after some parts, while it writes the next one.
        for line in lines.by_ref() {
            if let Some(written) = line.unwrap().strip_prefix("written ") {
                sequence = written.parse().unwrap();
            }
            if sequence >= (round + 1) * 4 {
                break;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        for line in lines.map_while(Result::ok) {
            if let Some(written) = line.strip_prefix("written ") {
                sequence = written.parse().unwrap();
            }
        }
        let statistic = statistic("s", &["app"], None);
        let [hours, minutes] = ["1h", "5m"].map(|step| format!("last=1d&top=100&step={step}"));
        let deadline = Instant::now() + Duration::from_secs(60);
        let (sums_by_hours, sums) = loop {
            let by_minutes = sums(&ask(&database, &statistic, &minutes).await);
            let by_hours = sums(&ask(&database, &statistic, &hours).await);
            // A server may have the last transaction of the killed writer, and end it now.
            let is_same = by_minutes == sums(&ask(&database, &statistic, &minutes).await);
            if is_same || Instant::now() >= deadline {
                break (by_hours, by_minutes);
            }
        };
        assert_eq!((sums.len(), &sums_by_hours), (APPS, &sums));
        let allowed = sums[0].1.allowed;
        // All of a part, and of the last one all or nothing.
        assert!(sums.iter().all(|(_, counts)| counts.allowed == allowed), "{sums:?}");
        assert!(allowed == sequence || allowed == sequence + 1, "{allowed} {sequence}");
        sequence = allowed;
    }
}

/// Does nothing unless it is started by the test above.
#[tokio::test]
async fn the_writer_that_is_killed() {
    let Ok(task) = std::env::var(VARIABLE) else { return };
    let (sequence, url) = task.split_once(' ').unwrap();
    let mut sequence: u64 = sequence.parse().unwrap();
    let database = Database::open(Settings::new(url)).await.unwrap();
    let mut thinner = Thinner::new(sequence);
    loop {
        sequence += 1;
        let at = time(sequence);
        let point = |app: usize| point("s", at, &[&app.to_string()], counts(1, 0, 1));
        let points: Vec<_> = (0..APPS).map(point).collect();
        write(&database, part(1, sequence), &points).await;
        println!("written {sequence}");
        for _ in 0..3 {
            // Whatever does not succeed is done by the next step.
            let _ = thinner.step(&database, at + 60).await;
        }
    }
}
