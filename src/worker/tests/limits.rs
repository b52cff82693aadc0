//! A descriptor that meets several limits: each is shown, with the tokens at hand, wherever the
//! decision was made.

use super::NoFacts;
use super::authority::made_up;
use super::states::after_ms;
use super::world::Envoy;
use super::{only_call, resumed};
use crate::config::HeaderStyle;
use crate::host::StreamId;
use crate::worker::HeadersStatus;
use tidegate_core::{FurtherLimit, Lease, LimitView, Nanos, Status, StatusDetails, Unit, Verdict};

fn view(name: &str, requests: u32) -> LimitView {
    LimitView { requests, unit: Some(Unit::Minute), name: name.to_owned() }
}

/// A status with the limits `t` (tightest), `day` and one without a name.
fn several(verdict: Verdict, remaining: [u32; 3], lease: Option<Lease>) -> Status {
    let verdict_of = |left: u32| match (verdict, left) {
        (Verdict::Deny, 0) => Verdict::Deny,
        _ => Verdict::Allow,
    };
    let further = |name: &str, requests, remaining| FurtherLimit {
        limit: view(name, requests),
        remaining,
        reset: Nanos::from_secs(9),
        verdict: verdict_of(remaining),
    };
    let further = vec![further("day", 500, remaining[1]), further("", 900, remaining[2])];
    Status {
        verdict,
        limit: Some(view("t", 100)),
        remaining: remaining[0],
        reset: Nanos::from_secs(5),
        lease,
        details: Some(Box::new(StatusDetails {
            further,
            without_shadow: Verdict::Allow,
            is_uncounted: false,
        })),
    }
}

fn lease(envoy: &Envoy, tokens: u32) -> Option<Lease> {
    Some(Lease { id: 7, tokens, valid_until: after_ms(envoy, 900) })
}

fn ietf(workers: usize) -> Envoy {
    Envoy::with(workers, |config| config.headers = HeaderStyle::Ietf)
}

/// Answers the only call.
fn answer(envoy: &mut Envoy, verdict: Verdict, statuses: Vec<Status>) {
    let call = only_call(envoy);
    envoy.world_mut().sent.clear();
    envoy.workers[call.worker].on_answer(call.id, Ok(&made_up(verdict, statuses)));
    envoy.wake_all();
}

/// The header `ratelimit` of a response.
fn shown(envoy: &mut Envoy, worker: usize, stream: StreamId) -> String {
    envoy.world_mut().headers.clear();
    envoy.workers[worker].on_response(stream, &NoFacts);
    let world = envoy.world();
    let header = world.headers.iter().find(|(name, _)| *name == "ratelimit");
    header.map_or(String::new(), |(_, value)| value.clone())
}

#[test]
fn an_asked_and_a_leased_decision_show_every_limit_with_the_tokens_at_hand() {
    let mut envoy = ietf(2);
    let (first, _) = envoy.request(0, &[("a", 1)]);
    let status = several(Verdict::Allow, [40, 440, 840], lease(&envoy, 50));
    answer(&mut envoy, Verdict::Allow, vec![status]);
    assert_eq!(resumed(&envoy), [1]);
    let expected =
        |t: u32| format!("\"t\";r={t};t=5, \"day\";r={};t=9, \"k\";r={};t=9", t + 400, t + 800);
    assert_eq!(shown(&mut envoy, 0, first), expected(90));
    // By this worker, and by another one that finds the lease in the slot.
    for (worker, left) in [(0, 89), (1, 88)] {
        let (stream, status) = envoy.request(worker, &[("a", 1)]);
        assert_eq!(status, HeadersStatus::Continue, "worker {worker}");
        assert_eq!(shown(&mut envoy, worker, stream), expected(left), "worker {worker}");
    }
}

/// A new lease did not count the tokens of the one before it that were still in the slot, so clients
/// saw fewer hits left than there were, until the next chunk was taken.
#[test]
fn tokens_of_an_earlier_lease_count_too() {
    let mut envoy = ietf(1);
    let (first, _) = envoy.request(0, &[("a", 1)]);
    let earlier = super::states::tokens(&envoy, 3, 9);
    envoy.change_slot("a", |slot| slot.pool.leases[0] = earlier);
    let status = several(Verdict::Allow, [31, 431, 831], lease(&envoy, 50));
    answer(&mut envoy, Verdict::Allow, vec![status]);
    let expected =
        |t: u32| format!("\"t\";r={t};t=5, \"day\";r={};t=9, \"k\";r={};t=9", t + 400, t + 800);
    assert_eq!(shown(&mut envoy, 0, first), expected(90));
    let (second, _) = envoy.request(0, &[("a", 1)]);
    assert_eq!(shown(&mut envoy, 0, second), expected(89));
}

#[test]
fn draft03_lists_every_limit() {
    let mut envoy = Envoy::with(1, |config| config.headers = HeaderStyle::Draft03);
    let (stream, _) = envoy.request(0, &[("a", 1)]);
    let status = several(Verdict::Allow, [40, 440, 840], None);
    answer(&mut envoy, Verdict::Allow, vec![status]);
    shown(&mut envoy, 0, stream);
    let list = "100, 100;w=60;name=\"t\", 500;w=60;name=\"day\", 900;w=60;name=\"k\"";
    assert_eq!(envoy.world().headers[0], ("x-ratelimit-limit", list.to_owned()));
    assert_eq!(envoy.world().headers[1], ("x-ratelimit-remaining", "40".to_owned()));
}

/// A limit of the descriptor that has room does not deny.
#[test]
fn an_asked_and_a_cached_denial_show_every_limit() {
    let mut envoy = ietf(2);
    envoy.request(0, &[("a", 1)]);
    let status = several(Verdict::Deny, [0, 440, 0], lease(&envoy, 0));
    answer(&mut envoy, Verdict::Deny, vec![status]);
    for worker in [0, 1] {
        envoy.request(worker, &[("a", 1)]);
    }
    let replies = std::mem::take(&mut envoy.world_mut().replies);
    assert_eq!(replies.len(), 3);
    for (stream, status, headers) in replies {
        let header =
            |name| headers.iter().find(|(known, _)| *known == name).map(|(_, v)| v.as_str());
        let expected = "\"t\";r=0;t=5, \"day\";r=440;t=9, \"k\";r=0;t=9";
        assert_eq!((status, header("ratelimit")), (429, Some(expected)), "{stream:?}");
        assert_eq!(header("retry-after"), Some("9"), "the longest of those that deny");
    }
}

/// The others were of a descriptor whose limits changed meanwhile.
#[test]
fn the_next_answer_replaces_all_limits() {
    let mut envoy = ietf(1);
    envoy.request(0, &[("a", 1)]);
    let status = several(Verdict::Allow, [40, 440, 840], None);
    answer(&mut envoy, Verdict::Allow, vec![status]);
    let (second, _) = envoy.request(0, &[("a", 1)]);
    let status = Status { details: None, ..several(Verdict::Allow, [39, 0, 0], lease(&envoy, 9)) };
    answer(&mut envoy, Verdict::Allow, vec![status]);
    assert_eq!(shown(&mut envoy, 0, second), "\"t\";r=48;t=5");
    let (third, _) = envoy.request(0, &[("a", 1)]);
    assert_eq!(shown(&mut envoy, 0, third), "\"t\";r=47;t=5");
}
