//! Whether an answer came in time, also where this process is late itself.

use std::pin::pin;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

/// What `answer` ends with, unless it does not by the deadline.
///
/// A process may stand still for longer than an answer takes, as in a container that has used up its share of the
/// processor. Then the timer and the answer are found at once, and the task that waits may run before the one that
/// reads the connection. So all tasks that are ready have a turn before the answer is late.
pub(crate) async fn in_time<T>(deadline: Instant, answer: impl Future<Output = T>) -> Option<T> {
    let mut answer = pin!(answer);
    if let Ok(answer) = timeout_at(deadline, &mut answer).await {
        return Some(answer);
    }
    yield_now().await;
    timeout_at(deadline, answer).await.ok()
}

#[cfg(test)]
mod tests {
    use super::in_time;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::thread::sleep;
    use std::time::Duration;
    use tokio::io::AsyncReadExt;
    use tokio::runtime::{Builder, Runtime};
    use tokio::sync::oneshot;
    use tokio::task::yield_now;
    use tokio::time::Instant;

    /// A busy machine does not take so long to start the tasks.
    const PATIENCE: Duration = Duration::from_secs(1);

    /// As that of the connections.
    fn runtime() -> Runtime {
        Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    }

    #[test]
    fn an_answer_counts_that_came_while_the_process_stood_still() {
        // This thread may stand still, too, until it is too late for the answer.
        let answer = (0..20).find_map(|_| answer_of_a_process_that_stands_still());
        assert_eq!(answer.expect("no answer was written in time"), Some(b'a'));
    }

    /// What came of an answer that was written in time; none if it was not.
    fn answer_of_a_process_that_stands_still() -> Option<Option<u8>> {
        let runtime = runtime();
        let (mut server, connection) = UnixStream::pair().unwrap();
        connection.set_nonblocking(true).unwrap();
        let asked = runtime.spawn(async move {
            let mut connection = tokio::net::UnixStream::from_std(connection).unwrap();
            let (read, answer) = oneshot::channel();
            tokio::spawn(async move { read.send(connection.read_u8().await) });
            let deadline = Instant::now() + PATIENCE;
            let waiting = tokio::spawn(in_time(deadline, answer));
            // Until both wait.
            yield_now().await;
            yield_now().await;
            server.write_all(b"a").unwrap();
            let was_in_time = Instant::now() < deadline;
            // It stands still beyond the deadline.
            sleep(PATIENCE + Duration::from_millis(1));
            let answer = waiting.await.unwrap();
            was_in_time.then(|| answer.map(|answer| answer.unwrap().unwrap()))
        });
        runtime.block_on(asked).unwrap()
    }

    #[test]
    fn no_answer_is_late() {
        let runtime = runtime();
        let (_server, answer) = oneshot::channel::<()>();
        let asked = runtime.spawn(async { in_time(Instant::now() + PATIENCE / 50, answer).await });
        assert!(runtime.block_on(asked).unwrap().is_none());
    }
}
