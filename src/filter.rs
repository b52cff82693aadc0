//! The proxy-wasm contexts: when Envoy calls, and what is carried out then.
//!
//! A worker has one [`Root`] and a [`Filter`] per request. Only the stream that asked is resumed
//! or answered; a stream that is gone by then takes its answer with it.

use crate::config::{Config, FailureMode};
use crate::decide::{AskError, Ruling, Step, conclude, failure, first_step};
use crate::{host, reply};
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType};
use std::cell::Cell;
use std::rc::Rc;
use tidegate_core::{Nanos, Request, Timestamp};

/// What all requests of a worker share.
struct Shared {
    config: Config,
    outage: Cell<Outage>,
    /// When the log last told of an outage.
    told_at: Cell<Option<Timestamp>>,
}

/// Whether the last ask failed. That is worth a log line when it begins and when it ends, which
/// must not become a line per request when asks fail and succeed in turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outage {
    None,
    Told,
    Untold,
}

/// The least time between two outages that are told.
const NEWS_EVERY: Nanos = Nanos::from_secs(10);

/// The worker's root context: holds the configuration and makes a filter per request.
#[derive(Default)]
pub(crate) struct Root {
    shared: Option<Rc<Shared>>,
}

impl Context for Root {}

impl RootContext for Root {
    fn on_configure(&mut self, plugin_configuration_size: usize) -> bool {
        match Config::from_envoy(&host::plugin_configuration(plugin_configuration_size)) {
            Ok(config) => {
                let (outage, told_at) = (Cell::new(Outage::None), Cell::new(None));
                self.shared = Some(Rc::new(Shared { config, outage, told_at }));
                true
            }
            Err(error) => {
                host::log_error(&error.to_string());
                false
            }
        }
    }

    fn create_http_context(&self, _context_id: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Filter { shared: self.shared.clone(), state: State::Fresh }))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

/// Where a request is between its headers and its response.
enum State {
    /// Nothing was decided.
    Fresh,
    /// Paused, with this ask under way.
    Asking(Request),
    /// Passed; the response gets these headers.
    Passed(Vec<reply::Header>),
    /// Answered here.
    Answered,
}

/// One request.
struct Filter {
    /// None only if Envoy sends requests to a root that it did not configure.
    shared: Option<Rc<Shared>>,
    state: State,
}

impl Context for Filter {
    fn on_grpc_call_response(&mut self, _token_id: u32, status_code: u32, size: usize) {
        let (Some(shared), State::Asking(asked)) =
            (self.shared.clone(), std::mem::replace(&mut self.state, State::Fresh))
        else {
            return;
        };
        let ruling = match answer(status_code, size) {
            Ok(answer) => {
                shared.note_answer();
                conclude(&shared.config, &asked, &answer)
            }
            Err(error) => shared.undecided(error),
        };
        if let Action::Continue = self.carry_out(ruling) {
            host::resume_request();
        }
    }
}

fn answer(status_code: u32, size: usize) -> Result<tidegate_core::Answer, AskError> {
    if status_code != 0 {
        return Err(AskError::Status(status_code));
    }
    let body = host::call_answer(size)?;
    tidegate_wire::decode_answer(&body).map_err(|_| AskError::Malformed)
}

impl HttpContext for Filter {
    fn on_http_request_headers(&mut self, _headers: usize, _end_of_stream: bool) -> Action {
        let Some(shared) = self.shared.clone() else {
            return Action::Continue;
        };
        let request = match first_step(&shared.config, &host::CurrentRequest) {
            Step::Decided(ruling) => return self.carry_out(ruling),
            Step::Ask(request) => request,
        };
        let message = tidegate_wire::encode_request(&request);
        match host::call(&shared.config.call_target, &message, shared.config.timeout) {
            Ok(()) => {
                self.state = State::Asking(request);
                Action::Pause
            }
            Err(error) => self.carry_out(shared.undecided(error)),
        }
    }

    fn on_http_response_headers(&mut self, _headers: usize, _end_of_stream: bool) -> Action {
        if let State::Passed(headers) = &self.state {
            host::add_response_headers(headers);
        }
        Action::Continue
    }
}

impl Filter {
    /// Carries a decision out. Continue means that the request may go on.
    fn carry_out(&mut self, ruling: Ruling) -> Action {
        match ruling {
            Ruling::Allow(headers) => {
                self.state = State::Passed(headers);
                Action::Continue
            }
            Ruling::Deny(reply) => {
                // Before the call: Envoy runs the response path of its reply at once.
                self.state = State::Answered;
                host::send_reply(&reply);
                Action::Pause
            }
        }
    }
}

impl Shared {
    fn note_answer(&self) {
        if self.outage.replace(Outage::None) == Outage::Told {
            host::log_info(&format!("cluster {} answers again", self.config.cluster));
        }
    }

    /// The ruling for a request that nobody decided, and a log line when that is news: for the
    /// first of an outage, and for no more outages than one in [`NEWS_EVERY`].
    fn undecided(&self, error: AskError) -> Ruling {
        if self.outage.get() == Outage::None {
            let now = host::now();
            let recent =
                self.told_at.get().is_some_and(|told| now.saturating_since(told) < NEWS_EVERY);
            if recent {
                self.outage.set(Outage::Untold);
            } else {
                self.outage.set(Outage::Told);
                self.told_at.set(Some(now));
                let effect = match self.config.failure_mode {
                    FailureMode::Allow => "such requests pass unlimited (failure_mode allow)",
                    FailureMode::Deny => "such requests get 500 (failure_mode deny)",
                };
                host::log_warn(&format!("cluster {}: {error}; {effect}", self.config.cluster));
            }
        }
        failure(&self.config)
    }
}
