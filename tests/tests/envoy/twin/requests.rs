//! Requests.

use super::configuration::{COST, DEBIT, NUMBER};
use super::dice::Dice;
use super::pools::{ADDRESSES, INVALID, LONG, PIECES, REPEATED_HEADERS, TOKENS, VALUES};
use std::fmt;

/// One request.
pub(super) struct Request {
    pub(super) method: &'static str,
    pub(super) path: String,
    pub(super) headers: Vec<(&'static str, Vec<u8>)>,
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)?;
        self.headers.iter().try_for_each(|(name, value)| match value.get(80..) {
            Some(rest) => write!(
                f,
                "\n    {name}: {}... and {} bytes",
                value[..80].escape_ascii(),
                rest.len()
            ),
            None => write!(f, "\n    {name}: {}", value.escape_ascii()),
        })
    }
}

/// Values of [`COST`].
const COSTS: [&str; 12] =
    ["1", "0", "5", "007", "1000000000", "1000000001", "", "-1", "2.5", "1e3", "+4", "many"];

/// Values of [`DEBIT`].
const DEBITS: [&str; 5] = ["0", "1", "7", "0042", "1000000000"];

impl Request {
    pub(super) fn new(dice: &mut Dice, number: usize) -> Request {
        let mut headers = vec![(NUMBER, number.to_string().into_bytes())];
        for name in ["x-a", "x-b", "user-agent", "x-meta"] {
            if !dice.one_in(4) {
                headers.push((name, value(dice)));
            }
        }
        if dice.one_in(6) {
            headers.push(("cookie", cookie(dice)));
        }
        for name in REPEATED_HEADERS {
            headers.extend(dice.some(0, 3, value).into_iter().map(|value| (name, value)));
        }
        // After others, too.
        if dice.one_in(6) {
            headers.push(("cookie", cookie(dice)));
        }
        if !dice.one_in(3) {
            headers.push((COST, dice.pick(&COSTS).into()));
        }
        headers.push((DEBIT, dice.pick(&DEBITS).into()));
        if !dice.one_in(3) {
            headers.push(("x-forwarded-for", dice.pick(&ADDRESSES).into()));
        }
        // Once: Envoy joins several ("a token whose signature part is malformed").
        if dice.one_in(2) {
            headers.push(("authorization", dice.pick(&TOKENS).into()));
        }
        if dice.one_in(4) {
            headers.push(("x-envoy-internal", dice.pick(&["true", "false", ""]).into()));
        }
        if dice.one_in(4) {
            headers.push(("host", dice.pick(&["test", "a", "A.b:80"]).into()));
        }
        let mut method = dice.pick(&["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"]);
        if dice.one_in(6) {
            headers.push(("content-type", b"application/grpc".to_vec()));
            headers.push(("te", b"trailers".to_vec()));
            method = "POST";
        }
        Request { method, path: path(dice), headers }
    }
}

/// A header with a token in a cookie.
fn cookie(dice: &mut Dice) -> Vec<u8> {
    let token = dice.pick(&TOKENS);
    let cookie = match dice.below(5) {
        0 => format!("token=\"{token}\""),
        1 => "token=".to_owned(),
        2 => format!("; token ={token};token={token}"),
        _ => format!("a=b; token={token}"),
    };
    cookie.into_bytes()
}

fn value(dice: &mut Dice) -> Vec<u8> {
    match dice.below(16) {
        0 => b"ab".repeat(dice.pick(&LONG)),
        1 | 2 => [dice.pick(&VALUES), dice.pick(&INVALID)].concat(),
        _ => dice.pick(&VALUES).to_vec(),
    }
}

fn path(dice: &mut Dice) -> String {
    let path = dice.pick(&["/", "/v1/a", "/named/x", "/named/x", "/other", "/a%20b"]);
    match dice.some(0, 4, |dice| dice.pick(&PIECES)) {
        none if none.is_empty() => path.to_owned(),
        pieces => format!("{path}?{}", pieces.join("&")),
    }
}
