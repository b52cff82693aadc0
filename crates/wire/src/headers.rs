//! Response headers that describe limits: `RateLimit-Policy` and `RateLimit` of
//! draft-ietf-httpapi-ratelimit-headers (structured fields, RFC 9651), and `x-ratelimit-*` as Envoy's own
//! filter writes them. Formats text only; the caller selects limits and responses.

use tidegate_core::Verdict;

/// A response header.
pub type Header = (&'static str, String);

/// A limit that a request met, with the fields of the headers.
#[derive(Debug, Clone, Copy)]
pub struct Policy<'a> {
    /// The name of the limit, or the keys of the descriptor that met it. Clients see it, so it never contains
    /// values, which may be secrets.
    pub name: &'a str,
    /// Hits per window.
    pub quota: u32,
    /// The length of the window, if it is one of the named units.
    pub window_secs: Option<u64>,
    /// Hits left.
    pub remaining: u32,
    /// Seconds until more hits are available, rounded up.
    pub reset_secs: u64,
    /// The verdict on the descriptor.
    pub verdict: Verdict,
}

/// Bytes per policy in a header, so that most lists need no reallocation.
const POLICY_BYTES: usize = 48;

/// `RateLimit-Policy` and `RateLimit`. Empty if there is no limit.
#[must_use]
pub fn ietf(policies: &[Policy<'_>]) -> Vec<Header> {
    if policies.is_empty() {
        return Vec::new();
    }
    let room = POLICY_BYTES.saturating_mul(policies.len());
    let (mut limits, mut states) = (String::with_capacity(room), String::with_capacity(room));
    for (index, policy) in policies.iter().enumerate() {
        if index > 0 {
            limits.push_str(", ");
            states.push_str(", ");
        }
        sf_string(&mut limits, policy.name);
        number(&mut limits, ";q=", policy.quota.into());
        window(&mut limits, policy);
        sf_string(&mut states, policy.name);
        number(&mut states, ";r=", policy.remaining.into());
        number(&mut states, ";t=", policy.reset_secs);
    }
    vec![("ratelimit-policy", limits), ("ratelimit", states)]
}

/// `x-ratelimit-limit`, `-remaining` and `-reset`. Empty if there is no limit. An empty name is left out.
#[must_use]
pub fn draft03(policies: &[Policy<'_>]) -> Vec<Header> {
    let Some(tightest) = policies.iter().min_by_key(|policy| policy.remaining) else {
        return Vec::new();
    };
    let mut limit = String::with_capacity(POLICY_BYTES.saturating_mul(policies.len()));
    number(&mut limit, "", tightest.quota.into());
    for policy in policies {
        number(&mut limit, ", ", policy.quota.into());
        window(&mut limit, policy);
        if !policy.name.is_empty() {
            limit.push_str(";name=");
            sf_string(&mut limit, policy.name);
        }
    }
    vec![
        ("x-ratelimit-limit", limit),
        ("x-ratelimit-remaining", tightest.remaining.to_string()),
        ("x-ratelimit-reset", tightest.reset_secs.to_string()),
    ]
}

/// Appends the window as a parameter, if the limit has a named one.
fn window(to: &mut String, policy: &Policy<'_>) {
    if let Some(secs) = policy.window_secs {
        number(to, ";w=", secs);
    }
}

/// Appends a number. Formatting by the library takes several times as many instructions, and most responses
/// have five numbers for each limit.
fn number(to: &mut String, before: &str, number: u64) {
    to.push_str(before);
    let mut digits = [0_u8; 20];
    let mut rest = number;
    let mut count = 0;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
        count += 1;
        if rest == 0 {
            break;
        }
    }
    let digits = digits.get(digits.len() - count..).unwrap_or_default();
    to.push_str(std::str::from_utf8(digits).unwrap_or_default());
}

/// Appends a structured-field string: quoted printable ASCII, with quote and backslash escaped. Other
/// characters become `?`, as a configured name must never end or split a header.
fn sf_string(to: &mut String, name: &str) {
    to.push('"');
    // The usual case; char by char takes several times as long.
    if name.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\') {
        to.push_str(name);
    } else {
        for char in name.chars() {
            match char {
                '"' | '\\' => to.extend(['\\', char]),
                ' '..='~' => to.push(char),
                _ => to.push('?'),
            }
        }
    }
    to.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_neither_end_its_string_nor_the_header() {
        let table =
            [("plain", "\"plain\""), ("a\"b\\c", "\"a\\\"b\\\\c\""), ("x\r\né\u{7f}", "\"x????\"")];
        for (name, expected) in table {
            let mut quoted = String::new();
            sf_string(&mut quoted, name);
            assert_eq!(quoted, expected);
        }
    }

    #[test]
    fn numbers_are_written_as_the_library_writes_them() {
        for number in [0, 1, 9, 10, 99, 100, 4_294_967_295, u64::MAX - 1, u64::MAX] {
            let mut text = String::from("a");
            super::number(&mut text, "=", number);
            assert_eq!(text, format!("a={number}"));
        }
    }

    #[test]
    fn a_limit_without_a_name_has_no_parameter_for_it() {
        let policy = Policy {
            name: "",
            quota: 10,
            window_secs: Some(60),
            remaining: 3,
            reset_secs: 7,
            verdict: Verdict::Allow,
        };
        assert_eq!(draft03(&[policy])[0], ("x-ratelimit-limit", "10, 10;w=60".to_owned()));
        assert_eq!((draft03(&[]), ietf(&[])), (vec![], vec![]));
    }
}
