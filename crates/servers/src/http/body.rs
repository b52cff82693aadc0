//! Response pages, and reading request bodies: whole and within a bound.

use crate::http1::slots::{NoRoom, SMALL_BYTES_MAX, Slot};
use crate::http1::{self, BodyError};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};

pub(super) type Body = Full<Bytes>;

const TEXT: &str = "text/plain; charset=utf-8";

/// The largest request body. A request for a lease of 128 descriptors of ten values takes some 10 KiB.
pub(super) const BYTES_MAX: usize = 1024 * 1024;

pub(super) struct Page {
    pub(super) status: StatusCode,
    content_type: &'static str,
    body: Bytes,
    extra_headers: Vec<(HeaderName, HeaderValue)>,
}

impl Page {
    pub(super) fn new(
        status: StatusCode,
        content_type: &'static str,
        body: impl Into<Bytes>,
    ) -> Page {
        Page { status, content_type, body: body.into(), extra_headers: Vec::new() }
    }

    pub(super) fn text(status: StatusCode, body: impl Into<Bytes>) -> Page {
        Page::new(status, TEXT, body)
    }

    pub(super) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Page {
        self.extra_headers.push((name, value));
        self
    }

    /// With headers for values of requests: no other page and no cache gets them.
    pub(super) fn guarded(self) -> Page {
        self.with_header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))
            .with_header(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
            .with_header(
                HeaderName::from_static("cross-origin-resource-policy"),
                HeaderValue::from_static("same-origin"),
            )
    }

    /// Reserves memory for a page that is not small.
    pub(super) fn reserve(&self, slot: &Slot) -> Result<(), NoRoom> {
        if self.body.len() > SMALL_BYTES_MAX { slot.reserve(self.body.len()) } else { Ok(()) }
    }

    pub(super) fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Full::new(self.body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        headers.extend(self.extra_headers);
        response
    }
}

pub(super) enum ReadError {
    /// The request is refused with this page.
    Refused(Page),
    /// The memory for bodies is used up.
    Overloaded,
}

/// Reads the body of a request.
pub(super) async fn read(request: Request<Incoming>, slot: &Slot) -> Result<Bytes, ReadError> {
    let coding = request.headers().get(header::CONTENT_ENCODING);
    if let Some(coding) = coding.filter(|coding| coding.as_bytes() != b"identity") {
        let text = format!("Content-Encoding {coding:?} is not supported; send the body plain\n");
        return Err(ReadError::Refused(Page::text(StatusCode::UNSUPPORTED_MEDIA_TYPE, text)));
    }
    match http1::body(request.into_body(), slot, BYTES_MAX).await {
        Ok(body) => Ok(body),
        Err(BodyError::TooLarge) => {
            let text = format!("the body has more than {BYTES_MAX} bytes\n");
            // The rest is not read, so the connection cannot continue.
            let page = Page::text(StatusCode::PAYLOAD_TOO_LARGE, text);
            Err(ReadError::Refused(
                page.with_header(header::CONNECTION, HeaderValue::from_static("close")),
            ))
        }
        Err(BodyError::NoRoom) => Err(ReadError::Overloaded),
        Err(BodyError::TooManyChunks) => {
            let page =
                Page::text(StatusCode::BAD_REQUEST, "the body arrives in too many small chunks\n");
            Err(ReadError::Refused(
                page.with_header(header::CONNECTION, HeaderValue::from_static("close")),
            ))
        }
        Err(BodyError::Broken(error)) => {
            let text = format!("the body did not arrive: {error}\n");
            Err(ReadError::Refused(Page::text(StatusCode::BAD_REQUEST, text)))
        }
    }
}

/// Reads and discards a body, within the same bound.
pub(super) async fn discard(request: Request<Incoming>) {
    http1::discard(request.into_body(), BYTES_MAX).await;
}
