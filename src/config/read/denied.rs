//! Reads the replies to denied requests: `denied` of the filter, of its entries, and of limits.

use super::checks::{at_most, in_range};
use super::filter_options::{added_headers, percent};
use super::matcher::text_matcher;
use super::variant;
use crate::config::denied::{
    DeniedReply, FormatChoice, Formats, LIMIT_NAME_BYTES_MAX, ReplyContent,
};
use crate::config::filter_options::Fraction;
use crate::config::interner::Interner;
use crate::config::node::Node;
use crate::config::{ConfigError, document};
use crate::matching::text::TextMatcher;
use std::rc::Rc;

/// As many as entries of `rate_limits`.
const LIMITS_MAX: usize = tidegate_wire::DESCRIPTORS_MAX;
/// Of one body in JSON: each of thousands of denials that wait has a copy.
const JSON_BYTES_MAX: usize = 4_096;

const DEFAULT_TEXT: &str = "rate limit exceeded";

/// The fields of a rule's own content.
pub(super) const OF_A_RULE: [&str; 3] = ["status", "body", "format"];

pub(super) fn denied(
    filter: &Node<'_>,
    interner: &mut Interner,
) -> Result<DeniedReply, ConfigError> {
    let node = filter.at("denied");
    let content =
        content(&node, &["status", "body", "format", "retry_after_jitter", "limits"], None)?;
    let mut by_limit = Vec::new();
    if let Some(limits) = node.field("limits") {
        for item in &at_most(&limits, LIMITS_MAX)? {
            by_limit.push(of_a_limit(item, &content, interner)?);
        }
    }
    Ok(DeniedReply {
        content,
        has_rules: !by_limit.is_empty(),
        by_limit,
        retry_after_jitter: jitter(&node)?,
        is_resource_exhausted: filter.flag("rate_limited_as_resource_exhausted", false)?,
        is_marked: !filter.flag("disable_x_envoy_ratelimited_header", false)?,
        added: added_headers(filter)?,
    })
}

fn jitter(node: &Node<'_>) -> Result<Option<Fraction>, ConfigError> {
    let Some(share) = node.field("retry_after_jitter") else { return Ok(None) };
    let fraction = percent(&share)?;
    if fraction.numerator > fraction.denominator {
        let Fraction { numerator, denominator } = fraction;
        return Err(share.error(&format!("{numerator} of {denominator} is more than the wait")));
    }
    Ok((fraction.numerator > 0).then_some(fraction))
}

/// The content of denials by limits with a name, such as
/// `{"name": {"exact": "daily"}, "status": 403}`.
fn of_a_limit(
    item: &Node<'_>,
    general: &ReplyContent,
    interner: &mut Interner,
) -> Result<(TextMatcher, ReplyContent), ConfigError> {
    let content = content(item, &["status", "body", "format", "name"], Some(general))?;
    let name = item.required("name")?;
    let matcher = text_matcher(&name, "an object with one test of a text", interner)?;
    if let TextMatcher::Exact(text, _) = &matcher
        && text.len() > LIMIT_NAME_BYTES_MAX
    {
        let (bytes, max) = (text.len(), LIMIT_NAME_BYTES_MAX);
        let message = format!("{bytes} bytes, but names are cut at {max}; use `prefix`");
        return Err(name.at("exact").error(&message));
    }
    Ok((matcher, content))
}

/// The content of denials, which may have further fields beside it. What it leaves out is as in
/// `general`; without that, a default.
pub(super) fn content(
    node: &Node<'_>,
    fields: &[&str],
    general: Option<&ReplyContent>,
) -> Result<ReplyContent, ConfigError> {
    if !node.is_absent() {
        node.object("an object with `status` or `body`", fields, &[])?;
    }
    let status = match node.field("status") {
        Some(status) => in_range(&status, 400, 599)?,
        None => general.map_or(429, |general| general.status),
    };
    let inherited = general.and_then(|general| general.formats.as_deref());
    let choice = choice(node, inherited.map(|formats| formats.choice))?;
    let text = general.map_or(DEFAULT_TEXT, |general| &general.text);
    let mut bodies = Bodies { text: text.to_owned(), json: None, problem: None };
    match (node.field("body"), inherited) {
        (Some(body), _) if body.is_object() => bodies.read(&body, choice)?,
        (Some(body), _) => match choice {
            None | Some(FormatChoice::Accept) => bodies.text = text_body(&body)?,
            Some(FormatChoice::Json) => bodies.json = Some(json_body(&body)?),
            Some(FormatChoice::Problem) => bodies.problem = Some(problem_body(&body)?),
        },
        (None, Some(formats)) => {
            (bodies.json, bodies.problem) = (formats.json.clone(), formats.problem.clone());
        }
        (None, None) => {}
    }
    let Bodies { text, json, problem } = bodies;
    let formats = choice.map(|choice| Box::new(Formats { choice, json, problem }));
    Ok(ReplyContent { status, text, formats })
}

/// The format of a body; none if it is always text. Bodies in several formats are for a choice.
fn choice(
    node: &Node<'_>,
    inherited: Option<FormatChoice>,
) -> Result<Option<FormatChoice>, ConfigError> {
    let body = node.at("body");
    let is_in_formats = body.field("json").is_some() || body.field("problem").is_some();
    Ok(match variant(node, "format", &["text", "json", "problem", "accept"])? {
        Some("json") => Some(FormatChoice::Json),
        Some("problem") => Some(FormatChoice::Problem),
        Some("accept") => Some(FormatChoice::Accept),
        Some(_) => None,
        None => inherited.or(is_in_formats.then_some(FormatChoice::Accept)),
    })
}

/// The configured bodies of one reply.
struct Bodies {
    text: String,
    json: Option<Rc<str>>,
    problem: Option<Rc<str>>,
}

impl Bodies {
    /// Reads a body for each format. One that is never sent is a mistake.
    fn read(&mut self, node: &Node<'_>, choice: Option<FormatChoice>) -> Result<(), ConfigError> {
        node.object("a text or an object with `text`", &["text", "json", "problem"], &[])?;
        if let Some(text) = node.field("text") {
            self.text = text_body(&text)?;
        }
        let has = |format| matches!(choice, Some(of) if of == format || of == FormatChoice::Accept);
        let unused = |node: &Node<'_>| node.error("is never sent with this `format`");
        match node.field("json") {
            Some(json) if has(FormatChoice::Json) => self.json = Some(json_body(&json)?),
            Some(json) => return Err(unused(&json)),
            None => {}
        }
        match node.field("problem") {
            Some(body) if has(FormatChoice::Problem) => self.problem = Some(problem_body(&body)?),
            Some(body) => return Err(unused(&body)),
            None => {}
        }
        Ok(())
    }
}

/// A gRPC client gets the text as its status message, in which a line end reads `%0A`.
fn text_body(node: &Node<'_>) -> Result<String, ConfigError> {
    Ok(node.text()?.trim_end_matches(['\r', '\n']).to_owned())
}

fn json_body(node: &Node<'_>) -> Result<Rc<str>, ConfigError> {
    let text = text_body(node)?;
    if text.len() > JSON_BYTES_MAX {
        let bytes = text.len();
        return Err(node.error(&format!("{bytes} bytes are too many (maximum {JSON_BYTES_MAX})")));
    }
    match document::json(text.as_bytes()) {
        Ok(_) => Ok(Rc::from(text)),
        Err(error) => Err(node.error(&format!("not JSON: {error}"))),
    }
}

/// A problem is a JSON object.
fn problem_body(node: &Node<'_>) -> Result<Rc<str>, ConfigError> {
    let text = json_body(node)?;
    match text.trim_start().starts_with('{') {
        true => Ok(text),
        false => Err(node.error("must be a JSON object")),
    }
}
