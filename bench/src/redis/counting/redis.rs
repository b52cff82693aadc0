//! One connection to Redis, shared by the connections of clients.

use super::client::Client;
use super::pipeline::Pipeline;
use super::timer::Timer;
use super::{CountedLimit, READ_BYTES_MAX, written};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use tidegate_grpc::server::CallId;
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// A connection to Redis.
pub(super) struct Redis {
    pub(super) pipeline: RefCell<Pipeline<(Rc<Client>, CallId)>>,
    /// Commands wait that no timer runs for.
    pub(super) begun: Notify,
}

impl Redis {
    pub(super) fn new() -> Redis {
        Redis { pipeline: RefCell::new(Pipeline::new()), begun: Notify::new() }
    }

    /// Sends commands, all of a time of `window` together.
    pub(super) async fn send(
        self: Rc<Self>,
        socket: Rc<TcpStream>,
        window: Duration,
    ) -> anyhow::Result<()> {
        let mut timer = Timer::new()?;
        let mut bytes = Vec::new();
        loop {
            self.begun.notified().await;
            timer.wait(window).await?;
            bytes.clear();
            bytes = self.pipeline.borrow_mut().take_unsent(bytes);
            let mut sent = 0;
            while let Some(rest @ [_, ..]) = bytes.get(sent..) {
                socket.writable().await?;
                sent += written(socket.try_write(rest))?;
            }
        }
    }

    /// Passes the replies on to the clients.
    pub(super) async fn receive(
        self: Rc<Self>,
        socket: Rc<TcpStream>,
        limit: CountedLimit,
    ) -> anyhow::Result<()> {
        let mut buffer = vec![0; READ_BYTES_MAX];
        let mut answer = Vec::new();
        loop {
            socket.readable().await?;
            let count = match socket.try_read(&mut buffer) {
                Ok(0) => anyhow::bail!("Redis has closed the connection"),
                Ok(count) => count,
                Err(error) => written(Err(error))?,
            };
            let bytes = buffer.get(..count).unwrap_or_default();
            let mut pipeline = self.pipeline.borrow_mut();
            pipeline.receive(bytes, |(client, call), counts| {
                client.answer(call, counts, limit, &mut answer);
            })?;
        }
    }
}
