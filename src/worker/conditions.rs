//! Conditions (`when`) that could not be evaluated: counted, and logged at most once in ten seconds,
//! since a client may cause one with each request.

use super::Worker;
use super::failures::LOG_INTERVAL;
use crate::host::{Host, LogLevel};
use crate::request::when::Cause;

impl<H: Host> Worker<H> {
    /// The evaluation of some conditions has failed for a request.
    #[cold]
    pub(super) fn note_condition(&mut self, failures: u64, (path, cause): &(String, Cause)) {
        self.stats.count_conditions(failures);
        let now = self.host.now();
        let logged_at = self.condition_logged_at;
        if logged_at.is_none_or(|logged| now.saturating_since(logged) >= LOG_INTERVAL) {
            self.condition_logged_at = Some(now);
            let message = format!("{path}: no result for some requests: {cause}");
            self.host.log(LogLevel::Warn, &message);
        }
    }
}
