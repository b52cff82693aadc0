//! One message of the rate limit protocol, answered: an ask, an ask for leases, or a return of tokens.

use crate::authority::Authority;
use tidegate_core::{Answer, Descriptor, Direction, Request, Timestamp};
use tidegate_store::UpdateError;
use tidegate_wire::{RequestReader, WireError, lease_request_from, returned_from};

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The message or its metadata makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The store could not be used.
    #[error(transparent)]
    Undecided(#[from] UpdateError),
}

impl From<WireError> for CallError {
    fn from(error: WireError) -> Self {
        CallError::Invalid(error.to_string())
    }
}

impl Authority {
    /// Answers `message` at `now()`, the time once it is read; `value_of` finds metadata of the call by name.
    pub fn answer_call<'r, 'a>(
        &self,
        reader: &'r mut RequestReader,
        message: &[u8],
        value_of: impl Fn(&'static str) -> Option<&'a [u8]>,
        now: impl FnOnce() -> Timestamp,
    ) -> Result<(&'r Request, Answer), CallError> {
        let request = reader.read(message)?;
        let descriptors = request.descriptors.len();
        if let Some(back) = returned_from(descriptors, &value_of)? {
            let takes = |descriptor: &Descriptor| descriptor.direction == Direction::Take;
            if let Some(index) = request.descriptors.iter().position(takes) {
                return Err(CallError::Invalid(format!(
                    "descriptors[{index}]: a return (metadata tidegate-return) takes no hits; set \
                     is_negative_hits"
                )));
            }
            let answer = self.return_tokens(request, &back, now())?;
            return Ok((request, answer));
        }
        let answer = match lease_request_from(descriptors, &value_of)? {
            Some(ask) => self.decide_leasing(request, &ask, now())?,
            None => self.decide(request, now())?,
        };
        Ok((request, answer))
    }
}
