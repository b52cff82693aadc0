//! The trace that a call belongs to, by its metadata: W3C Trace Context, else B3 in one value or in several.
//!
//! Values come from clients. Each form has a fixed length, so nothing is read beyond it; a value of any other form
//! counts as absent. Reading allocates nothing.

/// What the metadata of a call says about its trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Context {
    /// None if the call belongs to no trace yet.
    pub(crate) parent: Option<Parent>,
    pub(crate) choice: Choice,
    form: Form,
}

/// The span that made the call. Neither number is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parent {
    pub(crate) trace_id: u128,
    pub(crate) span_id: u64,
}

/// Whether the client's spans of the trace are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Choice {
    /// It leaves that open.
    #[default]
    Open,
    Sampled,
    NotSampled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Form {
    #[default]
    None,
    W3c,
    B3,
}

/// The longest `tracestate` that is passed on: what the specification has everybody pass on at least.
const STATE_BYTES_MAX: usize = 512;

impl Context {
    /// Reads metadata; `value_of` finds the first value of a name.
    pub(crate) fn read<'a>(value_of: impl Fn(&'static str) -> Option<&'a [u8]>) -> Context {
        if let Some(context) = value_of("traceparent").and_then(w3c) {
            return context;
        }
        if let Some(context) = value_of("b3").and_then(b3_single) {
            return context;
        }
        b3_multiple(value_of).unwrap_or_default()
    }

    /// The `tracestate` that came with it; empty if there is none.
    pub(crate) fn state<'a>(&self, value_of: impl Fn(&'static str) -> Option<&'a [u8]>) -> &'a str {
        let state = match self.form {
            Form::W3c => value_of("tracestate"),
            Form::None | Form::B3 => None,
        };
        let is_valid = |state: &&[u8]| {
            state.len() <= STATE_BYTES_MAX && state.iter().all(|byte| matches!(byte, b' '..=b'~'))
        };
        let state = state.filter(is_valid).and_then(|state| std::str::from_utf8(state).ok());
        state.unwrap_or_default()
    }
}

/// `00-TRACE-SPAN-FLAGS`. Later versions may have more behind it.
fn w3c(text: &[u8]) -> Option<Context> {
    let (head, more) = text.split_at_checked(55)?;
    let mut parts = Parts(head);
    let version = hex(parts.next(2)?)?;
    let is_whole = match version {
        0 => more.is_empty(),
        0xff => false,
        _ => more.is_empty() || more.first() == Some(&b'-'),
    };
    let parent = parent(parts.next(32)?, parts.next(16)?)?;
    let flags = hex(parts.next(2)?)?;
    let choice = if flags & 1 == 1 { Choice::Sampled } else { Choice::NotSampled };
    is_whole.then_some(Context { parent: Some(parent), choice, form: Form::W3c })
}

/// `TRACE-SPAN`, `TRACE-SPAN-CHOICE`, `TRACE-SPAN-CHOICE-PARENT` or `CHOICE`.
fn b3_single(text: &[u8]) -> Option<Context> {
    if let [choice] = text {
        return Some(Context { parent: None, choice: b3_choice(&[*choice])?, form: Form::B3 });
    }
    let trace_digits = text.iter().take(33).position(|byte| *byte == b'-')?;
    let mut parts = Parts(text);
    let parent = parent(parts.next(trace_digits)?, parts.next(16)?)?;
    let choice = match parts.0.is_empty() {
        true => Choice::Open,
        false => b3_choice(parts.next(1)?)?,
    };
    if !parts.0.is_empty() {
        hex(parts.next(16)?)?;
    }
    parts.0.is_empty().then_some(Context { parent: Some(parent), choice, form: Form::B3 })
}

/// `x-b3-traceid`, `x-b3-spanid`, `x-b3-sampled` and `x-b3-flags`.
fn b3_multiple<'a>(value_of: impl Fn(&'static str) -> Option<&'a [u8]>) -> Option<Context> {
    let trace = value_of("x-b3-traceid");
    let choice = match (value_of("x-b3-flags"), value_of("x-b3-sampled")) {
        (Some(b"1"), _) => Choice::Sampled,
        (_, Some(b"true")) => Choice::Sampled,
        (_, Some(b"false")) => Choice::NotSampled,
        (_, Some(text)) => b3_choice(text).filter(|_| text != b"d")?,
        (_, None) => Choice::Open,
    };
    let parent = match trace {
        Some(trace) => Some(parent(trace, value_of("x-b3-spanid")?)?),
        None => None,
    };
    Some(Context { parent, choice, form: Form::B3 })
}

fn b3_choice(text: &[u8]) -> Option<Choice> {
    match text {
        // `d` is debug, which implies it.
        b"1" | b"d" => Some(Choice::Sampled),
        b"0" => Some(Choice::NotSampled),
        _ => None,
    }
}

/// A trace has 16 digits (B3 alone) or 32, a span 16.
fn parent(trace: &[u8], span: &[u8]) -> Option<Parent> {
    if !matches!(trace.len(), 16 | 32) || span.len() != 16 {
        return None;
    }
    let (trace_id, span_id) = (hex(trace)?, u64::try_from(hex(span)?).ok()?);
    (trace_id != 0 && span_id != 0).then_some(Parent { trace_id, span_id })
}

/// A number in at most 32 hexadecimal digits of lower case.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number: u128, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some((number << 4) | u128::from(digit))
    })
}

/// Parts between hyphens, whose lengths are known.
struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    /// The next part of this length, which a hyphen or the end follows.
    fn next(&mut self, length: usize) -> Option<&'a [u8]> {
        let (part, rest) = self.0.split_at_checked(length)?;
        self.0 = match rest.split_first() {
            Some((b'-', [])) => return None,
            Some((b'-', rest)) => rest,
            Some(_) => return None,
            None => &[],
        };
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";
    const PARENT: Parent = Parent {
        trace_id: 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736,
        span_id: 0x00f0_67aa_0ba9_02b7,
    };

    fn read(metadata: &[(&str, &str)]) -> (Option<Parent>, Choice) {
        let context = Context::read(|name| {
            let found = metadata.iter().find(|(found, _)| *found == name);
            found.map(|(_, value)| value.as_bytes())
        });
        (context.parent, context.choice)
    }

    const NOTHING: (Option<Parent>, Choice) = (None, Choice::Open);

    #[test]
    fn w3c_has_a_version_a_trace_a_span_and_flags() {
        let check = |text: String, expected| {
            assert_eq!(read(&[("traceparent", &text)]), expected, "{text}");
        };
        check(format!("00-{TRACE}-{SPAN}-01"), (Some(PARENT), Choice::Sampled));
        check(format!("00-{TRACE}-{SPAN}-00"), (Some(PARENT), Choice::NotSampled));
        // Other bits mean something else.
        check(format!("00-{TRACE}-{SPAN}-02"), (Some(PARENT), Choice::NotSampled));
        check(format!("00-{TRACE}-{SPAN}-ff"), (Some(PARENT), Choice::Sampled));
        // A later version begins alike.
        check(format!("01-{TRACE}-{SPAN}-01"), (Some(PARENT), Choice::Sampled));
        check(format!("cc-{TRACE}-{SPAN}-01-what-ever"), (Some(PARENT), Choice::Sampled));
        for text in [
            String::new(),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("cc-{TRACE}-{SPAN}-01.more"),
            format!("00-{TRACE}-{SPAN}-0"),
            format!("00-{TRACE}-{SPAN}"),
            format!("0-{TRACE}-{SPAN}-001"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-{}-01", SPAN.to_uppercase()),
            format!("00-{TRACE}-{SPAN}-0G"),
            format!("00-{}-{SPAN}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00_{TRACE}-{SPAN}-01"),
            format!(" 00-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01 "),
            "a".repeat(100_000),
        ] {
            check(text, NOTHING);
        }
    }

    #[test]
    fn b3_in_one_value_has_a_trace_a_span_and_a_choice() {
        let check = |text: String, expected| assert_eq!(read(&[("b3", &text)]), expected, "{text}");
        check(format!("{TRACE}-{SPAN}-1"), (Some(PARENT), Choice::Sampled));
        check(format!("{TRACE}-{SPAN}-d"), (Some(PARENT), Choice::Sampled));
        check(format!("{TRACE}-{SPAN}-0"), (Some(PARENT), Choice::NotSampled));
        check(format!("{TRACE}-{SPAN}"), (Some(PARENT), Choice::Open));
        check(format!("{TRACE}-{SPAN}-1-{SPAN}"), (Some(PARENT), Choice::Sampled));
        let short = Parent { trace_id: 0xa3ce_929d_0e0e_4736, ..PARENT };
        check(format!("a3ce929d0e0e4736-{SPAN}-1"), (Some(short), Choice::Sampled));
        check("0".to_owned(), (None, Choice::NotSampled));
        check("1".to_owned(), (None, Choice::Sampled));
        check("d".to_owned(), (None, Choice::Sampled));
        for text in [
            String::new(),
            "2".to_owned(),
            "-".to_owned(),
            "d0".to_owned(),
            TRACE.to_owned(),
            format!("{TRACE}-"),
            format!("{TRACE}-{SPAN}-"),
            format!("{TRACE}-{SPAN}-2"),
            format!("{TRACE}-{SPAN}-1-"),
            format!("{TRACE}-{SPAN}-1-{SPAN}-"),
            format!("{TRACE}-{SPAN}-1-{SPAN}-1"),
            format!("{TRACE}-{SPAN}-1-xyz"),
            format!("{TRACE}0-{SPAN}-1"),
            format!("{}-{SPAN}-1", &TRACE[1..]),
            format!("{}-{SPAN}-1", "0".repeat(32)),
            format!("{TRACE}-{}-1", "0".repeat(16)),
            format!("{}-{SPAN}-1", TRACE.to_uppercase()),
            "-".repeat(100_000),
        ] {
            check(text, NOTHING);
        }
    }

    #[test]
    fn b3_in_several_values_has_the_same() {
        let ids = [("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN)];
        let check = |more: &[(&str, &str)], choice| {
            assert_eq!(read(&[&ids[..], more].concat()), (Some(PARENT), choice), "{more:?}");
        };
        check(&[], Choice::Open);
        for text in ["1", "true"] {
            check(&[("x-b3-sampled", text)], Choice::Sampled);
        }
        for text in ["0", "false"] {
            check(&[("x-b3-sampled", text)], Choice::NotSampled);
        }
        check(&[("x-b3-flags", "1")], Choice::Sampled);
        check(&[("x-b3-flags", "1"), ("x-b3-sampled", "0")], Choice::Sampled);
        check(&[("x-b3-flags", "0"), ("x-b3-sampled", "0")], Choice::NotSampled);
        assert_eq!(read(&[("x-b3-sampled", "0")]), (None, Choice::NotSampled));
        assert_eq!(read(&[("x-b3-flags", "1")]), (None, Choice::Sampled));
        for metadata in [
            vec![ids[0]],
            vec![ids[1]],
            vec![ids[0], ("x-b3-spanid", "1")],
            vec![("x-b3-traceid", "1"), ids[1]],
            vec![ids[0], ids[1], ("x-b3-sampled", "yes")],
            vec![ids[0], ids[1], ("x-b3-sampled", "d")],
        ] {
            assert_eq!(read(&metadata), NOTHING, "{metadata:?}");
        }
    }

    #[test]
    fn the_first_form_that_is_valid_counts() {
        let w3c = format!("00-{TRACE}-{SPAN}-01");
        let b3 = format!("{TRACE}-{SPAN}-0");
        assert_eq!(read(&[("b3", &b3), ("traceparent", &w3c)]).1, Choice::Sampled);
        assert_eq!(read(&[("b3", &b3), ("traceparent", "00-1-1-01")]).1, Choice::NotSampled);
        assert_eq!(read(&[("b3", "?"), ("x-b3-sampled", "0")]).1, Choice::NotSampled);
    }

    #[test]
    fn a_state_is_passed_on_if_it_is_short_and_printable() {
        let w3c = format!("00-{TRACE}-{SPAN}-01");
        let state = |parent: (&'static str, &str), state: &str| {
            let value_of = |name| match name {
                "tracestate" => Some(state.as_bytes()),
                name => (name == parent.0).then_some(parent.1.as_bytes()),
            };
            Context::read(value_of).state(value_of).to_owned()
        };
        assert_eq!(state(("traceparent", &w3c), "a=1,b=2"), "a=1,b=2");
        assert_eq!(state(("traceparent", &w3c), &"x".repeat(513)), "");
        assert_eq!(state(("traceparent", &w3c), "a=\u{e9}"), "");
        assert_eq!(state(("traceparent", &w3c), "a=\n"), "");
        assert_eq!(state(("b3", &format!("{TRACE}-{SPAN}-1")), "a=1"), "");
        assert_eq!(state(("traceparent", "?"), "a=1"), "");
    }

    /// What both forms have in common, as slow and as strict as can be.
    fn is_id(text: &str, digits: &[usize]) -> bool {
        digits.contains(&text.len())
            && text.chars().all(|char| "0123456789abcdef".contains(char))
            && text.chars().any(|char| char != '0')
    }

    fn is_valid_w3c(text: &str) -> bool {
        let parts: Vec<&str> = text.split('-').collect();
        let is_hex =
            |text: &str| text.len() == 2 && text.chars().all(|c| "0123456789abcdef".contains(c));
        parts.len() >= 4
            && is_hex(parts[0])
            && parts[0] != "ff"
            && (parts[0] != "00" || parts.len() == 4)
            && is_id(parts[1], &[32])
            && is_id(parts[2], &[16])
            && is_hex(parts[3])
    }

    fn is_valid_b3(text: &str) -> bool {
        let parts: Vec<&str> = text.split('-').collect();
        matches!(parts.len(), 2..=4)
            && is_id(parts[0], &[16, 32])
            && is_id(parts[1], &[16])
            && parts.get(2).is_none_or(|choice| ["0", "1", "d"].contains(choice))
            && parts.get(3).is_none_or(|parent| {
                parent.len() == 16 && parent.chars().all(|c| "0123456789abcdef".contains(c))
            })
    }

    /// Texts that are nearly valid, or not at all.
    fn text() -> impl Strategy<Value = String> {
        let part = prop_oneof![
            "[0-9a-f]{32}",
            "[0-9a-f]{16}",
            "[0-9a-f]{2}",
            "[01d]",
            "00",
            "ff",
            "0{16}",
            "0{32}",
            "[0-9A-Fg]{0,33}",
            "\\PC{0,3}"
        ];
        prop_oneof![
            proptest::collection::vec(part, 0..6).prop_map(|parts| parts.join("-")),
            ("[0-9a-f]{2}", "[0-9a-f]{32}", "[0-9a-f]{16}", "[0-9a-f]{2}").prop_map(
                |(version, trace, span, flags)| format!("{version}-{trace}-{span}-{flags}")
            ),
        ]
    }

    proptest! {
        #[test]
        fn a_parent_comes_from_valid_values_alone(traceparent in text(), b3 in text()) {
            let found = Context::read(|name| match name {
                "traceparent" => Some(traceparent.as_bytes()),
                "b3" => Some(b3.as_bytes()),
                _ => None,
            });
            let expected = is_valid_w3c(&traceparent) || is_valid_b3(&b3);
            prop_assert_eq!(found.parent.is_some(), expected, "{} {}", traceparent, b3);
        }

        #[test]
        fn any_bytes_are_read(values in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 7)) {
            let names = ["traceparent", "tracestate", "b3", "x-b3-traceid", "x-b3-spanid", "x-b3-sampled", "x-b3-flags"];
            let value_of = |name| {
                let index = names.iter().position(|found| *found == name)?;
                values.get(index).map(Vec::as_slice)
            };
            let context = Context::read(value_of);
            prop_assert!(context.parent.is_none_or(|parent| parent.trace_id != 0 && parent.span_id != 0));
            prop_assert!(context.state(value_of).len() <= STATE_BYTES_MAX);
        }
    }
}
