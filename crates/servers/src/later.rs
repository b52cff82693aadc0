//! Operations of an authority whose counters may answer later.
//!
//! An operation that was begun is brought to its end, even if its client leaves: its charges may have been committed,
//! and accounts and metrics must follow. Until then it holds the slot of its connection, so clients that leave and
//! return begin no more operations than slots allow.

use crate::overload::Overload;
use std::sync::Arc;
use std::time::Duration;
use tidegate_authority::Answers;

/// How long a client waits for an answer.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(20);

/// The answer did not come in time.
#[derive(Debug)]
pub(crate) struct NoAnswer;

/// The output of `operation`, which goes on if it takes too long or the caller is dropped. `held` is dropped at its
/// end. Its turns count as those of a connection.
pub(crate) async fn complete<T: Send + 'static>(
    answers: Answers,
    overload: &Arc<Overload>,
    held: impl Send + 'static,
    operation: impl Future<Output = T> + Send + 'static,
) -> Result<T, NoAnswer> {
    match answers {
        Answers::AtOnce => Ok(operation.await),
        Answers::Later => {
            let overload = overload.clone();
            let task = tokio::spawn(async move {
                let output = overload.watch(operation).await;
                drop(held);
                output
            });
            // A task that has panicked has no answer either.
            let answer = tokio::time::timeout(ANSWER_MAX, task).await;
            answer.ok().and_then(Result::ok).ok_or(NoAnswer)
        }
    }
}
