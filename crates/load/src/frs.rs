//! FRS over HTTP/1.1: one connection, bytes in and bytes out. Requests may be pipelined; answers come in
//! their order. Does no I/O and reads no clock. Memory is bounded, whatever the server sends.

use crate::ending::{Ending, Refusal};
use crate::options::{FrsCommand, LoadOptions, Target};
use crate::template::Template;
use std::collections::VecDeque;

/// Bytes of an answer's head. Servers send a few hundred.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Bytes of an answer's body. One item takes about a hundred.
const BODY_BYTES_MAX: usize = 1024 * 1024;
const HEADERS_MAX: usize = 64;

/// How the server violated the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken(pub(crate) &'static str);

/// One connection.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    /// Calls without an answer, oldest first.
    waiting: VecDeque<u32>,
    next_call: u32,
    output: Vec<u8>,
    /// The part of an answer that has arrived.
    input: Vec<u8>,
    is_leaving: bool,
}

impl Connection {
    /// Begins a call. `request` is the whole request.
    pub(crate) fn call(&mut self, request: &[u8]) -> u32 {
        let call = self.next_call;
        self.next_call = call.wrapping_add(1);
        self.waiting.push_back(call);
        self.output.extend_from_slice(request);
        call
    }

    /// Takes what has arrived, and passes on how each call ended.
    pub(crate) fn receive(
        &mut self,
        input: &[u8],
        mut ended: impl FnMut(u32, Ending),
    ) -> Result<(), Broken> {
        // Most answers arrive whole, and are parsed in place.
        if self.input.is_empty() {
            let taken = self.take_answers(input, &mut ended)?;
            self.input.extend_from_slice(&input[taken..]);
        } else {
            let mut whole = std::mem::take(&mut self.input);
            whole.extend_from_slice(input);
            let taken = self.take_answers(&whole, &mut ended)?;
            whole.drain(..taken);
            self.input = whole;
        }
        Ok(())
    }

    /// Takes all whole answers, and returns their length in bytes.
    fn take_answers(
        &mut self,
        input: &[u8],
        ended: &mut impl FnMut(u32, Ending),
    ) -> Result<usize, Broken> {
        let mut taken = 0;
        while let Some(answer) = read_answer(&input[taken..])? {
            if self.is_leaving {
                return Err(Broken("answer after `connection: close`"));
            }
            taken += answer.bytes;
            // 100 Continue and the like precede the actual answer.
            if answer.status < 200 {
                continue;
            }
            let call = self.waiting.pop_front().ok_or(Broken("answer without a request"))?;
            ended(call, answer.ending());
            self.is_leaving = answer.is_last;
        }
        Ok(taken)
    }

    pub(crate) fn output(&self) -> &[u8] {
        &self.output
    }

    pub(crate) fn written(&mut self, bytes: usize) {
        self.output.drain(..bytes);
    }

    /// Whether the server closes the connection after its last answer.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving
    }
}

/// One answer of the server.
#[derive(Debug)]
struct Answer<'a> {
    status: u16,
    body: &'a [u8],
    /// The connection ends after it.
    is_last: bool,
    /// Bytes of head and body.
    bytes: usize,
}

impl Answer<'_> {
    fn ending(&self) -> Ending {
        match self.status {
            200 => verdict(self.body),
            503 => Ending::Shed,
            status => Ending::Refused(Refusal::Http(status)),
        }
    }
}

/// The answer at the beginning of the input. None while it is incomplete.
fn read_answer(input: &[u8]) -> Result<Option<Answer<'_>>, Broken> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Response::new(&mut headers);
    let parsed = head.parse(input).map_err(|_| Broken("not an HTTP/1.1 answer"))?;
    let httparse::Status::Complete(head_bytes) = parsed else {
        return if input.len() > HEAD_BYTES_MAX { Err(Broken("head too long")) } else { Ok(None) };
    };
    let status = head.code.unwrap_or_default();
    let header = |name: &str| {
        let mut headers = head.headers.iter();
        headers.find(|header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
    };
    let length = match header("content-length") {
        _ if status < 200 || status == 204 => 0,
        Some(length) => std::str::from_utf8(length)
            .ok()
            .and_then(|length| length.parse::<usize>().ok())
            .ok_or(Broken("invalid Content-Length"))?,
        None => return Err(Broken("no Content-Length")),
    };
    if length > BODY_BYTES_MAX {
        return Err(Broken("body too long"));
    }
    let connection = header("connection").unwrap_or_default();
    let is_last = connection.eq_ignore_ascii_case(b"close")
        || (head.version == Some(0) && !connection.eq_ignore_ascii_case(b"keep-alive"));
    let bytes = head_bytes + length;
    let body = input.get(head_bytes..bytes);
    Ok(body.map(|body| Answer { status, body, is_last, bytes }))
}

/// The decision on the only item of a body.
fn verdict(body: &[u8]) -> Ending {
    let value = body.windows(ATTRIBUTE.len()).position(|window| window == ATTRIBUTE);
    let value = value.map(|place| &body[place + ATTRIBUTE.len()..]);
    match value {
        Some(value) if is_quoted(value, b"allow") => Ending::Allowed,
        Some(value) if is_quoted(value, b"deny") => Ending::Denied,
        _ => Ending::Refused(Refusal::Unreadable),
    }
}

const ATTRIBUTE: &[u8] = b" verdict=";

fn is_quoted(text: &[u8], word: &[u8]) -> bool {
    let Some((quote @ (b'"' | b'\''), rest)) = text.split_first() else { return false };
    rest.strip_prefix(word).and_then(<[u8]>::first) == Some(quote)
}

/// The request of a command, for each key.
pub(crate) fn request(options: &LoadOptions, command: &str) -> Template {
    let host = match &options.target {
        Target::Tcp(address) => address.as_str(),
        Target::Unix(_) => "localhost",
    };
    let business = escape(&options.business);
    Template::new(options.keys, |key| {
        let body = format!("<frs><item business=\"{business}\" key=\"{key}\"/></frs>");
        let length = body.len();
        let head = format!(
            "POST /frs HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/xml\r\n\
             X-FRS-Command: {command}\r\nContent-Length: {length}\r\n\r\n"
        );
        (head + &body).into_bytes()
    })
}

/// The commands of a load: the first one, and the one that follows if it is allowed.
pub(crate) fn commands(command: FrsCommand) -> (&'static str, Option<&'static str>) {
    match command {
        FrsCommand::Query => ("Query", None),
        FrsCommand::Update => ("Update", None),
        FrsCommand::Acquire => ("Acquire", None),
        FrsCommand::Pair => ("Query", Some("Update")),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOW: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 55\r\n\r\n\
        <frs><item business=\"1\" key=\"2\" verdict=\"allow\"/></frs>";
    const DENY: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 36\r\n\r\n\
        <frs><item verdict='deny' /> </frs>\n";
    const SHED: &[u8] =
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n";
    const BAD: &[u8] = b"HTTP/1.1 400 Bad\r\nContent-Length: 3\r\nConnection: close\r\n\r\nno\n";

    fn receive(connection: &mut Connection, input: &[u8]) -> Result<Vec<(u32, Ending)>, Broken> {
        let mut ended = Vec::new();
        connection.receive(input, |call, ending| ended.push((call, ending)))?;
        Ok(ended)
    }

    #[test]
    fn answers_end_their_calls_in_order_however_they_are_cut() {
        let all = [ALLOW, DENY, SHED, BAD].concat();
        let expected = [
            (0, Ending::Allowed),
            (1, Ending::Denied),
            (2, Ending::Shed),
            (3, Ending::Refused(Refusal::Http(400))),
        ];
        for size in 1..=all.len() {
            let mut connection = Connection::default();
            for _ in 0..4 {
                connection.call(b"x");
            }
            let mut ended = Vec::new();
            for piece in all.chunks(size) {
                assert!(!connection.is_leaving());
                ended.extend(receive(&mut connection, piece).unwrap());
            }
            assert_eq!(ended, expected, "in pieces of {size}");
            assert!(connection.is_leaving());
            assert_eq!(
                receive(&mut connection, ALLOW),
                Err(Broken("answer after `connection: close`"))
            );
        }
    }

    #[test]
    fn what_is_sent_is_what_was_called_until_it_is_written() {
        let mut connection = Connection::default();
        connection.call(b"one");
        connection.call(b"two");
        assert_eq!(connection.output(), b"onetwo");
        connection.written(4);
        assert_eq!(connection.output(), b"wo");
    }

    #[test]
    fn a_server_that_breaks_the_protocol_is_caught() {
        let many = format!("HTTP/1.1 200 OK\r\nX: {}", "y".repeat(HEAD_BYTES_MAX));
        for input in [
            "nonsense\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
            &many,
        ] {
            let mut connection = Connection::default();
            connection.call(b"x");
            assert!(receive(&mut connection, input.as_bytes()).is_err(), "{input}");
        }
        assert_eq!(
            receive(&mut Connection::default(), ALLOW),
            Err(Broken("answer without a request"))
        );
    }

    #[test]
    fn a_body_that_says_nothing_known_is_unreadable() {
        for body in ["", "<frs/>", " verdict=", " verdict=\"allowed\"", " verdict=\"maybe\""] {
            assert_eq!(verdict(body.as_bytes()), Ending::Refused(Refusal::Unreadable), "{body}");
        }
    }

    #[test]
    fn a_request_says_what_was_asked_for() {
        let options = LoadOptions {
            business: "a\"<&b".to_owned(),
            target: Target::Tcp("h:1".to_owned()),
            keys: 50,
            ..LoadOptions::default()
        };
        let mut template = request(&options, "Query");
        assert_eq!(
            String::from_utf8_lossy(template.message(42)),
            "POST /frs HTTP/1.1\r\nHost: h:1\r\nContent-Type: application/xml\r\n\
             X-FRS-Command: Query\r\nContent-Length: 56\r\n\r\n\
             <frs><item business=\"a&quot;&lt;&amp;b\" key=\"42\"/></frs>"
        );
    }
}
