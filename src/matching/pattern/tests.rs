//! Expressions compared with the `regex` crate, and RE2's syntax where the two differ.

use super::*;
use proptest::prelude::*;
use regex::bytes::{Regex, RegexBuilder};

fn pattern(text: &str) -> Pattern {
    Pattern::new(text, 1).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refusal(text: &str) -> String {
    match Pattern::new(text, 1) {
        Ok(_) => panic!("{text} was taken"),
        Err(error) => error,
    }
}

/// The expression for the `regex` crate, of bytes. Its `\s` has a vertical tab.
fn twin(text: &str) -> Regex {
    let byte = |byte: u8| match byte.is_ascii() {
        true => char::from(byte).to_string(),
        false => format!(r"\x{byte:02x}"),
    };
    let text: String = text.replace(r"\s", r"[\t\n\f\r ]").bytes().map(byte).collect();
    RegexBuilder::new(&format!(r"\A(?:{text})\z")).unicode(false).build().unwrap()
}

#[test]
fn an_expression_matches_the_whole_of_a_value() {
    let table: [(&str, &str, bool); 10] = [
        (r"v\d+", "v12", true),
        (r"v\d+", "xv12", false),
        (r"v\d+", "v12\n", false),
        ("a|ab", "ab", true),
        ("a|ab|", "", true),
        ("", "", true),
        ("", "a", false),
        ("^a$", "a", true),
        ("(?i)a\u{e9}", "A\u{e9}", true),
        (".*", "\u{1f600}", true),
    ];
    for (text, value, expected) in table {
        assert_eq!(pattern(text).matches(value.as_bytes()), expected, "{text} on {value:?}");
    }
    // A value above 8 KiB matched nothing, and a long query evaded the limit on a path.
    assert!(pattern("x.*").matches(&[b'x'; 60_000]));
}

#[test]
fn expressions_mean_the_same_as_in_re2() {
    let table: [(&str, &str, bool); 47] = [
        // Braces that are not a repetition are literal.
        ("/users/{id}", "/users/{id}", true),
        ("a{", "a{", true),
        ("a{,2}", "a{,2}", true),
        ("a{,2}", "aa", false),
        ("a{2,}", "aaa", true),
        ("{", "{", true),
        ("}]", "}]", true),
        // Classes have no operators and no nested classes.
        ("[a&&b]", "&", true),
        ("[[]", "[", true),
        ("[[a]", "a", true),
        ("[]a]", "]", true),
        ("[^]a]", "b", true),
        ("[a-]", "-", true),
        ("[-a]", "-", true),
        ("[a-c-e]", "-", true),
        (r"[\]\-\d]", "7", true),
        (r"[^\D]", "7", true),
        (r"[\x41-\x{43}]", "B", true),
        ("[[:alpha:][:digit:]]", "7", true),
        ("[[:^alpha:]]", "7", true),
        ("[[:word:]]", "_", true),
        ("[:alpha]", "p", true),
        // \s has no vertical tab, [:space:] does; both are ASCII.
        (r"\s", "\u{b}", false),
        ("[[:space:]]", "\u{b}", true),
        (r"\s", "\u{a0}", false),
        (r"\w", "\u{e9}", false),
        (r"\d", "\u{663}", false),
        // Escapes.
        (r"\Qa.b\E.", "a.bc", true),
        (r"\Qa.b", "a.b", true),
        (r"\Qab\E*", "abbb", true),
        (r"\101\x42\x{43}\07", "ABC\u{7}", true),
        (r"\a\f\n\r\t\v", "\u{7}\u{c}\n\r\t\u{b}", true),
        (r"\.\-\/\{", ".-/{", true),
        (r"\C\C", "\u{e9}", true),
        (r"\Aa\z", "a", true),
        (r"a\b.*", "a b", true),
        (r"a\B.*", "a b", false),
        // Flags.
        ("a(?i)b|c", "C", true),
        ("(a(?i)b)c", "aBC", false),
        ("(?i:a)b", "Ab", true),
        ("(?s).", "\n", true),
        (".", "\n", false),
        ("(?s-s).|(?U)x+", "xx", true),
        ("(?m)a$\n^b", "a\nb", true),
        ("a$\nb", "a\nb", false),
        ("a\n^b", "a\nb", false),
        ("(?P<name>a)(?<other_1>b)(?:)", "ab", true),
    ];
    for (text, value, expected) in table {
        assert_eq!(pattern(text).matches(value.as_bytes()), expected, "{text} on {value:?}");
    }
}

/// An expression matched characters of UTF-8, while Envoy runs RE2 on bytes: a limit by `.{2}` or
/// `[^/]{2}` had other requests. Each row was tried in Envoy 1.40.
#[test]
fn each_byte_is_a_character_as_in_envoy() {
    let table: [(&str, &[u8], bool); 28] = [
        (".", "\u{e9}".as_bytes(), false),
        ("..", "\u{e9}".as_bytes(), true),
        ("[^a][^a]", "\u{e9}".as_bytes(), true),
        ("\u{e9}", "\u{e9}".as_bytes(), true),
        ("\u{e9}*", b"\xc3\xa9\xa9", true),
        ("\u{e9}?.*", b"\xc3\x89", true),
        ("\u{e9}?.*", b"\xff", false),
        ("[\u{e9}]", "\u{e9}".as_bytes(), false),
        ("[\u{e0}-\u{fc}]", "\u{e9}".as_bytes(), false),
        ("[\u{e0}-\u{fc}]+", "\u{e9}".as_bytes(), true),
        (r"\x{e9}", "\u{e9}".as_bytes(), false),
        (r"\xc3\xa9", "\u{e9}".as_bytes(), true),
        (r"\W", "\u{e9}".as_bytes(), false),
        (r"\C", "\u{e9}".as_bytes(), false),
        (r"\C*", "\u{e9}".as_bytes(), true),
        // No bytes evade an expression for any.
        (".*", b"\xff", true),
        (".", b"\xff", true),
        (r"\W", b"\xff", true),
        ("[^a]*", b"\xff", true),
        ("[[:^ascii:]]+", b"\xff", true),
        (r"\x{ff}", b"\xff", true),
        (r"\xe9", b"\xe9", true),
        // Only ASCII has cases.
        (r"(?i)\xe9", b"\xc9", false),
        ("(?i)\u{e9}", "\u{c9}".as_bytes(), false),
        ("(?i)k", "\u{212a}".as_bytes(), false),
        ("(?i)k", b"K", true),
        ("(?i)[^k]", b"K", false),
        ("(?i)[[:upper:]]", b"a", true),
    ];
    for (text, value, expected) in table {
        let shown = value.escape_ascii();
        assert_eq!(pattern(text).matches(value), expected, "{text} on {shown}");
    }
}

#[test]
fn expressions_that_re2_refuses_are_refused_with_a_reason() {
    let table = [
        ("(", "unmatched `(` (at byte 1)"),
        ("a)|(?:b", "unmatched `)` (at byte 1)"),
        ("[0-9", "unmatched `[` (at byte 4)"),
        ("[]", "unmatched `[` (at byte 2)"),
        ("[b-a]", "the range from 'b' to 'a' is empty (at byte 4)"),
        ("[[:nope:]]", "unknown class `nope` (at byte 1)"),
        ("*a", "nothing to repeat (at byte 1)"),
        ("a|+", "nothing to repeat (at byte 3)"),
        ("(?i)*", "nothing to repeat (at byte 5)"),
        ("a**", "a repetition of a repetition needs a group (at byte 3)"),
        ("a+?{2}", "a repetition of a repetition needs a group (at byte 6)"),
        ("a{2,1}", "the maximum of a repetition is below its minimum (at byte 6)"),
        ("a{1001}", "too many repetitions (maximum 1000 in all) (at byte 7)"),
        ("(a{40}){40}", "too many repetitions (maximum 1000 in all) (at byte 11)"),
        ("a{99999999999}", "too many repetitions (maximum 1000 in all) (at byte 14)"),
        ("(?=a)", "lookahead and lookbehind are not supported, nor in Envoy (at byte 3)"),
        ("(?<!a)", "lookahead and lookbehind are not supported, nor in Envoy (at byte 3)"),
        ("(?x)a", "expected flags of a group, some of `imsU-` (at byte 3)"),
        ("(?i-)a", "expected flags of a group, some of `imsU-` (at byte 5)"),
        ("(?P<>a)", "invalid group name (at byte 5)"),
        (r"(a)\1", "back-references are not supported, nor in Envoy (at byte 5)"),
        (r"\e", "not an escape of RE2 (at byte 2)"),
        (r"\_", "not an escape of RE2 (at byte 2)"),
        (r"\x4", "not an escape of RE2 (at byte 2)"),
        (r"\x{100}", "not an escape of RE2 (at byte 7)"),
        ("\u{e9}(", "unmatched `(` (at byte 3)"),
        ("(?P<\u{e9}>a)", "invalid group name (at byte 7)"),
        (r"[\b]", "not an escape of RE2 (at byte 3)"),
        ("\\", "not an escape of RE2 (at byte 1)"),
        (r"\pN", "classes of Unicode properties (`\\p`) are not supported (at byte 0)"),
    ];
    for (text, message) in table {
        assert_eq!(refusal(text), format!("not a regular expression: {message}"), "{text}");
    }
    let deep = |depth| "(".repeat(depth) + &")".repeat(depth);
    assert!(Pattern::new(&deep(100), 1).is_ok());
    assert!(refusal(&deep(101)).contains("groups are nested too deep (maximum 100)"));
}

#[test]
fn an_expression_that_is_too_large_says_how_large_it_is() {
    let long = "a".repeat(PATTERN_BYTES_MAX + 1);
    assert_eq!(refusal(&long), "the expression has 1025 bytes (maximum 1024)");
    let states = refusal("(?:..){600}");
    let number = states.strip_prefix("the expression compiles to ").unwrap();
    let number = number.strip_suffix(" states (maximum 1024 states)").unwrap();
    assert!(number.parse::<usize>().unwrap() > STATES_MAX, "{states}");
    let more = refusal(&".{1000}".repeat(60));
    assert!(more.contains("more than 512 KiB"), "{more}");
    // Expressions in practice are far below.
    for (text, most) in [
        (r"/api/v[0-9]+/users/[^/]+(/.*)?", 100),
        (r"[a-z]{1,64}\.example\.com", 300),
        (r"[\w.+-]+@[\w-]+(\.[\w-]+)+", 100),
        (".{1,500}", 1_010),
    ] {
        assert!(pattern(text).states() < most, "{text}: {}", pattern(text).states());
    }
}

/// With memory for few states, values that need many fall back to the NFA; with memory for many
/// they do not. Both agree.
#[test]
fn an_expression_without_room_for_its_states_says_the_same() {
    let text = "(a|b)*a(a|b){9}";
    let (roomy, crowded) = (pattern(text), Pattern::new(text, 1_000).unwrap());
    let regex = twin(text);
    let mut seed = 1_u32;
    for length in 0..400 {
        let value: Vec<u8> = (0..length * 7)
            .map(|_| {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if seed >> 31 == 0 { b'a' } else { b'b' }
            })
            .collect();
        let expected = regex.is_match(&value);
        assert_eq!((roomy.matches(&value), crowded.matches(&value)), (expected, expected));
    }
    assert!(gave_up(&crowded) && !gave_up(&roomy));
}

/// Whether a value fell back to the NFA: its states are then those of the last search.
fn gave_up(pattern: &Pattern) -> bool {
    let value = "ab".repeat(500) + &"a".repeat(20) + &"aababbbaab".repeat(40);
    let input = Input::new(&value).anchored(Anchored::Yes);
    let mut states = pattern.engine.states.borrow_mut();
    (0..20).any(|_| pattern.engine.dfa.try_search_fwd(&mut states, &input).is_err())
}

/// Parts of expressions that both engines read alike.
fn expression() -> impl Strategy<Value = String> {
    let atom = prop_oneof![
        prop::sample::select(vec![
            "a",
            "b",
            "ab",
            "-",
            ".",
            "[ab]",
            "[^a]",
            r"\d",
            r"\w",
            r"\s",
            r"\b",
            "^",
            "$",
            r"\.",
            "\u{e9}",
            "(?i:\u{e9}b)",
            "[a-\u{e9}]",
            "",
        ])
        .prop_map(str::to_owned),
    ];
    atom.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..4).prop_map(|parts| parts.concat()),
            prop::collection::vec(inner.clone(), 1..4)
                .prop_map(|parts| format!("({})", parts.join("|"))),
            (inner, prop::sample::select(vec!["*", "+", "?", "*?", "{2}", "{0,3}", "{1,}"]))
                .prop_map(|(part, times)| format!("(?:{part}){times}")),
        ]
    })
}

proptest! {
    #[test]
    fn it_matches_like_its_twin(
        text in expression(),
        values in prop::collection::vec("[ab\u{e9}\u{c9} 1.\n-]{0,12}", 1..8),
        of in prop::sample::select(vec![1, 1_000]),
    ) {
        let Ok(pattern) = Pattern::new(&text, of) else {
            // Only expressions that RE2 refuses too.
            prop_assert!(refusal(&text).contains("too many repetitions"), "{}", refusal(&text));
            return Ok(());
        };
        let twin = twin(&text);
        for value in values {
            prop_assert_eq!(pattern.matches(value.as_bytes()), twin.is_match(value.as_bytes()),
                "{} on {:?}", text, value);
        }
    }

    #[test]
    fn no_text_makes_it_panic(text in "\\PC{0,40}|[\\[\\](){}a\\\\?:^$*+|,0-9QExpPdi<>-]{0,40}", value in ".{0,20}") {
        if let Ok(pattern) = Pattern::new(&text, 1) {
            let _ = pattern.matches(value.as_bytes());
        }
    }
}
