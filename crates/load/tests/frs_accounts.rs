//! The account of a load on FRS, against servers with scripted behaviour: the load's account must match the
//! server's.

mod common;

use common::Done;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use tidegate_load::{Classes, Distribution, FrsCommand, LoadOptions, Protocol, Report, Target};

/// What a server does with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Act {
    Allow,
    Deny,
    /// Answers with this status and a useless body.
    Status(u16),
    /// Answers with something that is not HTTP.
    Garbage,
    /// Closes the connection instead of answering.
    Close,
    /// Answers, then closes the connection.
    AllowAndClose,
    /// Waits for the next request on the connection, then allows both.
    AllowWithNext,
    /// Never answers.
    Ignore,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Asked {
    command: String,
    key: u64,
}

type Script = dyn Fn(usize, &Asked) -> Act + Send + Sync;

/// Serves until the end of the test. Records requests and reactions in order of arrival.
struct Server {
    address: SocketAddr,
    done: Arc<Done<Asked, Act>>,
}

impl Server {
    fn start(script: impl Fn(usize, &Asked) -> Act + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let done = Arc::new(Done::default());
        let (script, doing): (Arc<Script>, _) = (Arc::new(script), done.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (script, doing) = (script.clone(), doing.clone());
                std::thread::spawn(move || serve(&stream.unwrap(), &*script, &doing));
            }
        });
        Server { address, done }
    }

    fn measure(&self, options: LoadOptions) -> Report {
        let target = Target::Tcp(self.address.to_string());
        let options = LoadOptions { target, protocol: Protocol::Frs, ..options };
        let report = tidegate_load::measure(&options).unwrap();
        report.check().unwrap();
        report
    }
}

/// None at the end of the connection.
fn read_request(reader: &mut BufReader<&TcpStream>) -> Option<Asked> {
    let (mut command, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            break;
        }
        if let Some(name) = line.strip_prefix("X-FRS-Command: ") {
            name.trim().clone_into(&mut command);
        }
        if let Some(number) = line.strip_prefix("Content-Length: ") {
            length = number.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body = String::from_utf8(body).unwrap();
    let key = body.split("key=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
    Some(Asked { command, key })
}

fn serve(stream: &TcpStream, script: &Script, done: &Done<Asked, Act>) {
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    let mut held = 0;
    while let Some(asked) = read_request(&mut reader) {
        let act = done.add(asked, script);
        let answer = |status: u16, verdict: &str, headers: &str| {
            let body = format!("<frs><item verdict=\"{verdict}\"/></frs>");
            let length = body.len();
            format!("HTTP/1.1 {status} X\r\n{headers}Content-Length: {length}\r\n\r\n{body}")
        };
        let before = answer(200, "allow", "").repeat(std::mem::take(&mut held));
        let text = match act {
            Act::Allow => answer(200, "allow", ""),
            Act::Deny => answer(200, "deny", ""),
            Act::Status(status) => answer(status, "none", ""),
            Act::Garbage => "what?\r\n\r\n".to_owned(),
            Act::Close => return,
            Act::AllowAndClose => answer(200, "allow", "Connection: close\r\n"),
            Act::AllowWithNext => {
                held = 1;
                continue;
            }
            Act::Ignore => continue,
        };
        // The load may have closed the connection.
        if writer.write_all((before + &text).as_bytes()).is_err() || act == Act::AllowAndClose {
            return;
        }
    }
}

/// 100 requests within 0.2 s, with ample time to be answered.
fn hundred() -> LoadOptions {
    LoadOptions {
        rate: 500.0,
        duration: Duration::from_millis(200),
        timeout: Duration::from_secs(120),
        command: FrsCommand::Acquire,
        connections: 4,
        ..LoadOptions::default()
    }
}

const NONE: Classes =
    Classes { allowed: 0, denied: 0, shed: 0, refused: 0, broken: 0, timed_out: 0, not_sent: 0 };

#[test]
fn every_class_has_exactly_what_the_server_did() {
    let server = Server::start(|number, _| match number % 10 {
        0..4 => Act::Allow,
        4 => Act::Deny,
        5 => Act::Status(503),
        6 => Act::Status(400),
        7 => Act::Status(200),
        8 => Act::Close,
        _ => Act::Garbage,
    });
    let report = server.measure(hundred());
    assert_eq!(report.account.due, 100);
    assert_eq!(
        report.account.classes,
        Classes { allowed: 40, denied: 10, shed: 10, refused: 20, broken: 20, ..NONE }
    );
    let named = |names: [(&str, u64); 2]| names.map(|(name, count)| (name.to_owned(), count));
    assert_eq!(
        report.account.refused_by,
        named([("http 400", 10), ("unreadable answer", 10)]).into()
    );
    assert_eq!(
        report.account.broken_by,
        named([("connection closed", 10), ("protocol broken", 10)]).into()
    );
    assert_eq!(report.latency.served.from_due.count, 50);
    assert_eq!(report.latency.shed.from_written.count, 10);
    assert_eq!(report.latency.answered.from_due.count, 80);
    assert_eq!(report.schedule_lag.count, 100);
    assert_eq!(report.connections.lost, 20);
}

#[test]
fn pipelined_requests_are_lost_with_their_connection_and_counted_once() {
    let server = Server::start(|number, _| match number % 7 {
        6 => Act::Close,
        _ => Act::Allow,
    });
    let options = LoadOptions { connections: 2, streams: Some(8), threads: 2, ..hundred() };
    let report = server.measure(options);
    let acts = server.done.acts();
    let classes = report.account.classes;
    // Requests behind one whose connection was closed were sent, but the server did not see them. An answer
    // may be lost when its connection is reset.
    assert_eq!(report.account.due, 100);
    assert_eq!(classes.allowed + classes.broken, 100);
    assert!(classes.allowed <= acts[&Act::Allow], "{classes:?} {acts:?}");
    assert!(classes.broken >= acts[&Act::Close], "{classes:?} {acts:?}");
}

#[test]
fn a_server_that_closes_after_each_answer_is_asked_on_new_connections() {
    let server = Server::start(|_, _| Act::AllowAndClose);
    let report = server.measure(hundred());
    assert_eq!(report.account.classes, Classes { allowed: 100, ..NONE });
    assert!(report.connections.opened >= 100, "{:?}", report.connections);
}

#[test]
fn a_server_that_never_answers_times_out_what_was_sent_and_no_more_is_sent() {
    let server = Server::start(|_, _| Act::Ignore);
    let timeout = Duration::from_secs(3);
    let report = server.measure(LoadOptions { connections: 3, timeout, ..hundred() });
    // One request holds each connection for longer than the last of the others may wait.
    assert_eq!(report.account.classes, Classes { timed_out: 3, not_sent: 97, ..NONE });
    assert_eq!(report.account.late, 0);
    assert_eq!(server.done.acts_after(3)[&Act::Ignore], 3);
}

#[test]
fn what_is_due_beyond_the_queue_is_not_sent() {
    let server = Server::start(|_, _| Act::Ignore);
    let options =
        LoadOptions { connections: 1, queue: 1, timeout: Duration::from_secs(3), ..hundred() };
    let report = server.measure(options);
    assert_eq!(report.account.classes, Classes { timed_out: 1, not_sent: 99, ..NONE });
}

/// Only requests that must wait use the queue: with a free stream nothing waits.
#[test]
fn what_is_due_while_a_stream_is_free_needs_no_queue() {
    let server = Server::start(|_, _| Act::Allow);
    let options = LoadOptions { connections: 1, streams: Some(100), queue: 0, ..hundred() };
    assert_eq!(server.measure(options).account.classes, Classes { allowed: 100, ..NONE });
}

#[test]
fn an_answer_after_the_timeout_is_late_and_counts_for_nothing_else() {
    // The first is answered when the second one comes, which is due four seconds later.
    let server = Server::start(|number, _| match number {
        0 => Act::AllowWithNext,
        _ => Act::Allow,
    });
    let options = LoadOptions {
        rate: 0.25,
        duration: Duration::from_secs(8),
        timeout: Duration::from_millis(3_500),
        connections: 1,
        streams: Some(2),
        ..hundred()
    };
    let account = server.measure(options).account;
    // The second one has the whole timeout for its answer.
    assert_eq!(account.classes, Classes { allowed: 1, timed_out: 1, ..NONE });
    assert_eq!(account.late, 1);
}

#[test]
fn a_pair_is_an_update_for_each_query_that_was_allowed() {
    let server = Server::start(|number, asked| match (asked.command.as_str(), asked.key % 3) {
        ("Query", 0) => Act::Deny,
        ("Query", 1) if number % 2 == 0 => Act::Close,
        _ => Act::Allow,
    });
    let options = LoadOptions { command: FrsCommand::Pair, keys: 30, ..hundred() };
    let report = server.measure(options);
    let mut allowed = BTreeMap::<u64, i64>::new();
    let (mut queries, mut updates) = (0, 0);
    for (asked, act) in &*server.done.all() {
        if asked.command == "Query" {
            queries += 1;
            *allowed.entry(asked.key).or_default() += i64::from(*act == Act::Allow);
        } else {
            updates += 1;
            let open = allowed.entry(asked.key).or_default();
            *open -= 1;
            assert!(*open >= 0, "an Update of {} without a Query", asked.key);
        }
    }
    assert!(allowed.values().all(|&open| open == 0), "a Query without its Update: {allowed:?}");
    assert_eq!(queries, 100);
    assert_eq!(report.account.due, queries + updates);
    assert_eq!(report.pairs, Some(updates));
    assert!(updates > 0 && report.account.classes.denied > 0, "{report:?}");
}

#[test]
fn warm_up_is_sent_and_kept_apart() {
    let server = Server::start(|_, _| Act::Allow);
    let report = server.measure(LoadOptions { warmup: Duration::from_millis(100), ..hundred() });
    assert_eq!(report.warmup.due, 50);
    assert_eq!(report.warmup.classes, Classes { allowed: 50, ..NONE });
    assert_eq!(report.account.classes, Classes { allowed: 100, ..NONE });
    assert_eq!(report.latency.served.from_due.count, 100);
    assert_eq!(server.done.acts()[&Act::Allow], 150);
}

#[test]
fn a_closed_loop_sends_what_is_answered_and_not_more() {
    let server = Server::start(|_, _| Act::Allow);
    // Long enough to send something on a busy machine.
    let duration = Duration::from_secs(1);
    let options = LoadOptions { closed: true, threads: 2, duration, ..hundred() };
    let report = server.measure(options);
    let allowed = server.done.acts()[&Act::Allow];
    assert!(allowed > 0);
    assert_eq!(report.account.classes, Classes { allowed, ..NONE });
}

#[test]
fn a_seed_decides_all_chance() {
    let keys_of = |seed| {
        let server = Server::start(|_, _| Act::Allow);
        let options = LoadOptions {
            poisson: true,
            distribution: Distribution::Zipf(1.0),
            connections: 1,
            seed,
            ..hundred()
        };
        let due = server.measure(options).account.due;
        let done = server.done.all();
        assert_eq!(done.len() as u64, due);
        done.iter().map(|(asked, _)| asked.key).collect::<Vec<_>>()
    };
    let keys = keys_of(5);
    assert_eq!(keys, keys_of(5));
    assert_ne!(keys, keys_of(6));
}

#[test]
fn a_target_that_is_not_there_is_an_error_that_names_it() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let target = Target::Tcp(address.to_string());
    let error = tidegate_load::measure(&LoadOptions { target, ..hundred() }).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains(&format!("cannot connect to {address}")), "{error}");
}
