//! Hostile and mangled files: an error or the right rules, never a crash.

use super::*;

#[track_caller]
fn check_refused(text: &str, message: &str) {
    let errors = load_text(text).err().unwrap_or_else(|| panic!("accepted {}", head(text)));
    assert_eq!(errors.len(), 1, "{errors:?} for {}", head(text));
    assert!(errors[0].contains(message), "{} for {}", errors[0], head(text));
}

fn head(text: &str) -> String {
    text.chars().take(60).collect()
}

/// Nine to the power of the levels, from a few lines.
fn laughs(leaf: &str, levels: usize) -> String {
    let mut text = format!("l0: &l0 {leaf}\n");
    for level in 1..=levels {
        let aliases = vec![format!("*l{}", level - 1); 9].join(",");
        text += &format!("l{level}: &l{level} [{aliases}]\n");
    }
    text
}

#[test]
fn aliases_multiply_nothing() {
    let too_large = "too large for one file with its aliases expanded";
    check_refused(&laughs("x", 9), too_large);
    check_refused(&laughs("{<<: {a: b}}", 9), too_large);
    // Few values, but long ones.
    let long =
        format!("l: &l \"{}\"\nm: [{}]", "x\\n".repeat(100_000), vec!["*l"; 2_000].join(","));
    check_refused(&long, too_large);
    check_refused("a: &a [*a]", "1:8: an anchor must not contain an alias for itself");
    check_refused("domain: *none", "unknown anchor");
    // Many uses of one anchor are legitimate.
    let mut uses = "domain: d\ndescriptors:\n- {key: k, rate_limit: &l {unit: hour}}\n".to_owned();
    for n in 0..2_000 {
        uses += &format!("- {{key: k{n}, rate_limit: *l}}\n");
    }
    assert_eq!(rules(&uses).limits().len(), 2_001);
}

#[test]
fn deep_nesting_ends() {
    check_refused(&format!("domain: {}", "[".repeat(100_000)), "nested too deep");
    check_refused(&format!("domain: {}", "{a: ".repeat(100_000)), "nested too deep");
    let levels: String = (0..10_000).map(|n| " ".repeat(n) + "a:\n").collect();
    check_refused(&levels, "nested too deep");
    let tree = |levels: usize| {
        let open = "{key: k, descriptors: [".repeat(levels - 1);
        let last =
            "{key: k, rate_limits: [{unit: day, replaces: [{name: n}]}], metadata: {a: [{}]}}";
        format!("domain: d\ndescriptors: [{open}{last}{}]", "]}".repeat(levels - 1))
    };
    let (rules, _) = load_text(&tree(30)).unwrap();
    assert!(rule(&rules, "d", &[("k", "v"); 30]).is_some());
    check_refused(&tree(40), "nested too deeply (maximum: 30 levels of descriptors)");
}

#[test]
fn huge_words_are_bounded() {
    let huge = "x".repeat(1_000_000);
    let rules = rules(&format!("domain: {huge}"));
    assert_eq!(rules.domain_names(), [huge.as_str()]);
    let nines = "9".repeat(1_000_000);
    for limit in [
        format!("{{unit: {huge}}}"),
        format!("{{period: {huge}, requests: 1}}"),
        format!("{{unit: hour, algorithm: {huge}}}"),
        format!("{{unit: hour, timezone: {huge}}}"),
        format!("{{unit: hour, timezone: -{nines}}}"),
        format!("{{unit: hour, requests: {huge}}}"),
        format!("{{unit: hour, requests: {nines}}}"),
    ] {
        let errors = load_text(&with_limit(&limit)).unwrap_err();
        assert!(errors[0].len() < 1_000, "{} bytes for {}", errors[0].len(), head(&limit));
    }
    let errors = load_text(&format!("domain: d\n? {huge}\n: x")).unwrap_err();
    assert!(errors[0].len() < 1_000, "{} bytes", errors[0].len());
}

#[test]
fn mangled_text_gives_an_error_or_rules() {
    for text in
        ["\u{0}", "domain: d\u{0}", "? [a]\n: b", "- - - -\n", "%YAML 9.9\n---\n", "\u{feff}"]
    {
        assert!(load_text(text).is_err(), "accepted {text:?}");
    }
    check_refused("domain: d\ndescriptors:\n- key: k\n\tvalue: v\n", "tab");
    check_refused("domain: d\ndescriptors:\n- {key: k, key: l}\n", "3:12: duplicate mapping key");
    check_refused(&with_limit("{unit: hour, unit: day}"), "3:37: duplicate mapping key");
    let (plain, limit) =
        ("domain: d\ndescriptors:\n- key: k\n  value: 007\n", "  rate_limit: {unit: eon}");
    for text in [format!("{plain}{limit}"), format!("\u{feff}{plain}{limit}")] {
        for text in [text.clone(), text.replace('\n', "\r\n")] {
            check_refused(&text, "limits.yaml:5:22: unknown unit \"eon\"");
        }
    }
}

/// Every prefix of a file, and every changed byte, gives an error or rules and never a crash.
#[test]
fn files_that_are_cut_or_bent_do_no_harm() {
    let text = "domain: d\ndescriptors:\n- key: k\n  match: {cidr: [10.0.0.0/8]}\n  metadata: \
                {a: [1, 2.5]}\n  rate_limits: [{name: 'n', period: 1mo, timezone: +08:00, requests: \
                &r 5}, {unit: hour, requests: *r}]\n";
    assert!(load_text(text).is_ok());
    let dir = directory(&[]);
    let file = dir.path().join("limits.yaml");
    for (at, _) in text.char_indices() {
        std::fs::write(&file, &text[..at]).unwrap();
        let _ = load(&file, SameDomain::Refuse);
        for c in ["\"", "{", "]", "*", "\u{0}", "9", ": ", "\n"] {
            std::fs::write(&file, format!("{}{c}{}", &text[..at], &text[at + 1..])).unwrap();
            let _ = load(&file, SameDomain::Refuse);
        }
    }
}
