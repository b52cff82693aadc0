//! Messages between two processes of this program over a Unix stream, and the file descriptors passed with them.
//!
//! A message is its length (four bytes, big-endian) and its JSON. Owns framing, bounds, and descriptor
//! passing (SCM_RIGHTS). Knows no message.

use anyhow::{Context, bail};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use tokio::io::Interest;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

/// The size of the length field, in bytes.
const LENGTH_BYTES: usize = 4;
const READ_BYTES: usize = 16 * 1024;
/// The most files of one read: a message carries one at most, and the kernel ends a read after a message with
/// a file.
const FILES_PER_READ: usize = 4;

pub(crate) fn encode<M: Serialize>(message: &M) -> anyhow::Result<Vec<u8>> {
    let mut frame = vec![0; LENGTH_BYTES];
    serde_json::to_writer(&mut frame, message)?;
    let length = u32::try_from(frame.len() - LENGTH_BYTES).context("a message above 4 GiB")?;
    frame[..LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
    Ok(frame)
}

#[derive(Debug)]
pub(crate) struct Decoder {
    bytes: Vec<u8>,
    bytes_max: usize,
}

impl Decoder {
    /// A decoder that refuses messages above `bytes_max`.
    pub(crate) fn new(bytes_max: usize) -> Decoder {
        Decoder { bytes: Vec::new(), bytes_max }
    }

    fn feed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message, if it is complete.
    fn next<M: DeserializeOwned>(&mut self) -> anyhow::Result<Option<M>> {
        let Some((head, rest)) = self.bytes.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*head) as usize;
        if length > self.bytes_max {
            bail!("a message of {length} bytes; the limit is {}", self.bytes_max);
        }
        let Some(text) = rest.get(..length) else {
            return Ok(None);
        };
        let message = serde_json::from_slice(text).context("a message is not valid")?;
        self.bytes.drain(..LENGTH_BYTES + length);
        Ok(Some(message))
    }
}

/// A blocking channel, with the timeouts of its stream.
#[derive(Debug)]
pub(crate) struct Channel {
    stream: UnixStream,
    decoder: Decoder,
    files: VecDeque<OwnedFd>,
}

impl Channel {
    /// A channel over `stream`, with messages up to `bytes_max`.
    pub(crate) fn new(stream: UnixStream, bytes_max: usize) -> Channel {
        Channel { stream, decoder: Decoder::new(bytes_max), files: VecDeque::new() }
    }

    pub(crate) fn send<M: Serialize>(&self, message: &M) -> anyhow::Result<()> {
        self.send_all(&encode(message)?, &[])
    }

    pub(crate) fn send_with<M: Serialize>(
        &self,
        message: &M,
        file: BorrowedFd<'_>,
    ) -> anyhow::Result<()> {
        self.send_all(&encode(message)?, &[file])
    }

    fn send_all(&self, mut bytes: &[u8], mut files: &[BorrowedFd<'_>]) -> anyhow::Result<()> {
        while !bytes.is_empty() {
            let sent = send_some(self.stream.as_fd(), bytes, files)?;
            // The file goes with the first bytes.
            files = &[];
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    /// The next message; none when the other side has closed.
    pub(crate) fn receive<M: DeserializeOwned>(&mut self) -> anyhow::Result<Option<M>> {
        loop {
            if let Some(message) = self.decoder.next()? {
                return Ok(Some(message));
            }
            if self.read()? == 0 {
                return Ok(None);
            }
        }
    }

    /// The next message and the file that it carries; both are required.
    pub(crate) fn receive_with<M: DeserializeOwned>(&mut self) -> anyhow::Result<(M, OwnedFd)> {
        let message = self.receive()?.context("the other process closed the connection")?;
        let file = self.files.pop_front().context("a message lacks its file")?;
        Ok((message, file))
    }

    fn read(&mut self) -> anyhow::Result<usize> {
        Ok(receive_some(self.stream.as_fd(), &mut self.decoder, &mut self.files)?)
    }

    /// Converts the channel for use by tasks. Must be called in a runtime.
    pub(crate) fn split(self) -> anyhow::Result<(Incoming, Outgoing)> {
        self.stream.set_nonblocking(true)?;
        let (read, write) = tokio::net::UnixStream::from_std(self.stream)?.into_split();
        Ok((Incoming { read, decoder: self.decoder, files: self.files }, Outgoing(write)))
    }
}

/// Sends the first bytes, and `files` with them. Returns the number of bytes.
fn send_some(
    stream: BorrowedFd<'_>,
    bytes: &[u8],
    files: &[BorrowedFd<'_>],
) -> std::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(std::io::Error::other("no room to pass a file"));
    }
    let send = || sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
    Ok(rustix::io::retry_on_intr(send)?)
}

/// Reads bytes and files. Returns the number of bytes, 0 at the end.
fn receive_some(
    stream: BorrowedFd<'_>,
    decoder: &mut Decoder,
    received_files: &mut VecDeque<OwnedFd>,
) -> std::io::Result<usize> {
    let mut bytes = [0; READ_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_PER_READ))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let mut pieces = [IoSliceMut::new(&mut bytes)];
        recvmsg(stream, &mut pieces, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            received_files.extend(files);
        }
    }
    decoder.feed(&bytes[..received.bytes]);
    Ok(received.bytes)
}

#[derive(Debug)]
pub(crate) struct Incoming {
    read: OwnedReadHalf,
    decoder: Decoder,
    files: VecDeque<OwnedFd>,
}

impl Incoming {
    /// The next message; none when the other side has closed. Cancel-safe.
    pub(crate) async fn receive<M: DeserializeOwned>(&mut self) -> anyhow::Result<Option<M>> {
        loop {
            if let Some(message) = self.decoder.next()? {
                return Ok(Some(message));
            }
            let stream: &tokio::net::UnixStream = self.read.as_ref();
            stream.readable().await?;
            let (decoder, files) = (&mut self.decoder, &mut self.files);
            let read = || receive_some(stream.as_fd(), decoder, files);
            match stream.try_io(Interest::READABLE, read) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The file of the last message, which carries one.
    pub(crate) fn file(&mut self) -> anyhow::Result<OwnedFd> {
        self.files.pop_front().context("a message lacks its file")
    }
}

#[derive(Debug)]
pub(crate) struct Outgoing(OwnedWriteHalf);

impl Outgoing {
    /// Sends a message and waits for as long as the other side takes to read it.
    pub(crate) async fn send<M: Serialize>(&mut self, message: &M) -> anyhow::Result<()> {
        use tokio::io::AsyncWriteExt;
        Ok(self.0.write_all(&encode(message)?).await?)
    }

    /// Sends a short message without waiting. Fails if the other side has not read for so long that the
    /// socket buffer is full.
    pub(crate) fn try_send<M: Serialize>(&self, message: &M) -> anyhow::Result<()> {
        self.try_send_all(&encode(message)?, &[])
    }

    /// The same, with a file.
    pub(crate) fn try_send_with<M: Serialize>(
        &self,
        message: &M,
        file: BorrowedFd<'_>,
    ) -> anyhow::Result<()> {
        self.try_send_all(&encode(message)?, &[file])
    }

    fn try_send_all(&self, frame: &[u8], files: &[BorrowedFd<'_>]) -> anyhow::Result<()> {
        let stream: &tokio::net::UnixStream = self.0.as_ref();
        // Straight to the socket, which does not block: the runtime refuses to try before it has seen that the socket
        // is writable, which it learns only later for a new one.
        let sent = send_some(stream.as_fd(), frame, files)?;
        if sent < frame.len() {
            bail!("{sent} of {} bytes were sent", frame.len());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    fn next(decoder: &mut Decoder) -> anyhow::Result<Option<Vec<u32>>> {
        decoder.next()
    }

    #[test]
    fn messages_are_found_in_any_pieces() {
        let mut bytes = encode(&[1, 2]).unwrap();
        bytes.extend(encode::<[u32; 0]>(&[]).unwrap());
        for piece in 1..bytes.len() {
            let mut decoder = Decoder::new(100);
            let mut found = Vec::new();
            for bytes in bytes.chunks(piece) {
                decoder.feed(bytes);
                while let Some(message) = next(&mut decoder).unwrap() {
                    found.push(message);
                }
            }
            assert_eq!(found, [vec![1, 2], vec![]], "in pieces of {piece}");
            assert!(decoder.bytes.is_empty());
        }
    }

    #[test]
    fn messages_that_are_too_long_or_not_valid_are_refused() {
        let refused = |bytes: &[u8]| {
            let mut decoder = Decoder::new(8);
            decoder.feed(bytes);
            format!("{:#}", next(&mut decoder).unwrap_err())
        };
        let long = "a message of 9 bytes; the limit is 8";
        assert_eq!(refused(&[0, 0, 0, 9]), long);
        assert!(refused(&[0xff; 4]).starts_with("a message of 4294967295 bytes"));
        assert!(refused(b"\0\0\0\x02{}").starts_with("a message is not valid: "));
        assert!(refused(b"\0\0\0\0").starts_with("a message is not valid: "));
    }

    #[test]
    fn files_arrive_with_their_messages() {
        let (here, there) = UnixStream::pair().unwrap();
        let here = Channel::new(here, 1_000_000);
        let mut there = Channel::new(there, 1_000_000);
        let (mut one, other_one) = UnixStream::pair().unwrap();
        let (mut two, other_two) = UnixStream::pair().unwrap();
        here.send(&0).unwrap();
        here.send_with(&1, other_one.as_fd()).unwrap();
        here.send(&"long".repeat(10_000)).unwrap();
        here.send_with(&2, other_two.as_fd()).unwrap();
        drop((here, other_one, other_two));
        assert_eq!(there.receive::<u32>().unwrap(), Some(0));
        let (first, file_one) = there.receive_with::<u32>().unwrap();
        assert_eq!(there.receive::<String>().unwrap().unwrap().len(), 40_000);
        let (second, file_two) = there.receive_with::<u32>().unwrap();
        assert_eq!((first, second), (1, 2));
        assert_eq!(there.receive::<u32>().unwrap(), None);
        UnixStream::from(file_one).write_all(b"one").unwrap();
        UnixStream::from(file_two).write_all(b"two").unwrap();
        let mut text = String::new();
        one.read_to_string(&mut text).unwrap();
        two.read_to_string(&mut text).unwrap();
        assert_eq!(text, "onetwo");
    }

    /// Also between tasks, beside messages without a file.
    #[tokio::test]
    async fn files_arrive_with_their_messages_at_tasks() {
        let (here, there) = UnixStream::pair().unwrap();
        let (_incoming, outgoing) = Channel::new(here, 1_000).split().unwrap();
        let (mut incoming, _outgoing) = Channel::new(there, 1_000).split().unwrap();
        let (mut one, other) = UnixStream::pair().unwrap();
        outgoing.try_send(&1).unwrap();
        outgoing.try_send_with(&2, other.as_fd()).unwrap();
        drop(other);
        assert_eq!(incoming.receive::<u32>().await.unwrap(), Some(1));
        assert_eq!(incoming.receive::<u32>().await.unwrap(), Some(2));
        UnixStream::from(incoming.file().unwrap()).write_all(b"one").unwrap();
        let mut text = String::new();
        one.read_to_string(&mut text).unwrap();
        assert_eq!(text, "one");
        assert_eq!(incoming.file().unwrap_err().to_string(), "a message lacks its file");
    }

    #[test]
    fn a_message_without_its_file_is_an_error() {
        let (here, there) = UnixStream::pair().unwrap();
        Channel::new(here, 100).send(&1).unwrap();
        let mut there = Channel::new(there, 100);
        let error = there.receive_with::<u32>().unwrap_err().to_string();
        assert_eq!(error, "a message lacks its file");
        let error = there.receive_with::<u32>().unwrap_err().to_string();
        assert_eq!(error, "the other process closed the connection");
    }
}
