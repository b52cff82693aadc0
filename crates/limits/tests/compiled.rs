//! Matching, precedence, refusals, and the cost of lookups, which must not grow with the rules. Random
//! trees agree with a slow twin.

mod slow_rules;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use slow_rules::{REGEXES, SlowBranch, SlowMatch, SlowNode, pattern_matches};
use tidegate_core::{DeniedHits, Enforcement, Entry, FixedWindow, Nanos, Quota};
use tidegate_limits::{
    Cidr, CidrError, Limit, Lookup, Matcher, MatcherError, Rule, RuleKind, RuleNode, Rules,
};

fn rule(path: &str) -> Rule {
    Rule {
        path: path.to_owned(),
        kind: RuleKind::Unlimited { name: None, replaces: Vec::new() },
        enforcement: Enforcement::Enforce,
        metric_values: Vec::new(),
        metadata: None,
    }
}

fn exact(value: &str) -> Matcher {
    Matcher::Exact(value.to_owned())
}

fn like(pattern: &str) -> Matcher {
    Matcher::Wildcard(pattern.to_owned())
}

fn prefix(prefix: &str) -> Matcher {
    Matcher::Prefix(prefix.to_owned())
}

fn within(ranges: &[&str]) -> Matcher {
    Matcher::Cidr(ranges.iter().map(|range| Cidr::parse(range).unwrap()).collect())
}

fn regex(expression: &str) -> Matcher {
    Matcher::Regex(expression.into())
}

/// Rules of one level for the key `k`; the path of each is its number in the list.
fn level(matchers: &[Matcher]) -> Rules {
    let mut rules = Rules::default();
    let root = rules.root_mut("shop");
    for (index, matcher) in matchers.iter().enumerate() {
        root.insert("k", matcher, None).unwrap().set_rule(rule(&index.to_string()));
    }
    rules
}

fn entries(pairs: &[(&str, &str)]) -> Vec<Entry> {
    pairs.iter().map(|(key, value)| Entry::new(*key, *value)).collect()
}

/// The number of the matcher that wins.
fn winner(rules: &Rules, value: &str) -> Option<usize> {
    match rules.find("shop", &entries(&[("k", value)])) {
        Lookup::Rule(found) => Some(found.rule.path.parse().unwrap()),
        Lookup::NoRule => None,
        Lookup::UnknownDomain => panic!("the domain is there"),
    }
}

#[track_caller]
fn check(matchers: &[Matcher], table: &[(&str, Option<usize>)]) {
    let rules = level(matchers);
    for (value, expected) in table {
        assert_eq!(winner(&rules, value), *expected, "{value:?} among {matchers:?}");
    }
}

/// The values that a single matcher matches, and others.
#[track_caller]
fn check_one(matcher: &Matcher, matches: &[&str], others: &[&str]) {
    let rules = level(std::slice::from_ref(matcher));
    for value in matches {
        assert_eq!(winner(&rules, value), Some(0), "{matcher} matches {value:?}");
    }
    for value in others {
        assert_eq!(winner(&rules, value), None, "{matcher} others {value:?}");
    }
}

fn shop() -> Rules {
    let mut rules = Rules::default();
    let root = rules.root_mut("shop");
    let app = root.insert("app", &Matcher::Any, None).unwrap();
    app.set_rule(rule("shop/app"));
    let user = app.insert("user", &Matcher::Any, None).unwrap();
    user.set_rule(rule("shop/app/user"));
    app.insert("ip", &Matcher::Any, None).unwrap();
    let vip = root.insert("app", &exact("vip"), None).unwrap();
    vip.set_rule(rule("shop/app=vip"));
    let beta = root.insert("app", &like("beta-*"), Some("beta-*")).unwrap();
    beta.insert("user", &prefix("u"), Some("u…")).unwrap().set_rule(rule("shop/beta/u"));
    beta.insert("user", &Matcher::Any, None).unwrap().set_rule(rule("shop/beta/user"));
    rules
}

/// Entries from a table.
type Pairs = &'static [(&'static str, &'static str)];
/// Numbered matchers of one kind.
type Kind = (&'static str, fn(usize) -> Matcher);

fn found(rules: &Rules, domain: &str, pairs: &[(&str, &str)]) -> String {
    match rules.find(domain, &entries(pairs)) {
        Lookup::UnknownDomain => "unknown domain".to_owned(),
        Lookup::NoRule => "no rule".to_owned(),
        Lookup::Rule(found) => found.rule.path.clone(),
    }
}

#[test]
fn a_rule_is_found_only_where_the_descriptor_ends() {
    let rules = shop();
    let table: &[(&str, Pairs, &str)] = &[
        ("other", &[("app", "a")], "unknown domain"),
        ("", &[("app", "a")], "unknown domain"),
        ("shop", &[("app", "a")], "shop/app"),
        ("shop", &[("app", "")], "shop/app"),
        ("shop", &[("app", "a"), ("user", "u")], "shop/app/user"),
        ("shop", &[("app", "a"), ("ip", "u")], "no rule"),
        ("shop", &[("app", "vip")], "shop/app=vip"),
        // The exact value won, and has nothing below it: lookup does not backtrack to `app` alone.
        ("shop", &[("app", "vip"), ("user", "u")], "no rule"),
        // The same with a pattern that has no rule.
        ("shop", &[("app", "beta-1")], "no rule"),
        ("shop", &[("app", "beta-1"), ("ip", "1.1.1.1")], "no rule"),
        ("shop", &[("app", "beta-1"), ("user", "bob")], "shop/beta/user"),
        ("shop", &[("app", "a"), ("user", "u"), ("x", "y")], "no rule"),
        ("shop", &[("user", "u")], "no rule"),
        ("shop", &[("", "")], "no rule"),
        // Key and value are never concatenated.
        ("shop", &[("app_vip", "")], "no rule"),
        ("shop", &[("app=vip", "")], "no rule"),
        ("shop", &[], "no rule"),
    ];
    for (domain, pairs, expected) in table {
        assert_eq!(found(&rules, domain, pairs), *expected, "{domain} {pairs:?}");
    }
}

#[test]
fn the_exact_value_wins_then_the_first_pattern_then_the_key() {
    let patterns = [prefix("ab"), like("a*c"), regex("a.*"), within(&["10.0.0.0/8"]), like("*")];
    let mut matchers = vec![Matcher::Any];
    matchers.extend(patterns);
    matchers.push(exact("abc"));
    let table = [
        ("abc", Some(6)),
        ("abd", Some(1)),
        ("axc", Some(2)),
        ("axx", Some(3)),
        ("10.1.1.1", Some(4)),
        ("other", Some(5)),
    ];
    check(&matchers, &table);
    check(&[prefix("a"), Matcher::Any], &[("b", Some(1)), ("a", Some(0)), ("", Some(1))]);
}

#[test]
fn the_first_pattern_wins_whatever_its_kind() {
    let all = [
        like("*"),
        prefix(""),
        prefix("10.1."),
        like("10.*"),
        like("*.1"),
        like("10*1"),
        like("*1.1*"),
        like("10*.1.*1"),
        like("10.1.1.1"),
        within(&["10.0.0.0/8"]),
        within(&["10.1.0.0/16", "::/0"]),
        regex("10.*"),
        regex("[0-9.]+"),
        regex(r".*\.1\..*"),
    ];
    // Each pair: all of them match this value.
    for first in &all {
        for second in all.iter().filter(|second| *second != first) {
            check(&[first.clone(), second.clone()], &[("10.1.1.1", Some(0))]);
        }
    }
    for turn in 0..all.len() {
        let mut turned = all.to_vec();
        turned.rotate_left(turn);
        check(&turned, &[("10.1.1.1", Some(0))]);
    }
    // Equal matchers in other words.
    check(&[like("a*b"), like("a**b")], &[("axb", Some(0))]);
    check(&[prefix("a"), like("a*")], &[("a", Some(0))]);
    check(&[like("*a*"), like("**a*")], &[("a", Some(0))]);
    check(&[within(&["10.0.0.0/8"]), within(&["10.0.0.0/8", "::1"])], &[("10.0.0.1", Some(0))]);
}

#[test]
fn a_star_stands_for_any_characters_or_none() {
    let table: &[(&str, &[&str], &[&str])] = &[
        ("*", &["", "a", "*", "a\nb", "é"], &[]),
        ("a*", &["a", "ab", "a*"], &["", "ba", "A"]),
        ("*a", &["a", "ba", "aa"], &["", "ab"]),
        ("a*a", &["aa", "aba", "aaa"], &["a", "", "ab"]),
        ("ab*ba", &["abba", "abxba"], &["aba", "ab", "ba"]),
        ("*a*", &["a", "xax"], &["", "x"]),
        ("a*b*c", &["abc", "axbxc", "abbcc", "abcbc"], &["ac", "acb", "bc", "ab"]),
        ("*ab*ab*", &["abab", "xabxabx", "ababab"], &["ab", "aab", "aba"]),
        ("a*ab*b", &["aabb", "axabxb"], &["aab", "abb", "ab"]),
        ("**", &["", "a"], &[]),
        ("a**b", &["ab", "axb"], &["a", "b"]),
        ("***a***", &["a", "bab"], &["", "b"]),
        // Without a star, the pattern is the value.
        ("abc", &["abc"], &["ab", "abcd", ""]),
        ("", &[""], &["a"]),
        ("a.c*", &["a.c", "a.cd"], &["abc"]),
        ("é*ß*", &["éß", "éxßy"], &["eß", "é"]),
        // A prefix of a character's bytes is not the character.
        ("*\u{e9}*", &["\u{e9}", "x\u{e9}x"], &["\u{ea}", "\u{c3}", "\u{a9}"]),
    ];
    for (pattern, matches, others) in table {
        check_one(&like(pattern), matches, others);
    }
}

#[test]
fn a_prefix_is_taken_literally() {
    check_one(&prefix("/api"), &["/api", "/api/x", "/apis"], &["", "/ap", "x/api", "/API"]);
    check_one(&prefix("a*"), &["a*", "a*b"], &["a", "ab"]);
    check_one(&prefix(""), &["", "a"], &[]);
    // An earlier, shorter prefix hides a longer one, as in a file.
    let nested = [prefix("/a/b"), prefix("/a"), prefix("/a/b/c")];
    check(&nested, &[("/a/b/c", Some(0)), ("/a/c", Some(1)), ("/b", None)]);
}

#[test]
fn addresses_and_ranges_match_by_the_range_they_lie_in() {
    check_one(
        &within(&["10.0.0.0/8", "192.168.1.7", "2001:db8::/32"]),
        &[
            "10.0.0.0",
            "10.255.255.255",
            "::ffff:10.1.2.3",
            "::FFFF:0a01:0203",
            "10.0.0.0/8",
            "10.3.0.0/16",
            // Bits after the prefix are ignored in values.
            "10.3.1.1/16",
            "::ffff:10.0.0.0/104",
            "192.168.1.7",
            "192.168.1.7/32",
            "2001:db8::1",
            "2001:0DB8:0:0::/64",
            "2001:db8::/32",
        ],
        &[
            "",
            "/",
            "11.0.0.0",
            "9.255.255.255",
            "10.0.0.0/7",
            "0.0.0.0/0",
            "::/0",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.0.0.0/08",
            "10.0.0.0/8/8",
            "10.0.0.0:80",
            "010.0.0.1",
            "10.1",
            " 10.0.0.1",
            "192.168.1.6",
            "192.168.1.7/31",
            "2001:db9::",
            "2001:db8::/31",
            "2001:db8::1%eth0",
            "[2001:db8::1]",
            "::10.1.2.3",
        ],
    );
    // The families do not mix.
    check_one(&within(&["::/0"]), &["::", "2001:db8::1", "::/0"], &["10.0.0.1", "::ffff:10.0.0.1"]);
    check_one(&within(&["0.0.0.0/0"]), &["10.0.0.1", "::ffff:1.1.1.1"], &["::", "::/0", "fe80::1"]);
    check_one(&within(&["::ffff:10.0.0.0/104"]), &["10.1.1.1"], &["11.1.1.1"]);
    check_one(&within(&["::1"]), &["::1", "::1/128", "0:0:0:0:0:0:0:1"], &["::", "127.0.0.1"]);
    check_one(&within(&[]), &[], &["", "10.0.0.1"]);
    let nested = [within(&["10.1.0.0/16"]), within(&["10.0.0.0/8"]), within(&["10.1.1.0/24"])];
    check(&nested, &[("10.1.1.1", Some(0)), ("10.2.1.1", Some(1)), ("10.0.0.0/12", Some(1))]);
}

#[test]
fn a_bad_range_is_refused_with_a_correction() {
    let table = [
        (
            "10.0.0.1/8",
            r#""10.0.0.1/8" is an address inside a range: write 10.0.0.0/8 for the range"#,
        ),
        (
            "2001:db8::1/32",
            r#""2001:db8::1/32" is an address inside a range: write 2001:db8::/32 for the range"#,
        ),
        (
            "10.0.0.0/33",
            r#""10.0.0.0/33" ends in "33", which is not a number of bits from 0 to 32"#,
        ),
        ("::/129", r#""::/129" ends in "129", which is not a number of bits from 0 to 128"#),
        ("10.0.0.0/", r#""10.0.0.0/" ends in "", which is not a number of bits from 0 to 32"#),
        (
            "10.0.0.0/-1",
            r#""10.0.0.0/-1" ends in "-1", which is not a number of bits from 0 to 32"#,
        ),
        (
            "10.0.0.0/999",
            r#""10.0.0.0/999" ends in "999", which is not a number of bits from 0 to 32"#,
        ),
        ("10.0.0", r#""10.0.0" is not an IP address or a range of them, such as 10.0.0.0/8"#),
        ("", r#""" is not an IP address or a range of them, such as 10.0.0.0/8"#),
        ("/8", r#""/8" is not an IP address or a range of them, such as 10.0.0.0/8"#),
        ("users", r#""users" is not an IP address or a range of them, such as 10.0.0.0/8"#),
    ];
    for (text, expected) in table {
        assert_eq!(Cidr::parse(text).unwrap_err().to_string(), expected);
    }
    let meant = Cidr::parse("10.0.0.0/8").unwrap();
    let refused = CidrError::HostBits { text: "10.9.9.9/8".to_owned(), network: meant };
    assert_eq!(Cidr::parse("10.9.9.9/8"), Err(refused));
}

#[test]
fn a_range_is_written_as_it_is_read() {
    let table = [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.0.0.1", "10.0.0.1/32"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ("::/0", "::/0"),
        ("::ffff:0:0/95", "::fffe:0:0/95"),
        ("2001:DB8::/32", "2001:db8::/32"),
        ("::1", "::1/128"),
    ];
    for (text, written) in table {
        match Cidr::parse(text) {
            Ok(range) => assert_eq!(range.to_string(), written),
            Err(CidrError::HostBits { network, .. }) => assert_eq!(network.to_string(), written),
            Err(other) => panic!("{other}"),
        }
        assert_eq!(Cidr::parse(written).unwrap().to_string(), written);
    }
    let range = Cidr::parse("10.0.0.0/8").unwrap();
    assert_eq!(Cidr::parse("::ffff:10.0.0.0/104"), Ok(range));
}

#[test]
fn an_expression_matches_the_whole_value() {
    let table: &[(&str, &[&str], &[&str])] = &[
        ("a|ab", &["a", "ab"], &["abc", "b", ""]),
        ("[0-9]+", &["1", "123"], &["", "a1", "1a", "1\n"]),
        ("^/v[12]/.*$", &["/v1/", "/v2/x/y"], &["/v3/", "x/v1/", "/v1"]),
        // A line end is a character like any other.
        ("a.c", &["abc", "a\nc"], &["ac"]),
        (".*", &["", "\n", "a\nb"], &[]),
        ("(?-s)a.c", &["abc"], &["a\nc"]),
        ("(?i)straße", &["STRAßE", "straße"], &["strasse"]),
        (r"\w+", &["größe"], &["a b"]),
        ("(?x) a  b  # two letters", &["ab"], &["a b", "abc", "ab\n"]),
        ("a #b", &["a #b"], &["a", "a #b\n"]),
        ("", &[""], &["a"]),
        (r"\.php", &[".php"], &["xphp"]),
        ("(ab)+", &["ab", "abab"], &["aba"]),
    ];
    for (expression, matches, others) in table {
        check_one(&regex(expression), matches, others);
    }
}

#[test]
fn a_bad_expression_is_refused_in_a_line_and_changes_nothing() {
    let table = [
        ("(", "unclosed group"),
        (")", "unopened group"),
        // Would be valid inside a group.
        ("a)|(b", "unopened group"),
        ("[a", "unclosed character class"),
        ("a\\", "incomplete escape sequence, reached end of pattern prematurely"),
        ("*", "repetition operator missing expression"),
        (r"(a)\1", "backreferences are not supported"),
        ("a{1000}{1000}{1000}", "it compiles to more than 256 KiB"),
        (r"\w{5000}", "it compiles to more than 256 KiB"),
    ];
    for (expression, expected) in table {
        let mut rules = Rules::default();
        let root = rules.root_mut("shop");
        let refused = root.insert("k", &regex(expression), None).map(drop).unwrap_err();
        assert_eq!(refused, MatcherError::Regex(expected.to_owned()), "{expression}");
        assert!(rules.root("shop").unwrap().keys().is_empty(), "{expression}");
    }
}

#[test]
fn many_expressions_are_distinguished() {
    // With and without required literals, and more than fit into one set.
    let mut matchers: Vec<Matcher> = Vec::new();
    for number in 0..300 {
        matchers.push(regex(&format!("[a-z]+/{number}/[0-9]+")));
        matchers.push(regex(&format!("[x]{{{}}}", number + 1)));
    }
    matchers.push(regex("[a-z]+/7/.*"));
    matchers.push(regex("[x]+"));
    // Flags change the meaning of the letters after them.
    matchers.push(regex("(?i)name"));
    let long = "x".repeat(300);
    check(
        &matchers,
        &[
            ("ab/7/1", Some(14)),
            ("ab/299/1", Some(598)),
            ("ab/7/", Some(600)),
            ("ab/300/1", None),
            ("/7/1", None),
            ("x", Some(1)),
            ("xxxxx", Some(9)),
            ("NaMe", Some(602)),
            (&long, Some(599)),
            (&"x".repeat(301), Some(601)),
        ],
    );
}

#[test]
fn shared_entries_have_the_text_that_replaces_their_value() {
    let rules = shop();
    let table: &[(Pairs, &[(usize, &str)])] = &[
        (&[("app", "a"), ("user", "u1")], &[]),
        (&[("app", "beta-1"), ("user", "bob")], &[(0, "beta-*")]),
        (&[("app", "beta-1"), ("user", "u1")], &[(0, "beta-*"), (1, "u…")]),
    ];
    for (pairs, expected) in table {
        let Lookup::Rule(found) = rules.find("shop", &entries(pairs)) else { panic!("{pairs:?}") };
        assert_eq!(found.shared, *expected, "{pairs:?}");
    }
}

#[test]
fn an_existing_branch_is_refused() {
    let mut rules = Rules::default();
    let root = rules.root_mut("shop");
    let matchers = [
        Matcher::Any,
        exact("a"),
        exact(""),
        like("a*"),
        like("a"),
        prefix("a"),
        within(&["10.0.0.0/8", "::1"]),
        regex("a"),
    ];
    for matcher in &matchers {
        for key in ["k", "l"] {
            root.insert(key, matcher, None).unwrap().set_rule(rule(key));
        }
    }
    let other_order = within(&["::1", "10.0.0.0/8", "::1"]);
    for matcher in matchers.iter().chain([&other_order]) {
        let again = root.insert("k", matcher, Some("text")).map(drop);
        assert_eq!(again, Err(MatcherError::Duplicate), "{matcher}");
    }
    // The refused insertions changed nothing.
    assert_eq!(found(&rules, "shop", &[("k", "a")]), "k");
    assert_eq!(rules.rules().len(), 2 * matchers.len());
}

#[test]
fn branches_may_be_added_after_a_lookup() {
    let mut rules = level(&[prefix("a")]);
    assert_eq!(winner(&rules, "b"), None);
    rules.build_indexes();
    let root = rules.root_mut("shop");
    root.insert("k", &prefix("b"), None).unwrap().set_rule(rule("1"));
    assert_eq!((winner(&rules, "b"), winner(&rules, "a")), (Some(1), Some(0)));
}

#[test]
fn each_entry_leads_to_the_child_that_matches_it() {
    let rules = shop();
    let described = |pairs: &[(&str, &str)]| {
        let mut node = rules.root("shop");
        let mut described = Vec::new();
        for entry in entries(pairs) {
            let before = node.unwrap();
            let child = before.next(&entry);
            node = child.map(|child| child.node);
            let matched = child.map_or("nothing".to_owned(), |child| child.matcher.to_string());
            let rule = node.and_then(RuleNode::rule).map_or("-", |rule| &rule.path);
            described.push(format!("{matched}; {rule}; {}", before.keys().join(",")));
            if child.is_none() {
                break;
            }
        }
        described
    };
    let table: &[(Pairs, &[&str])] = &[
        (&[], &[]),
        (&[("app", "a")], &["any value; shop/app; app"]),
        (
            &[("app", "a"), ("user", "u")],
            &["any value; shop/app; app", "any value; shop/app/user; ip,user"],
        ),
        (
            &[("app", "vip"), ("user", "u"), ("x", "y")],
            &["= vip; shop/app=vip; app", "nothing; -; "],
        ),
        (
            &[("app", "beta-2"), ("user", "u1")],
            &["like \"beta-*\"; -; app", "prefix \"u\"; shop/beta/u; user"],
        ),
        (&[("nope", "")], &["nothing; -; app"]),
    ];
    for (pairs, expected) in table {
        assert_eq!(described(pairs), *expected, "{pairs:?}");
    }
    assert!(rules.root("other").is_none());
}

#[test]
fn a_matcher_reads_as_operators_say_it() {
    let table = [
        (Matcher::Any, "any value"),
        (exact("users"), "= users"),
        (exact(""), "= \"\""),
        (exact("a b"), "= \"a b\""),
        (exact("a\n"), "= \"a\\n\""),
        (like("a*"), "like \"a*\""),
        (prefix("/api"), "prefix \"/api\""),
        (within(&["10.0.0.0/8"]), "in 10.0.0.0/8"),
        (within(&["10.0.0.1", "::/0"]), "in 10.0.0.1/32, ::/0"),
        (regex("a.*"), "matching /a.*/"),
        (regex("a\nb"), "matching /a\\nb/"),
    ];
    for (matcher, expected) in table {
        assert_eq!(matcher.to_string(), expected);
    }
}

#[test]
fn rules_and_limits_are_listed_by_path() {
    let quota = Quota::FixedWindow(FixedWindow::new(1, Nanos::from_secs(60)).unwrap());
    let limit = |path: &str| Limit {
        name: None,
        path: path.to_owned(),
        label: String::new(),
        quota: quota.clone(),
        timezone: None,
        denied: DeniedHits::Ignore,
        replaces: Vec::new(),
    };
    let limits = |path: &str, limits| Rule { kind: RuleKind::Limits(limits), ..rule(path) };
    let mut rules = Rules::default();
    let zoo = rules.root_mut("zoo").insert("k", &prefix("a"), None).unwrap();
    zoo.set_rule(limits("zoo/k", vec![limit("zoo/k#b"), limit("zoo/k#a")]));
    let below = zoo.insert("l", &exact("x"), None).unwrap();
    below.set_rule(limits("ant/l", vec![limit("ant/l")]));
    rules.root_mut("ant").insert("k", &Matcher::Any, None).unwrap().set_rule(rule("b"));
    rules.root_mut("empty");
    let paths = |rules: &Rules| -> Vec<String> {
        rules.rules().iter().map(|rule| rule.path.clone()).collect()
    };
    assert_eq!(paths(&rules), ["ant/l", "b", "zoo/k"]);
    let limits: Vec<&str> = rules.limits().iter().map(|limit| limit.path.as_str()).collect();
    assert_eq!(limits, ["ant/l", "zoo/k#a", "zoo/k#b"]);
    assert_eq!(rules.domain_names(), ["ant", "empty", "zoo"]);
    assert!(rules.has_domain("empty") && !rules.has_domain("bee"));
}

/// The comparisons of a lookup with these matchers, for the most expensive of the values.
fn compared(matchers: &[Matcher], values: &[String]) -> usize {
    let rules = level(matchers);
    let root = rules.root("shop").unwrap();
    let compared = |value: &String| root.compared(&Entry::new("k", value));
    values.iter().map(compared).max().unwrap()
}

#[test]
fn a_lookup_compares_no_more_among_ten_thousand_rules_than_among_ten() {
    let kinds: [Kind; 11] = [
        ("exact", |i| exact(&format!("/api/{i:05}/end"))),
        ("prefix", |i| prefix(&format!("/api/{i:05}"))),
        ("start", |i| like(&format!("/api/{i:05}*"))),
        ("end", |i| like(&format!("*{i:05}/end"))),
        ("start and end", |i| like(&format!("/api/*{i:05}/end"))),
        ("other start and end", |i| like(&format!("/api/{i:05}*/end"))),
        ("middle", |i| like(&format!("*{i:05}*"))),
        ("middle and more", |i| like(&format!("/*api*{i:05}*d"))),
        ("regex with a start", |i| regex(&format!("/api/{i:05}/.*"))),
        ("regex with a middle", |i| regex(&format!(".*/{i:05}/e?nd"))),
        ("whole", |i| like(&format!("/api/{i:05}/end"))),
    ];
    let values = |count: usize| -> Vec<String> {
        let some = [0, count / 2, count - 1].map(|i| format!("/api/{i:05}/end"));
        some.into_iter().chain(["/api/99999/end", "/", ""].map(str::to_owned)).collect()
    };
    for (name, matcher) in kinds {
        // Building that many expressions is slow in a debug build.
        let many = if name.starts_with("regex") { 1_000 } else { 10_000 };
        let few: Vec<Matcher> = (0..10).map(matcher).collect();
        let many: Vec<Matcher> = (0..many).map(matcher).collect();
        let among_few = compared(&few, &values(few.len()));
        let among_many = compared(&many, &values(many.len()));
        // At most the bytes of the value once more: few expressions are tried at once, and of many only
        // those whose literals occur. One by one, it would be hundreds.
        let bytes = "/api/00000/end".len();
        assert!(among_many <= among_few + bytes + 4, "{name}: {among_few}, then {among_many}");
    }
}

#[test]
fn a_lookup_of_addresses_compares_one_range_per_length() {
    let range = |i: usize| {
        let address = std::net::Ipv4Addr::from_bits(u32::try_from(i << 14).unwrap());
        Cidr::parse(&format!("{address}/{}", 18 + i % 8)).unwrap()
    };
    let level = |count: usize| -> Vec<Matcher> {
        (0..count).map(|i| Matcher::Cidr(vec![range(i)])).collect()
    };
    let values = ["0.0.0.1", "255.0.0.1", "0.4.0.0/24", "::1", "none"].map(str::to_owned);
    assert!(compared(&level(10_000), &values) <= compared(&level(10), &values));
}

#[test]
fn hostile_values_cost_their_length() {
    let matchers = [
        like("a*a*a*a*a*a*a*a*b"),
        like("*a*aa*aaa*aaaa*c*"),
        like("*aaaaaaaaaaaaaaaa*b"),
        like("*ab*ab*ab*ab*ab*c*"),
        regex("(a*)*b"),
        regex("(a|aa)+c"),
        regex(".*a.*a.*a.*b"),
        within(&["10.0.0.0/8"]),
        prefix("b"),
    ];
    let rules = level(&matchers);
    let long = 1 << 20;
    for (name, value) in [
        ("a", "a".repeat(long)),
        ("ab", "ab".repeat(long / 2)),
        ("address", format!("10.0.0.{}", "0".repeat(long))),
        ("length", format!("10.0.0.0/{}", "8".repeat(long))),
        ("wide", "\u{10ffff}".repeat(long / 4)),
        ("nothing", "\0".repeat(long)),
        ("stars", "*".repeat(long)),
    ] {
        let (root, entry) = (rules.root("shop").unwrap(), Entry::new("k", &value));
        // One pass for each start and end, with a few fallbacks; few patterns need more than one
        // comparison.
        let compared = root.compared(&entry);
        assert!(compared <= 10 * long, "{name}: {compared}");
        let taken = root.next(&entry).map(|child| child.matcher.to_string());
        let expected = (name == "ab").then(|| "like \"a*a*a*a*a*a*a*a*b\"".to_owned());
        assert_eq!(taken, expected, "{name}");
    }
    // Keys may be hostile too.
    let long_key = "k".repeat(long);
    assert_eq!(found(&rules, "shop", &[(&long_key, "")]), "no rule");
    assert_eq!(found(&rules, &long_key, &[("k", "")]), "unknown domain");
}

/// A branch of a random tree.
#[derive(Debug, Clone)]
struct Spec {
    key: String,
    matcher: Matcher,
    share: bool,
    has_rule: bool,
    below: Vec<Spec>,
}

const ADDRESSES: [&str; 10] = [
    "10.1.2.3",
    "10.1.0.0/16",
    "10.0.0.0/8",
    "::ffff:10.1.2.3",
    "0.0.0.0/0",
    "::/0",
    "2001:db8::1",
    "2001:db8::/32",
    "11.1.2.3",
    "::ffff:0:0/96",
];

fn texts() -> impl Strategy<Value = String> + Clone {
    prop_oneof![
        8 => "[ab_/*]{0,4}",
        1 => "[ab]{5,9}",
        2 => prop::sample::select(&ADDRESSES[..]).prop_map(str::to_owned),
    ]
}

fn matchers() -> impl Strategy<Value = Matcher> + Clone {
    let range = prop::sample::select(&ADDRESSES[..]).prop_map(|text| Cidr::parse(text).unwrap());
    prop_oneof![
        1 => Just(Matcher::Any),
        3 => texts().prop_map(Matcher::Exact),
        6 => texts().prop_map(Matcher::Wildcard),
        3 => "[ab_/*]{0,3}".prop_map(Matcher::Prefix),
        2 => prop::collection::btree_set(range, 1..3)
            .prop_map(|ranges| Matcher::Cidr(ranges.into_iter().collect())),
        3 => prop::sample::select(REGEXES).prop_map(|(text, _)| Matcher::Regex(text.into())),
    ]
}

fn specs() -> impl Strategy<Value = Vec<Spec>> {
    let level = |below: BoxedStrategy<Vec<Spec>>| {
        let spec = ("[kl]", matchers(), any::<bool>(), prop::bool::weighted(0.8), below);
        let spec = spec.prop_map(|(key, matcher, share, has_rule, below)| Spec {
            key,
            matcher,
            share,
            has_rule,
            below,
        });
        prop::collection::vec(spec, 0..14).boxed()
    };
    level(level(Just(Vec::new()).boxed()))
}

/// Builds both trees, which agree about duplicates.
fn plant(node: &mut RuleNode, twin: &mut SlowNode, specs: &[Spec], path: &str) {
    for (index, spec) in specs.iter().enumerate() {
        let path = format!("{path}/{index}");
        let share = spec.share.then_some(path.as_str());
        let known = twin.has(&spec.key, &spec.matcher);
        let child = match node.insert(&spec.key, &spec.matcher, share) {
            Ok(child) => child,
            Err(error) => {
                assert_eq!((error, known), (MatcherError::Duplicate, true));
                continue;
            }
        };
        assert!(!known, "{} is there already", spec.matcher);
        let mut below = SlowNode::default();
        if spec.has_rule {
            child.set_rule(rule(&path));
            below.set_rule(&rule(&path));
        }
        plant(child, &mut below, &spec.below, &path);
        twin.branches.push(SlowBranch {
            key: spec.key.clone(),
            matcher: spec.matcher.clone(),
            share: share.map(str::to_owned),
            node: below,
        });
    }
}

fn find(rules: &Rules, asked: &[(String, String)]) -> Option<SlowMatch> {
    let asked: Vec<Entry> = asked.iter().map(|(key, value)| Entry::new(key, value)).collect();
    let Lookup::Rule(found) = rules.find("shop", &asked) else { return None };
    let root = rules.root("shop").unwrap();
    let last = asked.iter().try_fold(root, |node, entry| Some(node.next(entry)?.node));
    assert_eq!(last.and_then(RuleNode::rule), Some(found.rule));
    let shared = found.shared.iter().map(|(index, text)| (*index, (*text).to_owned())).collect();
    Some((found.rule.path.clone(), shared))
}

/// Seeded, so that failures reproduce everywhere, wasm32 included.
fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config {
        cases,
        rng_seed: RngSeed::Fixed(20_261_121),
        failure_persistence: None,
        ..Config::default()
    })
}

#[test]
fn texts_between_stars_are_found_as_the_slow_twin_finds_them() {
    // Short texts of few letters, so that many overlap and end in each other.
    let part = || "[ab]{0,4}";
    let pattern = prop_oneof![
        4 => part().prop_map(|a| format!("*{a}*")),
        2 => (part(), part()).prop_map(|(a, b)| format!("*{a}*{b}*")),
        1 => (part(), part(), part()).prop_map(|(a, b, c)| format!("{a}*{b}*{c}")),
    ];
    let patterns = prop::collection::btree_set(pattern, 1..12);
    let patterns = patterns.prop_map(Vec::from_iter).prop_shuffle();
    let values = prop::collection::vec("[abc]{0,10}", 1..60);
    runner(400)
        .run(&(patterns, values), |(patterns, values)| {
            let matchers: Vec<Matcher> = patterns.iter().map(|pattern| like(pattern)).collect();
            let rules = level(&matchers);
            for value in &values {
                let expected = matchers.iter().position(|m| pattern_matches(m, value));
                prop_assert_eq!(winner(&rules, value), expected, "{} of {:?}", value, matchers);
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn the_literals_of_an_expression_are_only_a_short_cut() {
    let piece = prop::sample::select(
        &[
            "a",
            "b",
            "ab",
            "/",
            r"\.",
            ".",
            ".*",
            "[ab]",
            "[^]a]",
            "[]|]",
            "[[a]b]",
            r"[\]|]",
            "(a|b)",
            "(?:ab)",
            "(?i)",
            "(?:a[)]|b)",
            "(?i:b)",
            "|",
            "?",
            "*",
            "+",
            "{0,1}",
            "{2}",
            r"\w",
            r"\x61",
            "^",
            "$",
            r"\<",
            "b",
            "a",
        ][..],
    );
    let expression = prop::collection::vec(piece, 1..6).prop_map(|pieces| pieces.concat());
    let compiles = |expression: &String| regex::Regex::new(expression).is_ok();
    let expression = expression.prop_filter("not an expression", compiles);
    // More than are tried without a search for their literals.
    let expressions = prop::collection::btree_set(expression, 17..24);
    let expressions = expressions.prop_map(Vec::from_iter).prop_shuffle();
    let values = prop::collection::vec("[abAB/.|)\\]]{0,5}", 20..60);
    runner(60)
        .run(&(expressions, values), |(expressions, values)| {
            let matchers: Vec<Matcher> = expressions.iter().map(|text| regex(text)).collect();
            let whole = |text: &String| regex::Regex::new(&format!(r"\A(?s:{text})\z")).unwrap();
            let slow: Vec<regex::Regex> = expressions.iter().map(whole).collect();
            let rules = level(&matchers);
            for value in &values {
                let expected = slow.iter().position(|expression| expression.is_match(value));
                prop_assert_eq!(winner(&rules, value), expected, "{} of {:?}", value, matchers);
            }
            // Each alone, filed under its own start.
            for (matcher, slow) in matchers.iter().zip(&slow) {
                let rules = level(std::slice::from_ref(matcher));
                for value in &values {
                    let taken = winner(&rules, value).is_some();
                    prop_assert_eq!(taken, slow.is_match(value), "{} of {}", value, matcher);
                }
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn random_trees_agree_with_their_slow_twin() {
    let entry = || ("[kl]", texts());
    let asked = prop::collection::vec(prop::collection::vec(entry(), 1..3), 1..40);
    let hits = std::cell::Cell::new(0_usize);
    runner(400)
        .run(&(specs(), asked), |(specs, asked)| {
            let mut rules = Rules::default();
            let mut twin = SlowNode::default();
            plant(rules.root_mut("shop"), &mut twin, &specs, "");
            for asked in &asked {
                let expected = twin.find(asked);
                hits.set(hits.get() + usize::from(expected.is_some()));
                prop_assert_eq!(find(&rules, asked), expected, "{:?}", asked);
            }
            Ok(())
        })
        .unwrap();
    // Agreement on lookups without a match would prove little.
    assert!(hits.get() > 1_000, "only {} looks found a rule", hits.get());
}
