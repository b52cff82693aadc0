//! A writer that is killed between any two statements.

use super::scene::*;
use crate::database::{Database, Settings};
use crate::testing::Server;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// The URL for the process that is killed.
const VARIABLE: &str = "STATISTICS_TEST_WRITER";
const APPS: usize = 30;

pub(super) async fn a_killed_writer_leaves_whole_parts(server: &Server) {
    let database = server.database("killed").await;
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
        let answer = ask(&database, &statistic("s", &["app"], None), "last=1d&top=100").await;
        let sums = sums(&answer);
        assert_eq!(sums.len(), APPS);
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
    loop {
        let points: Vec<_> = (0..APPS)
            .map(|app| point("s", NOW - 60, &[&app.to_string()], counts(1, 0, 1)))
            .collect();
        sequence += 1;
        write(&database, part(1, sequence), &points).await;
        println!("written {sequence}");
    }
}
