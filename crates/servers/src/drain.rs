//! The end of an HTTP/1.1 connection that a door wants to close.
//!
//! A client cannot know that its connection is about to close, so what it asks meanwhile would be lost. Hence
//! it is answered for a moment yet, hears with each answer that the connection closes, and only then is a
//! connection closed that is idle.

use hyper::Response;
use hyper::header::{self, HeaderValue};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// Who has just connected, or has had an answer, asks within this time, or is idle.
const STILL_ASKED: Duration = Duration::from_secs(1);

/// Waits until `stop` says so.
pub(crate) async fn stopped(mut stop: watch::Receiver<bool>) {
    // An error means that nobody will ever say so, which is a stop as well.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// What one connection knows of its end.
#[derive(Debug, Default)]
pub(crate) struct LastCall(AtomicBool);

impl LastCall {
    /// From now on the connection is to close. Waits until that may be done, if it is idle.
    pub(crate) async fn ring(&self) {
        self.0.store(true, Ordering::Relaxed);
        tokio::time::sleep(STILL_ASKED).await;
    }

    /// Tells with an answer that the connection closes, if it does.
    pub(crate) fn tell<B>(&self, response: &mut Response<B>) {
        if self.0.load(Ordering::Relaxed) {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
    }
}
