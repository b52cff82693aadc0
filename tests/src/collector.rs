//! A collector of OpenTelemetry: takes spans over HTTP and gRPC, and keeps them.

use crate::wait;
use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::json;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::{TlsAcceptor, rustls};

/// Spans are sent every second.
const EXPORT: Duration = Duration::from_secs(1);

/// A span, and what it came with.
#[derive(Debug, Clone)]
pub struct Received {
    /// As it was sent.
    pub span: Span,
    /// Attributes of the service that sent it, by name.
    pub resource: serde_json::Value,
    /// A header of the request, `x-key`.
    pub key: Option<String>,
}

/// How spans come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http,
    /// HTTP/2.
    Grpc,
}

/// A running collector; stops when dropped.
#[derive(Debug)]
pub struct Collector {
    /// Where it listens.
    pub address: SocketAddr,
    received: Arc<Mutex<Vec<Received>>>,
    serving: JoinHandle<()>,
}

impl Collector {
    /// Starts one that takes spans at `/v1/traces`.
    ///
    /// # Errors
    /// When there is no address.
    pub async fn over_http() -> anyhow::Result<Collector> {
        Self::start(Protocol::Http, None).await
    }

    /// Starts one that takes spans by calls of gRPC.
    ///
    /// # Errors
    /// When there is no address.
    pub async fn over_grpc() -> anyhow::Result<Collector> {
        Self::start(Protocol::Grpc, None).await
    }

    /// Starts one, with TLS if there is a configuration of it.
    ///
    /// # Errors
    /// When there is no address.
    pub async fn start(
        protocol: Protocol,
        tls: Option<rustls::ServerConfig>,
    ) -> anyhow::Result<Collector> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, received) = (listener.local_addr()?, Arc::default());
        let tls = tls.map(|tls| TlsAcceptor::from(Arc::new(tls)));
        let serving = tokio::spawn(accept(listener, tls, protocol, Arc::clone(&received)));
        Ok(Collector { address, received, serving })
    }

    /// All that has come so far.
    #[must_use]
    pub fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for so many spans, and returns all that have come.
    ///
    /// # Errors
    /// When they do not come.
    pub async fn spans(&self, count: usize) -> anyhow::Result<Vec<Received>> {
        let what = format!("{count} spans");
        let come =
            wait::until(&what, EXPORT, async || (self.received().len() >= count).then_some(()));
        come.await.with_context(|| format!("{:?}", self.received()))?;
        Ok(self.received())
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Received {
    /// The attributes of the span, by name.
    #[must_use]
    pub fn attributes(&self) -> serde_json::Value {
        by_name(&self.span.attributes)
    }

    /// The numbers of the trace, the span's parent and its state, in hexadecimal digits.
    #[must_use]
    pub fn context(&self) -> (String, String, &str) {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        (hex(&self.span.trace_id), hex(&self.span.parent_span_id), &self.span.trace_state)
    }
}

struct Store(Arc<Mutex<Vec<Received>>>);

#[tonic::async_trait]
impl TraceService for Store {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let key = request.metadata().get("x-key").and_then(|key| key.to_str().ok());
        let key = key.map(str::to_owned);
        take(&self.0, request.into_inner(), key.as_deref());
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

async fn accept(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    protocol: Protocol,
    received: Arc<Mutex<Vec<Received>>>,
) {
    while let Ok((stream, _)) = listener.accept().await {
        let (tls, received) = (tls.clone(), received.clone());
        tokio::spawn(async move {
            match tls {
                None => serve(stream, protocol, received).await,
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        serve(stream, protocol, received).await;
                    }
                }
            }
        });
    }
}

/// Serves a connection until its client goes away.
async fn serve<S>(stream: S, protocol: Protocol, received: Arc<Mutex<Vec<Received>>>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream = TokioIo::new(stream);
    match protocol {
        Protocol::Http => {
            let answer = service_fn(move |request| answer(request, received.clone()));
            let connection = hyper::server::conn::http1::Builder::new();
            let _ = connection.serve_connection(stream, answer).await;
        }
        Protocol::Grpc => {
            let service = TowerToHyperService::new(TraceServiceServer::new(Store(received)));
            let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let _ = connection.serve_connection(stream, service).await;
        }
    }
}

async fn answer(
    request: Request<Incoming>,
    received: Arc<Mutex<Vec<Received>>>,
) -> anyhow::Result<Response<Full<Bytes>>> {
    let text = |headers: &HeaderMap, name: &str| {
        headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
    };
    let (key, kind) = (text(request.headers(), "x-key"), text(request.headers(), "content-type"));
    let is_export = request.method() == "POST"
        && request.uri().path() == "/v1/traces"
        && kind.as_deref() == Some("application/x-protobuf");
    let mut response = Response::new(Full::default());
    if !is_export {
        *response.status_mut() = StatusCode::NOT_FOUND;
        return Ok(response);
    }
    let body = request.into_body().collect().await?.to_bytes();
    take(&received, ExportTraceServiceRequest::decode(body)?, key.as_deref());
    *response.body_mut() = ExportTraceServiceResponse::default().encode_to_vec().into();
    Ok(response)
}

fn take(to: &Mutex<Vec<Received>>, request: ExportTraceServiceRequest, key: Option<&str>) {
    let mut all = to.lock().unwrap_or_else(PoisonError::into_inner);
    for of_resource in request.resource_spans {
        let attributes = of_resource.resource.map(|resource| resource.attributes);
        let resource = by_name(&attributes.unwrap_or_default());
        for span in of_resource.scope_spans.into_iter().flat_map(|of_scope| of_scope.spans) {
            all.push(Received { span, resource: resource.clone(), key: key.map(str::to_owned) });
        }
    }
}

fn by_name(attributes: &[KeyValue]) -> serde_json::Value {
    let pair = |attribute: &KeyValue| (attribute.key.clone(), plain(attribute.value.as_ref()));
    serde_json::Value::Object(attributes.iter().map(pair).collect())
}

fn plain(value: Option<&AnyValue>) -> serde_json::Value {
    match value.and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => json!(text),
        Some(Value::IntValue(number)) => json!(number),
        Some(Value::ArrayValue(array)) => {
            array.values.iter().map(|value| plain(Some(value))).collect()
        }
        other => json!(format!("{other:?}")),
    }
}
