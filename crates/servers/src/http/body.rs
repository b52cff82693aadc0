//! What goes out, and how what comes in is read: whole and within a bound.

use crate::http1::{self, BodyError};
use crate::slots::{NoRoom, SMALL_BYTES_MAX, Slot};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};

pub(super) type Body = Full<Bytes>;

const TEXT: &str = "text/plain; charset=utf-8";

/// The most that a request may carry. An ask of 128 descriptors of ten values takes some 10 KiB.
pub(super) const BYTES_MAX: usize = 1024 * 1024;

/// An answer as a whole.
pub(super) struct Page {
    pub(super) status: StatusCode,
    content_type: &'static str,
    body: Bytes,
    more: Option<(HeaderName, HeaderValue)>,
}

impl Page {
    pub(super) fn new(
        status: StatusCode,
        content_type: &'static str,
        body: impl Into<Bytes>,
    ) -> Page {
        Page { status, content_type, body: body.into(), more: None }
    }

    pub(super) fn text(status: StatusCode, body: impl Into<Bytes>) -> Page {
        Page::new(status, TEXT, body)
    }

    /// The same with one more header.
    pub(super) fn with(self, name: HeaderName, value: HeaderValue) -> Page {
        Page { more: Some((name, value)), ..self }
    }

    /// Asks for room for what is long.
    pub(super) fn reserve(&self, slot: &Slot) -> Result<(), NoRoom> {
        if self.body.len() > SMALL_BYTES_MAX { slot.hold(self.body.len()) } else { Ok(()) }
    }

    pub(super) fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Full::new(self.body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        headers.extend(self.more);
        response
    }
}

/// Why there is no body.
pub(super) enum Unread {
    /// What to answer.
    Refused(Page),
    /// There is no memory for it now.
    Overloaded,
}

/// The body of a request.
pub(super) async fn read(request: Request<Incoming>, slot: &Slot) -> Result<Bytes, Unread> {
    let coding = request.headers().get(header::CONTENT_ENCODING);
    if let Some(coding) = coding.filter(|coding| coding.as_bytes() != b"identity") {
        let text = format!("the body must not be encoded, and is as {coding:?}\n");
        return Err(Unread::Refused(Page::text(StatusCode::UNSUPPORTED_MEDIA_TYPE, text)));
    }
    match http1::body(request.into_body(), slot, BYTES_MAX).await {
        Ok(body) => Ok(body),
        Err(BodyError::TooLarge) => {
            let text = format!("the body has more than {BYTES_MAX} bytes\n");
            // What is left of it is not read, so the connection cannot go on.
            let page = Page::text(StatusCode::PAYLOAD_TOO_LARGE, text);
            Err(Unread::Refused(page.with(header::CONNECTION, HeaderValue::from_static("close"))))
        }
        Err(BodyError::NoRoom) => Err(Unread::Overloaded),
        Err(BodyError::InCrumbs) => {
            let page =
                Page::text(StatusCode::BAD_REQUEST, "the body comes in too many small chunks\n");
            Err(Unread::Refused(page.with(header::CONNECTION, HeaderValue::from_static("close"))))
        }
        Err(BodyError::Broken(error)) => {
            let text = format!("the body did not arrive whole: {error}\n");
            Err(Unread::Refused(Page::text(StatusCode::BAD_REQUEST, text)))
        }
    }
}

/// Lets a body come in that is of no use, within the same bounds.
pub(super) async fn discard(request: Request<Incoming>) {
    http1::discard(request.into_body(), BYTES_MAX).await;
}
