//! The matchers of headers, query parameters and addresses, with the field names of Envoy's
//! configuration.

use super::checks::{empty, header_name, in_range, not_empty, some_items, whole_number};
use crate::config::ConfigError;
use crate::config::interner::Interner;
use crate::config::node::Node;
use crate::config::rate_limit::Fact;
use crate::config::unsupported::OF_A_TEXT;
use crate::matching::address::{AddressMatcher, Network, bits_of};
use crate::matching::header::{HeaderMatcher, HeaderTest, Sense, WhenMissing};
use crate::matching::query::{QueryMatcher, QueryTest};
use crate::matching::text::{Case, Needle, TextMatcher};
use std::net::IpAddr;

pub(super) fn sense(inverted: bool) -> Sense {
    if inverted { Sense::Inverted } else { Sense::Plain }
}

/// The value of `invert_match`.
fn inverted(node: &Node<'_>) -> Result<Sense, ConfigError> {
    Ok(sense(node.flag("invert_match")? == Some(true)))
}

/// The present one of these fields, if any.
fn at_most_one<'a>(
    node: &'a Node<'a>,
    tests: &[&'a str],
    what: &str,
) -> Result<Option<(&'a str, Node<'a>)>, ConfigError> {
    match node.fields(tests).as_slice() {
        [] => Ok(None),
        [test] => Ok(Some(*test)),
        _ => Err(node.error(&format!("expected at most one of the {what}"))),
    }
}

pub(super) fn header_matcher(
    node: &Node<'_>,
    interner: &mut Interner,
) -> Result<(Fact, HeaderMatcher), ConfigError> {
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
    let when_missing = match node.flag("treat_missing_header_as_empty")? {
        Some(true) => WhenMissing::Empty,
        Some(false) | None => WhenMissing::NoMatch,
    };
    let test = match at_most_one(node, tests, "tests of the header")? {
        Some((name, test)) => header_test(node, name, &test, interner)?,
        None => HeaderTest::Present,
    };
    let sense = inverted(node)?;
    Ok((interner.header(&name), HeaderMatcher { test, sense, when_missing }))
}

fn header_test(
    matcher: &Node<'_>,
    name: &str,
    test: &Node<'_>,
    interner: &mut Interner,
) -> Result<HeaderTest, ConfigError> {
    let case = Case::Sensitive;
    let text = match name {
        "string_match" => text_matcher(test, interner)?,
        "present_match" => {
            return Ok(match matcher.flag(name)? {
                Some(true) => HeaderTest::Present,
                Some(false) | None => HeaderTest::Absent,
            });
        }
        "range_match" => {
            test.object("an object with `start` and `end`", &["start", "end"], &[])?;
            let bound = |name| test.field(name).map_or(Ok(0), |bound| whole_number(&bound));
            return Ok(HeaderTest::Range(bound("start")?, bound("end")?));
        }
        // In Envoy, an empty text in this deprecated field matches any value.
        "exact_match" if test.text()?.is_empty() => return Ok(HeaderTest::AnyValue),
        "exact_match" => TextMatcher::Exact(test.text()?.to_owned(), case),
        "prefix_match" => TextMatcher::Prefix(not_empty(test)?.to_owned(), case),
        "suffix_match" => TextMatcher::Suffix(not_empty(test)?.to_owned(), case),
        "contains_match" => TextMatcher::Contains(Needle::new(not_empty(test)?, case).into()),
        _ => safe_regex(test, interner)?,
    };
    Ok(HeaderTest::Text(text))
}

pub(super) fn query_matcher(
    node: &Node<'_>,
    interner: &mut Interner,
) -> Result<(Fact, QueryMatcher), ConfigError> {
    node.object("an object with `name`", &["name", "string_match", "present_match"], &[])?;
    let parameter = interner.parameter(not_empty(&node.required("name")?)?);
    let tests = ["string_match", "present_match"];
    let test = match at_most_one(node, &tests, "tests of the parameter")? {
        Some(("string_match", test)) => QueryTest::Text(text_matcher(&test, interner)?),
        Some(_) if node.flag("present_match")? == Some(false) => QueryTest::Absent,
        Some(_) | None => QueryTest::Present,
    };
    Ok((parameter, QueryMatcher { test }))
}

fn text_matcher(node: &Node<'_>, interner: &mut Interner) -> Result<TextMatcher, ConfigError> {
    let fields = ["exact", "prefix", "suffix", "contains", "safe_regex", "ignore_case"];
    node.object("an object with one test of a text", &fields, &OF_A_TEXT)?;
    let [tests @ .., _] = &fields;
    let case = match node.flag("ignore_case")? {
        Some(true) => Case::Ignored,
        Some(false) | None => Case::Sensitive,
    };
    let (name, test) = node.one_of(tests)?;
    Ok(match name {
        "exact" => TextMatcher::Exact(test.text()?.to_owned(), case),
        "prefix" => TextMatcher::Prefix(not_empty(&test)?.to_owned(), case),
        "suffix" => TextMatcher::Suffix(not_empty(&test)?.to_owned(), case),
        "contains" => TextMatcher::Contains(Needle::new(not_empty(&test)?, case).into()),
        _ => safe_regex(&test, interner)?,
    })
}

fn safe_regex(node: &Node<'_>, interner: &mut Interner) -> Result<TextMatcher, ConfigError> {
    node.object("an object with `regex`", &["regex", "google_re2"], &[])?;
    // Older configurations had to name the engine; it has no effect any more.
    if let Some(engine) = node.field("google_re2") {
        empty(&engine)?;
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
        let prefix_len = match range.field("prefix_len") {
            Some(prefix_len) => in_range(&prefix_len, 0, bits_of(address).into())?,
            None => 0,
        };
        networks.push(Network::new(address, prefix_len));
    }
    Ok(AddressMatcher { networks, sense: inverted(node)? })
}
