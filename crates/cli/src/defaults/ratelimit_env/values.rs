//! Parses values of variables as Go does, and returns the values of flags. An error names the expected value.

use hyper::header::HeaderName;
use tidegate_limits::duration;

type Parsed<T> = Result<T, &'static str>;
pub(super) type Parser = fn(&str) -> Parsed<String>;

/// As `strconv.ParseBool`.
pub(super) fn truth(text: &str) -> Parsed<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err("true or false"),
    }
}

/// A text that the flag itself reads.
pub(super) fn any(text: &str) -> Parsed<String> {
    Ok(text.to_owned())
}

/// A wait, which is never none.
pub(super) fn wait(text: &str) -> Parsed<String> {
    const EXPECTED: &str = "a time from 10ms to 24h, such as 10s";
    let wait = age(text).map_err(|_| EXPECTED)?;
    let is_long = duration::parse(&wait)
        .is_some_and(|wait| (10_000_000..=86_400_000_000_000).contains(&wait.as_nanos()));
    if is_long { Ok(wait) } else { Err(EXPECTED) }
}

/// A size; empty for the default.
pub(super) fn message_bytes(text: &str) -> Parsed<String> {
    const EXPECTED: &str = "a number of bytes from 1024 to 1073741824, or 0 for the default";
    match text.parse::<u32>() {
        Ok(0) => Ok(String::new()),
        Ok(bytes) if (1024..=1 << 30).contains(&bytes) => Ok(bytes.to_string()),
        _ => Err(EXPECTED),
    }
}

/// A number from 0 to 1.
pub(super) fn share(text: &str) -> Parsed<String> {
    let share: Option<f64> = text.parse().ok();
    let is_share = share.is_some_and(|share| (0.0..=1.0).contains(&share));
    if is_share { Ok(text.to_owned()) } else { Err("a number from 0 to 1") }
}

/// The address of a server in Go, where no host means all addresses; `host` replaces none.
pub(super) fn address(text: &str, host_else: &str) -> Parsed<String> {
    const EXPECTED: &str = "host:port or :port, such as :9090";
    let (name, number) = text.rsplit_once(':').ok_or(EXPECTED)?;
    let name = if name.is_empty() { Ok(host_else.to_owned()) } else { host(name) };
    Ok(format!("{}:{}", name.map_err(|_| EXPECTED)?, port(number).map_err(|_| EXPECTED)?))
}

/// The path of a page.
pub(super) fn path(text: &str) -> Parsed<String> {
    let is_path = text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic());
    if is_path { Ok(text.to_owned()) } else { Err("a path, such as /metrics") }
}

/// The value of a flag without argument.
pub(super) fn switch(text: &str) -> Parsed<String> {
    truth(text).map(|is_on| is_on.to_string())
}

/// The form of headers about limits; empty for none.
pub(super) fn header_form(text: &str) -> Parsed<String> {
    truth(text).map(|is_on| if is_on { "ratelimit" } else { "" }.to_owned())
}

pub(super) fn port(text: &str) -> Parsed<String> {
    let port: u16 = text.parse().map_err(|_| "a port from 0 to 65535")?;
    Ok(port.to_string())
}

/// A name or an address; IPv6 with or without brackets.
pub(super) fn host(text: &str) -> Parsed<String> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if bare.contains(':') {
        let address: Result<std::net::Ipv6Addr, _> = bare.parse();
        return address.map(|address| format!("[{address}]")).map_err(|_| "a host without a port");
    }
    let is_plain = bare.chars().all(|char| char.is_ascii_alphanumeric() || "-._".contains(char));
    if is_plain { Ok(bare.to_owned()) } else { Err("a host") }
}

/// Whether a host is an address or `localhost`.
pub(super) fn is_address(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse::<std::net::IpAddr>().is_ok()
}

/// The path of a socket. A comma would separate two addresses.
pub(super) fn socket(text: &str) -> Parsed<String> {
    match text.contains(',') {
        true => Err("a path without a comma"),
        false => Ok(format!("unix:{text}")),
    }
}

pub(super) fn header(text: &str) -> Parsed<String> {
    let name = HeaderName::try_from(text).map(|_| text.to_owned());
    name.map_err(|_| "a header's name, such as RateLimit-Limit")
}

/// As `logrus.ParseLevel`.
pub(super) fn log_level(text: &str) -> Parsed<String> {
    Ok(match text.to_ascii_lowercase().as_str() {
        "panic" | "fatal" | "error" => "error",
        "warn" | "warning" => "warn",
        "info" => "info",
        "debug" => "debug",
        "trace" => "trace",
        _ => return Err("panic, fatal, error, warn, info, debug or trace"),
    }
    .to_owned())
}

/// Anything but JSON means text.
pub(super) fn log_format(text: &str) -> Parsed<String> {
    Ok(if text.eq_ignore_ascii_case("json") { "json" } else { "text" }.to_owned())
}

/// Infinite becomes the longest useful time.
pub(super) fn grace(text: &str) -> Parsed<String> {
    age(text).map(|age| if age == "off" { "52w".to_owned() } else { age })
}

/// As `time.ParseDuration`, in milliseconds; 0 means no end.
pub(super) fn age(text: &str) -> Parsed<String> {
    const EXPECTED: &str = "a time, such as 24h, 1h30m or 300s, or 0 for no end";
    match nanos(text).ok_or(EXPECTED)? / 1_000_000 {
        0 => Ok("off".to_owned()),
        millis => {
            let text = format!("{millis}ms");
            duration::parse(&text).map(|_| text).ok_or(EXPECTED)
        }
    }
}

/// As `time.ParseDuration`.
pub(super) fn nanos(text: &str) -> Option<u64> {
    if text == "0" {
        return Some(0);
    }
    let mut total: u64 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let number = rest.find(|char: char| !char.is_ascii_digit() && char != '.')?;
        let unit = rest[number..].find(|char: char| char.is_ascii_digit() || char == '.');
        let end = unit.map_or(rest.len(), |unit| number + unit);
        let nanos = match &rest[number..end] {
            "ns" => 1.0,
            "us" | "µs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3_600e9,
            _ => return None,
        };
        let number: f64 = rest[..number].parse().ok()?;
        // A cast saturates.
        total = total.saturating_add((number * nanos) as u64);
        rest = &rest[end..];
    }
    Some(total)
}
