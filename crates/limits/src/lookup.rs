//! The look for one descriptor among the rules: how each entry found its place, and where the look
//! ended if it found none.

mod near;

use crate::describe::some_of;
use crate::diff::{Snapshot, decoded};
use crate::text::escaped;
use crate::yaml::matching::segment;
use crate::{Found, Matcher, Rule, RuleNode, Rules, Step};
use near::nearest;
pub use near::words;
use std::collections::BTreeSet;
use tidegate_core::Entry;

/// Names that are listed before the rest is only counted.
const NAMES_MAX: usize = 8;

pub struct Look<'a> {
    pub entries: &'a [Entry],
    /// One for each entry that was looked at.
    pub levels: Vec<Level<'a>>,
    /// The rule that applies.
    pub found: Option<&'a Rule>,
    /// Entries whose values share a counter, with the text that stands for them.
    pub shared: Vec<(usize, &'a str)>,
    /// Why there is no rule, and what may have been meant.
    pub hints: Vec<String>,
}

pub struct Level<'a> {
    pub entry: &'a Entry,
    pub matched: Option<&'a Matcher>,
    /// The path of the rule that stands here, whether it applies or not.
    pub rule: Option<&'a str>,
    /// Values that this key has places for.
    pub values: Vec<String>,
}

impl<'a> Look<'a> {
    pub fn of(rules: &'a Rules, domain: &str, entries: &'a [Entry]) -> Look<'a> {
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
            place = step
                .matched
                .zip(place)
                .map(|(m, before)| format!("{before}/{}", segment(&entry.key, m)));
            look.levels.push(Level { entry, matched: step.matched, rule, values });
        }
        match rules.find(domain, entries) {
            Found::Rule(found) => {
                look.found = Some(found.rule);
                look.shared = found.shared;
            }
            Found::NoRule | Found::UnknownDomain => {
                look.hints = look.why_not(&steps);
                look.hints.extend(rules.root(domain).and_then(|root| look.taken_first(root)));
                look.hints.extend(near::others(rules, domain, entries));
            }
        }
        look
    }

    pub fn rule(&self) -> Option<&'a Rule> {
        self.found
    }

    /// The text that stands for the value of this entry in the identity of the counter.
    pub fn shared_as(&self, entry: usize) -> Option<&'a str> {
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

    /// That a key alone would have gone on where the place that took its value does not: there is no
    /// way back up.
    fn taken_first(&self, root: &RuleNode) -> Option<String> {
        let (last, way) = self.levels.split_last().filter(|(last, _)| last.matched.is_none())?;
        let mut hint = None;
        let mut node = root;
        for (index, level) in way.iter().enumerate() {
            let key = &level.entry.key;
            let mut below = node.below();
            let alone = below.find(|at| at.key == key && at.matcher == &Matcher::Any);
            let mut rest = self.levels[index + 1..].iter();
            let goes_on = alone
                .and_then(|at| rest.try_fold(at.node, |node, level| node.next(level.entry)))
                .is_some();
            let taken = level.matched.filter(|matched| goes_on && *matched != &Matcher::Any);
            if let Some(matched) = taken {
                let taken = segment(key, matched);
                hint = Some(format!(
                    "`{key}` alone goes on with {}, but `{taken}` is taken first and does not",
                    last.entry.key
                ));
            }
            node = node.next(level.entry)?;
        }
        hint
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

/// The values that have places of this key.
fn values_at(snapshot: &Snapshot, place: &str) -> Vec<String> {
    let prefix = format!("{place}=");
    let below = snapshot.paths().filter_map(|path| path.strip_prefix(&prefix));
    let values: BTreeSet<&str> = below.filter_map(|rest| rest.split('/').next()).collect();
    values.into_iter().map(decoded).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RuleKind;
    use tidegate_core::Enforcement;

    /// An unlimited rule at each of these places.
    fn rules(places: &[&[(&str, Matcher)]]) -> Rules {
        let mut rules = Rules::default();
        for levels in places {
            let mut path = "d".to_owned();
            let mut node = rules.domain_mut("d").root_mut();
            for (key, matcher) in *levels {
                path = format!("{path}/{}", segment(key, matcher));
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
    fn there_is_no_way_back_to_the_key_alone() {
        let mut rules = Rules::default();
        let root = rules.domain_mut("d").root_mut();
        let mut any = root.insert("app", &Matcher::Any, None).unwrap();
        for key in ["b", "x"] {
            any = any.insert(key, &Matcher::Any, None).unwrap();
        }
        let place = root.insert("app", &exact("v"), None).unwrap();
        place.insert("c", &Matcher::Any, None).unwrap();
        root.insert("app", &Matcher::Prefix("t".to_owned()), None).unwrap();
        for (value, key, told) in [
            ("v", "b", Some("`app=v` is taken first")),
            ("t1", "b", Some("`app=prefix=t` is taken first")),
            ("v", "d", None),
            ("z", "c", None),
        ] {
            let entries = [Entry::new("app", value), Entry::new(key, "1")];
            let look = Look::of(&rules, "d", &entries);
            let hint = look.hints.iter().find(|hint| hint.contains("taken first"));
            let told =
                told.map(|taken| format!("`app` alone goes on with b, but {taken} and does not"));
            assert_eq!(hint, told.as_ref(), "for {entries:?}");
        }
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
