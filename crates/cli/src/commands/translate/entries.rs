//! Lists of `rate_limits`. The filter's own reader checks each entry, so its messages about unsupported parts are the
//! same here and in Envoy's log. An entry with a mistake is left out: without a part it would limit other requests.

use super::input::At;
use super::report::Report;
use serde_json::{Value, json};
use tidegate::config::{Config, ConfigError};

/// A list of entries.
#[derive(Debug, Default)]
pub(super) struct List {
    pub(super) entries: Vec<Value>,
    /// Whether Envoy has an entry there, translated or not.
    pub(super) is_there: bool,
}

/// Whose list it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// The filter, or `RateLimitPerRoute`.
    Filter,
    /// A virtual host, or the action of a route.
    Route,
}

/// The list in the field `rate_limits` of `of`, which is at `path`.
pub(super) fn list(of: Option<At<'_>>, path: &str, owner: Owner, report: &mut Report) -> List {
    let Some(list) = of.and_then(|of| of.field("rate_limits")) else { return List::default() };
    let path = format!("{path}rate_limits");
    if !list.is_list() {
        report.missing(&list, &path, "expected a list");
        return List::default();
    }
    let items = list.items();
    let mut entries = Vec::new();
    for (index, item) in items.iter().enumerate() {
        entries.extend(entry(*item, &format!("{path}[{index}]"), owner, report));
    }
    List { entries, is_there: !items.is_empty() }
}

/// An entry as the filter has it, unless a part of it has no equivalent.
fn entry(at: At<'_>, path: &str, owner: Owner, report: &mut Report) -> Option<Value> {
    if let Some((name, place)) = at.twice() {
        report.missing(&place, path, format!("`{name}` is there in both spellings"));
        return None;
    }
    let mut entry = at.json();
    if owner == Owner::Route
        && let Some(hits) = at.field("hits_addend")
    {
        let message = "Envoy ignores it in the list of a route or virtual host, so it is left out";
        report.note(&hits, &format!("{path}.hits_addend"), message);
        entry.as_object_mut()?.remove("hits_addend");
    }
    if let Some(key) = at.field("disable_key") {
        let message = "has no effect: a Wasm filter cannot read Envoy's runtime";
        report.note(&key, &format!("{path}.disable_key"), message);
    }
    let mistakes = mistakes(&entry);
    for ConfigError { path: below, message } in &mistakes {
        let dot = if below.is_empty() { "" } else { "." };
        let place = at.at_path(below);
        report.missing(
            &place,
            &format!("{path}{dot}{below}"),
            format!("{message}; the entry is left out"),
        );
    }
    mistakes.is_empty().then_some(entry)
}

/// What the filter says of an entry: of each action, and of the rest.
fn mistakes(entry: &Value) -> Vec<ConfigError> {
    let Err(first) = check(entry) else { return Vec::new() };
    let actions = entry["actions"].as_array().map_or(&[][..], Vec::as_slice);
    let mut all = Vec::new();
    for (index, action) in actions.iter().enumerate() {
        if let Err(mut error) = check(&json!({"actions": [action]})) {
            error.path = error.path.replacen("actions[0]", &format!("actions[{index}]"), 1);
            all.push(error);
        }
    }
    if !actions.is_empty() {
        let mut rest = entry.clone();
        rest["actions"] = json!([{"remote_address": {}}]);
        all.extend(check(&rest).err());
    }
    if all.is_empty() { vec![first] } else { all }
}

/// Reads an entry alone, with the path of a mistake from there.
fn check(entry: &Value) -> Result<(), ConfigError> {
    let mut config = json!({"domain": "d", "sidecar": {"cluster": "c"}, "rate_limits": [entry]});
    if let Some(stage) = entry.get("stage") {
        config["stage"] = stage.clone();
    }
    read(&config).map_err(|mut error| {
        if let Some(below) = error.path.strip_prefix("rate_limits[0]") {
            error.path = below.trim_start_matches('.').to_owned();
        }
        error
    })
}

/// Whether the filter accepts a configuration.
pub(super) fn read(config: &Value) -> Result<(), ConfigError> {
    Config::from_envoy(config.to_string().as_bytes()).map(drop)
}
