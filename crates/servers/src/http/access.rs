//! Access to pages that show values of requests, and to changes.
//!
//! Reading is open where only this machine can connect. Elsewhere it takes a token, or a certificate of a client. A change
//! always takes the token. Browsers of this machine act for pages of others, too: so a reader without a token must
//! have asked for this machine by name, which a page of another name cannot make a browser do.

use super::body::Page;
use crate::address::{Listener, Locality};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{StatusCode, Uri};
use std::fmt;
use std::net::IpAddr;

/// The shortest token: 128 bits in hexadecimal digits have as many characters.
const TOKEN_BYTES_MIN: usize = 32;
const TOKEN_BYTES_MAX: usize = 1_024;
/// Where the page is from that makes a browser send a request.
const FETCH_SITE: &str = "sec-fetch-site";

/// A secret that clients show in `authorization: Bearer`.
#[derive(Clone)]
pub struct Token(String);

/// Who may read and change, at one address.
#[derive(Debug, Clone)]
pub struct Access {
    locality: Locality,
    token: Option<Token>,
}

/// Whether the client of a connection has shown a certificate that is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    Unknown,
    Certified,
}

/// Why a client may not read or change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoAccess {
    /// It shows no token, or another one.
    Unauthorized,
    /// There is no token that it could show.
    Closed,
    /// There is none for changes.
    Unchangeable,
    /// It asked for another host than this machine.
    Host,
    /// A page of another origin had its browser send the change.
    Origin,
}

impl Token {
    /// Reads a token. White space around it does not count.
    ///
    /// # Errors
    /// A message, if it is too short or cannot be in a header.
    pub fn new(text: &str) -> Result<Token, String> {
        let text = text.trim();
        if !(TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&text.len()) {
            return Err(format!(
                "a token must have {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} characters, such as those of: openssl rand -hex 32"
            ));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(
                "a token must have printable ASCII characters alone, without spaces".to_owned()
            );
        }
        Ok(Token(text.to_owned()))
    }

    /// Compares in a time that does not depend on where they differ.
    fn is(&self, shown: &[u8]) -> bool {
        let own = self.0.as_bytes();
        let differing = own.iter().zip(shown).fold(0, |differing, (a, b)| differing | (a ^ b));
        own.len() == shown.len() && std::hint::black_box(differing) == 0
    }

    fn is_shown(&self, headers: &HeaderMap) -> bool {
        let shown = headers.get(header::AUTHORIZATION).and_then(|value| {
            let (scheme, shown) = value.as_bytes().split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(shown)
        });
        shown.is_some_and(|shown| self.is(shown))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Access {
    /// At the address of a listener.
    pub fn at(listener: &Listener, token: Option<Token>) -> Access {
        Access { locality: listener.locality(), token }
    }

    /// For nobody.
    pub(super) fn closed() -> Access {
        Access { locality: Locality::Anywhere, token: None }
    }

    pub(super) fn may_read(
        &self,
        peer: Peer,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<(), NoAccess> {
        if peer == Peer::Certified
            || self.token.as_ref().is_some_and(|token| token.is_shown(headers))
        {
            return Ok(());
        }
        match (self.locality, &self.token) {
            (Locality::Socket, _) => Ok(()),
            (Locality::Loopback, _) if asks_for_this_machine(uri, headers) => Ok(()),
            (Locality::Loopback, _) => Err(NoAccess::Host),
            (Locality::Anywhere, Some(_)) => Err(NoAccess::Unauthorized),
            (Locality::Anywhere, None) => Err(NoAccess::Closed),
        }
    }

    pub(super) fn may_change(&self, headers: &HeaderMap) -> Result<(), NoAccess> {
        let token = self.token.as_ref().ok_or(NoAccess::Unchangeable)?;
        if !token.is_shown(headers) {
            return Err(NoAccess::Unauthorized);
        }
        let site = headers.get(FETCH_SITE).map(HeaderValue::as_bytes);
        match site.is_none_or(|site| site == b"same-origin" || site == b"none") {
            true => Ok(()),
            false => Err(NoAccess::Origin),
        }
    }
}

/// Whether every host that a request names is this machine.
fn asks_for_this_machine(uri: &Uri, headers: &HeaderMap) -> bool {
    let in_headers = headers.get_all(header::HOST).iter();
    let in_headers = in_headers.map(|host| host.to_str().ok().map(without_port));
    let in_uri = uri.host().map(Some);
    in_headers.chain(in_uri).all(|host| host.is_some_and(is_this_machine))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        // The last colon may be one of an IPv6 address.
        Some((name, port))
            if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') =>
        {
            name
        }
        _ => host,
    }
}

fn is_this_machine(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost")
        || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

pub(super) fn refused(no_access: NoAccess) -> Page {
    let page = match no_access {
        NoAccess::Unauthorized => {
            let text = "show the token of --http-token-file in the header authorization: Bearer\n";
            Page::text(StatusCode::UNAUTHORIZED, text)
                .with_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
        }
        NoAccess::Closed => Page::text(
            StatusCode::FORBIDDEN,
            "this page is for this machine alone; others need --http-token-file at the sidecar\n",
        ),
        NoAccess::Unchangeable => Page::text(
            StatusCode::FORBIDDEN,
            "changes take a token; start the sidecar with --http-token-file\n",
        ),
        NoAccess::Host => Page::text(
            StatusCode::FORBIDDEN,
            "ask for localhost or 127.0.0.1: without the token of --http-token-file this page is for this machine alone, by no other name\n",
        ),
        NoAccess::Origin => {
            Page::text(StatusCode::FORBIDDEN, "a page of another origin may change nothing\n")
        }
    };
    page.guarded()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    fn access(locality: Locality, has_token: bool) -> Access {
        Access { locality, token: has_token.then(|| Token::new(SECRET).unwrap()) }
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn read(access: &Access, pairs: &[(&'static str, &str)]) -> Result<(), NoAccess> {
        access.may_read(Peer::Unknown, &Uri::from_static("/v1/top"), &headers(pairs))
    }

    #[test]
    fn only_the_whole_token_opens() {
        let far = access(Locality::Anywhere, true);
        let checked = |shown: &str| read(&far, &[("authorization", shown)]);
        assert_eq!(checked(&format!("Bearer {SECRET}")), Ok(()));
        assert_eq!(checked(&format!("bearer {SECRET}")), Ok(()));
        for shown in [
            SECRET.to_owned(),
            format!("Basic {SECRET}"),
            format!("Bearer {SECRET}0"),
            format!("Bearer {}", &SECRET[..31]),
            format!("Bearer  {SECRET}"),
            "Bearer ".to_owned(),
            "é".to_owned(),
        ] {
            assert_eq!(checked(&shown), Err(NoAccess::Unauthorized), "{shown}");
        }
        assert_eq!(read(&access(Locality::Anywhere, false), &[]), Err(NoAccess::Closed));
        assert_eq!(read(&access(Locality::Socket, false), &[("host", "x")]), Ok(()));
        let certified = far.may_read(Peer::Certified, &Uri::from_static("/"), &HeaderMap::new());
        assert_eq!(certified, Ok(()));
    }

    /// A page of a name whose address becomes 127.0.0.1 would otherwise read what this machine alone may.
    #[test]
    fn at_loopback_a_reader_asks_for_this_machine() {
        let near = access(Locality::Loopback, true);
        for host in [
            "127.0.0.1",
            "127.0.0.1:8080",
            "127.1.2.3:1",
            "localhost:8080",
            "LOCALHOST",
            "[::1]",
            "[::1]:8080",
            "::1",
        ] {
            assert_eq!(read(&near, &[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "10.0.0.1:8080",
            "127.0.0.1.evil.example",
            "[::2]:1",
            "",
            ":8080",
            "127.0.0.1:x",
            "é",
        ] {
            assert_eq!(read(&near, &[("host", host)]), Err(NoAccess::Host), "{host}");
        }
        assert_eq!(read(&near, &[]), Ok(()), "no browser leaves it out");
        let both = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(read(&near, &both), Err(NoAccess::Host));
        let token = format!("Bearer {SECRET}");
        assert_eq!(read(&near, &[("host", "evil.example"), ("authorization", &token)]), Ok(()));
        let absolute = Uri::from_static("http://evil.example/v1/top");
        let found = near.may_read(Peer::Unknown, &absolute, &headers(&[("host", "localhost")]));
        assert_eq!(found, Err(NoAccess::Host));
    }

    #[test]
    fn a_change_takes_the_token_wherever_it_is_from() {
        let token = format!("Bearer {SECRET}");
        for locality in [Locality::Socket, Locality::Loopback, Locality::Anywhere] {
            let own = access(locality, true);
            let change = |pairs: &[(&'static str, &str)]| own.may_change(&headers(pairs));
            assert_eq!(change(&[("host", "localhost")]), Err(NoAccess::Unauthorized));
            assert_eq!(change(&[("authorization", &token)]), Ok(()));
            for (site, expected) in [
                ("same-origin", Ok(())),
                ("none", Ok(())),
                ("same-site", Err(NoAccess::Origin)),
                ("cross-site", Err(NoAccess::Origin)),
            ] {
                assert_eq!(change(&[("authorization", &token), (FETCH_SITE, site)]), expected);
            }
            let none = access(locality, false).may_change(&headers(&[("authorization", &token)]));
            assert_eq!(none, Err(NoAccess::Unchangeable));
        }
    }

    #[test]
    fn a_token_is_long_and_printable() {
        assert!(Token::new(&format!(" {SECRET}\n")).is_ok());
        assert!(Token::new(&SECRET[1..]).unwrap_err().contains("32 to 1024"));
        assert!(Token::new(&format!("{SECRET} x")).unwrap_err().contains("printable"));
        assert_eq!(format!("{:?}", Token::new(SECRET).unwrap()), "Token(…)");
    }
}
