//! The path of one descriptor through the tree of its domain: how each entry matched, and why there is no
//! rule where it meets none.

mod near;

use crate::compiled::{Matcher, Rule, RuleNode, Rules};
use crate::describe::some_of;
use crate::path::{segment, spelling, unescaped};
use near::suggestion;
use std::collections::BTreeSet;
use tidegate_core::Entry;

/// The most names that a hint lists; the rest is counted.
const NAMES_MAX: usize = 8;

/// A lookup, with all its levels.
#[derive(Default)]
pub struct Trace<'a> {
    pub entries: &'a [Entry],
    /// One for each entry up to the first that does not match.
    pub levels: Vec<Level<'a>>,
    rule: Option<&'a Rule>,
    /// Entries whose values share a counter, with the text that replaces the value.
    shared: Vec<(usize, &'a str)>,
    /// Why there is no rule, and descriptors that would meet one.
    pub hints: Vec<String>,
}

pub struct Level<'a> {
    pub entry: &'a Entry,
    pub matched: Option<&'a Matcher>,
    /// The path of the rule at this level, whether it applies or not.
    pub rule: Option<&'a str>,
    /// Values that have branches for this key.
    pub values: Vec<String>,
}

impl<'a> Trace<'a> {
    pub fn of(rules: &'a Rules, domain: &str, entries: &'a [Entry]) -> Trace<'a> {
        let mut trace = Trace { entries, ..Trace::default() };
        let Some(root) = rules.root(domain) else {
            trace.hints = unknown_domain(rules, domain);
            return trace;
        };
        let (mut node, mut is_matched) = (root, true);
        for (index, entry) in entries.iter().enumerate() {
            let child = node.next(entry);
            let (matched, values) = (child.map(|child| child.matcher), values_of(node, &entry.key));
            let rule = child.and_then(|child| child.node.rule()).map(|rule| rule.path.as_str());
            trace.levels.push(Level { entry, matched, rule, values });
            is_matched = child.is_some();
            let Some(child) = child else { break };
            trace.shared.extend(child.share.map(|text| (index, text)));
            node = child.node;
        }
        trace.rule = node.rule().map(|rule| &**rule).filter(|_| is_matched);
        if trace.rule.is_none() {
            let keys = node.keys();
            trace.hints = if is_matched { vec![too_short(&keys)] } else { trace.unmatched(&keys) };
            trace.hints.extend(trace.captured(root));
            trace.hints.extend(near::others(rules, domain, entries));
        }
        trace
    }

    pub fn rule(&self) -> Option<&'a Rule> {
        self.rule
    }

    /// The text that replaces the value of this entry in the identity of the counter.
    pub fn shared_as(&self, entry: usize) -> Option<&'a str> {
        self.shared.iter().find(|(index, _)| *index == entry).map(|(_, text)| *text)
    }

    /// A hint if a value or pattern captured an entry, but only the key alone leads on. Lookup does not
    /// backtrack.
    fn captured(&self, root: &RuleNode) -> Option<String> {
        let (last, before) = self.levels.split_last().filter(|(last, _)| last.matched.is_none())?;
        let mut hint = None;
        let mut node = root;
        for (index, level) in before.iter().enumerate() {
            let key = &level.entry.key;
            let mut children = node.children();
            let any = children.find(|child| child.key == key && child.matcher == &Matcher::Any);
            let mut rest = self.levels[index + 1..].iter();
            let leads_on = any
                .and_then(|any| {
                    rest.try_fold(any.node, |node, level| Some(node.next(level.entry)?.node))
                })
                .is_some();
            let captor = level.matched.filter(|matched| leads_on && *matched != &Matcher::Any);
            if let Some(captor) = captor {
                hint = Some(format!(
                    "`{key}` alone leads on to {}, but `{}` matches first and does not",
                    last.entry.key,
                    segment(key, captor)
                ));
            }
            node = node.next(level.entry)?.node;
        }
        hint
    }

    /// Why the last entry did not match, where these keys were expected.
    fn unmatched(&self, keys: &[&str]) -> Vec<String> {
        let Some((level, before)) = self.levels.split_last() else { return Vec::new() };
        let Entry { key, value } = level.entry;
        if keys.is_empty() {
            let mut hints = vec![format!(
                "no rule goes on here, and a descriptor must end where its rule ends: this one is \
                 too \
                 long from {key}={value} on"
            )];
            if let Some(rule) = before.last().and_then(|level| level.rule) {
                hints.push(format!("{rule} applies to a descriptor that ends before {key}"));
            }
            return hints;
        }
        if !keys.contains(&key.as_str()) {
            let meant = suggestion(key, keys.iter().copied());
            let keys = some_of(keys.iter().copied(), NAMES_MAX);
            return vec![format!("no rule has the key {key:?} here; the keys are {keys}{meant}")];
        }
        let mut hint = format!("no rule has the value {value:?} for {key} here, nor {key} alone");
        if !level.values.is_empty() {
            let values = some_of(level.values.iter().map(String::as_str), NAMES_MAX);
            hint += &format!("; the values are {values}");
        }
        vec![hint + &suggestion(value, level.values.iter().map(String::as_str))]
    }
}

fn too_short(keys: &[&str]) -> String {
    if keys.is_empty() {
        return "a rule without a limit ends here, so the descriptor passes".to_owned();
    }
    let keys = some_of(keys.iter().copied(), NAMES_MAX);
    format!(
        "longer rules begin like this and go on with {keys}: a descriptor must end where its rule \
         ends"
    )
}

fn unknown_domain(rules: &Rules, domain: &str) -> Vec<String> {
    let names = rules.domain_names();
    let known = some_of(names.iter().copied(), NAMES_MAX);
    let meant = suggestion(domain, names.into_iter());
    vec![format!("no file has the domain {domain:?}; there is {known}{meant}")]
}

/// The values that have branches for this key below a node.
fn values_of(node: &RuleNode, key: &str) -> Vec<String> {
    let of_key = node.children().filter(|child| child.key == key && *child.matcher != Matcher::Any);
    let values: BTreeSet<String> = of_key.map(|child| spelling(child.matcher)).collect();
    values.iter().map(|value| unescaped(value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compiled::RuleKind;
    use crate::tests::{exact, rules_at};
    use tidegate_core::Enforcement;

    fn unlimited(path: String) -> Rule {
        Rule {
            path,
            kind: RuleKind::Unlimited { name: None, replaces: Vec::new() },
            enforcement: Enforcement::Enforce,
            metric_values: Vec::new(),
            metadata: None,
        }
    }

    fn shop() -> Rules {
        let paths: [&[(&str, Matcher)]; 4] = [
            &[("app", exact("web")), ("user", Matcher::Any)],
            &[("app", exact("cli"))],
            &[("app", Matcher::Prefix("t".to_owned())), ("user", exact("vip"))],
            &[("client", Matcher::Any)],
        ];
        rules_at(&paths, unlimited)
    }

    #[track_caller]
    fn check(entries: &[(&str, &str)], expected: Result<&str, &[&str]>) {
        let rules = shop();
        let entries: Vec<Entry> = entries.iter().map(|(k, v)| Entry::new(*k, *v)).collect();
        let trace = Trace::of(&rules, "d", &entries);
        let hints: Vec<&str> = trace.hints.iter().map(String::as_str).collect();
        let found = trace.rule.map(|rule| rule.path.as_str()).ok_or(&hints[..]);
        assert_eq!(found, expected, "for {entries:?}");
    }

    #[test]
    fn a_trace_has_the_rule_or_the_reason_why_there_is_none() {
        check(&[("app", "web"), ("user", "1")], Ok("d/app=web/user"));
        check(&[("app", "t9"), ("user", "vip")], Ok("d/app=prefix=t/user=vip"));
        check(
            &[("app", "web")],
            Err(&[
                "longer rules begin like this and go on with user: a descriptor must end where its \
                 rule ends",
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
                "no rule goes on here, and a descriptor must end where its rule ends: this one is \
                 too \
                 long from x=1 on",
                "d/client applies to a descriptor that ends before x",
                "without x=1 it would meet d/client",
            ]),
        );
    }

    #[test]
    fn lookup_does_not_backtrack_to_the_key_alone() {
        let mut rules = Rules::default();
        let root = rules.root_mut("d");
        let mut any = root.insert("app", &Matcher::Any, None).unwrap();
        for key in ["b", "x"] {
            any = any.insert(key, &Matcher::Any, None).unwrap();
        }
        let place = root.insert("app", &exact("v"), None).unwrap();
        place.insert("c", &Matcher::Any, None).unwrap();
        root.insert("app", &Matcher::Prefix("t".to_owned()), None).unwrap();
        for (value, key, captor) in [
            ("v", "b", Some("app=v")),
            ("t1", "b", Some("app=prefix=t")),
            ("v", "d", None),
            ("z", "c", None),
        ] {
            let entries = [Entry::new("app", value), Entry::new(key, "1")];
            let trace = Trace::of(&rules, "d", &entries);
            let hint = trace.hints.iter().find(|hint| hint.contains("matches first"));
            let expected = captor.map(|captor| {
                format!("`app` alone leads on to b, but `{captor}` matches first and does not")
            });
            assert_eq!(hint, expected.as_ref(), "for {entries:?}");
        }
    }

    #[test]
    fn an_unknown_domain_is_reported() {
        let rules = shop();
        let entries = [Entry::new("client", "a")];
        let trace = Trace::of(&rules, "dd", &entries);
        assert_eq!(trace.hints, ["no file has the domain \"dd\"; there is d (did you mean d?)"]);
        assert!(trace.levels.is_empty() && trace.rule.is_none());
    }

    #[test]
    fn each_level_has_its_matcher_and_its_alternatives() {
        let rules = shop();
        let entries = [Entry::new("app", "t9"), Entry::new("user", "vip")];
        let trace = Trace::of(&rules, "d", &entries);
        let levels: Vec<(String, Option<&str>)> = trace
            .levels
            .iter()
            .map(|level| (level.matched.map_or_else(String::new, ToString::to_string), level.rule))
            .collect();
        let expected = [
            ("prefix \"t\"".to_owned(), None),
            ("= vip".to_owned(), Some("d/app=prefix=t/user=vip")),
        ];
        assert_eq!(levels, expected);
        assert_eq!(trace.levels[0].values, ["cli", "prefix=t", "web"]);
    }
}
