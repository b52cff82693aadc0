//! Health and reflection, by an independent client.

use super::Served;
use anyhow::{Context, bail, ensure};
use prost::Message;
use prost_types::FileDescriptorProto;
use rustix::process::Signal;
use std::time::{Duration, Instant};
use tidegate_tests::rls::Rls;
use tidegate_tests::{memory, wait};
use tidegate_wire::RLS_SERVICE;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};

/// `grpc.health.v1.HealthCheckRequest`
#[derive(Clone, PartialEq, Message)]
struct HealthRequest {
    #[prost(string, tag = "1")]
    service: String,
}

/// `grpc.health.v1.HealthCheckResponse`
#[derive(Clone, PartialEq, Message)]
struct HealthResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;
const SERVICE_UNKNOWN: i32 = 3;

/// A client that may begin a call.
async fn ready(channel: &Channel) -> Result<tonic::client::Grpc<Channel>, Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    Ok(grpc)
}

async fn check(channel: &Channel, service: &str) -> Result<i32, Status> {
    let codec = tonic_prost::ProstCodec::<HealthRequest, HealthResponse>::default();
    let request = Request::new(HealthRequest { service: service.to_owned() });
    let path = "/grpc.health.v1.Health/Check".parse().expect("a path");
    Ok(ready(channel).await?.unary(request, path, codec).await?.into_inner().status)
}

async fn watch(channel: &Channel, service: &str) -> Result<Streaming<HealthResponse>, Status> {
    let codec = tonic_prost::ProstCodec::<HealthRequest, HealthResponse>::default();
    let request = Request::new(HealthRequest { service: service.to_owned() });
    let path = "/grpc.health.v1.Health/Watch".parse().expect("a path");
    Ok(ready(channel).await?.server_streaming(request, path, codec).await?.into_inner())
}

/// The next message of a stream; none at its end.
async fn message<T>(stream: &mut Streaming<T>) -> Result<Option<T>, Status> {
    let heard = wait::within("a message", wait::CHECK, stream.message()).await;
    heard.unwrap_or_else(|error| Err(Status::cancelled(error.to_string())))
}

#[tokio::test]
async fn health_is_checked_by_name() -> anyhow::Result<()> {
    let served = Served::start(&[]).await?;
    let channel = served.channel().await?;
    for name in ["", "ratelimit", RLS_SERVICE] {
        ensure!(check(&channel, name).await? == SERVING, "{name:?}");
    }
    let unknown = check(&channel, "other").await.err().map(|status| status.code());
    ensure!(unknown == Some(Code::NotFound), "{unknown:?}");
    Ok(())
}

/// Symptom: whoever watched a name that nobody has was ended at once, took it for a failure, and came back.
#[tokio::test]
async fn watchers_of_an_unknown_name_get_its_status_and_stay() -> anyhow::Result<()> {
    /// A client that has not answered a ping within a second is left. A machine that stood still for that long proves nothing.
    const LEFT: Duration = Duration::from_secs(1);
    for _ in 0..10 {
        let mut served = Served::start(&[]).await?;
        let mut stream = watch(&served.channel().await?, "other").await?;
        ensure!(message(&mut stream).await?.context("a message")?.status == SERVICE_UNKNOWN);
        let begun = Instant::now();
        served.sidecar.process.signal(Signal::TERM)?;
        // The next message is the end, which says why.
        let end = message(&mut stream).await.err().map(|status| status.code());
        let was_left = begun.elapsed() >= LEFT;
        ensure!(served.sidecar.process.wait().await?.success());
        if end == Some(Code::Unavailable) {
            return Ok(());
        }
        ensure!(was_left, "{end:?}");
    }
    bail!("a stop took a second and more, each time")
}

#[tokio::test]
async fn watchers_of_the_health_learn_that_the_store_is_lost() -> anyhow::Result<()> {
    let served = Served::start(&[]).await?;
    let mut stream = watch(&served.channel().await?, "").await?;
    ensure!(message(&mut stream).await?.context("a message")?.status == SERVING);
    let nodes = memory::of(&served.dir.path().join("data"))?.join("narrow-000.tide");
    std::fs::OpenOptions::new().write(true).open(nodes)?.set_len(4096)?;
    // The first caller that needs it finds out that it is gone.
    let rls = Rls(served.channel().await?);
    rls.ask(&[("counted", "a")]).await.expect_err("an answer without its counter");
    ensure!(message(&mut stream).await?.context("a message")?.status == NOT_SERVING);
    ensure!(check(&served.channel().await?, "").await? == NOT_SERVING);
    Ok(())
}

#[tokio::test]
async fn watchers_of_the_health_learn_of_a_stop_before_it() -> anyhow::Result<()> {
    let mut served = Served::start(&[]).await?;
    let mut stream = watch(&served.channel().await?, "").await?;
    ensure!(message(&mut stream).await?.context("a message")?.status == SERVING);
    served.sidecar.process.signal(Signal::TERM)?;
    ensure!(message(&mut stream).await?.context("a message")?.status == NOT_SERVING);
    // No shutdown waits for watchers.
    ensure!(served.sidecar.process.wait().await?.success());
    let log = served.sidecar.process.log();
    ensure!(!log.contains("cut off"), "{log}");
    Ok(())
}

#[tokio::test]
async fn a_method_that_is_not_there_is_unimplemented() -> anyhow::Result<()> {
    let served = Served::start(&[]).await?;
    let channel = served.channel().await?;
    for path in ["/grpc.health.v1.Health/List", "/x.Y/Z", "/"] {
        let codec = tonic_prost::ProstCodec::<HealthRequest, HealthResponse>::default();
        let request = Request::new(HealthRequest::default());
        let called = ready(&channel).await?.unary(request, path.parse()?, codec).await;
        let code = called.err().map(|status| status.code());
        ensure!(code == Some(Code::Unimplemented), "{path}: {code:?}");
    }
    served.check_alive().await
}

/// `grpc.reflection.v1.ServerReflectionRequest`, as far as it is used here.
#[derive(Clone, PartialEq, Message)]
struct ReflectionRequest {
    #[prost(string, optional, tag = "4")]
    file_containing_symbol: Option<String>,
    #[prost(string, optional, tag = "7")]
    list_services: Option<String>,
}

/// `grpc.reflection.v1.ServerReflectionResponse`, as far as it is used here.
#[derive(Clone, PartialEq, Message)]
struct ReflectionResponse {
    #[prost(message, optional, tag = "4")]
    files: Option<Files>,
    #[prost(message, optional, tag = "6")]
    services: Option<Services>,
}

#[derive(Clone, PartialEq, Message)]
struct Files {
    #[prost(bytes = "vec", repeated, tag = "1")]
    files: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct Services {
    #[prost(message, repeated, tag = "1")]
    services: Vec<ServiceName>,
}

#[derive(Clone, PartialEq, Message)]
struct ServiceName {
    #[prost(string, tag = "1")]
    name: String,
}

#[tokio::test]
async fn reflection_lists_services_and_describes_them_on_one_call() -> anyhow::Result<()> {
    let served = Served::start(&[]).await?;
    let channel = served.channel().await?;
    for version in ["v1", "v1alpha"] {
        let (ask, asked) = tokio::sync::mpsc::channel(1);
        let asked = tokio_stream::wrappers::ReceiverStream::new(asked);
        let codec = tonic_prost::ProstCodec::<ReflectionRequest, ReflectionResponse>::default();
        let path = format!("/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo");
        let list = ReflectionRequest { list_services: Some(String::new()), ..Default::default() };
        ask.send(list).await?;
        let mut grpc = ready(&channel).await?;
        let mut stream =
            grpc.streaming(Request::new(asked), path.parse()?, codec).await?.into_inner();
        let services = message(&mut stream).await?.context("a list")?.services.context("a list")?;
        let is_there = services.services.iter().any(|service| service.name == RLS_SERVICE);
        ensure!(is_there, "{services:?}");

        let symbol = Some(RLS_SERVICE.to_owned());
        ask.send(ReflectionRequest { file_containing_symbol: symbol, ..Default::default() })
            .await?;
        let files = message(&mut stream).await?.context("files")?.files.context("files")?;
        let first = FileDescriptorProto::decode(files.files[0].as_slice())?;
        ensure!(first.name() == "envoy/service/ratelimit/v3/rls.proto", "{first:?}");
        drop(ask);
        ensure!(
            message(&mut stream).await?.is_none(),
            "the call does not end with the client's side"
        );
    }
    Ok(())
}
