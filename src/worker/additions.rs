//! Answers of the service beyond a decision: headers of the request and of its response, the body of
//! a denial, metadata.
//!
//! Refuses bytes that are no header, and bounds what is kept: thousands of decided requests may wait
//! for their turn.

use super::struct_json::json_of_struct;
use crate::config::{AddedHeader, AppendAction};
use crate::host::{NamedHeader, Reply};
use tidegate_wire::rls::HeaderValue;

/// Of each list.
const HEADERS_MAX: usize = 32;
/// Of the names and values of each list together.
const HEADER_BYTES_MAX: usize = 4_096;
const BODY_BYTES_MAX: usize = 8_192;
const METADATA_BYTES_MAX: usize = 4_096;

const CONTENT_TYPE: &str = "content-type";
const RETRY_AFTER: &str = "retry-after";

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Additions {
    pub(super) response_headers: Vec<NamedHeader>,
    pub(super) request_headers: Vec<NamedHeader>,
    /// The body of a denial.
    pub(super) body: Option<String>,
    /// As JSON.
    pub(super) metadata: Option<String>,
}

impl Additions {
    pub(super) fn new(answered: tidegate_wire::Additions) -> Additions {
        let has_body = (1..=BODY_BYTES_MAX).contains(&answered.body.len());
        let body = has_body.then(|| String::from_utf8_lossy(&answered.body).into_owned());
        let metadata = match answered.metadata.as_slice() {
            [] => None,
            bytes => json_of_struct(bytes, METADATA_BYTES_MAX),
        };
        Additions {
            response_headers: headers(answered.response_headers),
            request_headers: headers(answered.request_headers),
            body,
            metadata,
        }
    }

    /// Adds headers and body to a denial. As in Envoy's own filter, `configured` headers apply to
    /// the result, and `content-type` and `retry-after` replace the filter's. The filter's other
    /// headers are not added again.
    pub(super) fn add_to(self, reply: &mut Reply, configured: &[AddedHeader]) {
        if let Some(body) = self.body {
            reply.body = body;
            let of_body = reply.headers.iter_mut().filter(|(name, _)| *name == CONTENT_TYPE);
            of_body.for_each(|(_, value)| "text/plain".clone_into(value));
        }
        for (name, value) in self.response_headers {
            let action = configured.iter().find(|added| added.name == name);
            match action.map(|added| (added.action, &added.value)) {
                Some((AppendAction::OverwriteOrAdd, _)) => continue,
                Some((AppendAction::OverwriteIfExists, value)) => {
                    reply.added.retain(|(known, _)| *known != name);
                    reply.headers.retain(|(known, _)| *known != name);
                    reply.added.push((name, value.clone()));
                    continue;
                }
                Some((AppendAction::AddIfAbsent, _)) => {
                    reply.added.retain(|(known, _)| *known != name);
                }
                Some((AppendAction::AppendOrAdd, _)) | None => {}
            }
            if name == CONTENT_TYPE || name == RETRY_AFTER {
                reply.headers.retain(|(known, _)| *known != name);
            }
            if reply.headers.iter().all(|(known, _)| *known != name) {
                reply.added.push((name, value));
            }
        }
    }
}

/// The valid ones, in lower case, as far as there is room.
fn headers(answered: Vec<HeaderValue>) -> Vec<NamedHeader> {
    let (mut kept, mut bytes) = (Vec::new(), 0_usize);
    for HeaderValue { key, value } in answered {
        let size = key.len().saturating_add(value.len());
        bytes = bytes.saturating_add(size);
        if kept.len() == HEADERS_MAX || bytes > HEADER_BYTES_MAX {
            break;
        }
        if is_token(&key) && !value.bytes().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
            kept.push((key.to_ascii_lowercase(), value));
        }
    }
    kept
}

/// A header name by RFC 9110. Pseudo-headers such as `:path` are not for others to set.
fn is_token(name: &str) -> bool {
    let is_token_byte =
        |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_token_byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::structured::tests::struct_of_json;
    use serde_json::json;

    fn of(headers: &[(&str, &str)]) -> Additions {
        let header = |(key, value): &(&str, &str)| HeaderValue {
            key: (*key).to_owned(),
            value: (*value).to_owned(),
        };
        Additions::new(tidegate_wire::Additions {
            response_headers: headers.iter().map(header).collect(),
            ..tidegate_wire::Additions::default()
        })
    }

    fn named(headers: &[(&str, &str)]) -> Vec<NamedHeader> {
        headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn bytes_that_are_no_header_are_left_out() {
        let table = [
            ("X-Good", "v"),
            (":path", "/admin"),
            ("", "v"),
            ("x y", "v"),
            ("x\r\ny", "v"),
            ("x-split", "v\r\nset-cookie: a"),
            ("x-nul", "\0"),
            ("x-empty", ""),
            ("x-good", "é"),
        ];
        let expected = named(&[("x-good", "v"), ("x-empty", ""), ("x-good", "é")]);
        assert_eq!(of(&table).response_headers, expected);
    }

    #[test]
    fn the_number_and_the_bytes_of_all_are_bounded() {
        assert_eq!(of(&[("x", "v"); 33]).response_headers.len(), HEADERS_MAX);
        let long = "v".repeat(1_023);
        assert_eq!(of(&[("x", long.as_str()); 5]).response_headers.len(), 4);
        let body = |bytes: usize| {
            let body = vec![b'x'; bytes];
            Additions::new(tidegate_wire::Additions { body, ..Default::default() }).body
        };
        assert_eq!(
            [0, 1, 8_192, 8_193].map(|bytes| body(bytes).is_some()),
            [false, true, true, false]
        );
        let metadata = |value| {
            let metadata = struct_of_json(&value);
            Additions::new(tidegate_wire::Additions { metadata, ..Default::default() }).metadata
        };
        assert_eq!(metadata(json!({"k": [1, "v"]})).as_deref(), Some(r#"{"k":[1,"v"]}"#));
        assert_eq!((metadata(json!({})), metadata(json!({"k": "v".repeat(4_096)}))), (None, None));
    }

    /// A denial with three headers of the filter and one that is configured.
    fn denial(configured: &AddedHeader) -> Reply {
        let added = match configured.action {
            AppendAction::OverwriteIfExists => Vec::new(),
            _ => vec![(configured.name.clone(), configured.value.clone())],
        };
        let own = [("retry-after", "7"), ("ratelimit", "r"), ("content-type", "application/json")];
        Reply {
            status: 429,
            headers: own.map(|(name, value)| (name, value.to_owned())).to_vec(),
            added,
            body: "own".to_owned(),
            grpc_status: None,
            details: "d".into(),
        }
    }

    #[test]
    fn a_denial_has_the_headers_of_the_service_among_its_own() {
        use AppendAction::{AddIfAbsent, AppendOrAdd, OverwriteIfExists, OverwriteOrAdd};
        // The action of the configured `x: mine`, a header of the service, and all that the denial
        // has of its name.
        let table: [(AppendAction, (&str, &str), &[&str]); 8] = [
            (AppendOrAdd, ("x", "theirs"), &["mine", "theirs"]),
            (AddIfAbsent, ("x", "theirs"), &["theirs"]),
            (OverwriteOrAdd, ("x", "theirs"), &["mine"]),
            (OverwriteIfExists, ("x", "theirs"), &["mine"]),
            (AppendOrAdd, ("y", "theirs"), &["theirs"]),
            (AppendOrAdd, ("RateLimit", "theirs"), &["r"]),
            (AppendOrAdd, ("retry-after", "9"), &["9"]),
            (AppendOrAdd, ("content-type", "text/html"), &["text/html"]),
        ];
        for (action, header, expected) in table {
            let configured = AddedHeader { name: "x".to_owned(), value: "mine".to_owned(), action };
            let mut reply = denial(&configured);
            of(&[header]).add_to(&mut reply, &[configured]);
            let name = header.0.to_ascii_lowercase();
            let own = reply.headers.iter().map(|(name, value)| (*name, value.as_str()));
            let added = reply.added.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            let values: Vec<&str> = own
                .chain(added)
                .filter(|(known, _)| *known == name)
                .map(|(_, value)| value)
                .collect();
            assert_eq!(values, expected, "{action:?} and {header:?}");
        }
    }

    #[test]
    fn a_body_of_the_service_is_text_unless_it_says_otherwise() {
        let configured =
            AddedHeader { name: "x".into(), value: "v".into(), action: AppendAction::AppendOrAdd };
        let of_type = |header: &[(&str, &str)]| {
            let mut reply = denial(&configured);
            let body = Some("theirs".to_owned());
            Additions { body, ..of(header) }.add_to(&mut reply, &[]);
            let own = reply.headers.iter().map(|(name, value)| (*name, value.clone()));
            let added = reply.added.iter().map(|(name, value)| (name.as_str(), value.clone()));
            let types = own.chain(added).filter(|(name, _)| *name == CONTENT_TYPE);
            (reply.body.clone(), types.map(|(_, value)| value).collect::<Vec<_>>())
        };
        let expected = |of_type: &str| ("theirs".to_owned(), vec![of_type.to_owned()]);
        assert_eq!(of_type(&[]), expected("text/plain"));
        assert_eq!(of_type(&[("content-type", "text/html")]), expected("text/html"));
    }
}
