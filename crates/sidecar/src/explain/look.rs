//! The look for one descriptor among the rules: how each entry found its place, and where the look
//! ended if it found none.

use super::near::{self, nearest};
use crate::diff::{Snapshot, decoded};
use crate::rules::escaped;
use crate::words::some_of;
use std::collections::BTreeSet;
use tidegate_core::{Entry, Found, Matcher, Rule, Rules, Step};

/// Names that are listed before the rest is only counted.
const NAMES_MAX: usize = 8;

pub(super) struct Look<'a> {
    pub(super) entries: &'a [Entry],
    /// One for each entry that was looked at.
    pub(super) levels: Vec<Level<'a>>,
    /// The rule that applies.
    pub(super) found: Option<&'a Rule>,
    /// Entries whose values share a counter, with the text that stands for them.
    pub(super) shared: Vec<(usize, &'a str)>,
    /// Why there is no rule, and what may have been meant.
    pub(super) hints: Vec<String>,
}

pub(super) struct Level<'a> {
    pub(super) entry: &'a Entry,
    pub(super) matched: Option<&'a Matcher>,
    /// The path of the rule that stands here, whether it applies or not.
    pub(super) rule: Option<&'a str>,
    /// Values that this key has places for, as far as rules have them in their paths.
    pub(super) values: Vec<String>,
}

impl<'a> Look<'a> {
    pub(super) fn of(rules: &'a Rules, domain: &str, entries: &'a [Entry]) -> Look<'a> {
        let mut look = Look {
            entries,
            levels: Vec::new(),
            found: None,
            shared: Vec::new(),
            hints: Vec::new(),
        };
        let snapshot = Snapshot::of(rules);
        // One more entry than there is: its step tells which keys the last place goes on with.
        let beyond = [entries, &[Entry::new("", "")]].concat();
        let Some(steps) = rules.steps(domain, &beyond) else {
            look.hints = unknown_domain(rules, domain);
            return look;
        };
        let mut place = Some(escaped(domain));
        for (entry, step) in entries.iter().zip(&steps) {
            let values = place.as_ref().map_or_else(Vec::new, |place| {
                values_at(&snapshot, &format!("{place}/{}", escaped(&entry.key)))
            });
            let rule = step.rule.map(|rule| rule.path.as_str());
            place = step.matched.zip(place).map(|(m, before)| place_of(&before, entry, m));
            look.levels.push(Level { entry, matched: step.matched, rule, values });
        }
        match rules.find(domain, entries) {
            Found::Rule(found) => {
                look.found = Some(found.rule);
                look.shared = found.shared;
            }
            Found::NoRule | Found::UnknownDomain => {
                look.hints = look.why_not(&steps);
                look.hints.extend(near::others(rules, domain, entries));
            }
        }
        look
    }

    pub(super) fn rule(&self) -> Option<&'a Rule> {
        self.found
    }

    /// The text that stands for the value of this entry in the identity of the counter.
    pub(super) fn shared_as(&self, entry: usize) -> Option<&'a str> {
        self.shared.iter().find(|(index, _)| *index == entry).map(|(_, text)| *text)
    }

    fn why_not(&self, steps: &[Step<'_>]) -> Vec<String> {
        let last = self
            .levels
            .iter()
            .zip(steps)
            .enumerate()
            .rfind(|(_, (_, step))| step.matched.is_none());
        match (last, steps.last()) {
            (Some((index, (level, step))), _) => self.no_place(index, level, step),
            (None, Some(beyond)) => vec![too_short(&beyond.keys)],
            (None, None) => Vec::new(),
        }
    }

    /// Why an entry found no place.
    fn no_place(&self, index: usize, level: &Level<'_>, step: &Step<'_>) -> Vec<String> {
        let Entry { key, value } = level.entry;
        if step.keys.is_empty() {
            let ends = "no rule goes on here, and a descriptor meets a limit only where both end";
            let mut hints = vec![format!("{ends}: this one is too long from {key}={value} on")];
            if let Some(rule) = index.checked_sub(1).and_then(|before| self.levels[before].rule) {
                hints.push(format!("{rule} applies to a descriptor that ends before {key}"));
            }
            return hints;
        }
        if !step.keys.contains(&key.as_str()) {
            let keys = some_of(step.keys.iter().copied(), NAMES_MAX);
            let mut hint = format!("no rule has the key {key:?} here; the keys are {keys}");
            if let Some(meant) = nearest(key, step.keys.iter().copied()) {
                hint += &format!(" (did you mean {meant}?)");
            }
            return vec![hint];
        }
        let mut hint = format!("no rule has the value {value:?} for {key} here, nor {key} alone");
        if !level.values.is_empty() {
            let values = some_of(level.values.iter().map(String::as_str), NAMES_MAX);
            hint += &format!("; the values are {values}");
        }
        if let Some(meant) = nearest(value, level.values.iter().map(String::as_str)) {
            hint += &format!(" (did you mean {meant}?)");
        }
        vec![hint]
    }
}

fn too_short(keys: &[&str]) -> String {
    if keys.is_empty() {
        return "there is a place for it without a limit: what ends here is let through".to_owned();
    }
    let keys = some_of(keys.iter().copied(), NAMES_MAX);
    format!(
        "it is the beginning of longer rules, which go on with {keys}: a descriptor meets a limit \
         only where both end"
    )
}

fn unknown_domain(rules: &Rules, domain: &str) -> Vec<String> {
    let names = rules.domain_names();
    let mut hint = format!("no file has the domain {domain:?}; there is ");
    hint += &some_of(names.iter().copied(), NAMES_MAX);
    if let Some(meant) = nearest(domain, names.into_iter()) {
        hint += &format!(" (did you mean {meant}?)");
    }
    vec![hint]
}

/// The values in the paths of rules that are at this place or below it.
fn values_at(snapshot: &Snapshot, place: &str) -> Vec<String> {
    let prefix = format!("{place}=");
    let below = snapshot.paths().filter_map(|path| path.strip_prefix(&prefix));
    let values: BTreeSet<&str> = below.filter_map(|rest| rest.split('/').next()).collect();
    values.into_iter().map(decoded).collect()
}

/// The path of the place that a matcher takes an entry to, as the rules spell it.
fn place_of(before: &str, entry: &Entry, matched: &Matcher) -> String {
    let key = format!("{before}/{}", escaped(&entry.key));
    match matched {
        Matcher::Any => key,
        Matcher::Exact(value) | Matcher::Wildcard(value) => format!("{key}={}", escaped(value)),
        Matcher::Prefix(prefix) => format!("{key}=prefix={}", escaped(prefix)),
        Matcher::Regex(expression) => format!("{key}=regex={}", escaped(expression)),
        Matcher::Cidr(ranges) => {
            let ranges: Vec<String> = ranges.iter().map(ToString::to_string).collect();
            format!("{key}=cidr={}", escaped(&ranges.join(",")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{Enforcement, RuleKind};

    /// An unlimited rule at each of these places.
    fn rules(places: &[&[(&str, Matcher)]]) -> Rules {
        let mut rules = Rules::default();
        for levels in places {
            let mut path = "d".to_owned();
            let mut node = rules.domain_mut("d").root_mut();
            for (key, matcher) in *levels {
                path = place_of(&path, &Entry::new(*key, ""), matcher);
                // Places that several rules go through are made by the first.
                node = node.insert(key, matcher, None).unwrap();
            }
            node.set_rule(Rule {
                path,
                kind: RuleKind::Unlimited { name: None, replaces: Vec::new() },
                enforcement: Enforcement::Enforce,
                metric_values: Vec::new(),
                metadata: None,
            });
        }
        rules
    }

    fn exact(value: &str) -> Matcher {
        Matcher::Exact(value.to_owned())
    }

    fn shop() -> Rules {
        rules(&[
            &[("app", exact("web")), ("user", Matcher::Any)],
            &[("app", exact("cli"))],
            &[("app", Matcher::Prefix("t".to_owned())), ("user", exact("vip"))],
            &[("client", Matcher::Any)],
        ])
    }

    #[track_caller]
    fn check(entries: &[(&str, &str)], expected: Result<&str, &[&str]>) {
        let rules = shop();
        let entries: Vec<Entry> = entries.iter().map(|(k, v)| Entry::new(*k, *v)).collect();
        let look = Look::of(&rules, "d", &entries);
        let hints: Vec<&str> = look.hints.iter().map(String::as_str).collect();
        let found = look.rule().map(|rule| rule.path.as_str()).ok_or(&hints[..]);
        assert_eq!(found, expected, "for {entries:?}");
    }

    #[test]
    fn a_look_tells_the_rule_or_why_there_is_none() {
        check(&[("app", "web"), ("user", "1")], Ok("d/app=web/user"));
        check(&[("app", "t9"), ("user", "vip")], Ok("d/app=prefix=t/user=vip"));
        check(
            &[("app", "web")],
            Err(&[
                "it is the beginning of longer rules, which go on with user: a descriptor meets a \
                   limit only where both end",
            ]),
        );
        check(
            &[("ap", "web")],
            Err(&["no rule has the key \"ap\" here; the keys are app, client (did you mean app?)"]),
        );
        check(
            &[("app", "wbe")],
            Err(&[
                "no rule has the value \"wbe\" for app here, nor app alone; the values are cli, \
                   prefix=t, web (did you mean web?)",
            ]),
        );
        check(
            &[("app", "t9"), ("user", "vpi")],
            Err(&[
                "no rule has the value \"vpi\" for user here, nor user alone; the values are vip \
                   (did you mean vip?)",
            ]),
        );
        check(
            &[("user", "1"), ("app", "web")],
            Err(&[
                "no rule has the key \"user\" here; the keys are app, client",
                "in the order app=web user=1 it would meet d/app=web/user",
            ]),
        );
        check(
            &[("client", "a"), ("x", "1")],
            Err(&[
                "no rule goes on here, and a descriptor meets a limit only where both end: this one \
                 is too long from x=1 on",
                "d/client applies to a descriptor that ends before x",
                "without x=1 it would meet d/client",
            ]),
        );
    }

    #[test]
    fn an_unknown_domain_is_told() {
        let rules = shop();
        let entries = [Entry::new("client", "a")];
        let look = Look::of(&rules, "dd", &entries);
        assert_eq!(look.hints, ["no file has the domain \"dd\"; there is d (did you mean d?)"]);
        assert!(look.levels.is_empty() && look.rule().is_none());
    }

    #[test]
    fn each_level_tells_how_it_matched_and_what_else_there_is() {
        let rules = shop();
        let entries = [Entry::new("app", "t9"), Entry::new("user", "vip")];
        let look = Look::of(&rules, "d", &entries);
        let levels: Vec<(String, Option<&str>)> = look
            .levels
            .iter()
            .map(|level| (level.matched.map_or_else(String::new, ToString::to_string), level.rule))
            .collect();
        let expected = [
            ("prefix \"t\"".to_owned(), None),
            ("= vip".to_owned(), Some("d/app=prefix=t/user=vip")),
        ];
        assert_eq!(levels, expected);
        assert_eq!(look.levels[0].values, ["cli", "prefix=t", "web"]);
    }
}
