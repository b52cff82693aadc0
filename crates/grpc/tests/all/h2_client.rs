//! The server against the client of the h2 crate.

use crate::common::{Echo, LIMITS};
use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use tidegate_grpc::server::{Connection, Limits};
use tidegate_grpc::{Code, Status};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

/// Serves until the client closes.
async fn serve(mut stream: DuplexStream, limits: Limits, read_bytes: usize) -> Echo {
    let (mut connection, mut service) = (Connection::new(limits), Echo::default());
    let mut buffer = vec![0; read_bytes];
    loop {
        while !connection.output().is_empty() {
            let Ok(written) = stream.write(connection.output()).await else { return service };
            connection.written(written);
        }
        let read = stream.read(&mut buffer).await.unwrap();
        if read == 0 {
            return service;
        }
        connection.receive(&buffer[..read], &mut service).unwrap();
        // After the read that brought them, the last one first; an empty message is refused.
        while let Some((id, message)) = service.pending.pop() {
            let is_refused = message.is_empty();
            let refused = || Status::new(Code::ResourceExhausted, "later");
            connection.answer(id, if is_refused { Err(refused()) } else { Ok(&message) });
        }
    }
}

/// A client of a server that reads this many bytes at a time.
async fn connected(builder: &Builder, limits: Limits, read_bytes: usize) -> SendRequest<Bytes> {
    let (near, far) = tokio::io::duplex(4096);
    tokio::spawn(serve(far, limits, read_bytes));
    let (send, connection) = builder.handshake(near).await.unwrap();
    tokio::spawn(connection);
    send
}

fn envelope(message: &[u8]) -> Bytes {
    [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat().into()
}

/// The messages and the status of a response.
async fn call(
    send: SendRequest<Bytes>,
    path: &str,
    messages: &[&[u8]],
    long_header: usize,
) -> (Vec<u8>, String, String) {
    let mut send = send.ready().await.unwrap();
    let request = http::Request::post(format!("http://localhost{path}"))
        .version(http::Version::HTTP_2)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("x-test", "v".repeat(long_header))
        .body(())
        .unwrap();
    let (response, mut body) = send.send_request(request, false).unwrap();
    for message in messages {
        body.send_data(envelope(message), false).unwrap();
    }
    // The call may be refused before its end is sent.
    let _ = body.send_data(Bytes::new(), true);
    let response = response.await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/grpc");
    let mut status = response.headers().clone();
    let mut body = response.into_body();
    let mut answer = Vec::new();
    while let Some(chunk) = body.data().await {
        let Ok(chunk) = chunk else { break };
        body.flow_control().release_capacity(chunk.len()).unwrap();
        answer.extend_from_slice(&chunk);
    }
    if let Ok(Some(trailers)) = body.trailers().await {
        status.extend(trailers);
    }
    let text =
        |name| status.get(name).map_or(String::new(), |value| value.to_str().unwrap().to_owned());
    (answer, text("grpc-status"), text("grpc-message"))
}

#[tokio::test]
async fn calls_are_answered() {
    for read_bytes in [1, 64 * 1024] {
        let send = connected(&Builder::new(), LIMITS, read_bytes).await;
        for round in 0..20_u8 {
            let (answer, status, _) =
                call(send.clone(), "/test.Echo/Echo", &[&[round; 100]], 30).await;
            assert_eq!((answer, status.as_str()), (envelope(&[round; 100]).to_vec(), "0"));
        }
        let (answer, status, _) = call(send.clone(), "/a/b", &[b"one", b"", b"three"], 5).await;
        let expected = [envelope(b"one"), envelope(b""), envelope(b"three")].concat();
        assert_eq!((answer, status.as_str()), (expected, "0"));
        let (answer, status, message) = call(send, "/test.Echo/Refuse", &[b"x"], 1).await;
        assert_eq!(
            (answer.len(), status.as_str(), message.as_str()),
            (0, "8", "too much, 100 %25")
        );
    }
}

#[tokio::test]
async fn messages_and_headers_that_are_too_large_are_refused() {
    let send = connected(&Builder::new(), LIMITS, 64 * 1024).await;
    let (_, status, message) = call(send.clone(), "/a/b", &[&vec![0; (1 << 20) + 1]], 1).await;
    assert_eq!(
        (status.as_str(), message.as_str()),
        ("8", "a message is larger than 1048576 bytes")
    );
    let most = vec![7; 1 << 20];
    let (answer, status, _) = call(send.clone(), "/a/b", &[&most], 1).await;
    assert_eq!((answer.len(), status.as_str()), (most.len() + 5, "0"));
}

/// Header blocks that need CONTINUATION frames, within the server's limit.
#[tokio::test]
async fn large_headers_go_on_in_further_frames() {
    let limits = Limits { header_bytes_max: 64 * 1024, ..LIMITS };
    let send = connected(&Builder::new(), limits, 1000).await;
    let (answer, status, _) = call(send, "/a/b", &[b"x"], 40_000).await;
    assert_eq!((answer, status.as_str()), (envelope(b"x").to_vec(), "0"));
}

#[tokio::test]
async fn tiny_windows_are_obeyed() {
    for (window, bytes) in [(1, 300), (7, 5000), (1000, 300_000)] {
        let mut builder = Builder::new();
        builder.initial_window_size(window).header_table_size(0);
        let send = connected(&builder, LIMITS, 64 * 1024).await;
        let message = vec![3; bytes];
        let (answer, status, _) = call(send, "/a/b", &[&message], 1).await;
        assert_eq!((answer, status.as_str()), (envelope(&message).to_vec(), "0"));
    }
}

#[tokio::test]
async fn many_streams_at_once() {
    let mut builder = Builder::new();
    builder.initial_window_size(500).initial_max_send_streams(50);
    let send = connected(&builder, LIMITS, 700).await;
    let calls: Vec<_> = (0..1000_usize)
        .map(|turn| {
            let send = send.clone();
            tokio::spawn(async move {
                let message = vec![turn as u8; turn * 7 % 3000];
                let (answer, status, _) = call(send, "/a/b", &[&message], turn % 50).await;
                assert_eq!((answer, status.as_str()), (envelope(&message).to_vec(), "0"));
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
}

/// Two thousand concurrent calls. Every tenth is refused, and the client gives up every fifth, some of them
/// before their answer.
#[tokio::test]
async fn answers_that_are_handed_in_later() {
    let mut builder = Builder::new();
    builder.initial_window_size(500).initial_max_send_streams(2_000);
    let limits = Limits { streams_max: 4_000, header_bytes_max: 1 << 20, ..LIMITS };
    let send = connected(&builder, limits, 9_000).await;
    let calls: Vec<_> = (0..2_000_usize)
        .map(|turn| {
            let send = send.clone();
            let call = tokio::spawn(async move {
                let message = vec![turn as u8; turn % 10 * 90];
                let (answer, status, text) = call(send, "/test.Echo/Later", &[&message], 9).await;
                let expected = match message.as_slice() {
                    [] => (Vec::new(), "8", "later"),
                    message => (envelope(message).to_vec(), "0", ""),
                };
                assert_eq!((answer, status.as_str(), text.as_str()), expected);
            });
            (turn, call)
        })
        .collect();
    // Answered after the first calls have begun.
    let (answer, ..) = call(send, "/a/b", &[b"x"], 1).await;
    assert_eq!(answer, envelope(b"x"));
    let (given_up, rest): (Vec<_>, Vec<_>) = calls.into_iter().partition(|(turn, _)| turn % 5 == 3);
    given_up.iter().for_each(|(_, call)| call.abort());
    for (_, call) in rest {
        call.await.unwrap();
    }
}
