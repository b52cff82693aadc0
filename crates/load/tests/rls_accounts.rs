//! The account of a load on RLS, against a server with scripted behaviour that uses another implementation of
//! HTTP/2.

mod common;

use bytes::Bytes;
use common::Done;
use h2::{Reason, server};
use http::{HeaderMap, Response};
use prost::Message;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tidegate_load::{Classes, LoadOptions, Report, Target};
use tidegate_wire::rls::{RateLimitRequest, RateLimitResponse};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Runtime;

/// What the server does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Act {
    /// With this `overall_code`.
    Answer(i32),
    /// Ends it with this gRPC status, without a message.
    Refuse(u32),
    /// Answers with this HTTP status.
    Http(u16),
    /// Resets its stream.
    Reset,
    /// Closes the connection, with all other calls on it.
    Close,
    /// Never answers.
    Ignore,
}

type Script = fn(usize, &RateLimitRequest) -> Act;

#[derive(Clone)]
struct Server {
    script: Script,
    done: Arc<Done<RateLimitRequest, Act>>,
}

impl Server {
    fn new(script: Script) -> Server {
        Server { script, done: Arc::default() }
    }

    /// Serves on a TCP port, and runs a load on it with `options`.
    fn measure(&self, options: LoadOptions) -> Report {
        let (_runtime, target) = self.start();
        measured(&LoadOptions { target, ..options })
    }

    /// Serves on a TCP port as long as the runtime is there.
    fn start(&self) -> (Runtime, Target) {
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let target = Target::Tcp(listener.local_addr().unwrap().to_string());
        let server = self.clone();
        runtime.spawn(async move {
            loop {
                tokio::spawn(server.clone().serve(listener.accept().await.unwrap().0));
            }
        });
        (runtime, target)
    }

    /// A load on a Unix socket.
    fn measure_unix(&self, path: PathBuf, options: LoadOptions) -> Report {
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(async { UnixListener::bind(&path) }).unwrap();
        let server = self.clone();
        runtime.spawn(async move {
            loop {
                tokio::spawn(server.clone().serve(listener.accept().await.unwrap().0));
            }
        });
        measured(&LoadOptions { target: Target::Unix(path), ..options })
    }

    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let mut connection = server::Builder::new()
            .max_concurrent_streams(10)
            .handshake::<_, Bytes>(stream)
            .await
            .unwrap();
        let mut ignored = Vec::new();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            // The connection must be polled for the body to arrive. A load sends headers and body at once, so
            // it has arrived.
            let mut body = request.into_body();
            let message = tokio::select! {
                biased;
                data = body.data() => data.unwrap().unwrap(),
                _ = std::future::poll_fn(|context| connection.poll_closed(context)) => return,
            };
            let _ = body.flow_control().release_capacity(message.len());
            let asked = RateLimitRequest::decode(&message[5..]).unwrap();
            let act = self.done.add(asked, self.script);
            let status = if let Act::Http(status) = act { status } else { 200 };
            let head =
                Response::builder().status(status).header("content-type", "application/grpc");
            match act {
                Act::Answer(overall_code) => {
                    let answer = RateLimitResponse { overall_code, ..RateLimitResponse::default() };
                    let answer = answer.encode_to_vec();
                    let mut frame = vec![0, 0, 0, 0, answer.len() as u8];
                    frame.extend(answer);
                    let mut stream = respond.send_response(head.body(()).unwrap(), false).unwrap();
                    stream.send_data(frame.into(), false).unwrap();
                    let mut trailers = HeaderMap::new();
                    trailers.insert("grpc-status", "0".parse().unwrap());
                    stream.send_trailers(trailers).unwrap();
                }
                Act::Refuse(code) => {
                    let head = head.header("grpc-status", code).header("grpc-message", "so it is");
                    respond.send_response(head.body(()).unwrap(), true).unwrap();
                }
                Act::Http(_) => {
                    respond.send_response(head.body(()).unwrap(), true).unwrap();
                }
                Act::Reset => respond.send_reset(Reason::INTERNAL_ERROR),
                Act::Close => return,
                Act::Ignore => ignored.push((respond, body)),
            }
        }
    }
}

fn measured(options: &LoadOptions) -> Report {
    let report = tidegate_load::measure(options).unwrap();
    report.check().unwrap();
    report
}

/// 200 requests within 0.2 s, with ample time to be answered.
fn two_hundred() -> LoadOptions {
    LoadOptions {
        rate: 1_000.0,
        duration: Duration::from_millis(200),
        timeout: Duration::from_secs(120),
        ..LoadOptions::default()
    }
}

const NONE: Classes =
    Classes { allowed: 0, denied: 0, shed: 0, refused: 0, broken: 0, timed_out: 0, not_sent: 0 };

#[test]
fn every_class_has_exactly_what_the_server_did() {
    let server = Server::new(|number, _| match number % 10 {
        0..4 => Act::Answer(1),
        4 => Act::Answer(2),
        5 => Act::Refuse(8),
        6 => Act::Refuse(14),
        7 => Act::Http(503),
        8 => Act::Http(502),
        _ => Act::Reset,
    });
    let report = server.measure(two_hundred());
    assert_eq!(
        report.account.classes,
        Classes { allowed: 80, denied: 20, shed: 40, refused: 40, broken: 20, ..NONE }
    );
    let named = |name: &str, count: u64| (name.to_owned(), count);
    assert_eq!(
        report.account.refused_by,
        [named("grpc 14 UNAVAILABLE", 20), named("http 502", 20)].into()
    );
    assert_eq!(report.account.broken_by, [named("stream reset, code 2", 20)].into());
    assert_eq!(report.connections.lost, 0);
    assert_eq!(report.latency.served.from_due.count, 100);
    assert_eq!(report.latency.answered.from_written.count, 180);
}

#[test]
fn what_is_asked_is_what_was_told() {
    let server = Server::new(|_, _| Act::Answer(1));
    let options = LoadOptions {
        domain: "shop".to_owned(),
        descriptors: vec!["app=web,user=u{key}".parse().unwrap()],
        keys: 20,
        distribution: "sequential".parse().unwrap(),
        threads: 2,
        ..two_hundred()
    };
    let directory = tempfile::tempdir().unwrap();
    let report = server.measure_unix(directory.path().join("rls.sock"), options);
    assert_eq!(report.account.classes, Classes { allowed: 200, ..NONE });
    let mut users = BTreeMap::<String, u32>::new();
    for (asked, _) in &*server.done.all() {
        assert_eq!((asked.domain.as_str(), asked.descriptors.len()), ("shop", 1));
        let entries = &asked.descriptors[0].entries;
        assert_eq!((entries[0].key.as_str(), entries[0].value.as_str()), ("app", "web"));
        *users.entry(entries[1].value.clone()).or_default() += 1;
    }
    let expected = (0..20).map(|key| (format!("u{key}"), 10)).collect();
    assert_eq!(users, expected);
}

#[test]
fn a_connection_that_is_closed_midway_loses_what_is_under_way_and_is_opened_again() {
    let server = Server::new(|number, _| match number % 20 {
        19 => Act::Close,
        _ => Act::Answer(1),
    });
    let report = server.measure(two_hundred());
    let (acts, classes) = (server.done.acts(), report.account.classes);
    assert_eq!(report.account.due, 200);
    assert_eq!(classes.allowed + classes.broken, 200, "{classes:?}");
    assert!(classes.broken >= acts[&Act::Close], "{classes:?} {acts:?}");
    assert!(classes.allowed <= acts[&Act::Answer(1)], "{classes:?} {acts:?}");
    // A connection lost at the very end need not be reopened.
    assert_eq!(report.connections.lost, acts[&Act::Close]);
    assert!(report.connections.opened > report.connections.lost, "{:?}", report.connections);
}

#[test]
fn calls_that_are_never_answered_time_out_and_the_rest_is_not_sent() {
    let server = Server::new(|_, _| Act::Ignore);
    let timeout = Duration::from_secs(3);
    let (_runtime, target) = server.start();
    let options = LoadOptions { target, timeout, connections: 2, ..two_hundred() };
    let classes = measured(&options).account.classes;
    // The server allows 10 streams on each connection.
    assert_eq!(classes, Classes { timed_out: 20, not_sent: 180, ..NONE });
    assert_eq!(server.done.acts_after(20)[&Act::Ignore], 20);
}

#[test]
fn more_streams_than_the_server_allows_wait_their_turn() {
    let server = Server::new(|_, _| Act::Answer(1));
    let options = LoadOptions { rate: 10_000.0, connections: 1, ..two_hundred() };
    let report = server.measure(options);
    assert_eq!(report.account.classes, Classes { allowed: 2_000, ..NONE });
}

#[test]
fn a_closed_loop_keeps_every_answer() {
    let server = Server::new(|_, _| Act::Answer(2));
    // Long enough to send something on a busy machine.
    let duration = Duration::from_secs(1);
    let options = LoadOptions { closed: true, streams: Some(5), duration, ..two_hundred() };
    let report = server.measure(options);
    let denied = server.done.acts()[&Act::Answer(2)];
    assert_eq!(report.account.classes, Classes { denied, ..NONE });
    assert_eq!(report.config.rate, None);
}
