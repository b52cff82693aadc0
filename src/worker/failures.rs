//! Handles calls without a response: the mode that decides, the circuit breaker, counters, and the
//! log.
//!
//! Each cause has its own counter and its own log line, which a worker writes at most once in ten
//! seconds.

use super::{Outcome, Worker};
use crate::config::{Fraction, UndecidedMode};
use crate::host::stats::Counter;
use crate::host::{Host, LogLevel};
use crate::worker::call_error::{self, CallError, Undecided};
use crate::worker::pending_calls::{Purpose, Requester};
use tidegate_core::{Nanos, Timestamp};

/// The least time between two log lines about the same cause.
pub(super) const LOG_INTERVAL: Nanos = Nanos::from_secs(10);

/// Limits log lines: a failure is not logged for each request.
#[derive(Debug, Default)]
pub(super) struct FailureLog {
    /// By the counter of the cause.
    logged_at: [Option<Timestamp>; Counter::NAMES.len()],
    /// Whether an outage was logged since the last response: then its end is logged too.
    outage_logged: bool,
}

impl FailureLog {
    /// Whether a line about this cause is due; then it counts as logged.
    fn is_due(&mut self, cause: Counter, now: Timestamp) -> bool {
        let Some(logged_at) = self.logged_at.get_mut(cause as usize) else { return false };
        let due = logged_at.is_none_or(|logged| now.saturating_since(logged) >= LOG_INTERVAL);
        if due {
            *logged_at = Some(now);
        }
        due
    }
}

impl<H: Host> Worker<H> {
    /// What becomes of a request without a decision.
    pub(super) fn undecided(&mut self, why: Undecided) -> Outcome {
        let (allowed, denied) = match why {
            Undecided::Failure => (Counter::FailureAllowed, Counter::FailureDenied),
            Undecided::Overload => (Counter::OverloadAllowed, Counter::OverloadDenied),
        };
        match call_error::undecided(&self.config, why, || self.host.random()) {
            None => {
                self.stats.count(allowed);
                Outcome::Allow(None)
            }
            Some(denial) => {
                self.stats.count(denied);
                Outcome::Deny(denial)
            }
        }
    }

    /// Ends the wait of a request without a decision.
    pub(super) fn fail(&mut self, requester: Requester, why: Undecided) {
        match requester {
            Requester::Stream(stream) if !self.is_gone(requester) => {
                self.drop_late_refunds(stream);
                let outcome = self.undecided(why);
                self.deliver(requester, outcome);
            }
            Requester::Stream(_) => {}
            Requester::Shadow(stream) => self.settle_shadow(stream),
        }
    }

    /// A request found no room to wait.
    pub(super) fn note_full(&mut self, now: Timestamp) {
        self.stats.count(Counter::WaitingFull);
        if self.failure_log.is_due(Counter::WaitingFull, now) {
            self.log_cause("too many requests wait for its answers", Undecided::Overload);
        }
    }

    /// The deadline of a queued request has passed.
    pub(super) fn note_late(&mut self, now: Timestamp) {
        if self.failure_log.is_due(Counter::AsksLate, now) {
            self.log_cause(&CallError::Late.to_string(), Undecided::Overload);
        }
    }

    /// Debits were lost.
    pub(super) fn log_lost(&mut self, now: Timestamp) {
        if self.failure_log.is_due(Counter::DebitsLost, now) {
            self.log("costs of ended streams could not be counted (debits_lost)");
        }
    }

    /// Decisions could not be reported.
    pub(super) fn log_untold(&mut self, now: Timestamp) {
        if self.failure_log.is_due(Counter::ReportsLost, now) {
            self.log("it refused a report of decisions (reports_lost)");
        }
    }

    pub(super) fn note_answer(&mut self) {
        self.tick_clock.answered();
        let logged = std::mem::take(&mut self.failure_log.outage_logged);
        if self.breaker.answered() && logged {
            let message = format!("cluster {} answers again", self.config.cluster);
            self.host.log(LogLevel::Info, &message);
        }
    }

    /// A call has failed.
    pub(super) fn note_failure(&mut self, error: CallError, purpose: Purpose, now: Timestamp) {
        // Neither counts as an ask.
        if !matches!(purpose, Purpose::Return | Purpose::Report) {
            self.stats.count(Counter::AskErrors);
            self.stats.count(error.counter());
        }
        if error.is_answer() {
            self.note_answer();
        }
        let opened = match error.undecided_reason() {
            _ if error.is_answer() => false,
            _ if purpose == Purpose::Probe => {
                self.breaker.probe_failed(now, self.host.random());
                false
            }
            Undecided::Overload => false,
            Undecided::Failure => {
                let random = self.host.random();
                match error {
                    CallError::Silent => self.breaker.silent(now, random),
                    _ => self.breaker.failed(now, random),
                }
            }
        };
        let is_news = match purpose {
            Purpose::Decide => true,
            Purpose::Probe => !self.failure_log.outage_logged,
            Purpose::Refresh | Purpose::Return | Purpose::Debit | Purpose::Report => {
                opened || error.is_answer()
            }
        };
        if is_news && self.failure_log.is_due(error.counter(), now) {
            self.failure_log.outage_logged |=
                error.undecided_reason() == Undecided::Failure && !error.is_answer();
            match error {
                CallError::Overflow => self.log(&format!("{error}; requests wait for their turn")),
                error => self.log_cause(&error.to_string(), error.undecided_reason()),
            }
        }
    }

    fn log_cause(&self, cause: &str, why: Undecided) {
        let error = self.config.status_on_error;
        let (name, mode, status) = match (why, self.config.failure_mode_deny_percent) {
            (Undecided::Failure, Some(Fraction { numerator, denominator }))
                if 0 < numerator && numerator < denominator =>
            {
                return self.log(&format!(
                    "{cause}; {numerator} of {denominator} such requests get {error}, the others \
                     pass unlimited (failure_mode_deny_percent)"
                ));
            }
            (Undecided::Failure, Some(share)) => {
                let mode =
                    if share.numerator > 0 { UndecidedMode::Deny } else { UndecidedMode::Allow };
                ("failure_mode_deny_percent", mode, error)
            }
            (Undecided::Failure, None) => ("failure_mode", self.config.failure_mode, error),
            (Undecided::Overload, _) => ("overload_mode", self.config.overload_mode, 503),
        };
        self.log(&match mode {
            UndecidedMode::Allow => {
                format!("{cause}; such requests pass unlimited ({name} allow)")
            }
            UndecidedMode::Deny => format!("{cause}; such requests get {status} ({name} deny)"),
        });
    }

    fn log(&self, text: &str) {
        self.host.log(LogLevel::Warn, &format!("cluster {}: {text}", self.config.cluster));
    }
}
