//! A server that answers whatever it likes. It makes updates fail with a cause, and takes no memory.

use super::super::hostile::{self, Client};
use super::*;
use std::io::{BufRead, BufReader};

/// Speaks well until it is sent an update.
fn serve(client: &Client<'_>) -> Option<()> {
    for line in BufReader::new(client.stream).split(b'\n') {
        let line = String::from_utf8_lossy(&line.ok()?).trim_end().to_owned();
        let number = line.split(' ').find_map(|flag| flag.strip_prefix('O')).unwrap_or("0");
        match line.split(' ').next().unwrap_or_default() {
            "version" => client.write(b"VERSION 1.6.99\r\n")?,
            "stats" => client.write(b"STAT pid 1\r\nSTAT time 1700000000\r\nEND\r\n")?,
            "mg" if line.contains("seed") => {
                client.write(format!("VA 16 c1 O{number}\r\n0000000000000007\r\n").as_bytes())?;
            }
            "ms" | "mg" => {
                let reply = String::from_utf8_lossy(client.reply).replace('#', number);
                client.answer(reply.as_bytes())?;
            }
            // The value of an update.
            _ => {}
        }
    }
    None
}

fn check(reply: &[u8], flood: &'static [u8], expected: &[&str]) {
    let settings =
        |address: &str| Settings::new(Servers::Memcached(vec![address.parse().unwrap()]));
    hostile::check((serve, settings), reply, flood, expected);
}

#[test]
fn answers_without_sense_fail_their_updates() {
    let nonsense = ["an answer without sense", "an answer to another command"];
    for reply in [
        &b"+OK\r\n"[..],
        b"\r\n",
        b"HD O4294967295\r\n",
        b"HD cX O#\r\n",
        b"VA 5 c1 O#\r\nabcdefg\r\n",
        b"VA 1 O#\r\na\r\n",
        b"VA 99999999999 c1 O#\r\n",
        b"END\r\n",
        b"VERSION 1\r\n",
        b"\xff\xff\xff\r\n",
    ] {
        check(reply, b"", &nonsense);
    }
    check(b"VA 7 c1 O#\r\ngarbage\r\n", b"", &["no counter"]);
    check(b"ERROR\r\n", b"", &["ERROR"]);
    check(b"SERVER_ERROR out of memory storing object\r\n", b"", &["out of memory"]);
    check(b"CLIENT_ERROR bad data chunk\r\n", b"", &["bad data chunk"]);
    // A value that never comes to be stored or not.
    check(b"NS O#\r\n", b"", &["not answered within", "an answer without sense"]);
}

#[test]
fn answers_without_end_take_no_memory() {
    let cut = ["an answer without sense", "closed", "reset", "Broken pipe"];
    check(b"VA 1000000000 c1 O#\r\n", b"xxxxxxxxxxxxxxxx", &cut);
    check(b"VA 1000000 c1 O#\r\n", b"xxxxxxxxxxxxxxxx", &cut);
    check(b"SERVER_ERROR ", b"xxxxxxxxxxxxxxxx", &cut);
    check(b"", b"STAT a 1\r\n", &cut);
    check(b"", b"EN\r\n", &["", cut[0]]);
    check(b"HTTP/1.1 400 Bad Request\r\n", b"", &cut);
}
