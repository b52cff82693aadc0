//! The connection: made when it is needed, and again after a pause when it is of no use.
//!
//! Several operations share it. An attempt to connect goes on when the operation that began it has given up, so that a
//! connection which takes longer than an operation is made in the end.

use crate::WarmError;
use crate::write::Claim;
use redis::{Pipeline, Value};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_remote::{Link, LinkError, Links, Settings};
use tokio::time::{Instant, timeout_at};

/// The pauses between attempts to connect: each twice the one before, until an operation succeeds.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The connection of a process to the server.
pub(crate) struct Wire(Arc<Inner>);

struct Inner {
    links: Links,
    state: Mutex<State>,
    /// Held while a connection is made.
    opening: tokio::sync::Mutex<()>,
}

struct State {
    session: Option<Arc<Session>>,
    /// No attempt is made before.
    not_before: Instant,
    pause: Duration,
    /// Why the last attempt failed.
    cause: Option<LinkError>,
    warning: Option<String>,
    is_closed: bool,
}

/// A connection, and what a writer has done on it.
pub(crate) struct Session {
    link: Link,
    claim: Mutex<Option<Claim>>,
    has_answered: AtomicBool,
}

impl Wire {
    pub(crate) fn new(settings: &Settings) -> Result<Wire, WarmError> {
        let state = Mutex::new(State {
            session: None,
            not_before: Instant::now(),
            pause: PAUSE_MIN,
            cause: None,
            warning: None,
            is_closed: false,
        });
        Ok(Wire(Arc::new(Inner {
            links: Links::new(settings)?,
            state,
            opening: Default::default(),
        })))
    }

    /// Why the server may lose counters.
    pub(crate) fn warning(&self) -> Option<String> {
        self.0.state().warning.clone()
    }

    pub(crate) fn close(&self) {
        let mut state = self.0.state();
        (state.session, state.is_closed) = (None, true);
    }

    /// The connection that is open, or a new one.
    pub(crate) async fn session(&self, deadline: Instant) -> Result<Arc<Session>, WarmError> {
        if let Some(open) = self.0.open_session()? {
            return Ok(open);
        }
        let inner = self.0.clone();
        match timeout_at(deadline, tokio::spawn(inner.connected())).await {
            Ok(Ok(connected)) => connected,
            Ok(Err(_)) => Err(LinkError("the attempt to connect was given up".to_owned()).into()),
            Err(_) => Err(LinkError("no connection in time".to_owned()).into()),
        }
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, if it is open.
    fn open_session(&self) -> Result<Option<Arc<Session>>, WarmError> {
        let state = self.state();
        if state.is_closed {
            return Err(WarmError::Closed);
        }
        Ok(state.session.clone().filter(|session| session.link.is_open()))
    }

    async fn connected(self: Arc<Inner>) -> Result<Arc<Session>, WarmError> {
        let _one_at_a_time = self.opening.lock().await;
        if let Some(open) = self.open_session()? {
            return Ok(open);
        }
        {
            let mut state = self.state();
            let last = state.session.take();
            if last.is_some_and(|session| session.has_answered.load(Ordering::Relaxed)) {
                (state.pause, state.not_before) = (PAUSE_MIN, Instant::now());
            }
            if Instant::now() < state.not_before {
                let cause = state.cause.clone();
                let lost = || LinkError("the connection was lost".to_owned());
                return Err(cause.unwrap_or_else(lost).into());
            }
        }
        let opened = self.links.open().await;
        let mut state = self.state();
        state.not_before = Instant::now() + state.pause;
        state.pause = (2 * state.pause).min(PAUSE_MAX);
        if state.is_closed {
            return Err(WarmError::Closed);
        }
        match opened {
            Ok(link) => {
                state.warn(&link);
                let session =
                    Session { link, claim: Mutex::default(), has_answered: AtomicBool::new(false) };
                let session = Arc::new(session);
                (state.cause, state.session) = (None, Some(session.clone()));
                Ok(session)
            }
            Err(cause) => {
                state.cause = Some(cause.clone());
                Err(cause.into())
            }
        }
    }
}

impl State {
    /// Warns of a server that may forget counters to make room.
    fn warn(&mut self, link: &Link) {
        let warning = link.eviction().map(|policy| {
            format!(
                "the server of warm counters may forget them when its memory is full: maxmemory-policy is {policy}; set \
                 noeviction"
            )
        });
        if self.warning != warning
            && let Some(warning) = &warning
        {
            tracing::warn!("{warning}");
        }
        self.warning = warning;
    }
}

impl Session {
    /// What was done to write on it, if anything.
    pub(crate) fn claim(&self) -> MutexGuard<'_, Option<Claim>> {
        self.claim.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answers to a pipeline.
    pub(crate) async fn ask(
        &self,
        pipeline: &Pipeline,
        bytes: usize,
        deadline: Instant,
    ) -> Result<Vec<Value>, WarmError> {
        let answers = self.link.ask(pipeline, bytes, deadline).await?;
        self.has_answered.store(true, Ordering::Relaxed);
        Ok(answers)
    }

    /// The error of an answer that makes no sense. The connection is of no use: answers may be those of other commands.
    pub(crate) fn nonsense(&self, command: &'static str) -> WarmError {
        self.link.break_off();
        WarmError::Nonsense(command)
    }

    /// The error of an answer that is one.
    pub(crate) fn refused(&self, error: &redis::ServerError) -> WarmError {
        let code = error.code();
        if matches!(
            code,
            "READONLY" | "LOADING" | "MASTERDOWN" | "NOAUTH" | "MOVED" | "CLUSTERDOWN"
        ) {
            // Another server may have taken its place.
            self.link.break_off();
        }
        if matches!(code, "MOVED" | "CLUSTERDOWN") {
            return WarmError::Refused(
                "the server is a node of a cluster; name a single one".to_owned(),
            );
        }
        // A server may say anything.
        let words: String = error.details().unwrap_or_default().chars().take(300).collect();
        WarmError::Refused(format!("{code} {words}").trim_end().to_owned())
    }
}
