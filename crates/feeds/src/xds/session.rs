//! The state of the world protocol, from the client's side: requests, acknowledgements and refusals.
//!
//! A response has all resources. Its version is in use once the limits are in force, and each further request names
//! the version in use, so a server knows after a new connection whether anything has changed.

use super::document::Document;
use super::messages::{DiscoveryRequest, DiscoveryResponse, Node, RATE_LIMIT_CONFIG, Status};
use tidegate_limits::{Diagnostic, SourceFile};

/// `google.rpc.Code.INVALID_ARGUMENT`.
const INVALID_ARGUMENT: i32 = 3;
/// Bytes of a refusal. Servers log it, and may keep it in a status.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;

/// What outlives a connection.
#[derive(Debug)]
pub(super) struct Session {
    node: Node,
    /// The version of the limits in force.
    version: String,
}

/// The resources of a response, each a limits file.
#[derive(Debug)]
pub(super) struct Resources(Vec<Document>);

impl Session {
    pub(super) fn new(node: Node) -> Session {
        Session { node, version: String::new() }
    }

    /// The first request of a connection.
    pub(super) fn first(&self) -> DiscoveryRequest {
        self.request(String::new(), None)
    }

    /// The acknowledgement of a response whose limits are in force.
    pub(super) fn accept(&mut self, response: &DiscoveryResponse) -> DiscoveryRequest {
        self.version.clone_from(&response.version_info);
        self.request(response.nonce.clone(), None)
    }

    /// The refusal of a response; the limits in force stay.
    pub(super) fn refuse(
        &self,
        response: &DiscoveryResponse,
        mistakes: &[String],
    ) -> DiscoveryRequest {
        let message = joined(mistakes);
        let error = Status { code: INVALID_ARGUMENT, message };
        self.request(response.nonce.clone(), Some(error))
    }

    fn request(&self, response_nonce: String, error_detail: Option<Status>) -> DiscoveryRequest {
        DiscoveryRequest {
            version_info: self.version.clone(),
            node: Some(self.node.clone()),
            type_url: RATE_LIMIT_CONFIG.to_owned(),
            response_nonce,
            error_detail,
        }
    }
}

impl Resources {
    /// Reads the resources of a response. The error has a sentence for each mistake.
    pub(super) fn read(response: &DiscoveryResponse) -> Result<Resources, Vec<String>> {
        if response.type_url != RATE_LIMIT_CONFIG {
            let found = response.type_url.chars().take(256).collect::<String>();
            return Err(vec![format!(
                "expected resources of type {RATE_LIMIT_CONFIG}, found {found}"
            )]);
        }
        let (mut documents, mut mistakes) = (Vec::new(), Vec::new());
        for (index, resource) in response.resources.iter().enumerate() {
            match Document::read(index, resource.clone()) {
                Ok(document) => documents.push(document),
                Err(mistake) => mistakes.push(mistake),
            }
        }
        if mistakes.is_empty() { Ok(Resources(documents)) } else { Err(mistakes) }
    }

    pub(super) fn files(&self) -> Vec<SourceFile> {
        self.0.iter().map(|document| document.file.clone()).collect()
    }

    /// Mistakes of the limits as sentences about resources and descriptors.
    pub(super) fn explain(&self, mistakes: &[Diagnostic]) -> Vec<String> {
        let sentence = |mistake: &Diagnostic| {
            let explained = self.0.iter().find_map(|document| document.explain(mistake));
            explained.unwrap_or_else(|| mistake.to_string())
        };
        mistakes.iter().map(sentence).collect()
    }
}

/// All mistakes, one a line, as far as there is room.
fn joined(mistakes: &[String]) -> String {
    let mut text = String::new();
    for (index, mistake) in mistakes.iter().enumerate() {
        if text.len() + mistake.len() > REFUSAL_BYTES_MAX {
            text.push_str(&format!("\nand {} more", mistakes.len() - index));
            break;
        }
        if index > 0 {
            text.push('\n');
        }
        text.push_str(mistake);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(version: &str, nonce: &str) -> DiscoveryResponse {
        DiscoveryResponse {
            version_info: version.to_owned(),
            nonce: nonce.to_owned(),
            type_url: RATE_LIMIT_CONFIG.to_owned(),
            resources: Vec::new(),
        }
    }

    #[test]
    fn each_request_names_the_version_in_force() {
        let mut session = Session::new(Node { id: "n".to_owned(), metadata: None });
        let named = |request: DiscoveryRequest| {
            assert_eq!(request.type_url, RATE_LIMIT_CONFIG);
            assert_eq!(request.node.unwrap().id, "n");
            let error = request.error_detail.map(|error| (error.code, error.message));
            (request.version_info, request.response_nonce, error)
        };
        let text = |text: &str| text.to_owned();
        assert_eq!(named(session.first()), (text(""), text(""), None));
        assert_eq!(named(session.accept(&response("1", "a"))), (text("1"), text("a"), None));
        let refused = session.refuse(&response("2", "b"), &[text("x"), text("y")]);
        assert_eq!(named(refused), (text("1"), text("b"), Some((3, text("x\ny")))));
        assert_eq!(named(session.first()), (text("1"), text(""), None));
    }

    #[test]
    fn a_refusal_is_bounded_and_counts_the_rest() {
        let mistakes = vec!["m".repeat(1_000); 100];
        let text = joined(&mistakes);
        assert!(text.len() < REFUSAL_BYTES_MAX + 200, "{}", text.len());
        assert!(text.ends_with("\nand 35 more"), "{}", &text[text.len() - 20..]);
    }

    #[test]
    fn resources_of_another_type_are_refused() {
        let mut other = response("1", "a");
        other.type_url = "type.googleapis.com/envoy.config.cluster.v3.Cluster".to_owned();
        let mistakes = Resources::read(&other).unwrap_err();
        assert!(mistakes[0].contains("envoy.config.cluster.v3.Cluster"), "{mistakes:?}");
    }
}
