//! One message of the rate limit protocol, answered: an ask, an ask for leases, a debit, or a return of tokens.

use crate::authority::Authority;
use crate::counters::{Answers, Patience, Undecided, at_once};
use tidegate_core::{
    Answer, DebitRequest, Descriptor, Direction, LeaseRequest, LeaseReturn, Report, Request,
    Timestamp,
};
use tidegate_wire::{RequestReader, WireError, debit_from, lease_request_from, returned_from};

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The message or its metadata makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The counters could not be updated.
    #[error(transparent)]
    Undecided(#[from] Undecided),
}

impl From<WireError> for CallError {
    fn from(error: WireError) -> Self {
        CallError::Invalid(error.to_string())
    }
}

/// What a message asks for, by the metadata of its call.
#[derive(Debug)]
pub enum Ask {
    Decision,
    Lease(LeaseRequest),
    /// Of hits that have happened; it may ask for leases too.
    Debit(DebitRequest, Option<LeaseRequest>),
    Return(LeaseReturn),
}

impl Ask {
    /// Reads the ask that comes with `request`; `value_of` finds metadata of the call by name.
    pub fn read<'a>(
        request: &Request,
        value_of: impl Fn(&'static str) -> Option<&'a [u8]>,
    ) -> Result<Ask, CallError> {
        let descriptors = request.descriptors.len();
        if let Some(back) = returned_from(descriptors, &value_of)? {
            let takes = |descriptor: &Descriptor| descriptor.direction == Direction::Take;
            if let Some(index) = request.descriptors.iter().position(takes) {
                return Err(CallError::Invalid(format!(
                    "descriptors[{index}]: a return (metadata tidegate-return) takes no hits; set \
                     is_negative_hits"
                )));
            }
            return Ok(Ask::Return(back));
        }
        let lease = lease_request_from(descriptors, &value_of)?;
        Ok(match debit_from(descriptors, &value_of)? {
            Some(debit) => Ask::Debit(debit, lease),
            None => lease.map_or(Ask::Decision, Ask::Lease),
        })
    }
}

/// What became of a message.
#[derive(Debug)]
pub enum Called<'r> {
    Answered(&'r Request, Answer),
    /// It has to wait, for [`Authority::answer_later`].
    Later(Box<LaterCall>),
}

/// A message whose answer waits for counters.
#[derive(Debug)]
pub struct LaterCall {
    pub request: Request,
    pub(crate) ask: Ask,
    pub(crate) report: Option<Report>,
    /// Whether it waits for counters in rare use, which it has claimed.
    pub(crate) is_rare: bool,
}

impl<'r> Called<'r> {
    #[must_use]
    pub fn answered(self) -> Option<(&'r Request, Answer)> {
        match self {
            Called::Answered(request, answer) => Some((request, answer)),
            Called::Later(_) => None,
        }
    }
}

impl Authority {
    /// Answers `message` at `now()`, the time once it is read. If only counters that answer later can decide it, nothing has
    /// happened, except that a report in it was counted if the local counters answer at once.
    pub fn answer_call<'r, 'a>(
        &self,
        reader: &'r mut RequestReader,
        message: &[u8],
        value_of: impl Fn(&'static str) -> Option<&'a [u8]>,
        now: impl FnOnce() -> Timestamp,
    ) -> Result<Called<'r>, CallError> {
        let (request, report) = reader.read_with_report(message)?;
        let (ask, patience) = (Ask::read(request, value_of)?, Patience::AtOnce);
        // A copy has no more capacity than it needs, unlike the buffers.
        let later = |ask, report, is_rare| {
            let request = request.clone();
            Ok(Called::Later(Box::new(LaterCall { request, ask, report, is_rare })))
        };
        if self.counters.answers() == Answers::Later {
            return later(ask, report, false);
        }
        let now = now();
        if let Some(report) = &report
            && at_once(self.count_report(&request.domain, report, now)).is_none()
        {
            return later(ask, Some(report.clone()), false);
        }
        // Each of these is one update, so one that does not end at once has not changed anything.
        let answer = match &ask {
            Ask::Decision => at_once(self.decide_within(patience, request, now)),
            Ask::Lease(ask) => at_once(self.decide_leasing_within(patience, request, ask, now)),
            Ask::Debit(debit, lease) => {
                at_once(self.debit_within(patience, request, debit, lease.as_ref(), now))
            }
            // Tokens return to the local counters, which have them.
            Ask::Return(back) => at_once(self.return_tokens(request, back, now)),
        };
        match answer {
            Some(Ok(answer)) => Ok(Called::Answered(request, answer)),
            None => later(ask, report, false),
            Some(Err(Undecided::WouldWait { is_rare })) => later(ask, report, is_rare),
            Some(Err(error)) => Err(error.into()),
        }
    }

    /// Answers a message that had to wait.
    pub async fn answer_later(
        &self,
        call: &LaterCall,
        now: Timestamp,
    ) -> Result<Answer, Undecided> {
        let LaterCall { request, ask, report, is_rare } = call;
        // Each future is some kilobytes, which would be moved with that of the caller.
        if let Some(report) = report
            && self.counters.answers().may_come_later()
        {
            // One that was counted above is known by its number.
            Box::pin(self.count_report(&request.domain, report, now)).await;
        }
        match ask {
            Ask::Decision => self.decide_later(request, *is_rare, now).await,
            Ask::Lease(ask) => Box::pin(self.decide_leasing(request, ask, now)).await,
            Ask::Debit(debit, lease) => {
                Box::pin(self.debit(request, debit, lease.as_ref(), now)).await
            }
            Ask::Return(back) => Box::pin(self.return_tokens(request, back, now)).await,
        }
    }
}
