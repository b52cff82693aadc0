//! One question to the HTTP endpoint of a sidecar, over a connection of its own.
//!
//! Bounded in time and in bytes, whatever answers at the address.

use crate::arguments::{SidecarAddress, SidecarOptions};
use anyhow::{Context, bail, ensure};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// To connect, and between two reads.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// An answer of 100 descriptors has at most some 300 KiB, one of 1,024 decisions 3.5 MiB.
const REPLY_BYTES_MAX: u64 = 4 * 1024 * 1024;
const HEADERS_MAX: usize = 32;
/// The first byte of the answer to what is no TLS.
const TLS_ALERT: u8 = 21;

#[derive(Debug)]
pub(in crate::commands) struct Reply {
    pub(in crate::commands) status: u16,
    pub(in crate::commands) body: Vec<u8>,
}

pub(in crate::commands) fn get(
    sidecar: &SidecarOptions,
    token: Option<&str>,
    target: &str,
) -> anyhow::Result<Reply> {
    let asking = || match &sidecar.http {
        SidecarAddress::Http { authority } => asked(connected(authority)?, token, target),
        SidecarAddress::Https { authority, host } => {
            let config = sidecar.tls().config(b"http/1.1", "--http-ca")?;
            let name = ServerName::try_from(host.clone())?;
            let tls = ClientConnection::new(Arc::new(config), name)?;
            asked(StreamOwned::new(tls, connected(authority)?), token, target)
        }
        SidecarAddress::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(WAIT_MAX))?;
            stream.set_write_timeout(Some(WAIT_MAX))?;
            asked(stream, token, target)
        }
    };
    asking().with_context(|| format!("the sidecar at {}", sidecar.http))
}

fn connected(address: &str) -> anyhow::Result<TcpStream> {
    let mut last = None;
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, WAIT_MAX) {
            Ok(stream) => {
                stream.set_read_timeout(Some(WAIT_MAX))?;
                stream.set_write_timeout(Some(WAIT_MAX))?;
                return Ok(stream);
            }
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) => Err(error.into()),
        None => bail!("the name has no address"),
    }
}

fn asked(
    mut stream: impl Read + Write,
    token: Option<&str>,
    target: &str,
) -> anyhow::Result<Reply> {
    let mut request = format!("GET {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    if let Some(token) = token {
        let is_token = token.bytes().all(|byte| byte.is_ascii_graphic());
        ensure!(is_token, "the token has characters that no header may have");
        request.push_str(&format!("authorization: Bearer {token}\r\n"));
    }
    request.push_str("\r\n");
    stream.write_all(request.as_bytes())?;
    let mut bytes = Vec::new();
    match stream.take(REPLY_BYTES_MAX + 1).read_to_end(&mut bytes) {
        // The end without a word of TLS; the length says whether the answer is whole.
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {}
        read => drop(read?),
    }
    ensure!(bytes.len() as u64 <= REPLY_BYTES_MAX, "more than 4 MiB were answered");
    reply(bytes)
}

/// The parts of an answer.
fn reply(mut bytes: Vec<u8>) -> anyhow::Result<Reply> {
    ensure!(bytes.first() != Some(&TLS_ALERT), "it speaks TLS: write https:// before the address");
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Response::new(&mut headers);
    let parsed = head.parse(&bytes).context("what answers does not speak HTTP")?;
    let (httparse::Status::Complete(head_bytes), Some(status)) = (parsed, head.code) else {
        bail!("the connection was closed before an answer");
    };
    let mut length = None;
    for header in head.headers.iter() {
        if header.name.eq_ignore_ascii_case("content-length") {
            length = std::str::from_utf8(header.value).ok().and_then(|text| text.parse().ok());
        }
    }
    let body = bytes.split_off(head_bytes);
    // Sidecars always send it.
    ensure!(length == Some(body.len()), "the connection was closed within an answer");
    Ok(Reply { status, body })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_socket_of_unix_is_asked_with_the_token() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("http");
        let listener = UnixListener::bind(&path).unwrap();
        let sidecar = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.extend(byte);
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
            String::from_utf8(request).unwrap()
        });
        let options = SidecarOptions {
            http: SidecarAddress::Unix(path),
            http_token_file: None,
            http_token: None,
            http_ca: None,
            http_cert: None,
            http_key: None,
        };
        let Reply { status, body } = get(&options, Some("secret"), "/v1/top?n=1").unwrap();
        assert_eq!((status, body), (200, b"{}".to_vec()));
        let request = sidecar.join().unwrap();
        assert!(request.starts_with("GET /v1/top?n=1 HTTP/1.1\r\n"), "{request}");
        assert!(request.contains("\r\nauthorization: Bearer secret\r\n"), "{request}");
    }

    #[test]
    fn an_answer_is_whole_or_an_error() {
        let whole = b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nno\n";
        let Reply { status, body } = reply(whole.to_vec()).unwrap();
        assert_eq!((status, body), (404, b"no\n".to_vec()));
        for end in 0..whole.len() {
            let error = reply(whole[..end].to_vec()).unwrap_err().to_string();
            assert!(error.starts_with("the connection was closed "), "{end}: {error}");
        }
        let error = reply(vec![21, 3, 3, 0, 2, 2, 10]).unwrap_err().to_string();
        assert_eq!(error, "it speaks TLS: write https:// before the address");
        let error = reply(b"SSH-2.0-OpenSSH\r\n".to_vec()).unwrap_err().to_string();
        assert_eq!(error, "what answers does not speak HTTP");
    }
}
