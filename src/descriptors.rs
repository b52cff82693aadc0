//! From a request to its descriptors, by the configured actions.
//!
//! Header values may be any bytes, and as many as Envoy lets through. On the wire a value is
//! UTF-8, so other bytes become U+FFFD: never a panic, and clients that differ in nothing else
//! share a counter. A long value is shortened: otherwise a client could make an ask too large to
//! be answered, and `failure_mode` would decide instead of its limits.

use crate::config::{Action, RateLimit, WhenAbsent};
use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use tidegate_core::{Descriptor, Entry, fingerprint};

/// What the filter can see of a request.
pub trait RequestFacts {
    /// The first value of a header. The first, as Envoy's own `request_headers` action takes it,
    /// so that a client cannot change its key by repeating the header.
    fn header(&self, name: &str) -> Option<Vec<u8>>;
    /// Envoy's `source.address`: `ip:port`, after its own reading of `x-forwarded-for`.
    fn source_address(&self) -> Option<Vec<u8>>;
}

/// The descriptors of a request, one per entry of `rate_limits` whose actions all apply.
pub fn descriptors(rate_limits: &[RateLimit], facts: &impl RequestFacts) -> Vec<Descriptor> {
    rate_limits.iter().filter_map(|rate_limit| descriptor(rate_limit, facts)).collect()
}

fn descriptor(rate_limit: &RateLimit, facts: &impl RequestFacts) -> Option<Descriptor> {
    let mut entries = Vec::with_capacity(rate_limit.actions.len());
    for action in &rate_limit.actions {
        match entry(action, facts) {
            Some(entry) => entries.push(entry),
            None if skips(action) => {}
            None => return None,
        }
    }
    (!entries.is_empty()).then(|| Descriptor::new(entries))
}

fn entry(action: &Action, facts: &impl RequestFacts) -> Option<Entry> {
    match action {
        Action::RequestHeaders { header_name, descriptor_key, .. } => {
            let value = facts.header(header_name)?;
            Some(Entry::new(descriptor_key, text_of(&value)))
        }
        Action::RemoteAddress => {
            let ip = ip_of(&facts.source_address()?)?;
            Some(Entry::new("remote_address", ip.to_string()))
        }
        Action::GenericKey { descriptor_key, descriptor_value } => {
            Some(Entry::new(descriptor_key, descriptor_value))
        }
    }
}

fn skips(action: &Action) -> bool {
    matches!(action, Action::RequestHeaders { when_absent: WhenAbsent::SkipEntry, .. })
}

/// The longest header value that goes into a descriptor as it is. Keys and tokens that rules name
/// are far shorter.
const VALUE_BYTES_MAX: usize = 1024;
/// How much of a longer value is kept, for people who read it.
const VALUE_BYTES_KEPT: usize = 64;

/// A header value as text; a long one as its beginning, `~`, and the hash of the whole.
fn text_of(value: &[u8]) -> Cow<'_, str> {
    if value.len() <= VALUE_BYTES_MAX {
        return String::from_utf8_lossy(value);
    }
    let kept = value.get(..VALUE_BYTES_KEPT).unwrap_or_default();
    format!("{}~{:032x}", String::from_utf8_lossy(kept), fingerprint(value)).into()
}

/// The address without its port; none for what is no IP address, such as a Unix socket.
fn ip_of(address: &[u8]) -> Option<IpAddr> {
    let address = std::str::from_utf8(address).ok()?;
    match address.parse::<SocketAddr>() {
        Ok(socket) => Some(socket.ip()),
        Err(_) => address.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Facts {
        headers: Vec<(&'static str, &'static [u8])>,
        source: Option<&'static [u8]>,
    }

    impl RequestFacts for Facts {
        fn header(&self, name: &str) -> Option<Vec<u8>> {
            let found = self.headers.iter().find(|(header, _)| *header == name)?;
            Some(found.1.to_vec())
        }

        fn source_address(&self) -> Option<Vec<u8>> {
            self.source.map(<[u8]>::to_vec)
        }
    }

    fn header(name: &str, when_absent: WhenAbsent) -> Action {
        Action::RequestHeaders {
            header_name: name.to_owned(),
            descriptor_key: name.to_owned(),
            when_absent,
        }
    }

    fn generic() -> Action {
        Action::GenericKey { descriptor_key: "g".into(), descriptor_value: "v".into() }
    }

    fn check(actions: Vec<Action>, facts: &Facts, expected: Option<&[(&str, &str)]>) {
        let made = descriptors(&[RateLimit { actions }], facts);
        let expected = expected.map(|entries| {
            Descriptor::new(entries.iter().map(|(key, value)| Entry::new(*key, *value)).collect())
        });
        assert_eq!(made, Vec::from_iter(expected));
    }

    #[test]
    fn an_absent_header_drops_the_descriptor_unless_it_may_be_skipped() {
        let none = Facts::default();
        check(vec![generic(), header("a", WhenAbsent::DropDescriptor)], &none, None);
        check(vec![generic(), header("a", WhenAbsent::SkipEntry)], &none, Some(&[("g", "v")]));
        check(vec![header("a", WhenAbsent::SkipEntry)], &none, None);
        let some = Facts { headers: vec![("a", b"")], source: None };
        check(vec![header("a", WhenAbsent::DropDescriptor)], &some, Some(&[("a", "")]));
    }

    #[test]
    fn any_bytes_make_a_value() {
        let facts = Facts { headers: vec![("a", b"x\xffy\xfe")], source: None };
        let expected = [("a", "x\u{fffd}y\u{fffd}")];
        check(vec![header("a", WhenAbsent::DropDescriptor)], &facts, Some(&expected));
    }

    #[test]
    fn a_long_value_is_shortened_and_stays_apart_from_others() {
        let long = |last: u8| [&[b'a'; VALUE_BYTES_MAX][..], &[last]].concat();
        let (one, other) = (text_of(&long(b'1')).into_owned(), text_of(&long(b'2')).into_owned());
        assert_ne!(one, other);
        assert_eq!(one.len(), VALUE_BYTES_KEPT + 1 + 32);
        assert!(one.starts_with(&format!("{}~", "a".repeat(VALUE_BYTES_KEPT))));
        let bytes = vec![0xe9; 60_000];
        assert!(text_of(&bytes).len() <= 3 * VALUE_BYTES_KEPT + 33);
        assert_eq!(text_of(&[b'a'; VALUE_BYTES_MAX]), "a".repeat(VALUE_BYTES_MAX));
    }

    #[test]
    fn an_address_loses_its_port() {
        let table: [(&[u8], Option<&str>); 6] = [
            (b"203.0.113.9:0", Some("203.0.113.9")),
            (b"203.0.113.9", Some("203.0.113.9")),
            (b"[2001:db8::1]:443", Some("2001:db8::1")),
            (b"2001:db8::1", Some("2001:db8::1")),
            (b"/run/envoy.sock", None),
            (b"\xff\xff", None),
        ];
        for (source, ip) in table {
            let facts = Facts { headers: Vec::new(), source: Some(source) };
            let expected = ip.map(|ip| [("remote_address", ip)]);
            check(vec![Action::RemoteAddress], &facts, expected.as_ref().map(|e| &e[..]));
        }
        check(vec![Action::RemoteAddress], &Facts::default(), None);
    }
}
