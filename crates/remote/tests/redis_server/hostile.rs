//! A server that answers whatever it likes. It makes updates fail with a cause, and takes no memory.

use super::*;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// More than any buffer of the operating system takes.
const FLOOD: usize = 64 * 1024 * 1024;

/// Speaks well until it is sent an update, then answers `reply` and as many bytes more as are taken.
struct Hostile {
    address: String,
    sent: Arc<AtomicUsize>,
}

impl Hostile {
    fn start(reply: &[u8], flood: &'static [u8]) -> Hostile {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let sent = Arc::new(AtomicUsize::new(0));
        let (reply, counted) = (reply.to_vec(), sent.clone());
        // Ends with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (reply, counted) = (reply.clone(), counted.clone());
                std::thread::spawn(move || serve(&stream, &reply, flood, &counted));
            }
        });
        Hostile { address, sent }
    }
}

fn serve(stream: &TcpStream, reply: &[u8], flood: &[u8], sent: &AtomicUsize) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    loop {
        let words = read_command(&mut reader)?;
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().to_string();
        let time = format!("*2\r\n${}\r\n{time}\r\n$1\r\n0\r\n", time.len());
        match words[0].to_ascii_uppercase().as_slice() {
            b"ROLE" => writer.write_all(b"*1\r\n$6\r\nmaster\r\n").ok()?,
            b"TIME" => writer.write_all(time.as_bytes()).ok()?,
            b"GET" => writer.write_all(b"$16\r\n0000000000000007\r\n").ok()?,
            b"SCRIPT" => {
                let hash = "a".repeat(40);
                writer.write_all(format!("$40\r\n{hash}\r\n").as_bytes()).ok()?;
            }
            b"EVALSHA" => {
                writer.write_all(reply).ok()?;
                while !flood.is_empty() && sent.load(Ordering::Relaxed) < FLOOD {
                    writer.write_all(&flood.repeat(1_000)).ok()?;
                    sent.fetch_add(flood.len() * 1_000, Ordering::Relaxed);
                }
            }
            _ => writer.write_all(b"+OK\r\n").ok()?,
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

fn check(reply: &[u8], flood: &'static [u8], expected: &[&str]) {
    let shown = String::from_utf8_lossy(&reply[..reply.len().min(40)]).into_owned();
    let hostile = Hostile::start(reply, flood);
    let mut settings = Settings::at(&hostile.address).unwrap();
    settings.timeout = Duration::from_secs(2);
    let remote = connect(settings).unwrap();
    let said = cause(&remote, &[key(1)]);
    assert!(expected.iter().any(|expected| said.contains(expected)), "{shown:?}: {said}");
    assert!(said.len() < 500, "{shown:?}: {said}");
    let sent = hostile.sent.load(Ordering::Relaxed);
    assert!(sent < FLOOD, "{shown:?}: {sent} bytes were read");
}

#[test]
fn answers_without_sense_fail_their_updates() {
    let nonsense = ["answers the script with something else"];
    for reply in [
        &b"+OK\r\n"[..],
        b"$-1\r\n",
        b":0\r\n",
        b"*0\r\n",
        b"*2\r\n:9\r\n:1\r\n",
        b"*2\r\n:0\r\n:-1\r\n",
        b"*2\r\n:1\r\n:1\r\n",
        b"*3\r\n:1\r\n:1\r\n:1\r\n",
        b"*4\r\n:1\r\n:1\r\n$1\r\na\r\n$1\r\na\r\n",
        b"*3\r\n:4\r\n:1\r\n:2\r\n",
        b"%1\r\n:1\r\n:1\r\n",
        b"*2\r\n-ERR\r\n*1\r\n*0\r\n",
    ] {
        check(reply, b"", &nonsense);
    }
    check(b"*3\r\n:1\r\n:1\r\n$7\r\ngarbage\r\n", b"", &["no counter"]);
    check(b"*2\r\n:2\r\n:1\r\n", b"", &["behind the time of the request"]);
    check(b"*2\r\n:3\r\n:1\r\n", b"", &["too long ago"]);
    let long = [b"-ERR ", "ä\x07".repeat(400).as_bytes(), b"\r\n"].concat();
    check(&long, b"", &["ERR ä ä"]);
    check(b"-NOSCRIPT no\r\n", b"", &["NOSCRIPT", "another number of answers", "something else"]);
}

#[test]
fn answers_without_end_take_no_memory() {
    let cut = ["more than it was asked for"];
    check(b"$1000000000\r\n", b"xxxxxxxxxxxxxxxx", &cut);
    check(b"*1000000000\r\n", b":1\r\n", &cut);
    check(b"*1000000000\r\n", b"*0\r\n", &cut);
    check(b"+", b"xxxxxxxxxxxxxxxx", &cut);
    // Answers that nobody has asked for.
    check(b"+OK\r\n", b"+OK\r\n", &["answers the script with something else", cut[0]]);
    // Too deep, or not of the protocol at all.
    check(b"*1\r\n", b"*1\r\n", &["", cut[0]]);
    check(b"HTTP/1.1 400 Bad Request\r\n", b"", &[""]);
}
