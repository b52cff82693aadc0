//! An authority with limits, counters and metrics, for tests.

use std::sync::Arc;
use tidegate_authority::{Authority, Modes, wait};
use tidegate_core::{Answer, Descriptor, Entry, Hits, Request, Timestamp};
use tidegate_limits::{SameDomain, load};
use tidegate_stats::{Metrics, MoreCounts, RuleUse, Snapshot};
use tidegate_store::{Cluster, Geometry, Options};

pub(crate) const NOW: Timestamp = Timestamp::from_secs(1_700_092_800);

pub(crate) struct Scene {
    pub(crate) authority: Authority,
    store: Arc<Cluster>,
    metrics: Metrics,
}

impl Scene {
    /// With these limits files, each of a domain.
    pub(crate) fn new(files: &[&str]) -> Scene {
        let dir = tempfile::TempDir::new().unwrap();
        for (index, file) in files.iter().enumerate() {
            std::fs::write(dir.path().join(format!("{index}.yaml")), file).unwrap();
        }
        let rules = load(dir.path(), SameDomain::Refuse).unwrap().rules;
        let options = Options::narrow(Geometry::by_capacity(1_000, 0.8).unwrap());
        let store = Arc::new(Cluster::in_memory(&options).unwrap());
        let metrics = Metrics::default();
        let observer = Arc::new(metrics.clone());
        let authority = Authority::new(store.clone(), rules, Modes::default(), observer).unwrap();
        Scene { authority, store, metrics }
    }

    /// Sends one request with these descriptors, each `key=value/key=value`.
    pub(crate) fn ask(&self, domain: &str, descriptors: &[&str]) -> Answer {
        let descriptors = descriptors.iter().map(|entries| {
            let entries = entries.split('/').map(|entry| {
                let (key, value) = entry.split_once('=').unwrap();
                Entry::new(key, value)
            });
            Descriptor::new(entries.collect())
        });
        let descriptors = descriptors.collect();
        let request = Request { domain: domain.to_owned(), descriptors, hits: Hits::ONE };
        wait(self.authority.decide(&request, NOW)).unwrap()
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.metrics.brief_with_store(&self.store, MoreCounts::default())
    }

    pub(crate) fn rule_use(&self) -> RuleUse {
        self.metrics.rule_use()
    }
}

pub(crate) fn parameters(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}
