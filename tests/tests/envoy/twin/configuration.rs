//! Configurations of both filters that mean the same.

use super::actions::action;
use super::blocks::Blocks;
use super::dice::Dice;
use super::hits::{depends_on_reply, hits_addend, late_hits, limit};
use serde_json::{Value, json};
use std::fmt;
use tidegate_tests::bootstrap::merge;

/// One configuration, as each filter has it.
pub(super) struct Configuration {
    /// Where Envoy's filter finds the entries.
    pub(super) place: Place,
    /// Fields of Envoy's filter.
    pub(super) native: Value,
    /// All entries. Those with a tag have their index in it.
    pub(super) entries: Value,
    /// Virtual hosts of several routes, with entries or beside them.
    pub(super) blocks: Option<Blocks>,
    /// Fields of the plugin configuration, with the entries.
    pub(super) ours: Value,
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Configuration { place, native, entries, blocks, .. } = self;
        let mut options = native.clone();
        options["rate_limits"] = json!(format!("{place:?}"));
        write!(f, "{options}")?;
        if let Some(blocks) = blocks {
            return write!(f, "\n  {}\n  {}", native["rate_limits"], blocks.for_us());
        }
        let mut entries = entries.as_array().into_iter().flatten();
        entries.try_for_each(|entry| write!(f, "\n  {entry}"))
    }
}

/// A place of `rate_limits` in Envoy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The filter's own list.
    Filter,
    /// The virtual host.
    Host,
    /// The route with a name.
    Route,
    /// Virtual hosts and several routes.
    Blocks,
}

/// The name of that route.
pub(super) const ROUTE: &str = "named";

/// The header that entries may take their hits from.
pub(super) const COST: &str = "x-cost";

/// The header that entries for the end of a stream may take their hits from, of requests and responses. It always has
/// a number, as debits of several requests are compared together.
pub(super) const DEBIT: &str = "x-debit";

/// The key of the entry that names an entry of `rate_limits`.
pub(super) const TAG: &str = "entry";

/// The key of the first entry of those for the end of a stream.
pub(super) const LATE: &str = "late";

/// The header with the number of a request, and the key of its entry in late refunds and in debits that depend on the
/// response, so that each tells its request.
pub(super) const NUMBER: &str = "x-number";

/// Fields of the filter: of Envoy's and of ours.
type Both = [Value; 2];

/// One arm for each option that both filters have.
const OPTIONS: [fn(&mut Dice) -> Both; 10] = [
    |_| same(json!({})),
    |_| same(json!({})),
    |dice| same(json!({"request_type": dice.pick(&["internal", "external", "both"])})),
    |dice| same(json!({"filter_enabled": share(dice.pick(&[0, 100, 100]))})),
    |dice| same(json!({"filter_enforced": share(dice.pick(&[0, 100, 100]))})),
    |dice| same(json!({"rate_limited_as_resource_exhausted": dice.one_in(2)})),
    |dice| same(json!({"disable_x_envoy_ratelimited_header": dice.one_in(2)})),
    response_headers_to_add,
    |_| {
        let draft = "DRAFT_VERSION_03";
        [json!({"enable_x_ratelimit_headers": draft}), json!({"headers": "draft03"})]
    },
    |dice| {
        let status = dice.pick(&[400, 403, 503, 511]);
        [json!({"rate_limited_status": {"code": status}}), json!({"denied": {"status": status}})]
    },
];

fn same(fields: Value) -> Both {
    [fields.clone(), fields]
}

fn share(percent: u32) -> Value {
    json!({"default_value": {"numerator": percent, "denominator": "HUNDRED"}})
}

/// The names of the headers that denials get.
pub(super) const ADDED: [&str; 2] = ["x-added", "x-envoy-ratelimited"];

fn response_headers_to_add(dice: &mut Dice) -> Both {
    let header = |dice: &mut Dice| {
        let value = dice.pick(&["", "one", "100%% two"]);
        let action =
            dice.pick(&["APPEND_IF_EXISTS_OR_ADD", "ADD_IF_ABSENT", "OVERWRITE_IF_EXISTS_OR_ADD"]);
        json!({
            "header": {"key": dice.pick(&ADDED), "value": value},
            "append_action": action,
            "keep_empty_value": dice.one_in(2),
        })
    };
    same(json!({"response_headers_to_add": dice.some(1, 3, header)}))
}

impl Configuration {
    pub(super) fn new(dice: &mut Dice) -> Configuration {
        let place = dice.pick(&[
            Place::Filter,
            Place::Filter,
            Place::Host,
            Place::Route,
            Place::Blocks,
            Place::Blocks,
        ]);
        let (mut native, mut ours) = (json!({}), json!({}));
        for [theirs, own] in dice.some(1, 3, |dice| dice.make(&OPTIONS)) {
            merge(&mut native, &theirs);
            merge(&mut ours, &own);
        }
        let has_own = place == Place::Filter || place == Place::Blocks && dice.one_in(4);
        // Envoy refuses stages in the filter's own list.
        let stages = if has_own { &[None][..] } else { &[None, Some(0), Some(1)] };
        let stage: Option<u32> = dice.pick(stages);
        if let Some(stage) = stage {
            merge(&mut native, &json!({"stage": stage}));
            merge(&mut ours, &json!({"stage": stage}));
        }
        if place == Place::Blocks {
            let count = if has_own { 1 + dice.below(2) } else { 0 };
            let own: Vec<Value> =
                (0..count).map(|index| entry(dice, index, Place::Filter)).collect();
            if has_own {
                native["rate_limits"] = json!(own);
                ours["rate_limits"] = json!(own);
            }
            let blocks = Blocks::new(dice, own, stage);
            ours["virtual_hosts"] = blocks.for_us();
            let entries = json!(blocks.entries);
            return Configuration { place, native, entries, blocks: Some(blocks), ours };
        }
        let count = 1 + dice.below(4);
        let mut entries: Vec<Value> = (0..count).map(|index| entry(dice, index, place)).collect();
        if let Some(stage) = stage {
            // The filter refuses a list without an entry of its stage.
            entries[0]["stage"] = json!(stage);
        }
        let mut own = entries.clone();
        match place {
            Place::Filter => native["rate_limits"] = json!(entries),
            Place::Route => own.iter_mut().for_each(|entry| entry["routes"] = json!([ROUTE])),
            Place::Host | Place::Blocks => {}
        }
        ours["rate_limits"] = json!(own);
        Configuration { place, native, entries: json!(entries), blocks: None, ours }
    }
}

/// An entry, the one of this index of all.
pub(super) fn entry(dice: &mut Dice, index: usize, place: Place) -> Value {
    let mut of = json!({});
    let is_late = dice.one_in(6);
    if is_late {
        of["apply_on_stream_done"] = json!(true);
    }
    // Envoy's filter honours it only in its own list ("`hits_addend` in a route").
    if place == Place::Filter && dice.one_in(3) {
        of["hits_addend"] = if is_late { late_hits(dice) } else { hits_addend(dice) };
        if dice.one_in(4) {
            of["hits_addend"]["is_negative_hits"] = json!(true);
        }
    }
    if place != Place::Filter && index > 0 && dice.one_in(3) {
        of["stage"] = json!(dice.below(3));
    }
    if place != Place::Filter && dice.one_in(6) {
        of["disable_key"] = json!(dice.pick(&["", "key"]));
    }
    if dice.one_in(4) {
        let options = [json!("OFF"), json!("DRAFT_VERSION_03"), json!("UNSPECIFIED"), json!(2)];
        of["x_ratelimit_option"] = dice.pick(&options);
    }
    if dice.one_in(4) {
        of["limit"] = limit(dice);
    }
    let mut actions = dice.some(1, 4, |dice| action(dice, place));
    // So that a descriptor that only one filter makes tells its entry.
    if is_late || !of["hits_addend"]["format"].is_null() || dice.one_in(2) {
        let key = if is_late { LATE } else { TAG };
        let tag = json!({"descriptor_key": key, "descriptor_value": index.to_string()});
        if is_late && depends_on_reply(&of["hits_addend"]) {
            let number = json!({"header_name": NUMBER, "descriptor_key": NUMBER});
            actions.insert(0, json!({"request_headers": number}));
        }
        actions.insert(0, json!({"generic_key": tag}));
    }
    of["actions"] = json!(actions);
    of
}
