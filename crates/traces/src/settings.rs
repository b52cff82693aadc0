//! Settings of the export, from the variables that OpenTelemetry specifies, and flags that go before them.
//!
//! A variable for traces alone (`OTEL_EXPORTER_OTLP_TRACES_…`) goes before the one for all signals. An empty one counts as
//! not set. A value that makes no sense is an error and no default, so that no trace is missed in silence.

use crate::random;
use crate::sampler::Sampler;
use hyper::Uri;
use hyper::header::{HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use tidegate_tls::ClientFiles;

/// What OpenTelemetry gives an export.
const TIMEOUT: Duration = Duration::from_secs(10);
const TIMEOUT_MAX: Duration = Duration::from_secs(600);
/// The name of a service without one.
const SERVICE: &str = "tidegate";

/// How spans reach the collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    Grpc,
    #[default]
    HttpProtobuf,
}

/// Flags that go before variables.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    /// The share of calls without a choice of the client that are sampled.
    pub ratio: Option<f64>,
    pub protocol: Option<Protocol>,
    /// Of the resource.
    pub attributes: Vec<(String, String)>,
}

/// All settings of the export.
#[derive(Clone)]
pub struct Settings {
    pub(crate) protocol: Protocol,
    /// An http or https URL with a host.
    pub(crate) endpoint: Uri,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    /// For one attempt.
    pub(crate) timeout: Duration,
    /// Names and values of what describes this process.
    pub(crate) resource: Vec<(String, String)>,
    pub(crate) sampler: Sampler,
    pub(crate) tls: ClientFiles,
}

/// A variable that makes no sense: its name and value, and what is expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Mistake(String);

impl FromStr for Protocol {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Protocol, Self::Err> {
        match text {
            "grpc" => Ok(Protocol::Grpc),
            "http/protobuf" => Ok(Protocol::HttpProtobuf),
            _ => Err("grpc or http/protobuf"),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Grpc => "grpc",
            Protocol::HttpProtobuf => "http/protobuf",
        })
    }
}

/// Headers may be secrets.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("protocol", &self.protocol)
            .field("endpoint", &self.endpoint)
            .field("sampler", &self.sampler)
            .finish_non_exhaustive()
    }
}

impl Settings {
    /// The settings; none if `OTEL_SDK_DISABLED` is true.
    ///
    /// # Errors
    /// At the first variable that makes no sense.
    pub fn read(
        flags: &Flags,
        value_of: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Option<Settings>, Mistake> {
        let environment = Environment(value_of);
        // As the specification has it, anything but this leaves it enabled.
        let disabled = environment.text("OTEL_SDK_DISABLED")?;
        if disabled.is_some_and(|text| text.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let protocol = match flags.protocol {
            Some(protocol) => protocol,
            None => environment.of_traces("PROTOCOL", Protocol::from_str)?.unwrap_or_default(),
        };
        Ok(Some(Settings {
            protocol,
            endpoint: environment.endpoint(protocol)?,
            headers: environment.headers()?,
            timeout: environment.of_traces("TIMEOUT", timeout)?.unwrap_or(TIMEOUT),
            resource: environment.resource(&flags.attributes)?,
            sampler: match flags.ratio {
                Some(ratio) => Sampler::by_parent(ratio),
                None => environment.sampler()?,
            },
            tls: environment.tls_files()?,
        }))
    }

    /// Where spans go, for the log.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("{} by {}", self.endpoint, self.protocol)
    }
}

/// Variables.
struct Environment<F>(F);

impl<F: Fn(&str) -> Option<OsString>> Environment<F> {
    fn text(&self, name: &str) -> Result<Option<String>, Mistake> {
        let Some(value) = (self.0)(name).filter(|value| !value.is_empty()) else { return Ok(None) };
        let text = value.into_string();
        text.map(Some).map_err(|value| Mistake(format!("{name}={value:?}: expected UTF-8")))
    }

    fn parsed<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, &'static str>,
    ) -> Result<Option<T>, Mistake> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let mistake = |expected| Mistake(format!("{name}={text:?}: expected {expected}"));
        parse(&text).map(Some).map_err(mistake)
    }

    /// A variable of the exporter.
    fn of_traces<T>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, &'static str>,
    ) -> Result<Option<T>, Mistake> {
        match self.parsed(&format!("OTEL_EXPORTER_OTLP_TRACES_{name}"), &parse)? {
            Some(value) => Ok(Some(value)),
            None => self.parsed(&format!("OTEL_EXPORTER_OTLP_{name}"), &parse),
        }
    }

    /// Over HTTP the one of traces is used as it is, and the path of their service is appended to the other.
    fn endpoint(&self, protocol: Protocol) -> Result<Uri, Mistake> {
        if let Some(endpoint) = self.url("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", url)? {
            return Ok(endpoint);
        }
        let base = self.url("OTEL_EXPORTER_OTLP_ENDPOINT", |text| match protocol {
            Protocol::Grpc => url(text),
            Protocol::HttpProtobuf => {
                url(text)?;
                url(&format!("{}/v1/traces", text.trim_end_matches('/')))
            }
        })?;
        Ok(base.unwrap_or_else(|| match protocol {
            Protocol::Grpc => Uri::from_static("http://localhost:4317"),
            Protocol::HttpProtobuf => Uri::from_static("http://localhost:4318/v1/traces"),
        }))
    }

    /// A URL, which is not repeated if it may have a password.
    fn url(
        &self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<Uri, &'static str>,
    ) -> Result<Option<Uri>, Mistake> {
        if self.text(name)?.is_some_and(|text| text.contains('@')) {
            let expected = "expected a URL without a user; headers may have a password";
            return Err(Mistake(format!("{name}=…: {expected}")));
        }
        self.parsed(name, parse)
    }

    /// Their values may be secrets, so that no error repeats them.
    fn headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>, Mistake> {
        for name in ["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"] {
            let Some(text) = self.text(name)? else { continue };
            let expected = "expected names of headers and their values, as NAME=VALUE,NAME=VALUE";
            let read = pairs(&text).and_then(|pairs| pairs.iter().map(header).collect());
            return read.ok_or_else(|| Mistake(format!("{name}=…: {expected}")));
        }
        Ok(Vec::new())
    }

    /// Of several values of a name the first counts.
    fn resource(&self, given: &[(String, String)]) -> Result<Vec<(String, String)>, Mistake> {
        let own = |name: &str, value: String| (name.to_owned(), value);
        let mut all = given.to_vec();
        all.extend(self.text("OTEL_SERVICE_NAME")?.map(|name| own("service.name", name)));
        let attributes = |text: &str| pairs(text).ok_or("attributes, as KEY=VALUE,KEY=VALUE");
        all.extend(self.parsed("OTEL_RESOURCE_ATTRIBUTES", attributes)?.unwrap_or_default());
        all.push(own("service.name", SERVICE.to_owned()));
        all.push(own("service.version", env!("CARGO_PKG_VERSION").to_owned()));
        all.push(own("service.instance.id", instance_id()));
        let mut resource: Vec<(String, String)> = Vec::new();
        for (name, value) in all {
            if !resource.iter().any(|(known, _)| *known == name) {
                resource.push((name, value));
            }
        }
        Ok(resource)
    }

    fn sampler(&self) -> Result<Sampler, Mistake> {
        let share = || {
            let share = self.parsed("OTEL_TRACES_SAMPLER_ARG", share)?;
            Ok(share.unwrap_or(1.0))
        };
        let Some(name) = self.text("OTEL_TRACES_SAMPLER")? else {
            return Ok(Sampler::by_parent(1.0));
        };
        Ok(match name.as_str() {
            "always_on" => Sampler::by_itself(1.0),
            "always_off" => Sampler::by_itself(0.0),
            "traceidratio" => Sampler::by_itself(share()?),
            "parentbased_always_on" => Sampler::by_parent(1.0),
            "parentbased_always_off" => Sampler::by_parent(0.0),
            "parentbased_traceidratio" => Sampler::by_parent(share()?),
            _ => {
                return Err(Mistake(format!(
                    "OTEL_TRACES_SAMPLER={name:?}: expected always_on, always_off, traceidratio, \
                     or one of them after parentbased_"
                )));
            }
        })
    }

    fn tls_files(&self) -> Result<ClientFiles, Mistake> {
        let path = |name| self.of_traces(name, |text| Ok(PathBuf::from(text)));
        let authorities = path("CERTIFICATE")?;
        match (path("CLIENT_CERTIFICATE")?, path("CLIENT_KEY")?) {
            (Some(cert), Some(key)) => Ok(ClientFiles { authorities, client: Some((cert, key)) }),
            (None, None) => Ok(ClientFiles { authorities, client: None }),
            _ => Err(Mistake(
                "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY need each other"
                    .to_owned(),
            )),
        }
    }
}

/// `KEY=VALUE,KEY=VALUE` with percent-encoding; none if it is not.
#[must_use]
pub fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let decoded =
        |text: &str| Some(percent_decode_str(text.trim()).decode_utf8().ok()?.into_owned());
    let pair = |text: &str| {
        let (key, value) = text.split_once('=')?;
        let pair = (decoded(key)?, decoded(value)?);
        (!pair.0.is_empty()).then_some(pair)
    };
    text.split(',').filter(|part| !part.trim().is_empty()).map(pair).collect()
}

fn header((name, value): &(String, String)) -> Option<(HeaderName, HeaderValue)> {
    let name = HeaderName::try_from(name).ok()?;
    let mut value = HeaderValue::try_from(value).ok()?;
    // gRPC has values in ASCII.
    value.to_str().ok()?;
    value.set_sensitive(true);
    Some((name, value))
}

fn url(text: &str) -> Result<Uri, &'static str> {
    const EXPECTED: &str = "a URL, such as http://collector:4318 or https://collector:4317";
    let uri: Uri = text.parse().map_err(|_| EXPECTED)?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    let has_host = uri.host().is_some_and(|host| !host.is_empty());
    if is_http && has_host { Ok(uri) } else { Err(EXPECTED) }
}

fn timeout(text: &str) -> Result<Duration, &'static str> {
    let millis: Option<u64> = text.parse().ok();
    let timeout = millis.map(Duration::from_millis);
    let timeout = timeout.filter(|timeout| !timeout.is_zero() && *timeout <= TIMEOUT_MAX);
    timeout.ok_or("milliseconds from 1 to 600000")
}

fn share(text: &str) -> Result<f64, &'static str> {
    let share: Option<f64> = text.parse().ok();
    share.filter(|share| (0.0..=1.0).contains(share)).ok_or("a number from 0 to 1")
}

/// A random UUID (RFC 9562, version 4).
fn instance_id() -> String {
    let random = random::trace_id() & !(0xf << 76) & !(0x3 << 62);
    let hex = format!("{:032x}", random | (0x4 << 76) | (0x2 << 62));
    let (a, b, c, d, e) = (&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
    format!("{a}-{b}-{c}-{d}-{e}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Settings>, Mistake> {
        read_with(&Flags::default(), variables)
    }

    fn read_with(flags: &Flags, variables: &[(&str, &str)]) -> Result<Option<Settings>, Mistake> {
        Settings::read(flags, |name| {
            let found = variables.iter().find(|(found, _)| *found == name);
            found.map(|(_, value)| value.into())
        })
    }

    fn settings(variables: &[(&str, &str)]) -> Settings {
        read(variables).unwrap().unwrap()
    }

    #[test]
    fn without_variables_spans_go_to_this_machine() {
        let found = settings(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]);
        assert_eq!(found.endpoint(), "http://localhost:4318/v1/traces by http/protobuf");
        assert_eq!((found.timeout, found.sampler), (TIMEOUT, Sampler::by_parent(1.0)));
        assert!(found.headers.is_empty());
        let grpc = settings(&[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]);
        assert_eq!(grpc.endpoint(), "http://localhost:4317/ by grpc");
    }

    #[test]
    fn the_variable_for_traces_goes_before_the_one_for_all() {
        let all = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://all:4318/base/");
        assert_eq!(settings(&[all]).endpoint.to_string(), "https://all:4318/base/v1/traces");
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://own:1/x");
        assert_eq!(settings(&[all, own]).endpoint.to_string(), "http://own:1/x");
        let timeouts =
            [("OTEL_EXPORTER_OTLP_TIMEOUT", "5000"), ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "7")];
        assert_eq!(settings(&timeouts).timeout, Duration::from_millis(7));
        let headers = [
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=1"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "X-Key = b%20c ,d=e=f,"),
        ];
        let found = settings(&headers);
        let found: Vec<(&str, &str)> = found
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        assert_eq!(found, [("x-key", "b c"), ("d", "e=f")]);
        assert!(!format!("{:?}", settings(&headers)).contains("b c"));
    }

    #[test]
    fn flags_go_before_variables() {
        let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let flags = Flags {
            ratio: Some(0.5),
            protocol: Some(Protocol::Grpc),
            attributes: vec![pair(("service.name", "flag"))],
        };
        let variables = [
            ("OTEL_TRACES_SAMPLER", "always_on"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_SERVICE_NAME", "variable"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=attribute,a=%2C"),
        ];
        let found = read_with(&flags, &variables).unwrap().unwrap();
        assert_eq!((found.protocol, found.sampler), (Protocol::Grpc, Sampler::by_parent(0.5)));
        assert_eq!(found.resource[..2], [("service.name", "flag"), ("a", ",")].map(pair));
        let found = settings(&variables[2..]);
        assert_eq!(found.resource[0].1, "variable");
        let found = settings(&variables[3..]);
        assert_eq!(found.resource[0].1, "attribute");
        let names: Vec<&str> = found.resource.iter().map(|(name, _)| name.as_str()).collect();
        let others = ["service.name", "a", "service.version", "service.instance.id"];
        assert_eq!(names, others);
    }

    #[test]
    fn samplers_have_the_names_of_the_specification() {
        let sampler = |name, share| {
            settings(&[("OTEL_TRACES_SAMPLER", name), ("OTEL_TRACES_SAMPLER_ARG", share)]).sampler
        };
        for (name, expected) in [
            ("always_on", Sampler::by_itself(1.0)),
            ("always_off", Sampler::by_itself(0.0)),
            ("traceidratio", Sampler::by_itself(0.25)),
            ("parentbased_always_on", Sampler::by_parent(1.0)),
            ("parentbased_always_off", Sampler::by_parent(0.0)),
            ("parentbased_traceidratio", Sampler::by_parent(0.25)),
        ] {
            assert_eq!(sampler(name, "0.25"), expected, "{name}");
        }
        assert_eq!(sampler("traceidratio", ""), Sampler::by_itself(1.0));
    }

    #[test]
    fn the_sdk_can_be_disabled() {
        assert!(read(&[("OTEL_SDK_DISABLED", "TRUE")]).unwrap().is_none());
        assert!(read(&[("OTEL_SDK_DISABLED", "yes")]).unwrap().is_some());
    }

    #[test]
    fn a_value_that_makes_no_sense_is_named_with_what_is_expected() {
        const URL: &str = "a URL, such as http://collector:4318 or https://collector:4317";
        for (name, value, expected) in [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317", URL),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "/v1", URL),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://", URL),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "unix:/x", URL),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "grpc or http/protobuf"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http", "grpc or http/protobuf"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "milliseconds from 1 to 600000"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "0", "milliseconds from 1 to 600000"),
            ("OTEL_RESOURCE_ATTRIBUTES", "a", "attributes, as KEY=VALUE,KEY=VALUE"),
            ("OTEL_RESOURCE_ATTRIBUTES", "=1", "attributes, as KEY=VALUE,KEY=VALUE"),
            ("OTEL_RESOURCE_ATTRIBUTES", "a=%ff", "attributes, as KEY=VALUE,KEY=VALUE"),
        ] {
            let mistake = read(&[(name, value)]).unwrap_err().to_string();
            assert_eq!(mistake, format!("{name}={value:?}: expected {expected}"));
        }
        let secret = read(&[("OTEL_EXPORTER_OTLP_HEADERS", "sec ret=x")]).unwrap_err().to_string();
        assert!(secret.starts_with("OTEL_EXPORTER_OTLP_HEADERS=…: expected names"), "{secret}");
        let secret = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:password@collector")];
        let mistake = read(&secret).unwrap_err().to_string();
        assert!(mistake.contains("without a user") && !mistake.contains("password@"), "{mistake}");
        let sampler = [("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "2")];
        let mistake = read(&sampler).unwrap_err().to_string();
        assert_eq!(mistake, "OTEL_TRACES_SAMPLER_ARG=\"2\": expected a number from 0 to 1");
        let mistake = read(&[("OTEL_TRACES_SAMPLER", "sometimes")]).unwrap_err().to_string();
        assert!(mistake.starts_with("OTEL_TRACES_SAMPLER=\"sometimes\": expected always_on, "));
        let mistake = read(&[("OTEL_EXPORTER_OTLP_CLIENT_KEY", "k")]).unwrap_err().to_string();
        assert!(mistake.ends_with("need each other"), "{mistake}");
    }

    #[test]
    fn an_instance_has_a_uuid() {
        let id = instance_id();
        let parts: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12]);
        assert!(id[14..].starts_with('4') && "89ab".contains(&id[19..20]), "{id}");
        assert_ne!(id, instance_id());
    }
}
