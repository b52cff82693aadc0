//! What a span holds. Values of clients are cut to a length, and there is no place for values of descriptors.

use crate::queue::Queue;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tidegate_core::{Answer, Descriptor, Request, Status, Verdict};

/// Of a domain, a rule or a message.
const TEXT_BYTES_MAX: usize = 128;
/// Denied descriptors whose rules a span names.
const RULES_MAX: usize = 16;

/// The endpoint that a call came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Door {
    #[default]
    Grpc,
    Json,
}

/// How a call ended: the status code of its protocol, and the message of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended<'a> {
    pub code: u16,
    pub error: Option<&'a str>,
}

/// A call that is under way. One that is dropped before it ends is not exported.
#[derive(Debug)]
pub struct Span {
    queue: Arc<Queue>,
    began: Instant,
    finished: Box<Finished>,
}

/// What is exported of a call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Finished {
    pub(crate) trace_id: u128,
    pub(crate) span_id: u64,
    /// 0 without one.
    pub(crate) parent_id: u64,
    pub(crate) state: Box<str>,
    pub(crate) door: Door,
    /// Nanoseconds since 1970.
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) code: u16,
    pub(crate) error: Option<Box<str>>,
    /// None if it was not decided.
    pub(crate) decided: Option<Decided>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decided {
    pub(crate) domain: Box<str>,
    pub(crate) verdict: Verdict,
    pub(crate) descriptors: usize,
    pub(crate) hits: u64,
    /// Descriptors that were denied.
    pub(crate) denied: usize,
    /// The rules of the first of them, one for each.
    pub(crate) rules: Vec<Box<str>>,
}

impl Span {
    pub(crate) fn begin(
        queue: Arc<Queue>,
        (trace_id, span_id, parent_id): (u128, u64, u64),
        state: &str,
        door: Door,
    ) -> Span {
        let start = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let start = u64::try_from(start.as_nanos()).unwrap_or(u64::MAX);
        let ids = Finished { trace_id, span_id, parent_id, ..Finished::default() };
        let finished = Box::new(Finished { state: state.into(), door, start, ..ids });
        Span { queue, began: Instant::now(), finished }
    }

    /// The call was decided. `rule_of` names the rule that denied a descriptor.
    pub fn decided(
        &mut self,
        request: &Request,
        answer: &Answer,
        rule_of: impl Fn(&Descriptor, &Status) -> String,
    ) {
        let pairs = request.descriptors.iter().zip(&answer.statuses);
        let denied = pairs.filter(|(_, status)| status.verdict == Verdict::Deny);
        let rules = denied.clone().take(RULES_MAX);
        self.finished.decided = Some(Decided {
            domain: cut(&request.domain),
            verdict: answer.verdict,
            descriptors: request.descriptors.len(),
            hits: request.hits.get(),
            denied: denied.count(),
            rules: rules.map(|(descriptor, status)| cut(&rule_of(descriptor, status))).collect(),
        });
    }

    /// The call has ended.
    pub fn end(self, ended: Ended<'_>) {
        let Span { queue, began, mut finished } = self;
        let nanos = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        finished.end = finished.start.saturating_add(nanos);
        finished.code = ended.code;
        finished.error = ended.error.map(cut);
        queue.push(*finished);
    }
}

/// The beginning of a text, of whole characters.
fn cut(text: &str) -> Box<str> {
    text.get(..text.floor_char_boundary(TEXT_BYTES_MAX)).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{Direction, Entry, Hits};

    fn request(domain: &str, descriptors: usize) -> Request {
        let entries = vec![Entry { key: "k".into(), value: "secret".into() }];
        let descriptor =
            Descriptor { entries, limit: None, hits: None, direction: Direction::Take };
        let descriptors = vec![descriptor; descriptors];
        Request { domain: domain.into(), descriptors, hits: Hits::new(3) }
    }

    fn finished(request: &Request, denied: usize, ended: Ended<'_>) -> Finished {
        let queue = Arc::new(Queue::default());
        let mut span = Span::begin(queue.clone(), (1, 2, 3), "a=1", Door::Grpc);
        let verdict = |index| if index < denied { Verdict::Deny } else { Verdict::Allow };
        let status = |index| Status { verdict: verdict(index), ..Status::NO_LIMIT };
        let statuses = (0..request.descriptors.len()).map(status).collect();
        let answer = Answer { verdict: verdict(0), statuses, metadata: None };
        span.decided(request, &answer, |_, _| "r".repeat(1000));
        span.end(ended);
        queue.take().remove(0)
    }

    #[test]
    fn what_a_client_chooses_is_bounded() {
        let domain = "\u{20ac}".repeat(1000);
        let error = "x".repeat(1000);
        let ended = Ended { code: 3, error: Some(&error) };
        let span = finished(&request(&domain, 100), 100, ended);
        let decided = span.decided.as_ref().unwrap();
        assert_eq!(&*decided.domain, "\u{20ac}".repeat(42));
        assert_eq!((decided.denied, decided.descriptors, decided.hits), (100, 100, 3));
        assert_eq!((decided.rules.len(), decided.rules[0].len()), (16, 128));
        assert_eq!(span.error.as_deref().map(str::len), Some(128));
        assert!(!format!("{span:?}").contains("secret"));
    }

    #[test]
    fn a_span_has_the_rules_of_denied_descriptors() {
        let span = finished(&request("d", 3), 2, Ended { code: 0, error: None });
        let decided = span.decided.as_ref().unwrap();
        assert_eq!((decided.denied, decided.rules.len()), (2, 2));
        assert_eq!(decided.verdict, Verdict::Deny);
        assert!(span.end >= span.start && span.start > 0);
        assert_eq!((span.trace_id, span.span_id, span.parent_id, &*span.state), (1, 2, 3, "a=1"));
    }

    #[test]
    fn a_span_that_is_dropped_is_not_exported() {
        let queue = Arc::new(Queue::default());
        drop(Span::begin(queue.clone(), (1, 2, 0), "", Door::Json));
        assert!(queue.take().is_empty());
    }
}
