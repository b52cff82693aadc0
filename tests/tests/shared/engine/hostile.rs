//! A server that answers whatever it likes. It makes updates fail with a cause, and takes no memory.

use super::*;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// More than any buffer of the operating system takes.
const FLOOD: usize = 64 * 1024 * 1024;

/// A server that answers each update with the same reply, and then with as many bytes more as are taken.
struct Hostile {
    address: String,
    sent: Arc<AtomicUsize>,
}

/// A connection to it.
pub(super) struct Client<'c> {
    pub(super) stream: &'c TcpStream,
    /// The reply to an update.
    pub(super) reply: &'c [u8],
    flood: &'c [u8],
    sent: &'c AtomicUsize,
}

/// How it speaks until it is sent an update. Ends with the connection.
type Serve = fn(&Client<'_>) -> Option<()>;

impl Hostile {
    fn start(serve: Serve, reply: &[u8], flood: &'static [u8]) -> Hostile {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let sent = Arc::new(AtomicUsize::new(0));
        let (reply, counted) = (reply.to_vec(), sent.clone());
        // Ends with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (reply, sent) = (reply.clone(), counted.clone());
                std::thread::spawn(move || {
                    serve(&Client { stream: &stream, reply: &reply, flood, sent: &sent })
                });
            }
        });
        Hostile { address, sent }
    }
}

impl Client<'_> {
    pub(super) fn write(&self, bytes: &[u8]) -> Option<()> {
        let mut stream = self.stream;
        stream.write_all(bytes).ok()
    }

    /// Answers an update.
    pub(super) fn answer(&self, reply: &[u8]) -> Option<()> {
        self.write(reply)?;
        while !self.flood.is_empty() && self.sent.load(Ordering::Relaxed) < FLOOD {
            self.write(&self.flood.repeat(1_000))?;
            self.sent.fetch_add(self.flood.len() * 1_000, Ordering::Relaxed);
        }
        Some(())
    }
}

/// Checks what an update says of a reply, and that little of a flood is read.
pub(super) fn check(
    (serve, settings): (Serve, impl FnOnce(&str) -> Settings),
    reply: &[u8],
    flood: &'static [u8],
    expected: &[&str],
) {
    let shown = String::from_utf8_lossy(&reply[..reply.len().min(40)]).into_owned();
    let hostile = Hostile::start(serve, reply, flood);
    let timeout = Duration::from_secs(2);
    let remote = connect(Settings { timeout, ..settings(&hostile.address) }).unwrap();
    let said = cause(&remote, &[key(1)]);
    assert!(expected.iter().any(|expected| said.contains(expected)), "{shown:?}: {said}");
    assert!(said.len() < 500, "{shown:?}: {said}");
    let sent = hostile.sent.load(Ordering::Relaxed);
    assert!(sent < FLOOD, "{shown:?}: {sent} bytes were read");
}

/// A Redis that speaks well until it is sent a call of the script.
fn serve(client: &Client<'_>) -> Option<()> {
    serve_until(client, b"EVALSHA")
}

/// A Redis that speaks well until it is sent a new counter.
fn serve_until_set(client: &Client<'_>) -> Option<()> {
    serve_until(client, b"SET")
}

fn serve_until(client: &Client<'_>, update: &[u8]) -> Option<()> {
    let mut reader = BufReader::new(client.stream);
    loop {
        let words = read_command(&mut reader)?;
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().to_string();
        let time = format!("*2\r\n${}\r\n{time}\r\n$1\r\n0\r\n", time.len());
        match words[0].to_ascii_uppercase().as_slice() {
            command if command == update => client.answer(client.reply)?,
            // The key has a value of another type, so the script has to be called.
            b"SET" => client.write(b"$-1\r\n")?,
            b"GETRANGE" => client.write(b"-WRONGTYPE a list\r\n")?,
            b"ROLE" => client.write(b"*1\r\n$6\r\nmaster\r\n")?,
            b"TIME" => client.write(time.as_bytes())?,
            b"GET" => client.write(b"$16\r\n0000000000000007\r\n")?,
            b"SCRIPT" => client.write(format!("$40\r\n{}\r\n", "a".repeat(40)).as_bytes())?,
            _ => client.write(b"+OK\r\n")?,
        }
    }
}

fn read_command(reader: &mut BufReader<&TcpStream>) -> Option<Vec<Vec<u8>>> {
    let number = |reader: &mut BufReader<&TcpStream>| {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        line.get(1..)?.trim().parse::<usize>().ok()
    };
    let count = number(reader)?;
    let mut words = Vec::new();
    for _ in 0..count {
        let length = number(reader)?;
        let mut word = vec![0; length + 2];
        reader.read_exact(&mut word).ok()?;
        word.truncate(length);
        words.push(word);
    }
    (!words.is_empty()).then_some(words)
}

fn check_redis(reply: &[u8], flood: &'static [u8], expected: &[&str]) {
    let settings = |address: &str| Settings::at(address).unwrap();
    check((serve, settings), reply, flood, expected);
}

/// Updates that left on a connection which had just broken never ended, and nothing could change their keys any more.
#[test]
fn updates_end_whose_connection_breaks_as_they_leave() {
    let hostile = Hostile::start(serve, b"-READONLY not here\r\n", b"");
    for _ in 0..60 {
        let remote = connect(Settings::at(&hostile.address).unwrap()).unwrap();
        let (send, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for number in 0..8 {
                let _ = send.send(hit(&remote, &[key(number)]).is_err());
            }
        });
        for _ in 0..8 {
            assert_eq!(ended.recv_timeout(Duration::from_secs(20)), Ok(true));
        }
    }
}

#[test]
fn answers_without_sense_fail_their_updates() {
    let nonsense = ["answers the script with something else"];
    for reply in [
        &b"+OK\r\n"[..],
        b"$-1\r\n",
        b":0\r\n",
        b"*0\r\n",
        b"*2\r\n:1\r\n:9\r\n",
        b"*2\r\n:-1\r\n:0\r\n",
        b"*2\r\n:1\r\n:1\r\n",
        b"*3\r\n:1\r\n:0\r\n:0\r\n",
        b"*2\r\n:1\r\n*2\r\n:1\r\n:1\r\n",
        b"*2\r\n:1\r\n*3\r\n:1\r\n$1\r\na\r\n$1\r\na\r\n",
        b"*2\r\n:1\r\n*2\r\n:4\r\n:2\r\n",
        b"%1\r\n:1\r\n:1\r\n",
        b"*2\r\n-ERR\r\n*1\r\n*0\r\n",
    ] {
        check_redis(reply, b"", &nonsense);
    }
    check_redis(b"*2\r\n:1\r\n*2\r\n:1\r\n$7\r\ngarbage\r\n", b"", &["no counter"]);
    check_redis(b"*2\r\n:1\r\n:2\r\n", b"", &["behind the time of the request"]);
    check_redis(b"*2\r\n:1\r\n:3\r\n", b"", &["too long ago"]);
    let long = [b"-ERR ", "ä\x07".repeat(400).as_bytes(), b"\r\n"].concat();
    check_redis(&long, b"", &["ERR ä ä"]);
    check_redis(
        b"-NOSCRIPT no\r\n",
        b"",
        &["NOSCRIPT", "another number of answers", "something else"],
    );
}

#[test]
fn answers_without_sense_to_a_new_counter_fail_its_update() {
    let check = |reply: &[u8], expected: &[&str]| {
        let settings = |address: &str| Settings::at(address).unwrap();
        check((serve_until_set, settings), reply, b"", expected);
    };
    for reply in
        [&b":1\r\n"[..], b"+QUEUED\r\n", b"$3\r\nabc\r\n", b"*0\r\n", b"%1\r\n:1\r\n:1\r\n"]
    {
        check(reply, &["answers SET with something else"]);
    }
    check(b"-OOM no memory\r\n", &["OOM no memory"]);
    check(b"-READONLY not here\r\n", &["READONLY not here"]);
    let long = [b"-ERR ", "ä\x07".repeat(400).as_bytes(), b"\r\n"].concat();
    check(&long, &["ERR ä ä"]);
}

#[test]
fn answers_without_end_take_no_memory() {
    let cut = ["more than it was asked for"];
    check_redis(b"$1000000000\r\n", b"xxxxxxxxxxxxxxxx", &cut);
    check_redis(b"*1000000000\r\n", b":1\r\n", &cut);
    check_redis(b"*1000000000\r\n", b"*0\r\n", &cut);
    check_redis(b"+", b"xxxxxxxxxxxxxxxx", &cut);
    let settings = |address: &str| Settings::at(address).unwrap();
    check((serve_until_set, settings), b"$1000000000\r\n", b"xxxxxxxxxxxxxxxx", &cut);
    check((serve_until_set, settings), b"*1000000000\r\n", b"*0\r\n", &cut);
    // Answers that nobody has asked for.
    check_redis(b"+OK\r\n", b"+OK\r\n", &["answers the script with something else", cut[0]]);
    // Too deep, or not of the protocol at all.
    check_redis(b"*1\r\n", b"*1\r\n", &["", cut[0]]);
    check_redis(b"HTTP/1.1 400 Bad Request\r\n", b"", &[""]);
}
