//! One connection of a client, and its calls.

use super::pipeline::{Counts, Window};
use super::redis::Redis;
use super::{CountedLimit, READ_BYTES_MAX, written};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Instant, SystemTime};
use tidegate_grpc::server::{Call, CallId, Connection, Limits, Outcome, Service};
use tidegate_grpc::{Code, Status};
use tidegate_wire::{RequestReader, encode_answer};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// The bounds of Tidegate's own endpoint.
const LIMITS: Limits = Limits {
    streams_max: 128,
    message_bytes_max: 4 << 20,
    header_bytes_max: 16 << 10,
    buffered_bytes_max: 8 << 20,
};

/// A connection of a client.
pub(super) struct Client {
    http2: RefCell<Connection>,
    answered: Notify,
}

impl Client {
    pub(super) fn new() -> Client {
        Client { http2: RefCell::new(Connection::new(LIMITS)), answered: Notify::new() }
    }

    /// Serves it to its end. An error is the end, too.
    pub(super) async fn serve(
        self: Rc<Self>,
        socket: TcpStream,
        redis: Rc<Redis>,
        limit: CountedLimit,
    ) {
        let _ = self.try_serve(&socket, &redis, limit).await;
    }

    async fn try_serve(
        self: &Rc<Self>,
        socket: &TcpStream,
        redis: &Rc<Redis>,
        limit: CountedLimit,
    ) -> anyhow::Result<()> {
        let (mut buffer, mut reader) = (vec![0; READ_BYTES_MAX], RequestReader::new());
        let opened = Instant::now();
        loop {
            tokio::select! {
                ready = socket.readable() => {
                    ready?;
                    let count = match socket.try_read(&mut buffer) {
                        Ok(0) => return Ok(()),
                        read => written(read)?,
                    };
                    if count == 0 {
                        continue;
                    }
                    let bytes = buffer.get(..count).unwrap_or_default();
                    let window = limit.window_at(SystemTime::now());
                    let mut calls = Calls { client: self, redis, reader: &mut reader, window };
                    self.http2.borrow_mut().receive_at(opened.elapsed(), bytes, &mut calls)?;
                }
                () = self.answered.notified() => {}
            }
            self.write(socket).await?;
        }
    }

    async fn write(&self, socket: &TcpStream) -> anyhow::Result<()> {
        loop {
            let is_blocked = {
                let mut http2 = self.http2.borrow_mut();
                if http2.output().is_empty() {
                    return Ok(());
                }
                let count = written(socket.try_write(http2.output()))?;
                http2.written(count);
                count == 0
            };
            if is_blocked {
                socket.writable().await?;
            }
        }
    }

    /// Answers a call by the hits of its descriptors. `bytes` is scratch space.
    pub(super) fn answer(
        &self,
        call: CallId,
        counts: Counts,
        limit: CountedLimit,
        bytes: &mut Vec<u8>,
    ) {
        let answer = match counts {
            Ok(counts) => {
                bytes.clear();
                encode_answer(&limit.answer(&counts), Vec::new(), bytes);
                Ok(bytes.as_slice())
            }
            Err(error) => Err(Status::new(Code::Unavailable, error)),
        };
        self.http2.borrow_mut().answer(call, answer);
        self.answered.notify_one();
    }
}

/// The calls of one read.
struct Calls<'a> {
    client: &'a Rc<Client>,
    redis: &'a Redis,
    reader: &'a mut RequestReader,
    window: Window,
}

impl Service for Calls<'_> {
    fn answer(&mut self, call: &Call<'_>, _answer: &mut Vec<u8>) -> Outcome {
        let request = match self.reader.read(call.message) {
            Ok(request) => request,
            Err(error) => {
                return Outcome::Refused(Status::new(Code::InvalidArgument, error.to_string()));
            }
        };
        let named = (self.client.clone(), call.id);
        if self.redis.pipeline.borrow_mut().add(named, request, self.window) {
            self.redis.begun.notify_one();
        }
        Outcome::Later
    }
}
