//! How many requests this door answered, by path and status. Paths that are none count as one, so that
//! clients cannot make series.

use hyper::StatusCode;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

const PATHS: [&str; 5] = ["/", "/healthcheck", "/json", "/metrics", "/rlconfig"];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    path: &'static str,
    status: u16,
}

/// Clones share the counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Requests(Family<Labels, Counter>);

impl Requests {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let help = "Requests answered at the HTTP door, by path and status";
        registry.register("http_requests", help, self.0.clone());
    }

    pub(super) fn answered(&self, path: &'static str, status: StatusCode) {
        self.0.get_or_create(&Labels { path, status: status.as_u16() }).inc();
    }
}

/// A path of this door, or a word for all that are none.
pub(super) fn known(path: &str) -> &'static str {
    PATHS.into_iter().find(|known| *known == path).unwrap_or("other")
}
