//! Responses: the headers about limits, and what else the state of a stream adds.

use super::{Worker, replies};
use crate::host::{Header, Host, RequestFacts, StreamId};
use crate::worker::streams::StreamState;

impl<H: Host> Worker<H> {
    /// The response headers of a request have arrived.
    pub fn on_response(&mut self, stream: StreamId, facts: &impl RequestFacts) {
        if self.streams.is_empty() {
            return;
        }
        let headers = match self.streams.remove(&stream) {
            // Answered by another filter while it was paused; its deletion is still to come.
            Some(paused @ StreamState::Paused) => {
                self.streams.insert(stream, paused);
                return;
            }
            Some(StreamState::Owing(owing)) => {
                match self.on_response_of_owing(stream, owing, facts) {
                    Some(StreamState::Noted(notes)) => {
                        return self.respond_with_notes(stream, *notes);
                    }
                    Some(decided) => self.limit_headers_of(decided),
                    None => return,
                }
            }
            Some(StreamState::Noted(notes)) => return self.respond_with_notes(stream, *notes),
            Some(decided) => self.limit_headers_of(decided),
            None => return,
        };
        if !headers.is_empty() {
            self.host.add_response_headers(&headers);
        }
    }

    /// The headers about limits of a response.
    pub(super) fn limit_headers_of(&self, decided: StreamState) -> Vec<Header> {
        let (now, limits) = match decided {
            StreamState::DecidedLocally(keys) => self.limits_of(keys.iter().map(|key| (key, None))),
            StreamState::DecidedByEntry(keys) => self.limits_of(keys.into_iter()),
            StreamState::DecidedBySidecar(limits) => (self.host.now(), limits),
            StreamState::Paused | StreamState::Noted(_) | StreamState::Owing(_) => {
                return Vec::new();
            }
        };
        replies::headers(&self.config, &limits, now)
    }
}
