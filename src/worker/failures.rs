//! What follows when a call brought no answer: whose mode decides, the breaker, counts, and the log.
//!
//! Each cause has its own count and its own log line, at most one in ten seconds and worker.

use super::{Ruling, Worker};
use crate::config::{FailureMode, OverloadMode};
use crate::host::stats::Count;
use crate::host::{Host, LogLevel};
use crate::worker::call_error::{self, AskError, Cause, Undecided};
use crate::worker::circuit_breaker::Change;
use crate::worker::pending_calls::{Purpose, Who};
use tidegate_core::{Nanos, Timestamp};

/// The least time between two log lines about the same cause.
const NEWS_EVERY: Nanos = Nanos::from_secs(10);

/// What was logged, so that it is not logged again with each request.
#[derive(Debug, Default)]
pub(super) struct News {
    logged_at: [Option<Timestamp>; Cause::COUNT],
    /// Whether an outage was logged since the last answer: then so is its end.
    outage_logged: bool,
}

impl News {
    /// Whether a line about this is due; then it counts as logged.
    fn is_due(&mut self, cause: Cause, now: Timestamp) -> bool {
        let Some(logged_at) = self.logged_at.get_mut(cause as usize) else {
            return false;
        };
        let due = logged_at.is_none_or(|logged| now.saturating_since(logged) >= NEWS_EVERY);
        if due {
            *logged_at = Some(now);
        }
        due
    }
}

impl<H: Host> Worker<H> {
    /// What becomes of a request without a decision.
    pub(super) fn undecided(&mut self, why: Undecided) -> Ruling {
        let (allowed, denied) = match why {
            Undecided::Failure => (Count::FailureAllowed, Count::FailureDenied),
            Undecided::Overload => (Count::OverloadAllowed, Count::OverloadDenied),
        };
        match call_error::undecided(&self.config, why) {
            None => {
                self.stats.count(allowed);
                Ruling::Allow(None)
            }
            Some(reply) => {
                self.stats.count(denied);
                Ruling::Deny(reply)
            }
        }
    }

    /// Ends the wait of a request without a decision.
    pub(super) fn fail(&mut self, who: Who, why: Undecided) {
        if let Who::Stream(_) = who
            && !self.is_gone(who)
        {
            let ruling = self.undecided(why);
            self.settle(who, ruling);
        }
    }

    /// A request found no room to wait.
    pub(super) fn note_full(&mut self, now: Timestamp) {
        self.stats.count(Count::WaitingFull);
        if self.news.is_due(Cause::Full, now) {
            self.log_cause("too many requests wait for its answers", Undecided::Overload);
        }
    }

    /// The time of a request is over that could not ask.
    pub(super) fn note_late(&mut self, now: Timestamp) {
        if self.news.is_due(Cause::Late, now) {
            self.log_cause(&AskError::Late.to_string(), Undecided::Overload);
        }
    }

    /// The sidecar has answered.
    pub(super) fn note_answer(&mut self) {
        self.patience.hear();
        let logged = std::mem::take(&mut self.news.outage_logged);
        if self.breaker.answered() == Change::Closed && logged {
            let message = format!("cluster {} answers again", self.config.cluster);
            self.host.log(LogLevel::Info, &message);
        }
    }

    /// A call has failed.
    pub(super) fn note_failure(&mut self, error: AskError, purpose: Purpose, now: Timestamp) {
        if purpose != Purpose::Return {
            self.stats.count(Count::AskErrors);
            self.stats.count(counted_as(error.cause()));
        }
        if error.is_answer() {
            self.note_answer();
        }
        let opened = match error.leaves() {
            _ if error.is_answer() => false,
            _ if purpose == Purpose::Probe => {
                self.breaker.probe_failed(now, self.host.random());
                false
            }
            Undecided::Overload => false,
            Undecided::Failure => {
                let random = self.host.random();
                let change = match error {
                    AskError::Silent => self.breaker.silent(now, random),
                    _ => self.breaker.failed(now, random),
                };
                change == Change::Opened
            }
        };
        let is_news = match purpose {
            Purpose::Decide => true,
            Purpose::Probe => !self.news.outage_logged,
            Purpose::Refresh | Purpose::Return => opened || error.is_answer(),
        };
        if is_news && self.news.is_due(error.cause(), now) {
            self.news.outage_logged |= error.leaves() == Undecided::Failure && !error.is_answer();
            match error {
                AskError::Overflow => self.log(&format!("{error}; requests wait for their turn")),
                error => self.log_cause(&error.to_string(), error.leaves()),
            }
        }
    }

    fn log_cause(&self, cause: &str, why: Undecided) {
        let effect = match (why, self.config.failure_mode, self.config.overload_mode) {
            (Undecided::Failure, FailureMode::Allow, _) => {
                "such requests pass unlimited (failure_mode allow)"
            }
            (Undecided::Failure, FailureMode::Deny, _) => {
                "such requests get 500 (failure_mode deny)"
            }
            (Undecided::Overload, _, OverloadMode::Allow) => {
                "such requests pass unlimited (overload_mode allow)"
            }
            (Undecided::Overload, _, OverloadMode::Deny) => {
                "such requests get 503 (overload_mode deny)"
            }
        };
        self.log(&format!("{cause}; {effect}"));
    }

    fn log(&self, text: &str) {
        self.host.log(LogLevel::Warn, &format!("cluster {}: {text}", self.config.cluster));
    }
}

fn counted_as(cause: Cause) -> Count {
    match cause {
        Cause::Unreachable => Count::AsksUnreachable,
        Cause::Silent => Count::AsksUnanswered,
        Cause::Failed => Count::AsksFailed,
        Cause::Late => Count::AsksLate,
        Cause::Shed => Count::AsksShed,
        Cause::Refused => Count::AsksRefused,
        Cause::Stuck => Count::AsksStuck,
        Cause::Overflow => Count::AsksOverflowed,
        Cause::Full => Count::WaitingFull,
    }
}
