//! Messages of the protocol, and what their metadata makes of them.

use super::leases::{leasing, of_k, wants};
use super::*;
use tidegate_core::{Lease, LeaseRequest, LeaseReturn};
use tidegate_wire::{encode_request, lease_request_metadata, returned_metadata};

const RULES: &str = "- {key: k, rate_limit: {unit: day, requests_per_unit: 100}}";

type Metadata = Vec<(&'static str, String)>;

fn request(descriptors: Vec<Descriptor>) -> Request {
    Request { domain: "d".into(), descriptors, hits: Hits::ONE }
}

fn refund() -> Vec<Descriptor> {
    of_k().into_iter().map(|of| Descriptor { direction: Direction::Refund, ..of }).collect()
}

fn later(request: &Request, ask: Ask) -> LaterCall {
    LaterCall { request: request.clone(), ask, report: None, is_rare: false }
}

/// Answers each message twice: as a server does, and as a call that had to wait. Each way has an authority of its own.
fn answers(calls: &[(&Request, &Metadata)]) -> Vec<[Result<Answer, String>; 2]> {
    let (called, asked) = (leasing(RULES), leasing(RULES));
    let now = Timestamp::from_secs(START);
    let mut answers = Vec::new();
    for (request, metadata) in calls {
        let value_of = |name: &'static str| {
            let found = metadata.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.as_bytes())
        };
        let message = encode_request(request);
        let call = answer(&called.engine, &message, value_of, now);
        let call = call.map(|(read, answer)| {
            assert_eq!(read, **request);
            answer
        });
        let ask = Ask::read(request, value_of).map(|ask| {
            let later = later(request, ask);
            wait(asked.engine.answer_later(&later, now)).unwrap()
        });
        answers.push([call, ask].map(|answer| answer.map_err(|error| error.to_string())));
    }
    answers
}

#[test]
fn the_metadata_of_a_call_say_whether_it_decides_leases_or_gives_back() {
    let (take, back) = (request(of_k()), request(refund()));
    let ask = LeaseRequest { wanted: vec![10], ..wants(1, 0, 0) };
    let lease = lease_request_metadata(&ask);
    let id = ask.call;
    let returned = returned_metadata(1 << 20, &[id]);
    let none = Metadata::new();
    let calls =
        [(&take, &none), (&take, &lease), (&back, &returned), (&back, &none), (&take, &none)];
    let expected = [(99, None), (88, Some((id, 10))), (89, None), (90, None), (89, None)];
    let leased = |lease: Lease| (lease.id, lease.tokens);
    for (each, (left, lease)) in answers(&calls).into_iter().zip(expected) {
        for answer in each {
            let status = &answer.as_ref().expect("an answer").statuses[0];
            assert_eq!((status.remaining, status.lease.map(leased)), (left, lease), "{answer:?}");
        }
    }
}

#[test]
fn a_call_that_makes_no_sense_is_refused_and_takes_nothing() {
    let (take, both) = (request(of_k()), request([refund(), of_k()].concat()));
    let (returned, malformed) =
        (returned_metadata(1, &[7]), vec![("tidegate-lease", "ten".to_owned())]);
    let two = returned_metadata(1, &[7, 8]);
    let none = Metadata::new();
    let calls = [(&take, &returned), (&both, &two), (&take, &malformed), (&take, &none)];
    let mut answers = answers(&calls).into_iter();
    for start in [
        "descriptors[0]: a return (metadata tidegate-return) takes no hits",
        "descriptors[1]: a return (metadata tidegate-return) takes no hits",
        "metadata tidegate-lease",
    ] {
        for answer in answers.next().expect("an answer") {
            let message = answer.expect_err("refused");
            assert!(message.contains(start), "{message}");
        }
    }
    for answer in answers.next().expect("an answer") {
        assert_eq!(answer.expect("an answer").statuses[0].remaining, 99);
    }
}

#[test]
fn a_message_that_cannot_be_read_is_refused() {
    let fixture = leasing(RULES);
    let now = Timestamp::from_secs(START);
    let refused = answer(&fixture.engine, &[0xff; 3], |_| None, now);
    assert!(matches!(refused, Err(CallError::Invalid(_))), "{refused:?}");
}

#[test]
fn what_the_counters_refuse_is_an_error_of_the_call() {
    let fixture = leasing(RULES);
    let descriptors = (0..300).map(|value| descriptor(&[("k", &value.to_string())])).collect();
    let request = request(descriptors);
    let now = Timestamp::from_secs(START);
    let too_large = |asked: Result<Answer, Undecided>| asked.is_err_and(|why| why.is_too_large());
    assert!(too_large(wait(fixture.engine.answer_later(&later(&request, Ask::Decision), now))));
    assert!(too_large(wait(fixture.engine.decide_leasing(&request, &wants(1, 10, 0), now))));
    let back = LeaseReturn { call: 1, leases: vec![7] };
    let one = self::request(refund());
    assert!(!too_large(wait(fixture.engine.return_tokens(&one, &back, now))));
}

#[test]
fn only_an_update_of_too_many_keys_may_be_decided_with_fewer() {
    let too_large = UpdateError::TooLarge { keys: 9, words: 0, keys_max: 8, words_max: 0 };
    assert!(Undecided::from(too_large).is_too_large());
    let too_long = UpdateError::StateTooLong { words: 9, words_max: 8 };
    assert!(!Undecided::from(too_long).is_too_large());
    assert!(!Undecided::Unreachable { cause: "no".to_owned() }.is_too_large());
}

/// To allow what no limit is known for would open every limit at a start.
#[test]
fn only_requests_of_known_domains_are_decided_while_others_are_awaited() {
    let fixture = leasing(RULES);
    let now = Timestamp::from_secs(START);
    let decided = |domain: &str| {
        let request = Request { domain: domain.into(), ..request(of_k()) };
        wait(fixture.engine.decide(&request, now)).map(|answer| answer.verdict)
    };
    for is_awaited in [false, true] {
        let mut rules = rules_of(fixture.dir.path(), RULES);
        rules.set_awaited(is_awaited);
        fixture.engine.replace_limits(rules).expect("good rules");
        assert_eq!(decided("d"), Ok(Verdict::Allow));
        let of_unknown =
            if is_awaited { Err(Undecided::LimitsAwaited) } else { Ok(Verdict::Allow) };
        assert_eq!(decided("e"), of_unknown);
    }
}
