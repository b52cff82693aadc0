//! What goes out, and how what comes in is read: whole, within a bound and a time.

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use std::time::Duration;

pub(super) type Body = Full<Bytes>;

const TEXT: &str = "text/plain; charset=utf-8";

/// The most that a request may carry. An ask of 128 descriptors of ten values takes some 10 KiB.
pub(super) const BYTES_MAX: usize = 1024 * 1024;
/// How long it may take to arrive.
const ARRIVAL_MAX: Duration = Duration::from_secs(10);

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

    pub(super) fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Full::new(self.body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        headers.extend(self.more);
        response
    }
}

/// The body of a request, or what to answer where there is none to be had.
pub(super) async fn read(request: Request<Incoming>) -> Result<Bytes, Page> {
    let coding = request.headers().get(header::CONTENT_ENCODING);
    if let Some(coding) = coding.filter(|coding| coding.as_bytes() != b"identity") {
        let text = format!("the body must not be encoded, and is as {coding:?}\n");
        return Err(Page::text(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    let too_large = || {
        let text = format!("the body has more than {BYTES_MAX} bytes\n");
        // What is left of it is not read, so the connection cannot go on.
        let page = Page::text(StatusCode::PAYLOAD_TOO_LARGE, text);
        page.with(header::CONNECTION, HeaderValue::from_static("close"))
    };
    let body = Limited::new(request.into_body(), BYTES_MAX);
    match tokio::time::timeout(ARRIVAL_MAX, body.collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => {
            let text = format!("the body did not arrive whole: {error}\n");
            Err(Page::text(StatusCode::BAD_REQUEST, text))
        }
        Err(_) => {
            let text = format!("the body did not arrive within {ARRIVAL_MAX:?}\n");
            let page = Page::text(StatusCode::REQUEST_TIMEOUT, text);
            Err(page.with(header::CONNECTION, HeaderValue::from_static("close")))
        }
    }
}

/// Lets a body come in that is of no use, within the same bounds: who still sends when the connection is
/// closed may not hear why.
pub(super) async fn discard(request: Request<Incoming>) {
    let mut body = Limited::new(request.into_body(), BYTES_MAX);
    let gone = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = tokio::time::timeout(ARRIVAL_MAX, gone).await;
}
