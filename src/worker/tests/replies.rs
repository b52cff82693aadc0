//! Replies that depend on the request: what is read of it, and when.

use super::authority::{made_up, status};
use super::states::after_ms;
use super::world::Envoy;
use super::{deny_only_call, fail_all, only_call};
use crate::config::{Config, FormatChoice, Formats};
use crate::host::{RequestFacts, StreamId};
use crate::worker::call_error::CallError;
use tidegate_core::Verdict;

fn formatted(choice: Option<FormatChoice>) -> Envoy {
    Envoy::with(1, |config: &mut Config| {
        let formats = |choice| Box::new(Formats { choice, json: None, problem: None });
        config.denied.content.formats = choice.map(formats);
    })
}

/// One is denied by the answer, this many that wait for it by the cached denial, and one more at
/// once: the beginning of each body and its content type, without repetitions.
fn denied(envoy: &mut Envoy, waiting: usize) -> Vec<(String, String)> {
    for _ in 0..=waiting {
        envoy.request(0, &[("a", 1)]);
    }
    assert_eq!(envoy.world().header_reads, 0);
    deny_only_call(envoy);
    envoy.request(0, &[("a", 1)]);
    assert_eq!(envoy.world().bodies.len(), waiting + 2);
    seen(envoy)
}

fn seen(envoy: &Envoy) -> Vec<(String, String)> {
    let world = envoy.world();
    let replies = world.replies.iter().zip(&world.bodies);
    let mut seen: Vec<(String, String)> = replies
        .map(|((_, _, headers), body)| {
            let content_type = headers.iter().find(|(name, _)| *name == "content-type").unwrap();
            (body.chars().take(8).collect(), content_type.1.clone())
        })
        .collect();
    seen.dedup();
    seen
}

fn one(body: &str, content_type: &str) -> Vec<(String, String)> {
    vec![(body.to_owned(), content_type.to_owned())]
}

#[test]
fn nothing_is_read_of_a_request_that_gets_text() {
    let mut envoy = formatted(None);
    envoy.world_mut().request_headers.push(("accept", "application/json"));
    assert_eq!(denied(&mut envoy, 3), one("rate lim", "text/plain"));
    assert_eq!(envoy.world().header_reads, 0);
}

/// Thousands wait, and each gets the format of its request when it is its turn.
#[test]
fn each_reply_has_the_format_of_its_request() {
    use FormatChoice::{Accept, Json, Problem};
    const TEXT: (&str, &str) = ("rate lim", "text/plain");
    let table = [
        (Json, vec![], ("{\"type\":", "application/json")),
        (Problem, vec![("accept", "text/plain")], ("{\"type\":", "application/problem+json")),
        (Accept, vec![], TEXT),
        (Accept, vec![("accept", "application/json")], ("{\"type\":", "application/json")),
        (Json, vec![("content-type", "application/grpc")], TEXT),
        (Accept, vec![("accept", "*/*;q=0"), ("content-type", "application/grpc+x")], TEXT),
    ];
    for (choice, headers, (body, content_type)) in table {
        let mut envoy = formatted(Some(choice));
        envoy.world_mut().request_headers = headers;
        assert_eq!(denied(&mut envoy, 2_000), one(body, content_type), "{choice:?}");
    }
}

#[test]
fn errors_and_overload_have_the_format_of_denials() {
    for (error, body) in [
        (CallError::Stuck, r#"{"status":500,"detail":"rate limiter unavailable"}"#),
        (
            CallError::Shed,
            r##"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Temporary Reduced Capacity","status":503,"detail":"rate limiter overloaded"}"##,
        ),
    ] {
        let mut envoy = formatted(Some(FormatChoice::Problem));
        envoy.request(0, &[("a", 1)]);
        fail_all(&mut envoy, error);
        assert_eq!(envoy.world().bodies, [body]);
        assert_eq!(seen(&envoy)[0].1, "application/problem+json");
    }
}

/// A request with one header.
struct User(&'static str);

impl RequestFacts for User {
    fn header<T>(&self, name: &str, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        (name == self.0).then(|| read(b"u"))
    }

    fn property<T>(&self, _: &[&str], _: impl FnOnce(&[u8]) -> T) -> Option<T> {
        None
    }
}

/// A configuration of two entries, of which the second has its own reply and hides its limits.
fn by_entry(config: &mut Config) {
    let json = br#"{"domain": "d", "sidecar": {"cluster": "c"}, "rate_limits": [
        {"actions": [{"request_headers": {"header_name": "a", "descriptor_key": "a"}}]},
        {"actions": [{"request_headers": {"header_name": "b", "descriptor_key": "b"}}],
         "denied": {"status": 402}, "x_ratelimit_option": "OFF"}]}"#;
    *config = Config::from_envoy(json).unwrap();
}

#[test]
fn a_denial_by_answer_or_from_memory_is_that_of_its_entry() {
    for (header, expected, shows) in [("a", 429, true), ("b", 402, false)] {
        let mut envoy = Envoy::with(1, by_entry);
        envoy.workers[0].on_request(StreamId(1), &User(header));
        let ends = after_ms(&envoy, 900).as_nanos();
        let call = only_call(&envoy);
        let denial = made_up(Verdict::Deny, vec![status(Verdict::Deny, 0, ends)]);
        envoy.workers[0].on_answer(call.id, Ok(&denial));
        envoy.wake_all();
        envoy.workers[0].on_request(StreamId(2), &User(header));
        let world = envoy.world();
        assert_eq!(world.replies.len(), 2);
        for (_, status, headers) in &world.replies {
            assert_eq!(*status, expected);
            assert_eq!(headers.iter().any(|(name, _)| *name == "ratelimit"), shows, "{header}");
        }
    }
}
