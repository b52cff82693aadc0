//! The options of Envoy's own filter: selection of requests, enforcement of denials, errors.

use super::world::{Envoy, NoFacts};
use super::{deny_only_call, fail_all, replied, resumed};
use crate::config::{Fraction, RequestType, Selection};
use crate::host::{RequestFacts, StreamId};
use crate::worker::HeadersStatus;
use crate::worker::call_error::CallError;

/// A request from an address, with the header by which Envoy marks internal ones.
struct Marked(Option<&'static str>);

impl RequestFacts for Marked {
    fn header<T>(&self, name: &str, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        (name == "x-envoy-internal").then_some(self.0?.as_bytes()).map(read)
    }

    fn property<T>(&self, path: &[&str], read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        (path == ["source", "address"]).then(|| read(b"10.0.0.1:1"))
    }
}

/// Whether a call is made about a request with this header.
fn is_looked_at(envoy: &mut Envoy, marked: Option<&'static str>) -> bool {
    let status = envoy.workers[0].on_request(StreamId(9), &Marked(marked));
    envoy.workers[0].on_gone(StreamId(9), &NoFacts);
    let calls = fail_all(envoy, CallError::Late);
    assert_eq!(status == HeadersStatus::Pause, calls == 1);
    calls == 1
}

fn selecting(request_type: RequestType, enabled: Fraction) -> Envoy {
    Envoy::with(1, |config| {
        config.selection = Some(Selection { request_type, enabled });
        config.is_special = true;
    })
}

fn half() -> Fraction {
    Fraction { numerator: 50, denominator: 100 }
}

fn none() -> Fraction {
    Fraction { numerator: 0, denominator: 100 }
}

#[test]
fn internal_and_external_requests_differ_by_envoys_header() {
    let table = [
        (RequestType::Both, [true, true, true]),
        (RequestType::Internal, [true, false, false]),
        (RequestType::External, [false, true, true]),
    ];
    for (request_type, expected) in table {
        let looked_at = [Some("true"), Some("false"), None].map(|marked| {
            let mut envoy = selecting(request_type, Fraction::ALL);
            is_looked_at(&mut envoy, marked)
        });
        assert_eq!(looked_at, expected, "{request_type:?}");
    }
}

#[test]
fn a_share_of_requests_is_looked_at() {
    let looked_at = |share| {
        let mut envoy = selecting(RequestType::Both, share);
        (0..200).filter(|_| is_looked_at(&mut envoy, None)).count()
    };
    assert_eq!([looked_at(none()), looked_at(Fraction::ALL)], [0, 200]);
    assert!((60..=140).contains(&looked_at(half())));
}

fn enforcing(share: Fraction) -> Envoy {
    Envoy::with(1, |config| config.filter_enforced = share)
}

#[test]
fn denials_that_are_not_enforced_pass_and_are_counted() {
    for (share, carried_out) in [(Fraction::ALL, true), (none(), false)] {
        let mut envoy = enforcing(share);
        // One is denied by the answer, one that waits for it by the cached denial, as is the next.
        envoy.request(0, &[("a", 1)]);
        envoy.request(0, &[("a", 1)]);
        envoy.counted();
        deny_only_call(&mut envoy);
        let (_, last) = envoy.request(0, &[("a", 1)]);
        let counted: Vec<(String, i64)> = envoy.counted();
        if carried_out {
            assert_eq!(replied(&envoy), [(1, 429), (2, 429), (3, 429)]);
            assert_eq!((resumed(&envoy), last), (vec![], HeadersStatus::Pause));
            assert_eq!(counted, [("denied_asked".to_owned(), 2), ("denied_local".to_owned(), 1)]);
        } else {
            assert_eq!(replied(&envoy), []);
            assert_eq!((resumed(&envoy), last), (vec![1, 2], HeadersStatus::Continue));
            let expected = [("allowed_asked", 2), ("allowed_local", 1), ("shadow_denied", 3)];
            assert_eq!(counted, expected.map(|(name, count)| (name.to_owned(), count)));
        }
    }
}

#[test]
fn a_share_of_denials_is_enforced() {
    let mut envoy = enforcing(half());
    envoy.request(0, &[("a", 1)]);
    deny_only_call(&mut envoy);
    let before = replied(&envoy).len();
    assert!(before <= 1);
    let denied =
        (0..200).filter(|_| envoy.request(0, &[("a", 1)]).1 == HeadersStatus::Pause).count();
    assert!((60..=140).contains(&denied), "{denied}");
    assert_eq!(replied(&envoy).len(), denied);
}

#[test]
fn descriptors_in_shadow_count_once_whatever_is_enforced() {
    let mut envoy = enforcing(none());
    envoy.request_with_shadow(0, &[], &[("a", 1)]);
    envoy.counted();
    deny_only_call(&mut envoy);
    assert_eq!(envoy.counted(), [("shadow_denied".to_owned(), 1)]);
}

#[test]
fn a_share_of_failures_is_denied_with_the_configured_status() {
    let failing = |share| {
        let mut envoy = Envoy::with(1, |config| {
            (config.failure_mode_deny_percent, config.status_on_error) = (Some(share), 504);
        });
        for _ in 0..200 {
            envoy.request(0, &[("a", 1)]);
            fail_all(&mut envoy, CallError::Stuck);
        }
        let replies = replied(&envoy);
        assert!(replies.iter().all(|(_, status)| *status == 504), "{replies:?}");
        (replies.len(), std::mem::take(&mut envoy.world_mut().logs))
    };
    let cause = "cluster c: a stopped process holds a counter (gRPC status 10)";
    let passes = format!("{cause}; such requests pass unlimited (failure_mode_deny_percent allow)");
    assert_eq!(failing(none()), (0, vec![passes]));
    let denies = format!("{cause}; such requests get 504 (failure_mode_deny_percent deny)");
    assert_eq!(failing(Fraction::ALL), (200, vec![denies]));
    let (denied, logs) = failing(half());
    assert!((60..=140).contains(&denied), "{denied}");
    assert_eq!(
        logs,
        [
            "cluster c: a stopped process holds a counter (gRPC status 10); 50 of 100 such requests get 504, the \
          others pass unlimited (failure_mode_deny_percent)"
        ]
    );
}
