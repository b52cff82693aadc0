//! Notes on a request beside its decision: the limits that denied it or would have, for access logs
//! and clients, and headers of the service for its response.
//!
//! Only requests with something to note come here. Owns the form of lists of names: text that can
//! neither end a header, a log line or a field of it, nor grow beyond [`NAMES_BYTES_MAX`].

use super::Worker;
use super::additions::Additions;
use crate::config::{Enforcement, Fraction, RateLimit};
use crate::host::{Host, NamedHeader, StreamId};
use crate::request::descriptors::Descriptors;
use crate::worker::pending_calls::Requester;
use crate::worker::replies::LimitStatus;
use crate::worker::streams::StreamState;
use tidegate_core::{Timestamp, Verdict};

/// Seven of the longest names. Names beyond it are left out.
const NAMES_BYTES_MAX: usize = 512;

/// Names of limits, separated by commas, each once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Names(String);

impl Names {
    /// The limits that deny.
    pub(super) fn of_denying(limits: &[LimitStatus]) -> Names {
        let mut names = Names::default();
        for denying in limits.iter().filter(|status| status.verdict == Verdict::Deny) {
            names.add(denying.limit.name());
        }
        names
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A limit without a name counts, too.
    pub(super) fn add(&mut self, name: &str) {
        let name: String = match name {
            "" => "unnamed".to_owned(),
            name => name.chars().map(plain).collect(),
        };
        self.add_plain(&name);
    }

    pub(super) fn add_all(&mut self, names: &Names) {
        names.0.split(',').filter(|name| !name.is_empty()).for_each(|name| self.add_plain(name));
    }

    fn add_plain(&mut self, name: &str) {
        let room = NAMES_BYTES_MAX.saturating_sub(self.0.len());
        if name.len() >= room || self.0.split(',').any(|known| known == name) {
            return;
        }
        if !self.0.is_empty() {
            self.0.push(',');
        }
        self.0.push_str(name);
    }
}

/// Characters that could split a log line, a field, a list or a quoted text become `_`.
fn plain(char: char) -> char {
    match char {
        '"' | '\\' | '{' | '}' | ',' => '_',
        '!'..='~' => char,
        _ => '_',
    }
}

/// Notes on a request, for its response.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// The limits that would have denied it.
    shadow: Names,
    /// Headers for its response, besides those about limits.
    headers: Vec<NamedHeader>,
    /// Its state, as it is without notes.
    pub(crate) state: Option<StreamState>,
}

impl Notes {
    /// Adds notes to a state, which may have some.
    fn add_to(
        state: Option<StreamState>,
        shadow: &Names,
        headers: Vec<NamedHeader>,
    ) -> Option<StreamState> {
        let mut notes = match state {
            Some(StreamState::Noted(notes)) => notes,
            state => Box::new(Notes { state, ..Notes::default() }),
        };
        notes.shadow.add_all(shadow);
        notes.headers.extend(headers);
        Some(StreamState::Noted(notes))
    }
}

impl<H: Host> Worker<H> {
    /// The limits that deny a request, by local state.
    #[cold]
    pub(super) fn denying(&self, descriptors: &Descriptors, now: Timestamp) -> Names {
        Names::of_denying(&self.met_limits(descriptors, now))
    }

    /// Notes that a request has passed, or waits, though limits would have denied it.
    #[cold]
    pub(super) fn note_shadow(&mut self, stream: StreamId, shadow: &Names) {
        if let Some(StreamState::Owing(owing)) = self.streams.get_mut(&stream) {
            // Reported when it passes.
            owing.state = noted_shadow(owing.state.take(), shadow);
            return;
        }
        let state = self.streams.remove(&stream);
        let waits = state.as_ref().is_some_and(StreamState::is_paused);
        let Some(noted) = noted_shadow(state, shadow) else { return };
        // One that waits may still be denied, so nothing is reported yet.
        match waits {
            true => drop(self.streams.insert(stream, noted)),
            false => self.keep_noted(stream, noted),
        }
    }

    /// State for the response of a request whose denial was not enforced.
    #[cold]
    pub(super) fn shadowed_state(
        &self,
        descriptors: &Descriptors,
        now: Timestamp,
    ) -> Option<StreamState> {
        noted_shadow(self.allowed_state(descriptors), &self.denying(descriptors, now))
    }

    /// Reports the limits that deny a request.
    #[cold]
    pub(super) fn report_denial(&self, requester: Requester, limits: &[LimitStatus]) {
        if let Requester::Stream(stream) = requester {
            self.set_filter_state(stream, "denied_by", &Names::of_denying(limits).0);
        }
    }

    /// Reports the metadata of an answer. Returns the rest of it.
    #[cold]
    pub(super) fn report_metadata(
        &self,
        requester: Requester,
        answered: tidegate_wire::Additions,
    ) -> Option<Additions> {
        // The request of descriptors in shadow has gone on.
        let Requester::Stream(stream) = requester else { return None };
        let additions = Additions::new(answered);
        if let Some(metadata) = &additions.metadata {
            self.set_filter_state(stream, "metadata", metadata);
        }
        Some(additions)
    }

    /// Adds headers of an answer to a request that passes, and notes those for its response.
    #[cold]
    pub(super) fn pass_with(
        &self,
        requester: Requester,
        kept: Option<StreamState>,
        additions: Additions,
    ) -> Option<StreamState> {
        if let Requester::Stream(stream) = requester
            && !additions.request_headers.is_empty()
        {
            self.host.append_request_headers(stream, &additions.request_headers);
        }
        match additions.response_headers {
            headers if headers.is_empty() => kept,
            headers => Notes::add_to(kept, &Names::default(), headers),
        }
    }

    /// Keeps the state of a request that passes, and reports its notes.
    #[cold]
    pub(super) fn keep_noted(&mut self, stream: StreamId, noted: StreamState) {
        if let Some(kept) = self.reported(stream, Some(noted)) {
            self.streams.insert(stream, kept);
        }
    }

    /// Reports the notes on a request that passes. Returns its state with those that its response
    /// needs.
    #[cold]
    pub(super) fn reported(
        &self,
        stream: StreamId,
        kept: Option<StreamState>,
    ) -> Option<StreamState> {
        let notes = match kept {
            Some(StreamState::Noted(notes)) => notes,
            kept => return kept,
        };
        let has_shadow = !notes.shadow.is_empty();
        if has_shadow {
            self.set_filter_state(stream, "shadow", &notes.shadow.0);
        }
        let is_wanted = self.config.reports.shadow_header.is_some() || self.may_add_shadow();
        match notes.headers.is_empty() && !(has_shadow && is_wanted) {
            true => notes.state,
            false => Some(StreamState::Noted(notes)),
        }
    }

    /// Whether a request may be noted twice: its denial was not enforced, and it has descriptors in
    /// shadow, too.
    fn may_add_shadow(&self) -> bool {
        let is_shadow = |entry: &RateLimit| entry.enforcement == Enforcement::Shadow;
        self.config.filter_enforced != Fraction::ALL && self.config.entries().any(is_shadow)
    }

    /// The response of a request with notes. Headers of the service that the filter has written
    /// itself are not added again.
    #[cold]
    pub(super) fn respond_with_notes(&mut self, stream: StreamId, notes: Notes) {
        let own = match notes.state {
            // Answered by another filter while it was paused.
            Some(StreamState::Paused) => {
                self.streams.insert(stream, StreamState::Noted(Box::new(notes)));
                return;
            }
            Some(state) => self.limit_headers_of(state),
            None => Vec::new(),
        };
        let is_new = |(name, _): &NamedHeader| own.iter().all(|(known, _)| known != name);
        let mut headers: Vec<NamedHeader> = notes.headers.into_iter().filter(is_new).collect();
        if let Some(name) = &self.config.reports.shadow_header
            && !notes.shadow.is_empty()
        {
            headers.push((name.clone(), notes.shadow.0));
        }
        self.host.add_response_headers(&own);
        self.host.append_response_headers(&headers);
    }

    fn set_filter_state(&self, stream: StreamId, name: &str, value: &str) {
        let name = match self.config.reports.stat_prefix.as_str() {
            "" => format!("tidegate.{name}"),
            prefix => format!("tidegate.{prefix}.{name}"),
        };
        self.host.set_filter_state(stream, &name, value);
    }
}

/// A state with the limits that would have denied its request.
#[cold]
pub(super) fn noted_shadow(state: Option<StreamState>, shadow: &Names) -> Option<StreamState> {
    match shadow.is_empty() {
        true => state,
        false => Notes::add_to(state, shadow, Vec::new()),
    }
}

/// The state of a request that passes, with the notes from the time when it waited.
pub(super) fn with_earlier_notes(
    waited: Option<StreamState>,
    kept: Option<StreamState>,
) -> Option<StreamState> {
    match waited {
        Some(StreamState::Noted(notes)) => noted_shadow(kept, &notes.shadow),
        _ => kept,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(names: &[&str]) -> Names {
        let mut list = Names::default();
        names.iter().for_each(|name| list.add(name));
        list
    }

    #[test]
    fn names_are_a_list_of_plain_words_each_once() {
        let table: [(&[&str], &str); 6] = [
            (&[], ""),
            (&["a", "b", "a"], "a,b"),
            (&["a,b", "a b\"\\{}\né"], "a_b,a_b______"),
            (&["", ""], "unnamed"),
            (&["a", "ab", "b"], "a,ab,b"),
            (&[",", "_"], "_"),
        ];
        for (names, expected) in table {
            assert_eq!(of(names).0, expected);
        }
        let mut all = of(&["a", "b"]);
        all.add_all(&of(&["b", "c"]));
        all.add_all(&Names::default());
        assert_eq!(all.0, "a,b,c");
    }

    #[test]
    fn a_list_of_any_number_of_names_is_bounded() {
        let names: Vec<String> = (0..5_000).map(|number| format!("{number:064}")).collect();
        let list = of(&names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(list.0.split(',').count(), 7);
        assert!(list.0.len() <= NAMES_BYTES_MAX);
    }
}
