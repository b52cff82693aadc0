//! Costs that are known at the end of a stream: what is debited, from which tokens, by which calls.

mod debits;

use super::authority::{Authority, made_up, status};
use super::world::{Envoy, MILLI, NoFacts, Sent};
use super::{answer_all, fail_all, only_call, replied, resumed};
use crate::config::{Config, UndecidedMode};
use crate::host::{RequestFacts, StreamId};
use crate::worker::HeadersStatus;
use crate::worker::call_error::CallError;
use prost::Message;
use std::collections::BTreeMap;
use tidegate_core::{Status, Verdict};
use tidegate_wire::rls;

/// What Envoy knows of a stream: headers, response headers (with `<` before the name), properties
/// by their last part.
#[derive(Debug, Default)]
struct Stream(BTreeMap<&'static str, Vec<u8>>);

fn stream(values: &[(&'static str, &[u8])]) -> Stream {
    Stream(values.iter().map(|(name, value)| (*name, value.to_vec())).collect())
}

impl RequestFacts for Stream {
    fn header<T>(&self, name: &str, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        self.0.get(name).map(|value| read(value))
    }

    fn response_header<T>(&self, name: &str, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        self.0.get(format!("<{name}").as_str()).map(|value| read(value))
    }

    fn property<T>(&self, path: &[&str], read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        self.0.get(path.last()?).map(|value| read(value))
    }
}

fn double(number: f64) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

/// Entries for the descriptor `k=<x-key>`.
fn entry(rest: &str) -> String {
    let action = r#"{"request_headers": {"header_name": "x-key", "descriptor_key": "k"}}"#;
    format!(r#"{{"actions": [{action}]{rest}}}"#)
}

const PEEK: &str = r#", "hits_addend": {"number": 0}"#;
const DEBIT: &str = r#", "apply_on_stream_done": true,
    "hits_addend": {"format": "%DYNAMIC_METADATA(llm:cost)%"}"#;
const ESTIMATE: &str = r#", "hits_addend":
    {"estimate": 20, "actual": {"format": "%DYNAMIC_METADATA(llm:cost)%"}}"#;

fn envoy_of(workers: usize, entries: &[&str], slots: u32) -> Envoy {
    let entries: Vec<String> = entries.iter().map(|rest| entry(rest)).collect();
    let json = format!(
        r#"{{"domain": "d", "sidecar": {{"cluster": "c"}}, "rate_limits": [{}]}}"#,
        entries.join(", ")
    );
    Envoy::with(workers, |config| {
        let written = Config::from_envoy(json.as_bytes()).unwrap();
        config.rate_limits = written.rate_limits;
        (config.late_charges, config.is_special) = (written.late_charges, written.is_special);
        (config.parameters, config.path) = (written.parameters, written.path);
        config.lease_slots = slots;
    })
}

/// A client's streams at one worker.
struct Clients<'a> {
    envoy: &'a mut Envoy,
    next: u32,
}

impl Clients<'_> {
    fn begin(&mut self, key: &str) -> (StreamId, HeadersStatus) {
        self.begin_with(&stream(&[("x-key", key.to_owned().leak().as_bytes())]))
    }

    fn begin_with(&mut self, facts: &Stream) -> (StreamId, HeadersStatus) {
        self.next += 1;
        let id = StreamId(1_000 + self.next);
        (id, self.envoy.workers[0].on_request(id, facts))
    }

    fn end(&mut self, id: StreamId, cost: &[u8]) {
        self.envoy.workers[0].on_response(id, &NoFacts);
        self.envoy.workers[0].on_gone(id, &stream(&[("cost", cost)]));
        self.envoy.wake_all();
    }
}

fn clients(envoy: &mut Envoy) -> Clients<'_> {
    Clients { envoy, next: 0 }
}

/// The descriptors of a call: value, hits, and whether they are refunded.
fn asked(call: &Sent) -> Vec<(String, u64, bool)> {
    let request = rls::RateLimitRequest::decode(&*call.message).unwrap();
    let descriptor = |descriptor: &rls::RateLimitDescriptor| {
        let hits = descriptor.hits_addend.unwrap_or(1);
        (descriptor.entries[0].value.clone(), hits, descriptor.is_negative_hits)
    };
    request.descriptors.iter().map(descriptor).collect()
}

fn debits(call: &Sent) -> Vec<(String, u64, bool)> {
    assert!(call.metadata("tidegate-debit").is_some(), "{call:?}");
    asked(call)
}

fn taken(key: &str, hits: u64) -> (String, u64, bool) {
    (key.to_owned(), hits, false)
}

fn refunded(key: &str, hits: u64) -> (String, u64, bool) {
    (key.to_owned(), hits, true)
}

/// Hits that were charged, without leases.
fn spent(authority: &Authority) -> u64 {
    authority.charged.values().sum::<u64>() - authority.leased.values().sum::<u64>()
}

fn counts(envoy: &mut Envoy, names: &[&str]) -> Vec<i64> {
    let counted: BTreeMap<String, i64> = envoy.counted().into_iter().collect();
    names.iter().map(|name| counted.get(*name).copied().unwrap_or(0)).collect()
}

#[test]
fn a_cost_is_debited_when_its_stream_ends_and_holds_nothing() {
    let mut envoy = envoy_of(1, &[DEBIT], 64);
    let (id, status) = clients(&mut envoy).begin("100");
    assert_eq!((status, envoy.world().sent.len()), (HeadersStatus::Continue, 0));
    clients(&mut envoy).end(id, &double(41.2));
    assert_eq!(debits(&only_call(&envoy)), [taken("100", 42)]);
    let mut authority = Authority::default();
    answer_all(&mut envoy, &mut authority);
    assert_eq!(authority.charged.values().sum::<u64>(), 42);
    assert_eq!(counts(&mut envoy, &["debits", "debits_lost", "asks"]), [42, 0, 1]);
    assert!(envoy.workers[0].streams.is_empty() && envoy.workers[0].debits.is_empty());
    assert_eq!(envoy.workers[0].owing_bytes, 0);
}

#[test]
fn a_cost_is_read_when_it_is_known_and_without_a_number_nothing_is_charged() {
    const HEADER: &str = r#", "apply_on_stream_done": true, "hits_addend": {"header": "x-cost"}"#;
    const ANSWER: &str =
        r#", "apply_on_stream_done": true, "hits_addend": {"response_header": "x-cost"}"#;
    const BYTES: &str =
        r#", "apply_on_stream_done": true, "hits_addend": {"format": "%BYTES_SENT%"}"#;
    const NUMBER: &str = r#", "apply_on_stream_done": true, "hits_addend": {"number": 7}"#;
    const PLAIN: &str = r#", "apply_on_stream_done": true"#;
    let text = |text: &str| text.as_bytes().to_vec();
    let table: [(&str, &str, &'static str, Vec<u8>, u64); 17] = [
        ("number", NUMBER, "", text(""), 7),
        ("one", PLAIN, "", text(""), 1),
        ("request header", HEADER, "x-cost", text("12.5"), 13),
        ("no request header", HEADER, "", text(""), 1),
        ("response header", ANSWER, "<x-cost", text("9"), 9),
        ("no response header", ANSWER, "", text(""), 0),
        ("no number", ANSWER, "<x-cost", text("nine"), 0),
        ("negative", ANSWER, "<x-cost", text("-9"), 0),
        ("metadata", DEBIT, "cost", double(9.0), 9),
        ("metadata of 0", DEBIT, "cost", double(0.0), 0),
        ("a fraction", DEBIT, "cost", double(0.25), 1),
        ("too much", DEBIT, "cost", double(2e12), 1_000_000_000),
        ("below 0", DEBIT, "cost", double(-1.0), 0),
        ("a text", DEBIT, "cost", text("77"), 77),
        ("a text of eight digits", DEBIT, "cost", text("12345678"), 12_345_678),
        ("a text of eight letters", DEBIT, "cost", text("disabled"), 0),
        ("no metadata", DEBIT, "", text(""), 0),
    ];
    for (what, rest, name, value, hits) in table {
        let mut envoy = envoy_of(1, &[rest], 64);
        let mut facts = stream(&[("x-key", b"k")]);
        facts.0.insert(name, value.clone());
        let (id, _) = clients(&mut envoy).begin_with(&facts);
        envoy.workers[0].on_response(id, &facts);
        // Request headers are gone by now, and so are the response's.
        facts.0.retain(|name, _| *name == "cost");
        envoy.workers[0].on_gone(id, &facts);
        envoy.wake_all();
        let calls: Vec<_> = envoy.world().sent.iter().flat_map(debits).collect();
        let expected = if hits > 0 { vec![taken("k", hits)] } else { vec![] };
        assert_eq!(calls, expected, "{what}");
    }
    let mut envoy = envoy_of(1, &[BYTES], 64);
    let (id, _) = clients(&mut envoy).begin("k");
    envoy.workers[0].on_gone(id, &stream(&[("size", &4_321_u64.to_le_bytes())]));
    envoy.wake_all();
    assert_eq!(debits(&only_call(&envoy)), [taken("k", 4_321)]);
}

/// Ends a stream of this key and cost that has just begun, and which must pass.
fn run(clients: &mut Clients<'_>, key: &str, cost: f64) {
    let (id, status) = clients.begin(key);
    assert_eq!(status, HeadersStatus::Continue);
    clients.end(id, &double(cost));
}

#[test]
fn an_estimate_is_settled_either_way() {
    for (cost, settled) in [
        (double(50.0), Some(taken("100", 30))),
        (double(5.0), Some(refunded("100", 15))),
        (double(20.0), None),
        (b"none".to_vec(), None),
    ] {
        let (mut envoy, mut authority) = (envoy_of(1, &[ESTIMATE], 64), Authority::default());
        let (id, _) = clients(&mut envoy).begin("100");
        assert_eq!(asked(&only_call(&envoy)), [taken("100", 20)]);
        answer_all(&mut envoy, &mut authority);
        envoy.pass_ms(200);
        clients(&mut envoy).end(id, &cost);
        // Refunds alone wait for a tick.
        envoy.tick_all();
        let calls: Vec<_> = envoy.world().sent.iter().flat_map(debits).collect();
        assert_eq!(calls, Vec::from_iter(settled.clone()));
        answer_all(&mut envoy, &mut authority);
        let expected = match settled {
            Some((_, hits, true)) => 20 - hits,
            Some((_, hits, false)) => 20 + hits,
            None => 20,
        };
        assert_eq!(spent(&authority), expected);
    }
}

/// A refund in a later window would open that.
#[test]
fn a_refund_says_how_old_its_hits_are() {
    let (mut envoy, mut authority) = (envoy_of(1, &[ESTIMATE], 64), Authority::default());
    let (id, _) = clients(&mut envoy).begin("100");
    answer_all(&mut envoy, &mut authority);
    envoy.pass_ms(1_500);
    clients(&mut envoy).end(id, &double(5.0));
    envoy.tick_all();
    assert_eq!(only_call(&envoy).metadata("tidegate-age"), Some("1500"));
    answer_all(&mut envoy, &mut authority);
    assert_eq!(authority.charged.values().sum::<u64>(), 20);
}

#[test]
fn an_estimate_that_was_not_taken_is_debited_in_full_and_a_denied_one_not_at_all() {
    let mut envoy = envoy_of(1, &[ESTIMATE], 64);
    envoy.workers[0].config.failure_mode = UndecidedMode::Allow;
    let (id, _) = clients(&mut envoy).begin("100");
    fail_all(&mut envoy, CallError::Unreachable);
    assert_eq!(resumed(&envoy).len(), 1);
    clients(&mut envoy).end(id, &double(5.0));
    assert_eq!(debits(&only_call(&envoy)), [taken("100", 5)]);

    let (mut envoy, mut authority) = (envoy_of(1, &[ESTIMATE], 64), Authority::default());
    let (id, _) = clients(&mut envoy).begin("10");
    answer_all(&mut envoy, &mut authority);
    assert_eq!(replied(&envoy).len(), 1);
    clients(&mut envoy).end(id, &double(5.0));
    envoy.tick_all();
    assert_eq!((envoy.world().sent.len(), envoy.workers[0].owing_bytes), (0, 0));
}

#[test]
fn the_estimate_of_a_client_that_left_before_its_decision_stays() {
    let mut envoy = envoy_of(1, &[ESTIMATE, DEBIT], 64);
    let (id, _) = clients(&mut envoy).begin("100");
    envoy.workers[0].on_gone(id, &stream(&[("cost", b"5")]));
    envoy.tick_all();
    assert_eq!(envoy.world().sent.len(), 1, "only the ask");
    assert_eq!((envoy.workers[0].owing_bytes, envoy.workers[0].streams.len()), (0, 0));
}

#[test]
fn a_refund_asks_the_sidecar_whatever_is_held_or_denied() {
    const REFUND: &str = r#", "hits_addend": {"number": 3, "is_negative_hits": true}"#;
    let (mut envoy, mut authority) = (envoy_of(1, &[REFUND], 64), Authority::default());
    let now = envoy.now();
    envoy.record(0, "100").state.denied_until =
        now.saturating_add(tidegate_core::Nanos::new(MILLI));
    let mut streams = clients(&mut envoy);
    for _ in 0..3 {
        assert_eq!(streams.begin("100").1, HeadersStatus::Pause);
    }
    assert_eq!(envoy.world().sent.len(), 3, "each by its own call");
    let call = envoy.world().sent[0].clone();
    assert_eq!(asked(&call), [refunded("100", 3)]);
    assert_eq!(call.metadata("tidegate-debit"), None);
    answer_all(&mut envoy, &mut authority);
    assert_eq!(resumed(&envoy).len(), 3);
    assert!(envoy.workers[0].streams.is_empty());
}

/// Streams cost memory as long as they last, and clients choose their number.
#[test]
fn streams_that_would_owe_too_much_count_as_overload() {
    let mut envoy = envoy_of(1, &[DEBIT], 64);
    let long = "x".repeat(1_000);
    let mut streams = clients(&mut envoy);
    let mut passed = Vec::new();
    let refused = loop {
        match streams.begin(&long) {
            (id, HeadersStatus::Continue) => passed.push(id),
            (id, HeadersStatus::Pause) => break id,
        }
    };
    assert!((20_000..35_000).contains(&passed.len()), "{}", passed.len());
    assert_eq!(replied(streams.envoy), [(refused.0, 503)]);
    streams.end(refused, b"5");
    passed.iter().for_each(|id| streams.end(*id, b"5"));
    assert_eq!((envoy.workers[0].owing_bytes, envoy.workers[0].streams.len()), (0, 0));
    assert_eq!(debits(&only_call(&envoy)), [taken(&long, 5)]);
}

/// Requests that passed only by a rule in shadow mode took nothing. Their estimates were refunded
/// all the same, so the count fell with each of them.
#[test]
fn an_estimate_over_a_limit_in_shadow_is_debited_in_full() {
    for (in_shadow, debited) in [(true, taken("100", 5)), (false, refunded("100", 15))] {
        let mut envoy = envoy_of(1, &[ESTIMATE], 64);
        let (id, _) = clients(&mut envoy).begin("100");
        let status = match in_shadow {
            true => super::reports::in_shadow(),
            false => Status { lease: None, ..status(Verdict::Allow, 0, 0) },
        };
        let call = envoy.world_mut().sent.remove(0);
        let answer = made_up(Verdict::Allow, vec![status]);
        envoy.workers[0].on_answer(call.id, Ok(&answer));
        assert_eq!(resumed(&envoy), [id.0]);
        clients(&mut envoy).end(id, &double(5.0));
        envoy.tick_all();
        assert_eq!(debits(&only_call(&envoy)), [debited]);
    }
}

/// A limit of the requests under way takes a hit at the beginning and refunds it at the end. A
/// denied request had taken none, and refunded the hit of another one.
#[test]
fn only_requests_that_a_decision_let_pass_refund_at_their_end() {
    const TAKE: &str = r#", "hits_addend": {"number": 1}"#;
    const BACK: &str = r#", "apply_on_stream_done": true,
        "hits_addend": {"number": 1, "is_negative_hits": true}"#;
    let (mut envoy, mut authority) = (envoy_of(1, &[TAKE, BACK], 0), Authority::default());
    envoy.workers[0].config.failure_mode = UndecidedMode::Allow;
    let (passed, _) = clients(&mut envoy).begin("1");
    answer_all(&mut envoy, &mut authority);
    let (denied, _) = Clients { envoy: &mut envoy, next: 1 }.begin("1");
    answer_all(&mut envoy, &mut authority);
    assert_eq!(replied(&envoy).len(), 1);
    clients(&mut envoy).end(denied, b"");
    let (undecided, _) = Clients { envoy: &mut envoy, next: 2 }.begin("1");
    fail_all(&mut envoy, CallError::Unreachable);
    clients(&mut envoy).end(undecided, b"");
    envoy.tick_all();
    assert!(envoy.world().sent.is_empty(), "neither has taken a hit");
    clients(&mut envoy).end(passed, b"");
    envoy.tick_all();
    assert_eq!(debits(&only_call(&envoy)), [refunded("1", 1)]);
}

/// A client with a new descriptor for each of its streams filled the places of debits, so those of
/// others were lost.
#[test]
fn requests_count_as_overload_while_debits_find_no_place() {
    let mut envoy = envoy_of(1, &[DEBIT], 64);
    let mut streams = clients(&mut envoy);
    // The first is in a call whose answer is still to come.
    for key in 0..4_097 {
        run(&mut streams, &format!("{key}k"), 2.0);
    }
    let (_, status) = streams.begin("another");
    assert_eq!(status, HeadersStatus::Pause);
    assert_eq!(replied(&envoy).len(), 1);
    assert_eq!(counts(&mut envoy, &["debits_lost", "overload_denied"]), [0, 1]);
}

/// Groups that go alone came first after each tick. While their counter was stuck, no others were
/// sent.
#[test]
fn a_debit_that_fails_alone_does_not_keep_others_waiting() {
    let mut envoy = envoy_of(1, &[DEBIT], 64);
    run(&mut clients(&mut envoy), "100", 7.0);
    fail_all(&mut envoy, CallError::Stuck);
    let mut sent = Vec::new();
    envoy.tick_all();
    run(&mut clients(&mut envoy), "200", 7.0);
    for _ in 0..4 {
        sent.extend(debits(&only_call(&envoy)));
        fail_all(&mut envoy, CallError::Stuck);
        envoy.tick_all();
    }
    assert!(sent.contains(&taken("200", 7)), "{sent:?}");
}

/// A stream can end before the answer to its descriptors in shadow. All of its cost was debited then, and the sidecar
/// took the estimate as well.
#[test]
fn an_estimate_in_shadow_is_settled_once_its_answer_has_come() {
    let in_shadow = format!(r#"{ESTIMATE}, "shadow": true"#);
    let (key, cost) = ("100", 50.0);
    for (answer, charged) in [("allowed", 50), ("denied", 2_050), ("failed", 50), ("ended", 50)] {
        let (mut envoy, mut authority) = (envoy_of(2, &[&in_shadow], 0), Authority::default());
        if answer == "denied" {
            let window = super::authority::window_of(envoy.world().now);
            authority.charged.insert((key.to_owned(), window), 2_000);
        }
        run(&mut clients(&mut envoy), key, cost);
        envoy.tick_all();
        assert_eq!(asked(&only_call(&envoy)), [taken(key, 20)], "only the ask, until it is known");
        assert!(envoy.workers[0].owing_bytes > 0);
        match answer {
            "failed" => assert_eq!(fail_all(&mut envoy, CallError::Shed), 1),
            "ended" => {
                envoy.world_mut().sent.clear();
                let unfinished = envoy.workers[0].on_end();
                envoy.workers[1].adopt(unfinished);
            }
            _ => assert_eq!(answer_all(&mut envoy, &mut authority), 1),
        }
        envoy.tick_all();
        while answer_all(&mut envoy, &mut authority) > 0 {}
        assert_eq!(authority.charged.values().sum::<u64>(), charged, "{answer}");
        let worker = &envoy.workers[0];
        assert_eq!((worker.owing_bytes, worker.streams.len()), (0, 0), "{answer}");
    }
}

/// A request that another limit denies takes no estimate in shadow, even if the answer for that comes later.
#[test]
fn an_estimate_in_shadow_of_a_denied_request_goes_back() {
    const ONE: &str = r#", "hits_addend": {"number": 1}"#;
    let in_shadow = format!(r#"{ESTIMATE}, "shadow": true"#);
    let (mut envoy, mut authority) = (envoy_of(1, &[ONE, &in_shadow], 0), Authority::default());
    let (id, _) = clients(&mut envoy).begin("30");
    let now = envoy.world().now;
    let (enforced, shadowed) = match &mut envoy.world_mut().sent.drain(..).collect::<Vec<_>>()[..] {
        [enforced, shadowed] => (enforced.clone(), shadowed.clone()),
        calls => panic!("{calls:?}"),
    };
    assert_eq!(asked(&shadowed), [taken("30", 20)]);
    let denied =
        made_up(Verdict::Deny, vec![Status { lease: None, ..status(Verdict::Deny, 0, 0) }]);
    envoy.workers[0].on_answer(enforced.id, Ok(&denied));
    assert_eq!(replied(&envoy), [(id.0, 429)]);
    clients(&mut envoy).end(id, &double(9.0));
    let answer = authority.decide(&shadowed, now);
    envoy.workers[0].on_answer(shadowed.id, Ok(&answer));
    envoy.tick_all();
    assert_eq!(debits(&only_call(&envoy)), [refunded("30", 20)]);
    answer_all(&mut envoy, &mut authority);
    assert_eq!(authority.charged.values().sum::<u64>(), 0);
}

/// A call that the sidecar could count only in part failed, and went out again in parts.
#[test]
fn what_a_call_could_not_count_is_sent_alone_with_its_stream() {
    // A stream has a descriptor of its client and one of its route.
    const OTHER: &str = r#", "apply_on_stream_done": true, "hits_addend": {"number": 3}"#;
    let (mut envoy, mut authority) = (envoy_of(1, &[DEBIT, OTHER], 64), Authority::default());
    let mut streams = clients(&mut envoy);
    for key in ["100", "200", "300"] {
        run(&mut streams, key, 7.0);
    }
    answer_all(&mut envoy, &mut authority);
    let call = envoy.world_mut().sent.remove(0);
    let both = |key: &str| [taken(key, 7), taken(key, 3)];
    assert_eq!(debits(&call), [both("200"), both("300")].concat());
    let counted = Status { lease: None, ..status(Verdict::Allow, 0, 0) };
    let statuses = vec![counted.clone(), counted.clone(), Status::uncounted(), counted];
    let answer = made_up(Verdict::Deny, statuses);
    envoy.workers[0].on_answer(call.id, Ok(&answer));
    assert_eq!(envoy.world().sent.len(), 0, "not before the next tick");
    envoy.tick_all();
    // Beside returns of tokens.
    let is_debit = |call: &&Sent| call.metadata("tidegate-debit").is_some();
    let again = envoy.world().sent.iter().find(is_debit).cloned().unwrap();
    assert_eq!(debits(&again), [taken("300", 7), taken("300", 0)]);
    assert_eq!(again.metadata("tidegate-streams"), Some("2"));
    assert_ne!(again.metadata("tidegate-call"), call.metadata("tidegate-call"));
    answer_all(&mut envoy, &mut authority);
    assert_eq!(counts(&mut envoy, &["debits", "debits_lost"]), [30, 0]);
    assert!(envoy.workers[0].debits.is_empty());
}

/// A denial without a limit was taken for a debit that was not counted: a service that answers so got the same
/// hits again and again.
#[test]
fn a_debit_that_is_denied_without_a_limit_is_counted() {
    let (mut envoy, mut authority) = (envoy_of(1, &[DEBIT], 64), Authority::default());
    run(&mut clients(&mut envoy), "100", 7.0);
    let call = only_call(&envoy);
    envoy.world_mut().sent.clear();
    let denied = Status { verdict: Verdict::Deny, ..Status::NO_LIMIT };
    envoy.workers[0].on_answer(call.id, Ok(&made_up(Verdict::Deny, vec![denied])));
    envoy.tick_all();
    answer_all(&mut envoy, &mut authority);
    assert_eq!(counts(&mut envoy, &["debits", "debits_lost"]), [7, 0]);
    assert!(envoy.workers[0].debits.is_empty());
    assert_eq!(authority.charged.values().sum::<u64>(), 0, "it came again");
}

/// The sidecar may have counted a call that is under way when its plugin ends. Its refunds are not
/// made again.
#[test]
fn refunds_of_a_call_under_way_end_with_their_plugin() {
    let (mut envoy, mut authority) = (envoy_of(2, &[ESTIMATE], 64), Authority::default());
    let (id, _) = clients(&mut envoy).begin("100");
    answer_all(&mut envoy, &mut authority);
    clients(&mut envoy).end(id, &double(5.0));
    envoy.tick_all();
    assert_eq!(debits(&only_call(&envoy)), [refunded("100", 15)]);
    envoy.world_mut().sent.clear();
    let unfinished = envoy.workers[0].on_end();
    envoy.workers[1].adopt(unfinished);
    envoy.tick_all();
    assert!(envoy.world().sent.is_empty());
}
