//! The graceful close of an HTTP/1.1 connection by the server.
//!
//! A client cannot know that its connection is about to close, and a request sent at that moment would be
//! lost. So for a short time requests are still answered, each answer announces the close, and only then is
//! an idle connection closed.

use hyper::Response;
use hyper::header::{self, HeaderValue};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// A client that has just connected, or was just answered, sends its next request within this time or is idle.
const ANNOUNCE_TIME: Duration = Duration::from_secs(1);

/// Waits until `stop` is true.
pub(crate) async fn stopped(mut stop: watch::Receiver<bool>) {
    // An error means that the sender is gone, which is a stop as well.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Whether a connection is about to close.
#[derive(Debug, Default)]
pub(crate) struct GracefulClose(AtomicBool);

impl GracefulClose {
    /// Announces the close in all further answers. Returns when the connection may be closed, if it is idle.
    pub(crate) async fn announce(&self) {
        self.0.store(true, Ordering::Relaxed);
        tokio::time::sleep(ANNOUNCE_TIME).await;
    }

    /// Adds `connection: close` to an answer, if the connection is about to close.
    pub(crate) fn mark<B>(&self, response: &mut Response<B>) {
        if self.0.load(Ordering::Relaxed) {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
    }
}
