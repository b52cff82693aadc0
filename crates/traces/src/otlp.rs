//! OTLP: spans as its messages, and one attempt to send them, over gRPC or HTTP.

use crate::connect::Connector;
use crate::settings::{Protocol, Settings};
use crate::span::{Decided, Door, Finished};
use anyhow::Context;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, ArrayValue, InstrumentationScope, KeyValue,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode as SpanStatus;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use prost::Message;
use std::error::Error;
use std::time::Duration;
use tidegate_core::Verdict;
use tonic::Code;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};

const AGENT: &str = concat!("tidegate/", env!("CARGO_PKG_VERSION"));
/// Nobody else can know it.
const PID: &str = "process.pid";
const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
const METHOD: &str = "ShouldRateLimit";
/// The answer of a collector is a number and a message.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// A collector that asks for more waiting than this is asked again sooner.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

/// What became of an attempt.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The collector has taken all but some spans, and may say why.
    Taken { rejected: u64, why: String },
    /// It may take them later; it may have said when.
    NotNow { cause: String, after: Option<Duration> },
    /// It will never take them.
    Refused { cause: String },
}

/// The way to the collector.
pub(crate) struct Delivery {
    way: Way,
    resource: Resource,
}

// With fewer features of other crates its variants are about the same size, so it cannot be expected.
#[allow(clippy::large_enum_variant, reason = "a process has one")]
enum Way {
    Grpc {
        client: TraceServiceClient<Channel>,
        metadata: MetadataMap,
    },
    Http {
        client: Client<Connector, Full<Bytes>>,
        uri: Uri,
        headers: Vec<(HeaderName, HeaderValue)>,
    },
}

impl Delivery {
    /// Does not connect yet. Must be called in a runtime.
    pub(crate) fn new(settings: &Settings, connector: Connector) -> anyhow::Result<Delivery> {
        let headers = settings.headers.clone();
        let way = match settings.protocol {
            Protocol::Grpc => {
                let authority = settings.endpoint.authority().context("no host")?;
                // The connector does TLS, of which the scheme only informs the collector.
                let endpoint = Endpoint::from_shared(format!("http://{authority}"))?
                    .origin(settings.endpoint.clone())
                    .user_agent(AGENT)?;
                let channel = endpoint.connect_with_connector_lazy(connector);
                let metadata = MetadataMap::from_headers(headers.into_iter().collect());
                Way::Grpc { client: TraceServiceClient::new(channel), metadata }
            }
            Protocol::HttpProtobuf => {
                let client = Client::builder(TokioExecutor::new()).build(connector);
                Way::Http { client, uri: settings.endpoint.clone(), headers }
            }
        };
        let pairs = settings.resource.iter().filter(|(name, _)| name != PID);
        let mut attributes: Vec<KeyValue> = pairs.map(|(name, value)| text(name, value)).collect();
        attributes.push(number(PID, std::process::id().into()));
        let resource = Resource { attributes, ..Resource::default() };
        Ok(Delivery { way, resource })
    }

    /// The message with these spans.
    pub(crate) fn message(&self, spans: Vec<Finished>) -> ExportTraceServiceRequest {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let scope =
            InstrumentationScope { name: "tidegate".to_owned(), version, ..Default::default() };
        let spans = spans.into_iter().map(span).collect();
        let of_scope = ScopeSpans { scope: Some(scope), spans, schema_url: String::new() };
        let of_resource = ResourceSpans {
            resource: Some(self.resource.clone()),
            scope_spans: vec![of_scope],
            schema_url: String::new(),
        };
        ExportTraceServiceRequest { resource_spans: vec![of_resource] }
    }

    /// Sends it once.
    pub(crate) async fn send(&mut self, message: &ExportTraceServiceRequest) -> Sent {
        match &mut self.way {
            Way::Grpc { client, metadata } => {
                let mut request = tonic::Request::new(message.clone());
                *request.metadata_mut() = metadata.clone();
                match client.export(request).await {
                    Ok(answer) => taken(answer.into_inner()),
                    Err(status) => failed(&status),
                }
            }
            Way::Http { client, uri, headers } => {
                let mut request = Request::post(uri.clone());
                if let Some(all) = request.headers_mut() {
                    all.insert(USER_AGENT, HeaderValue::from_static(AGENT));
                    all.extend(headers.iter().cloned());
                    all.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
                }
                let request = match request.body(Full::from(message.encode_to_vec())) {
                    Ok(request) => request,
                    Err(error) => return Sent::Refused { cause: error.to_string() },
                };
                match client.request(request).await {
                    Ok(response) => answered(response).await,
                    Err(error) => Sent::NotNow { cause: causes(&error), after: None },
                }
            }
        }
    }
}

fn taken(answer: ExportTraceServiceResponse) -> Sent {
    let partial = answer.partial_success.unwrap_or_default();
    let rejected = u64::try_from(partial.rejected_spans).unwrap_or(0);
    Sent::Taken { rejected, why: partial.error_message }
}

/// Which failures pass is specified with OTLP.
fn failed(status: &tonic::Status) -> Sent {
    let cause = match status.source() {
        // The transport fails, and its own message does not say why.
        Some(source) => causes(source),
        None => format!("{:?}: {}", status.code(), status.message()),
    };
    match status.code() {
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unavailable
        | Code::DataLoss
        | Code::ResourceExhausted => Sent::NotNow { cause, after: None },
        _ => Sent::Refused { cause },
    }
}

async fn answered<B>(response: Response<B>) -> Sent
where
    B: hyper::body::Body,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let status = response.status();
    let after =
        response.headers().get(RETRY_AFTER).and_then(|after| after.to_str().ok()?.parse().ok());
    let after = after.map(|seconds| Duration::from_secs(seconds).min(RETRY_AFTER_MAX));
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    if status.is_success() {
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        // Collectors that answer with less have taken them, too.
        return taken(ExportTraceServiceResponse::decode(body).unwrap_or_default());
    }
    let cause = format!("HTTP status {status}");
    match status {
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Sent::NotNow { cause, after },
        _ => Sent::Refused { cause },
    }
}

/// An error with all that led to it.
fn causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let more = cause.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        source = cause.source();
    }
    text
}

/// Names are those of OpenTelemetry's conventions for gRPC and HTTP; those of this program begin with its own.
fn span(finished: Finished) -> Span {
    let Finished { trace_id, span_id, parent_id, state, door, start, end, code, error, decided } =
        finished;
    let mut attributes = match door {
        Door::Grpc => vec![
            text("rpc.system", "grpc"),
            text("rpc.service", SERVICE),
            text("rpc.method", METHOD),
            number("rpc.grpc.status_code", code.into()),
        ],
        Door::Json => vec![
            text("http.request.method", "POST"),
            text("http.route", "/json"),
            text("url.path", "/json"),
            number("http.response.status_code", code.into()),
        ],
    };
    if let Some(decided) = decided {
        add_decision(&mut attributes, decided);
    }
    let status =
        error.map(|message| Status { message: message.into(), code: SpanStatus::Error.into() });
    Span {
        trace_id: trace_id.to_be_bytes().to_vec(),
        span_id: span_id.to_be_bytes().to_vec(),
        trace_state: state.into(),
        parent_span_id: match parent_id {
            0 => Vec::new(),
            parent => parent.to_be_bytes().to_vec(),
        },
        name: match door {
            Door::Grpc => format!("{SERVICE}/{METHOD}"),
            Door::Json => "POST /json".to_owned(),
        },
        kind: SpanKind::Server.into(),
        start_time_unix_nano: start,
        end_time_unix_nano: end,
        attributes,
        status,
        // Sampled, as W3C has it.
        flags: 1,
        ..Span::default()
    }
}

fn add_decision(attributes: &mut Vec<KeyValue>, decided: Decided) {
    let Decided { domain, verdict, descriptors, hits, denied, rules } = decided;
    let code = match verdict {
        Verdict::Allow => "OK",
        Verdict::Deny => "OVER_LIMIT",
    };
    attributes.extend([
        text("tidegate.domain", &domain),
        text("tidegate.code", code),
        number("tidegate.descriptors", descriptors as u64),
        number("tidegate.hits_addend", hits),
    ]);
    if denied > 0 {
        let values = rules.into_iter().map(|rule| value(Value::StringValue(rule.into()))).collect();
        attributes.push(number("tidegate.denied", denied as u64));
        attributes
            .push(attribute("tidegate.denied_rules", Value::ArrayValue(ArrayValue { values })));
    }
}

fn text(name: &str, text: &str) -> KeyValue {
    attribute(name, Value::StringValue(text.to_owned()))
}

fn number(name: &str, number: u64) -> KeyValue {
    attribute(name, Value::IntValue(i64::try_from(number).unwrap_or(i64::MAX)))
}

fn attribute(name: &str, content: Value) -> KeyValue {
    KeyValue { key: name.to_owned(), value: Some(value(content)), ..KeyValue::default() }
}

fn value(content: Value) -> AnyValue {
    AnyValue { value: Some(content) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_that_pass_are_tried_again() {
        let is_retried =
            |code| matches!(failed(&tonic::Status::new(code, "x")), Sent::NotNow { .. });
        for code in [Code::Unavailable, Code::DeadlineExceeded, Code::ResourceExhausted] {
            assert!(is_retried(code), "{code:?}");
        }
        for code in [Code::Unauthenticated, Code::Unimplemented, Code::InvalidArgument] {
            assert!(!is_retried(code), "{code:?}");
        }
    }

    #[tokio::test]
    async fn statuses_of_http_have_their_meaning() {
        let answer = async |status: u16, after: &str, body: Vec<u8>| {
            let response = Response::builder().status(status).header(RETRY_AFTER, after);
            answered(response.body(Full::<Bytes>::from(body)).unwrap()).await
        };
        let all = Sent::Taken { rejected: 0, why: String::new() };
        assert_eq!(answer(200, "", Vec::new()).await, all);
        assert_eq!(answer(202, "", b"fine".to_vec()).await, all);
        let partial = opentelemetry_proto::tonic::collector::trace::v1::ExportTracePartialSuccess {
            rejected_spans: 2,
            error_message: "old".to_owned(),
        };
        let partial = ExportTraceServiceResponse { partial_success: Some(partial) };
        let some = Sent::Taken { rejected: 2, why: "old".to_owned() };
        assert_eq!(answer(200, "", partial.encode_to_vec()).await, some);
        let not_now = |cause: &str, after| Sent::NotNow { cause: cause.to_owned(), after };
        let busy = "HTTP status 503 Service Unavailable";
        assert_eq!(answer(503, "7", Vec::new()).await, not_now(busy, Some(Duration::from_secs(7))));
        assert_eq!(answer(503, "99999", Vec::new()).await, not_now(busy, Some(RETRY_AFTER_MAX)));
        assert_eq!(answer(503, "soon", Vec::new()).await, not_now(busy, None));
        for status in [301, 400, 401, 404, 500] {
            assert!(
                matches!(answer(status, "1", Vec::new()).await, Sent::Refused { .. }),
                "{status}"
            );
        }
    }
}
