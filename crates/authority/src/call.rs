//! One message of the rate limit protocol, answered: an ask, an ask for leases, a debit, or a return of tokens.

use crate::authority::Authority;
use crate::counters::{Undecided, wait};
use tidegate_core::{
    Answer, DebitRequest, Descriptor, Direction, LeaseRequest, LeaseReturn, Request, Timestamp,
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

impl Authority {
    /// Answers `message` at `now()`, the time once it is read. Blocks the thread if counters answer later.
    pub fn answer_call<'r, 'a>(
        &self,
        reader: &'r mut RequestReader,
        message: &[u8],
        value_of: impl Fn(&'static str) -> Option<&'a [u8]>,
        now: impl FnOnce() -> Timestamp,
    ) -> Result<(&'r Request, Answer), CallError> {
        let request = reader.read(message)?;
        let answer = match Ask::read(request, value_of)? {
            Ask::Decision => wait(self.decide(request, now())),
            Ask::Lease(ask) => wait(self.decide_leasing(request, &ask, now())),
            Ask::Debit(debit, lease) => wait(self.debit(request, &debit, lease.as_ref(), now())),
            Ask::Return(back) => wait(self.return_tokens(request, &back, now())),
        };
        Ok((request, answer?))
    }

    /// Answers `request`, which came with `ask`.
    pub async fn answer_ask(
        &self,
        request: &Request,
        ask: &Ask,
        now: Timestamp,
    ) -> Result<Answer, Undecided> {
        match ask {
            Ask::Decision => self.decide(request, now).await,
            Ask::Lease(ask) => self.decide_leasing(request, ask, now).await,
            Ask::Debit(debit, lease) => self.debit(request, debit, lease.as_ref(), now).await,
            Ask::Return(back) => self.return_tokens(request, back, now).await,
        }
    }
}
