//! Who is limited now, of one process: the page of `/v1/top`.

use std::pin::Pin;
use tidegate_recent::Recent;
use tidegate_servers::http::TopPage;
use tidegate_top::respond::{Question, Response, refused, respond};
use tidegate_top::{Filter, Recorder, Summary};

/// What a process knows, and the page of one that serves by itself.
#[derive(Debug, Clone)]
pub(crate) struct ProcessTop {
    pub(crate) recorder: Recorder,
    pub(crate) recent: Recent,
}

impl ProcessTop {
    /// All that was decided before. Read beside the tasks that serve, as it may take some milliseconds.
    pub(crate) async fn summary(&self) -> Summary {
        let top = self.clone();
        let read = tokio::task::spawn_blocking(move || top.read());
        read.await.unwrap_or_default()
    }

    /// The same, in a thread that may block.
    pub(crate) fn read(&self) -> Summary {
        self.recent.pass_on_prompt();
        self.recorder.summary()
    }
}

impl TopPage for ProcessTop {
    fn answer<'a>(
        &'a self,
        query: &'a str,
    ) -> Pin<Box<dyn Future<Output = (u16, String)> + Send + 'a>> {
        Box::pin(answer(query, async || self.summary().await))
    }

    fn decisions<'a>(
        &'a self,
        query: &'a str,
        last: Option<u64>,
    ) -> Pin<Box<dyn Future<Output = (u16, String)> + Send + 'a>> {
        Box::pin(decisions((query, last), &self.recorder, async || ()))
    }
}

/// The answer to a query, if it has no mistake, of what there is.
pub(crate) async fn answer(query: &str, summary: impl AsyncFnOnce() -> Summary) -> (u16, String) {
    let Response { status, body } = match Question::parse(query) {
        Ok(question) => respond(&question, &summary().await),
        Err(message) => refused(&message),
    };
    (status, body.to_string())
}

/// The decisions that a query asks for, if it has no mistake. `collect` adds those of other processes before.
pub(crate) async fn decisions(
    (query, last): (&str, Option<u64>),
    recorder: &Recorder,
    collect: impl AsyncFnOnce(),
) -> (u16, String) {
    match Filter::parse(query, last) {
        Ok(filter) => {
            collect().await;
            (200, recorder.events(&filter))
        }
        Err(message) => {
            let Response { status, body } = refused(&message);
            (status, body.to_string())
        }
    }
}
