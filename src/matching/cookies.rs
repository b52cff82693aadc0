//! Cookies: their extraction from a header.
//!
//! The rules of Envoy: cookies are separated by `;`, spaces before a name and quotes around a value
//! do not count, and the first cookie with a name counts, even without a value.

/// The value of the first cookie with this name.
pub fn value_of<'a>(header: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    header.split(|byte| *byte == b';').find_map(|cookie| {
        let (mut key, value) = cookie.split_at_checked(memchr::memchr(b'=', cookie)?)?;
        while let Some(rest) = key.strip_prefix(b" ") {
            key = rest;
        }
        if key != name {
            return None;
        }
        match value.get(1..)? {
            [b'"', quoted @ .., b'"'] => Some(quoted),
            value => Some(value),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(header: &str, expected: Option<&str>) {
        let found = value_of(header.as_bytes(), b"jwt");
        assert_eq!(found, expected.map(str::as_bytes), "in {header:?}");
    }

    #[test]
    fn the_first_cookie_with_the_name_counts() {
        check("jwt=a", Some("a"));
        check("b=c; jwt=a; d=e", Some("a"));
        check("b=c;jwt=a;jwt=b", Some("a"));
        check("jwt=; jwt=b", Some(""));
        check(";; ;   jwt=a", Some("a"));
        check("jwt; jwt=a", Some("a"));
        check("jwt=a=b", Some("a=b"));
        for header in
            ["", ";", "=", "jwt", "jwtx=a", "xjwt=a", "JWT=a", "jwt =a", "\tjwt=a", "j=jwt=a"]
        {
            check(header, None);
        }
    }

    #[test]
    fn only_quotes_around_the_whole_value_are_left_out() {
        check("jwt=\"a\"", Some("a"));
        check("jwt=\"\"", Some(""));
        check("jwt=\"", Some("\""));
        check("jwt=\"a", Some("\"a"));
        check("jwt=a\"", Some("a\""));
        check("jwt=\"a\" ;", Some("\"a\" "));
        check("jwt= \"a\"", Some(" \"a\""));
        check("jwt=\"a;b\"", Some("\"a"));
    }
}
