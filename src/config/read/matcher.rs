//! The matchers of headers, query parameters and addresses, with the field names of Envoy's
//! configuration.

use super::checks::{header_name, not_empty, number_or, some_items, whole_number};
use crate::config::ConfigError;
use crate::config::interner::Interner;
use crate::config::node::Node;
use crate::config::rate_limit::Fact;
use crate::config::unsupported::{OF_A_TEXT, OF_AN_ENGINE};
use crate::matching::address::{AddressMatcher, Network, bits_of};
use crate::matching::text::{Case, Needle, TextMatcher};
use crate::matching::value::{Sense, ValueMatcher, ValueTest, WhenMissing};
use std::net::IpAddr;

pub(super) fn sense(inverted: bool) -> Sense {
    if inverted { Sense::Inverted } else { Sense::Plain }
}

pub(super) fn header_matcher(
    node: &Node<'_>,
    interner: &mut Interner,
) -> Result<(Fact, ValueMatcher), ConfigError> {
    let fields = [
        "string_match",
        "present_match",
        "range_match",
        "exact_match",
        "prefix_match",
        "suffix_match",
        "contains_match",
        "safe_regex_match",
        "name",
        "invert_match",
        "treat_missing_header_as_empty",
    ];
    node.object("an object with `name`", &fields, &[])?;
    let [tests @ .., _, _, _] = &fields;
    let name = header_name(&node.required("name")?)?;
    let when_missing = match node.flag("treat_missing_header_as_empty", false)? {
        true => WhenMissing::Empty,
        false => WhenMissing::NoMatch,
    };
    let test = value_test(node, tests, "header", interner)?;
    let sense = sense(node.flag("invert_match", false)?);
    Ok((interner.header(&name), ValueMatcher { test, sense, when_missing }))
}

pub(super) fn query_matcher(
    node: &Node<'_>,
    interner: &mut Interner,
) -> Result<(Fact, ValueMatcher), ConfigError> {
    node.object("an object with `name`", &["name", "string_match", "present_match"], &[])?;
    let parameter = interner.parameter(not_empty(&node.required("name")?)?);
    let test = value_test(node, &["string_match", "present_match"], "parameter", interner)?;
    let (sense, when_missing) = (Sense::Plain, WhenMissing::NoMatch);
    Ok((parameter, ValueMatcher { test, sense, when_missing }))
}

/// The present one of these tests. Without any, the value must be present.
fn value_test(
    node: &Node<'_>,
    tests: &[&str],
    subject: &str,
    interner: &mut Interner,
) -> Result<ValueTest, ConfigError> {
    let present = node.fields(tests);
    let (name, test) = match present.as_slice() {
        [] => return Ok(ValueTest::Present),
        [test] => test,
        _ => {
            return Err(node.error(&format!("expected at most one of the tests of the {subject}")));
        }
    };
    Ok(match *name {
        "string_match" => {
            ValueTest::Text(text_matcher(test, "an object with one test of a text", interner)?)
        }
        "present_match" if node.flag(name, false)? => ValueTest::Present,
        "present_match" => ValueTest::Absent,
        "range_match" => {
            test.object("an object with `start` and `end`", &["start", "end"], &[])?;
            let bound = |name| test.field(name).map_or(Ok(0), |bound| whole_number(&bound));
            ValueTest::Range(bound("start")?, bound("end")?)
        }
        // In Envoy, an empty text in this deprecated field matches any value.
        "exact_match" if test.text()?.is_empty() => ValueTest::AnyValue,
        name => {
            let name = name.trim_end_matches("_match");
            ValueTest::Text(text_test(name, test, Case::Sensitive, interner)?)
        }
    })
}

/// A name, or a test of names.
pub(super) enum NameTest {
    Name(String),
    Matcher(TextMatcher),
}

/// A text as it is written, or a matcher of texts.
pub(super) fn name_test(node: &Node<'_>, interner: &mut Interner) -> Result<NameTest, ConfigError> {
    if node.is_text() {
        return Ok(NameTest::Name(not_empty(node)?.to_owned()));
    }
    let expected = "a string, or an object with one test of a text";
    Ok(match text_matcher(node, expected, interner)? {
        TextMatcher::Exact(name, Case::Sensitive) => NameTest::Name(name),
        matcher => NameTest::Matcher(matcher),
    })
}

/// Envoy's `StringMatcher`.
pub(super) fn text_matcher(
    node: &Node<'_>,
    expected: &str,
    interner: &mut Interner,
) -> Result<TextMatcher, ConfigError> {
    let fields = ["exact", "prefix", "suffix", "contains", "safe_regex", "ignore_case"];
    node.object(expected, &fields, &OF_A_TEXT)?;
    let [tests @ .., _] = &fields;
    let ignore_case = node.flag("ignore_case", false)?;
    let (name, test) = node.one_of(tests)?;
    text_test(name, &test, if ignore_case { Case::Ignored } else { Case::Sensitive }, interner)
}

fn text_test(
    name: &str,
    test: &Node<'_>,
    case: Case,
    interner: &mut Interner,
) -> Result<TextMatcher, ConfigError> {
    Ok(match name {
        "exact" => TextMatcher::Exact(test.text()?.to_owned(), case),
        "prefix" => TextMatcher::Prefix(not_empty(test)?.to_owned(), case),
        "suffix" => TextMatcher::Suffix(not_empty(test)?.to_owned(), case),
        "contains" => TextMatcher::Contains(Needle::new(not_empty(test)?, case).into()),
        _ => safe_regex(test, interner)?,
    })
}

fn safe_regex(node: &Node<'_>, interner: &mut Interner) -> Result<TextMatcher, ConfigError> {
    node.object("an object with `regex`", &["regex", "google_re2"], &[])?;
    // Older configurations had to name the engine; it has no effect any more.
    if let Some(engine) = node.field("google_re2") {
        engine.object("an empty object", &[], &OF_AN_ENGINE)?;
    }
    let regex = node.required("regex")?;
    let pattern = interner.pattern(not_empty(&regex)?).map_err(|message| regex.error(&message))?;
    Ok(TextMatcher::Regex(pattern))
}

pub(super) fn address_matcher(node: &Node<'_>) -> Result<AddressMatcher, ConfigError> {
    node.object("an object with `ranges`", &["ranges", "invert_match"], &[])?;
    let mut networks = Vec::new();
    for range in &some_items(&node.required("ranges")?)? {
        let expected = "an object with `address_prefix` and `prefix_len`";
        range.object(expected, &["address_prefix", "prefix_len"], &[])?;
        let prefix = range.required("address_prefix")?;
        let text = prefix.text()?;
        let address: IpAddr =
            text.parse().map_err(|_| prefix.error(&format!("{text:?} is not an IP address")))?;
        let prefix_len = number_or(range, "prefix_len", 0, 0, bits_of(address).into())?;
        networks.push(Network::new(address, prefix_len));
    }
    Ok(AddressMatcher { networks, sense: sense(node.flag("invert_match", false)?) })
}
