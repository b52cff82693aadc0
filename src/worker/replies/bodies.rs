//! Bodies in other formats than text: those that are configured, or else a problem document
//! (RFC 9457) with the types of draft-ietf-httpapi-ratelimit-headers.
//!
//! Texts and names of limits become JSON strings here, so what the filter writes is always JSON.

use super::accept::{Format, preferred};
use crate::config::{FormatChoice, Formats};
use crate::host::{Host, Reply, StreamId};
use std::fmt::Write;
use std::rc::Rc;

pub(super) const CONTENT_TYPE: &str = "content-type";

/// The other bodies of a reply. The request chooses one when the reply is sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Bodies {
    choice: FormatChoice,
    json: Rc<str>,
    problem: Rc<str>,
}

impl Bodies {
    /// The configured bodies, or the document.
    #[cold]
    pub(super) fn new(formats: &Formats, document: &Document<'_>) -> Box<Bodies> {
        let written: Rc<str> = match formats {
            Formats { json: Some(_), problem: Some(_), .. } => Rc::default(),
            _ => Rc::from(document.to_json()),
        };
        let body =
            |configured: &Option<Rc<str>>| Rc::clone(configured.as_ref().unwrap_or(&written));
        let (json, problem) = (body(&formats.json), body(&formats.problem));
        Box::new(Bodies { choice: formats.choice, json, problem })
    }
}

/// Gives a reply the body that its request chooses. A gRPC client gets the text, as its message.
#[cold]
pub(super) fn choose(host: &impl Host, stream: StreamId, reply: &mut Reply, bodies: &Bodies) {
    let is_grpc = host.request_header(stream, CONTENT_TYPE, is_grpc).unwrap_or(false);
    let format = match bodies.choice {
        _ if is_grpc => Format::Text,
        FormatChoice::Json => Format::Json,
        FormatChoice::Problem => Format::Problem,
        FormatChoice::Accept => {
            host.request_header(stream, "accept", preferred).unwrap_or(Format::Text)
        }
    };
    let body = match format {
        Format::Text => return,
        Format::Json => &bodies.json,
        Format::Problem => &bodies.problem,
    };
    reply.body = body.to_string();
    // A configured content type has replaced it, if there is none.
    if let Some((_, value)) = reply.headers.iter_mut().find(|(name, _)| *name == CONTENT_TYPE) {
        format.content_type().clone_into(value);
    }
}

/// Whether a request with this content type is gRPC, or gRPC-Web.
fn is_grpc(content_type: &[u8]) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    content_type.get(..GRPC.len()).is_some_and(|start| start.eq_ignore_ascii_case(GRPC))
}

/// The type of a problem and its title.
pub(super) type ProblemType = (&'static str, &'static str);

pub(super) const QUOTA_EXCEEDED: ProblemType =
    ("https://iana.org/assignments/http-problem-types#quota-exceeded", "Quota Exceeded");
pub(super) const REDUCED_CAPACITY: ProblemType = (
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
    "Temporary Reduced Capacity",
);

/// A problem document.
#[derive(Debug)]
pub(super) struct Document<'a> {
    /// Without one, the status says all.
    pub(super) problem_type: Option<ProblemType>,
    pub(super) status: u32,
    /// The same as text; may be empty.
    pub(super) detail: &'a str,
    /// The names of the limits that deny.
    pub(super) violated_policies: Vec<&'a str>,
}

impl Document<'_> {
    fn to_json(&self) -> String {
        let mut json = String::from("{");
        if let Some((uri, title)) = self.problem_type {
            let _ = write!(json, r#""type":"{uri}","title":"{title}","#);
        }
        let _ = write!(json, r#""status":{}"#, self.status);
        if !self.detail.is_empty() {
            json.push_str(r#","detail":"#);
            string(&mut json, self.detail);
        }
        let mut before = r#","violated-policies":["#;
        for name in &self.violated_policies {
            json.push_str(before);
            string(&mut json, name);
            before = ",";
        }
        if !self.violated_policies.is_empty() {
            json.push(']');
        }
        json.push('}');
        json
    }
}

/// Appends a JSON string.
fn string(json: &mut String, text: &str) {
    json.push('"');
    for char in text.chars() {
        match char {
            '"' | '\\' => json.extend(['\\', char]),
            '\0'..='\u{1f}' => {
                let _ = write!(json, "\\u{:04x}", u32::from(char));
            }
            char => json.push(char),
        }
    }
    json.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn parsed(document: &Document<'_>) -> Value {
        serde_json::from_str(&document.to_json()).unwrap()
    }

    #[test]
    fn a_document_has_the_members_that_are_known() {
        let full = Document {
            problem_type: Some(QUOTA_EXCEEDED),
            status: 429,
            detail: "too much",
            violated_policies: vec!["daily", "per-client"],
        };
        let expected = json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Quota Exceeded", "status": 429, "detail": "too much",
            "violated-policies": ["daily", "per-client"],
        });
        assert_eq!(parsed(&full), expected);
        let least =
            Document { problem_type: None, status: 500, detail: "", violated_policies: Vec::new() };
        assert_eq!(least.to_json(), r#"{"status":500}"#);
    }

    #[test]
    fn only_grpc_content_types_are_grpc() {
        for (value, expected) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc-web-text", true),
            ("Application/gRPC", true),
            ("application/gr", false),
            ("application/json", false),
            ("", false),
        ] {
            assert_eq!(is_grpc(value.as_bytes()), expected, "{value}");
        }
    }

    proptest! {
        /// A limits file may name a limit by any text.
        #[test]
        fn any_name_is_a_json_string(names in prop::collection::vec("(?s).{0,9}", 0..4), detail in "(?s).{0,9}") {
            let violated_policies: Vec<&str> = names.iter().map(String::as_str).collect();
            let document = Document {
                problem_type: Some(REDUCED_CAPACITY), status: 503, detail: &detail, violated_policies,
            };
            let value = parsed(&document);
            let found = value["violated-policies"].as_array().cloned().unwrap_or_default();
            let found: Vec<&str> = found.iter().filter_map(Value::as_str).collect();
            prop_assert_eq!(found, names);
            prop_assert_eq!(value["detail"].as_str().unwrap_or_default(), detail);
        }
    }
}
