//! The client against the server of the h2 crate.

use crate::common::End;
use bytes::Bytes;
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream};
use http::{HeaderMap, HeaderValue, Request, Response};
use tidegate_grpc::client::Connection;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

/// Answers as the message asks: an echo, or what its first bytes name.
async fn answer(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    assert_eq!(request.uri(), "http://localhost/test.Echo/Echo");
    assert_eq!(request.headers()["te"], "trailers");
    assert_eq!(request.headers()["x-test"], "value");
    let mut body = request.into_body();
    let mut message = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.unwrap();
        body.flow_control().release_capacity(chunk.len()).unwrap();
        message.extend_from_slice(&chunk);
    }
    let headers =
        |status: u16| Response::builder().status(status).header("content-type", "application/grpc");
    let message = message.split_off(5);
    match &message[..] {
        b"http" => drop(respond.send_response(headers(503).body(()).unwrap(), true).unwrap()),
        b"reset" => respond.send_reset(Reason::CANCEL),
        b"refuse" => {
            let only = headers(200).header("grpc-status", "8").header("grpc-message", "no%21");
            respond.send_response(only.body(()).unwrap(), true).unwrap();
        }
        _ => {
            let mut stream = respond.send_response(headers(200).body(()).unwrap(), false).unwrap();
            let envelope = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
            stream.send_data(envelope.into(), false).unwrap();
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
            stream.send_trailers(trailers).unwrap();
        }
    }
}

/// Serves, and sends a GOAWAY after this many requests.
async fn serve(stream: DuplexStream, builder: Builder, requests_max: usize) {
    let mut connection = builder.handshake::<_, Bytes>(stream).await.unwrap();
    let mut requests = 0;
    while let Some(request) = connection.accept().await {
        let Ok((request, respond)) = request else { return };
        tokio::spawn(answer(request, respond));
        requests += 1;
        if requests == requests_max {
            connection.graceful_shutdown();
        }
    }
}

/// Makes calls with these messages as soon as possible. Returns how they ended, in order.
async fn calls(builder: &Builder, requests_max: usize, messages: &[Vec<u8>]) -> Vec<Option<End>> {
    let (mut stream, far) = tokio::io::duplex(3000);
    tokio::spawn(serve(far, builder.clone(), requests_max));
    let mut connection = Connection::new("localhost", "/test.Echo/Echo", &[("x-test", "value")]);
    let mut ends = vec![None; messages.len()];
    let mut begun = 0;
    let mut buffer = vec![0; 2000];
    loop {
        while let Some(message) = messages.get(begun)
            && let Some(id) = connection.call(message)
        {
            assert_eq!(id as usize, begun * 2 + 1);
            begun += 1;
        }
        if connection.calls() == 0 && (begun == messages.len() || connection.is_leaving()) {
            return ends;
        }
        // Reads and writes concurrently, or a server that waits to write would never read.
        let (mut reader, mut writer) = tokio::io::split(&mut stream);
        let read = tokio::select! {
            written = writer.write(connection.output()), if !connection.output().is_empty() => {
                connection.written(written.unwrap());
                continue;
            }
            read = reader.read(&mut buffer) => read.unwrap(),
        };
        assert!(read > 0, "the server closed");
        let mut end = |id: u32, ended: tidegate_grpc::client::Ended<'_>| {
            let place: &mut Option<End> = &mut ends[id as usize / 2];
            assert_eq!(place.replace(ended.into()), None, "a call ends once");
        };
        connection.receive(&buffer[..read], &mut end).unwrap();
    }
}

#[tokio::test]
async fn every_end_is_told_apart() {
    let messages = [&b"x"[..], b"http", b"reset", b"refuse", b""].map(<[u8]>::to_vec);
    let ends = calls(&Builder::new(), usize::MAX, &messages).await;
    let expected = [
        End::Answer(b"x".to_vec()),
        End::Http(503),
        End::Reset(8),
        End::Refused(8, "no!".to_owned()),
        End::Answer(Vec::new()),
    ];
    assert_eq!(ends, expected.map(Some));
}

#[tokio::test]
async fn windows_and_limits_of_the_server_are_obeyed() {
    for (window, streams, bytes) in [(1, 3, 40), (65_535, 1, 300_000), (700, 20, 9000)] {
        let mut builder = Builder::new();
        builder.initial_window_size(window).max_concurrent_streams(streams);
        let messages: Vec<Vec<u8>> = (0..40).map(|turn| vec![turn; bytes]).collect();
        let ends = calls(&builder, usize::MAX, &messages).await;
        let expected: Vec<_> = messages.into_iter().map(|m| Some(End::Answer(m))).collect();
        assert_eq!(ends, expected);
    }
}

#[tokio::test]
async fn many_calls_with_and_without_a_table() {
    for table_size in [4096, 100, 0] {
        let mut builder = Builder::new();
        builder.header_table_size(table_size);
        let messages: Vec<Vec<u8>> = (0..1000_u32).map(|turn| turn.to_be_bytes().into()).collect();
        let ends = calls(&builder, usize::MAX, &messages).await;
        let expected: Vec<_> = messages.into_iter().map(|m| Some(End::Answer(m))).collect();
        assert_eq!(ends, expected);
    }
}

#[tokio::test]
async fn a_server_that_leaves_ends_every_call_once() {
    let messages: Vec<Vec<u8>> = (0..300_u32).map(|turn| turn.to_be_bytes().into()).collect();
    let mut builder = Builder::new();
    builder.max_concurrent_streams(20);
    let ends = calls(&builder, 50, &messages).await;
    let answered = ends.iter().filter(|end| matches!(end, Some(End::Answer(_)))).count();
    assert!(answered >= 50, "{answered}");
    let begun = ends.iter().flatten().count();
    let unprocessed = ends.iter().filter(|end| **end == Some(End::Unprocessed)).count();
    assert_eq!(answered + unprocessed, begun, "{ends:?}");
    assert!(begun < 300);
}
