//! What the observer receives: every event once, in order, and nothing else.

use super::leases::{of_k, wants};
use super::*;
use std::time::Duration;
use tidegate_core::{DebitRequest, LeaseReturn};

/// Writes down all events.
#[derive(Debug, Clone, Default)]
pub(super) struct Events(Arc<Mutex<Vec<String>>>);

impl Events {
    fn note(&self, event: String) {
        self.0.lock().expect("no thread panicked").push(event);
    }

    /// The events since the last call.
    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("no thread panicked"))
    }
}

impl Observer for Events {
    fn limits_replaced(&self, rules: &Rules) -> Box<dyn LimitObserver> {
        self.note(format!("{} limits", rules.limits().len()));
        Box::new(self.clone())
    }

    fn answered(&self, verdict: Verdict) {
        self.note(format!("answered {verdict:?}"));
    }

    fn shadowed(&self) {
        self.note("shadowed".to_owned());
    }

    fn domain_not_found(&self, descriptors: u64) {
        self.note(format!("domain not found: {descriptors}"));
    }

    fn tokens_returned(&self) {
        self.note("tokens returned".to_owned());
    }
}

fn text(entries: &[Entry]) -> String {
    let each = entries.iter().map(|entry| format!("{}={}", entry.key, entry.value));
    each.collect::<Vec<_>>().join(",")
}

impl LimitObserver for Events {
    fn decided(&self, outcome: &Outcome<'_>) {
        let (hits, of) = (outcome.charge.hits().get(), text(outcome.entries));
        let by = if outcome.decided_in == DecidedIn::Envoy { " in Envoy" } else { "" };
        let what = match outcome.fate {
            Fate::Allowed => "passes",
            Fate::Denied => "is denied",
            Fate::DeniedElsewhere => "is denied elsewhere",
            Fate::Shadowed => "passes in shadow",
        };
        let met = match outcome.met {
            Met::UnknownDomain => "no domain",
            Met::NoRule => "no rule",
            Met::Replaced => "a replaced rule",
            Met::Override => "its own limit",
            Met::Rule(rule) => &rule.path,
        };
        let rule = outcome.rule().map(|rule| rule.path.as_str());
        assert_eq!(rule, matches!(outcome.met, Met::Rule(_)).then_some(met));
        self.note(format!("{hits} of {of} {what}{by}: {met}"));
        for limit in outcome.limits() {
            let path = limit.limit.map_or("request", |limit| &limit.path);
            let does = match limit.fate {
                Fate::Allowed => "allows",
                Fate::Denied => "denies",
                Fate::DeniedElsewhere => "has room for",
                Fate::Shadowed => "would deny",
            };
            let left = limit.remaining.map_or("?".to_owned(), |left| left.to_string());
            let shadow = if limit.shadow == Shadow::Yes { ", shadow" } else { "" };
            let capacity = limit.capacity;
            self.note(format!("{path} {does} {hits} of {of}: {left}/{capacity}{shadow}"));
        }
    }

    fn leased(&self, (_, limit): (&Rule, &Limit), entries: &[Entry], tokens: u32) {
        self.note(format!("{} leases {tokens} of {}", limit.path, text(entries)));
    }

    fn returned(&self, (_, limit): (&Rule, &Limit), entries: &[Entry], tokens: u64) {
        self.note(format!("{} gets back {tokens} of {}", limit.path, text(entries)));
    }
}

pub(super) fn fixture(descriptors: &str, modes: Modes) -> (Fixture, Events) {
    let events = Events::default();
    let fixture = observed(descriptors, modes, Arc::new(events.clone()));
    events.take();
    (fixture, events)
}

pub(super) const RULES: &str = "
- key: k
  rate_limits:
  - {name: day, unit: day, requests: 100}
  - {name: bucket, algorithm: token_bucket, requests: 50, unit: day}
- {key: free, rate_limit: {unlimited: true}}
- {key: dark, shadow_mode: true, rate_limit: {unit: day, requests: 1}}
- {key: soft, quota_mode: true, rate_limit: {unit: day, requests: 9}}
";

#[test]
fn each_limit_of_a_request_is_reported_under_its_rule_and_then_the_answer() {
    let (fixture, events) = fixture(RULES, Modes::default());
    let brought = Some(LimitOverride { requests: 7, unit: Unit::Hour });
    let ask = |hits| {
        let mut all = ["none", "free", "dark", "k"].map(|key| descriptor(&[(key, "v")])).to_vec();
        all.push(Descriptor { limit: brought, ..descriptor(&[("k", "v")]) });
        all.push(Descriptor { hits: Some(Hits::new(4)), ..descriptor(&[("soft", "v")]) });
        fixture.ask_at(0, hits, all);
        events.take()
    };
    let first = [
        "1 of none=v passes: no rule",
        "1 of free=v passes: d/free",
        "1 of dark=v passes: d/dark",
        "d/dark allows 1 of dark=v: 0/1, shadow",
        "1 of k=v passes: d/k",
        "d/k#day allows 1 of k=v: 99/100",
        "d/k#bucket allows 1 of k=v: 49/50",
        "1 of k=v passes: its own limit",
        "request allows 1 of k=v: 6/7",
        "4 of soft=v passes: d/soft",
        "d/soft allows 4 of soft=v: 5/9",
        "answered Allow",
    ];
    assert_eq!(ask(1), first);
    let denied = [
        "7 of none=v is denied elsewhere: no rule",
        "7 of free=v is denied elsewhere: d/free",
        "7 of dark=v is denied elsewhere: d/dark",
        "d/dark would deny 7 of dark=v: 0/1, shadow",
        "7 of k=v is denied elsewhere: d/k",
        "d/k#day has room for 7 of k=v: 99/100",
        "d/k#bucket has room for 7 of k=v: 49/50",
        "7 of k=v is denied: its own limit",
        "request denies 7 of k=v: 6/7",
        "4 of soft=v is denied elsewhere: d/soft",
        "d/soft has room for 4 of soft=v: 5/9",
        "answered Deny",
    ];
    assert_eq!(ask(7), denied);
}

#[test]
fn new_limits_and_requests_of_an_unknown_domain_are_reported() {
    let (fixture, events) = fixture(RULES, Modes::default());
    fixture.engine.replace_limits(rules_of(fixture.dir.path(), RULES)).expect("good rules");
    assert_eq!(events.take(), ["4 limits"]);
    let brought = Some(LimitOverride { requests: 7, unit: Unit::Hour });
    // A limit that a request brings along is not looked up.
    let all = vec![Descriptor { limit: brought, ..of_k().remove(0) }, of_k().remove(0)];
    let request = Request { domain: "e".into(), descriptors: all, hits: Hits::ONE };
    let now = Timestamp::from_secs(START);
    wait(fixture.engine.decide(&request, now)).expect("a decision");
    let outcome = "1 of k=v passes: no domain";
    assert_eq!(events.take(), ["domain not found: 1", outcome, outcome, "answered Allow"]);
}

/// A request that would pass anyway, and one that quotas let pass, are not allowed by the shadow mode.
#[test]
fn in_global_shadow_only_what_would_be_denied_is_reported_as_shadowed() {
    let rules = "
- {key: a, rate_limit: {unit: day, requests: 1}}
- {key: q, quota_mode: true, rate_limit: {unit: day, requests: 1}}
- {key: r, quota_mode: true, rate_limit: {unit: day, requests: 2}}
- {key: dark, shadow_mode: true, rate_limit: {unit: day, requests: 0}}
";
    for (modes, expected) in [
        (Modes::default(), [false; 6]),
        (
            Modes { shadow: GlobalShadow::On, ..Modes::default() },
            [false, true, false, false, true, false],
        ),
        (
            Modes { shadow: GlobalShadow::On, quota: GlobalQuota::On, ..Modes::default() },
            [false, true, false, false, true, false],
        ),
    ] {
        let (fixture, events) = fixture(rules, modes);
        let asks: [&[&str]; 6] = [&["a"], &["a"], &["q", "r"], &["q", "r"], &["q", "r"], &["dark"]];
        let shadowed = asks.map(|keys| {
            fixture.ask(keys.iter().map(|key| descriptor(&[(key, "v")])).collect());
            events.take().iter().filter(|event| *event == "shadowed").count() == 1
        });
        assert_eq!(shadowed, expected, "{modes:?}");
    }
}

#[test]
fn leased_and_returned_tokens_are_reported_for_each_limit() {
    let ttl = Some(Nanos::from_secs(2));
    let (fixture, events) = fixture(RULES, Modes { lease_ttl: ttl, ..Modes::default() });
    let lease = fixture.ask_leasing(0, of_k(), &wants(1, 10, 0)).statuses[0].lease;
    let expected = [
        "1 of k=v passes: d/k",
        "d/k#day allows 1 of k=v: 99/100",
        "d/k#bucket allows 1 of k=v: 49/50",
        "answered Allow",
        "d/k#day leases 10 of k=v",
        "d/k#bucket leases 10 of k=v",
    ];
    assert_eq!(events.take(), expected);
    let refund = Descriptor { direction: Direction::Refund, ..of_k().remove(0) };
    let request =
        Request { domain: "d".into(), descriptors: vec![refund.clone(), refund], hits: Hits::ONE };
    let back = LeaseReturn { call: 1 << 20, leases: vec![77, lease.expect("a lease").id] };
    let now = Timestamp::from_secs(START);
    wait(fixture.engine.return_tokens(&request, &back, now)).expect("an answer");
    let expected =
        ["d/k#day gets back 1 of k=v", "d/k#bucket gets back 1 of k=v", "tokens returned"];
    assert_eq!(events.take(), expected);
    // Denials and leases without a limit are no tokens.
    let free = || vec![descriptor(&[("free", "v")]), descriptor(&[("none", "v")])];
    fixture.ask_leasing(0, free(), &wants(1, 10, 10));
    let outcomes = ["1 of free=v passes: d/free", "1 of none=v passes: no rule"];
    assert_eq!(events.take(), [&outcomes[..], &["answered Allow"]].concat());
}

/// A query of the FRS appeared in the metrics of its limit as a request.
#[test]
fn a_look_at_nodes_is_no_decision_of_their_limits() {
    let (fixture, events) = fixture(RULES, Modes::default());
    let now = Timestamp::from_secs(START);
    let request = |hits| Request { domain: "d".into(), descriptors: of_k(), hits: Hits::new(hits) };
    let used = |how, hits| {
        wait(fixture.engine.use_node(&request(hits), how, now, |_, _| ())).expect("a decision");
        events.take()
    };
    let used_as_one = |how, hits| {
        wait(fixture.engine.use_nodes(&request(hits), how, now, |_, _| ())).expect("a decision");
        events.take()
    };
    assert_eq!(used(Use::Look, 0), ["answered Allow"]);
    assert_eq!(used_as_one(JointUse::Look, 60), ["answered Deny"]);
    let allowed = |hits, day, bucket| {
        [
            format!("{hits} of k=v passes: d/k"),
            format!("d/k#day allows {hits} of k=v: {day}/100"),
            format!("d/k#bucket allows {hits} of k=v: {bucket}/50"),
            "answered Allow".to_owned(),
        ]
    };
    assert_eq!(used(Use::Record, 1), allowed(1, 99, 49));
    assert_eq!(used(Use::Acquire, 2), allowed(2, 97, 47));
    assert_eq!(used_as_one(JointUse::Acquire, 3), allowed(3, 94, 44));
    assert_eq!(used(Use::Look, 0), ["answered Allow"]);
    assert_eq!(fixture.left(&[("k", "v")]), 44);
}

/// What a look would use is not its own business: it asks for one hit, whatever its request has.
#[test]
fn a_look_at_a_node_counts_nothing_of_its_request() {
    let (fixture, events) = fixture(RULES, Modes::default());
    let now = Timestamp::from_secs(START);
    for (hits, direction) in
        [(1, Direction::Take), (60, Direction::Take), (5, Direction::Refund), (0, Direction::Take)]
    {
        fixture.ask_at(0, 1, of_k());
        let left = fixture.left(&[("k", "v")]);
        let descriptors = vec![Descriptor { direction, ..of_k().remove(0) }];
        let request = Request { domain: "d".into(), descriptors, hits: Hits::new(hits) };
        events.take();
        let counts = |verdict, windows: &NodeWindows<'_>| {
            (verdict, windows.iter().map(NodeWindow::count).collect::<Vec<_>>())
        };
        let seen = wait(fixture.engine.use_node(&request, Use::Look, now, counts));
        let count = u64::from(50 - left);
        assert_eq!(seen.expect("a look"), (Verdict::Allow, vec![count; 2]), "{hits} {direction:?}");
        assert_eq!(events.take(), ["answered Allow"]);
        assert_eq!(fixture.left(&[("k", "v")]), left);
    }
}

#[test]
fn nodes_are_found_made_changed_and_erased_without_an_event() {
    let rules = "- {key: k, rate_limit: {algorithm: first_hit_window, requests: 3, unit: hour}}";
    let (fixture, events) = fixture(rules, Modes::default());
    let request = Request { domain: "d".into(), descriptors: of_k(), hits: Hits::ONE };
    let (engine, now) = (&fixture.engine, Timestamp::from_secs(START));
    wait(engine.create_node(&request, &[], now, |_| ())).expect("a node");
    wait(engine.find_node(&request, now, |_| ())).expect("a node");
    wait(engine.change_node(&request, &[], now, |_| ())).expect("a node");
    assert!(wait(engine.erase_node(&request, now)).expect("an answer"));
    assert_eq!(events.take(), [""; 0]);
}

/// Debits have happened: each counts by itself, and no other limit can deny them.
#[test]
fn each_debit_has_an_outcome_of_its_own() {
    let (fixture, events) = fixture(RULES, Modes::default());
    let all = vec![descriptor(&[("k", "v")]), descriptor(&[("soft", "v")])];
    let request = Request { domain: "d".into(), descriptors: all, hits: Hits::new(20) };
    let debit = DebitRequest { call: 1, sequence: 5, streams: vec![1, 1], ages: vec![] };
    let now = Timestamp::from_secs(START);
    let expected = [
        "20 of k=v passes: d/k",
        "d/k#day allows 20 of k=v: 80/100",
        "d/k#bucket allows 20 of k=v: 30/50",
        "20 of soft=v is denied: d/soft",
        "d/soft denies 20 of soft=v: 0/9",
        "answered Deny",
    ];
    wait(fixture.engine.debit(&request, &debit, None, now)).expect("an answer");
    assert_eq!(events.take(), expected);
    // The same call again has counted already.
    wait(fixture.engine.debit(&request, &debit, None, now)).expect("an answer");
    assert_eq!(events.take(), [""; 0]);
}

#[test]
fn a_replaced_rule_is_no_missing_rule() {
    let rules = "
- {key: a, rate_limit: {name: a, unit: day, requests: 1}}
- {key: b, rate_limit: {unit: day, requests: 9, replaces: [{name: a}]}}
";
    let (fixture, events) = fixture(rules, Modes::default());
    fixture.ask(["a", "b"].map(|key| descriptor(&[(key, "v")])).to_vec());
    let expected = [
        "1 of a=v passes: a replaced rule",
        "1 of b=v passes: d/b",
        "d/b allows 1 of b=v: 8/9",
        "answered Allow",
    ];
    assert_eq!(events.take(), expected);
}

/// Names every event that it gets.
#[derive(Debug, Clone, Default)]
struct Named(Arc<Mutex<Vec<&'static str>>>);

macro_rules! names {
    ($($event:ident($($type:ty),*);)*) => {
        $(fn $event(&self, $(_: $type),*) {
            self.0.lock().expect("no thread panicked").push(stringify!($event));
        })*
    };
}

impl Observer for Named {
    fn limits_replaced(&self, _rules: &Rules) -> Box<dyn LimitObserver> {
        Box::new(self.clone())
    }

    names! {
        answered(Verdict);
        shadowed();
        domain_not_found(u64);
        answered_within(&'static str, u64, Duration);
        connection_opened(&'static str);
        connection_closed(&'static str);
        tls_failed(&'static str);
        tokens_returned();
        refused();
        undecided(&Undecided);
        refilled(u64);
        gave_back(u64);
        shared_failed(&Undecided);
        decided_without(Failure);
        shed(&'static str);
        connection_refused(&'static str);
        connection_gave_way(&'static str);
        http_answered(&'static str, u16);
        limits_loaded();
        limits_failed();
        limits_current(bool);
    }
}

impl LimitObserver for Named {
    names! {
        decided(&Outcome<'_>);
        leased((&Rule, &Limit), &[Entry], u32);
        returned((&Rule, &Limit), &[Entry], u64);
    }
}

#[test]
fn several_observers_get_every_event() {
    let (one, other) = (Named::default(), Named::default());
    let all = Observers::new(vec![Arc::new(one.clone()), Arc::new(other.clone())]);
    let error = Undecided::LimitsAwaited;
    all.answered(Verdict::Allow);
    all.shadowed();
    all.domain_not_found(1);
    all.answered_within("grpc", 1, Duration::ZERO);
    all.connection_opened("grpc");
    all.connection_closed("grpc");
    all.tls_failed("timeout");
    all.tokens_returned();
    all.refused();
    all.undecided(&error);
    all.refilled(1);
    all.gave_back(1);
    all.shared_failed(&error);
    all.decided_without(Failure::Deny);
    all.shed("grpc");
    all.connection_refused("grpc");
    all.connection_gave_way("grpc");
    all.http_answered("/", 200);
    all.limits_loaded();
    all.limits_failed();
    all.limits_current(true);
    let events = one.0.lock().expect("no thread panicked").clone();
    assert_eq!(events.len(), 21);
    assert_eq!(*other.0.lock().expect("no thread panicked"), events);
}

/// Limits concern it, and nothing else.
#[derive(Debug, Default)]
struct Idle(Named);

impl Observer for Idle {
    fn is_idle(&self) -> bool {
        true
    }

    fn limits_replaced(&self, rules: &Rules) -> Box<dyn LimitObserver> {
        self.0.limits_replaced(rules)
    }

    fn answered(&self, verdict: Verdict) {
        self.0.answered(verdict);
    }
}

#[test]
fn an_idle_observer_gets_decisions_alone() {
    let (idle, events) = (Idle::default(), Events::default());
    let named = idle.0.clone();
    let all = Observers::new(vec![Arc::new(idle), Arc::new(events)]);
    let fixture = observed(RULES, Modes::default(), Arc::new(all));
    fixture.ask(of_k());
    assert_eq!(*named.0.lock().expect("no thread panicked"), ["decided"]);
    assert!(LimitObserver::is_idle(&()), "nobody listens");
}

#[test]
fn several_observers_get_the_decisions_of_the_limits_in_force() {
    let (one, other) = (Events::default(), Events::default());
    let all = Observers::new(vec![Arc::new(one.clone()), Arc::new(other.clone())]);
    let ttl = Some(Nanos::from_secs(2));
    let modes = Modes { lease_ttl: ttl, ..Modes::default() };
    let fixture = observed(RULES, modes, Arc::new(all));
    let lease = fixture.ask_leasing(0, of_k(), &wants(1, 10, 0)).statuses[0].lease;
    let refund = Descriptor { direction: Direction::Refund, ..of_k().remove(0) };
    let request = Request { domain: "d".into(), descriptors: vec![refund], hits: Hits::ONE };
    let back = LeaseReturn { call: 1 << 20, leases: vec![lease.expect("a lease").id] };
    let now = Timestamp::from_secs(START);
    wait(fixture.engine.return_tokens(&request, &back, now)).expect("an answer");
    let events = one.take();
    for event in [
        "d/k#day allows 1 of k=v: 99/100",
        "d/k#day leases 10 of k=v",
        "d/k#day gets back 1 of k=v",
    ] {
        assert!(events.contains(&event.to_owned()), "{events:?}");
    }
    assert_eq!(other.take(), events);
}
