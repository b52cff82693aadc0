//! The client: one stream after the other, on a thread of its own.
//!
//! The thread connects, decodes and waits beside all others, so no server delays a decision. It holds one response at
//! a time and reads the next one when the limits of the last are in force or refused, so a server that sends
//! faster waits. A message has a largest size.

use super::XdsSettings;
use super::backoff::Backoff;
use super::connect::connect;
use super::messages::{DiscoveryRequest, DiscoveryResponse, Node, STREAM_AGGREGATED};
use super::session::{Resources, Session};
use anyhow::{Context, anyhow};
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use tidegate_limits::{LoadErrors, SourceFile};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{MetadataKey, MetadataValue};
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

/// Characters of a server's message in the log.
const LOGGED_CHARS_MAX: usize = 512;

/// The limits of a response, and the way back for the verdict on them.
#[derive(Debug)]
pub(super) struct Update {
    pub(super) files: Vec<SourceFile>,
    pub(super) verdict: oneshot::Sender<Result<(), LoadErrors>>,
}

/// What the thread reports.
#[derive(Debug)]
pub(super) enum Report {
    Update(Update),
    /// A response could not be read.
    Unreadable,
}

/// Starts the thread. It ends when the receiver is dropped, at the next response or attempt.
pub(super) fn start(settings: XdsSettings) -> anyhow::Result<mpsc::Receiver<Report>> {
    let (reports, receiver) = mpsc::channel(1);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()
        .context("the client of xDS cannot be started")?;
    let thread = std::thread::Builder::new().name("tidegate-xds".to_owned());
    let run = move || {
        runtime.block_on(async {
            tokio::select! {
                () = keep_streaming(&settings, &reports) => {}
                () = reports.closed() => {}
            }
        });
    };
    thread.spawn(run).context("the client of xDS cannot be started")?;
    Ok(receiver)
}

async fn keep_streaming(settings: &XdsSettings, reports: &mpsc::Sender<Report>) {
    let mut backoff = Backoff::new(settings.backoff);
    let mut session = Session::new(node(settings));
    let server = &settings.server;
    loop {
        let mut is_connected = false;
        let ended = stream(settings, &mut session, reports, |has_answered| {
            is_connected = true;
            if has_answered {
                backoff.reset();
            }
        });
        let error = match ended.await {
            Ok(()) => return,
            Err(error) => format!("{error:#}").chars().take(LOGGED_CHARS_MAX).collect::<String>(),
        };
        let wait = backoff.wait(is_connected, chance());
        tracing::warn!(%server, error, ?wait, "no stream of limits; the limits in force stay");
        tokio::time::sleep(wait).await;
    }
}

/// One stream, until it fails. Calls `progress` at the connection and at each answer. Without an error, limits have no
/// receiver any more.
async fn stream(
    settings: &XdsSettings,
    session: &mut Session,
    reports: &mpsc::Sender<Report>,
    mut progress: impl FnMut(bool),
) -> anyhow::Result<()> {
    let channel = connect(&settings.server, &settings.tls).await?;
    progress(false);
    let mut grpc =
        tonic::client::Grpc::new(channel).max_decoding_message_size(settings.message_bytes_max);
    grpc.ready().await?;
    let (requests, outgoing) = mpsc::channel::<DiscoveryRequest>(1);
    requests.try_send(session.first())?;
    let mut request = Request::new(ReceiverStream::new(outgoing));
    for (name, value) in &settings.headers {
        let name = MetadataKey::from_bytes(name.as_bytes())?;
        request.metadata_mut().insert(name, MetadataValue::try_from(value)?);
    }
    let codec = ProstCodec::<DiscoveryRequest, DiscoveryResponse>::default();
    let path = PathAndQuery::from_static(STREAM_AGGREGATED);
    let streaming =
        grpc.streaming(request, path, codec).await.map_err(|status| described(&status))?;
    tracing::info!(server = %settings.server, "the stream of limits is open");
    let mut responses: Streaming<DiscoveryResponse> = streaming.into_inner();
    loop {
        let response = responses.message().await.map_err(|status| described(&status))?;
        let response = response.context("the server has ended the stream")?;
        progress(true);
        let Some(answer) = judge(session, &response, reports).await else { return Ok(()) };
        requests.send(answer).await.map_err(|_| anyhow!("the stream has ended"))?;
    }
}

/// The answer to a response; none if nobody wants limits any more.
async fn judge(
    session: &mut Session,
    response: &DiscoveryResponse,
    reports: &mpsc::Sender<Report>,
) -> Option<DiscoveryRequest> {
    let resources = match Resources::read(response) {
        Ok(resources) => resources,
        Err(mistakes) => {
            super::log_mistakes(&mistakes);
            reports.send(Report::Unreadable).await.ok()?;
            return Some(session.refuse(response, &mistakes));
        }
    };
    let (verdict, judged) = oneshot::channel();
    let files = resources.files();
    reports.send(Report::Update(Update { files, verdict })).await.ok()?;
    match judged.await.ok()? {
        Ok(()) => Some(session.accept(response)),
        Err(LoadErrors(errors)) => {
            let mistakes = resources.explain(&errors);
            super::log_mistakes(&mistakes);
            Some(session.refuse(response, &mistakes))
        }
    }
}

fn node(settings: &XdsSettings) -> Node {
    let text = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
    let fields = settings.node_metadata.iter();
    let fields = fields.map(|(name, value)| (name.clone(), text(value))).collect();
    Node { id: settings.node_id.clone(), metadata: Some(Struct { fields }) }
}

/// A status as people read it.
fn described(status: &tonic::Status) -> anyhow::Error {
    anyhow!("{:?}: {}", status.code(), status.message())
}

/// A number from 0 to 1, for waits that differ between processes.
fn chance() -> f64 {
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new().hash_one(0_u8);
    (random >> 11) as f64 / (1_u64 << 53) as f64
}
