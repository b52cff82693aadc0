//! The plugin configuration: JSON, checked whole before any request is served.
//!
//! Two layers: raw serde structs that know the spelling, and the validated [`Config`] that the
//! rest of the filter reads. (An enum whose every spelling is valid is the same in both.) An error names the field by its path, such as
//! `rate_limits[0].actions[1].request_headers.header_name`.

mod raw;
mod structured;

use serde::Deserialize;
use std::time::Duration;

/// A valid configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct Config {
    /// The domain of every ask.
    pub domain: String,
    /// The Envoy cluster that is the sidecar.
    pub cluster: String,
    /// That cluster as the target of a gRPC call, in the form that Envoy wants.
    pub call_target: String,
    /// How long an ask may take.
    pub timeout: Duration,
    /// What happens to a request that nobody could decide.
    pub failure_mode: FailureMode,
    /// How descriptors are made; each yields at most one.
    pub rate_limits: Vec<RateLimit>,
    /// Which rate limit headers clients get.
    pub headers: HeaderStyle,
    /// The reply to a denied request.
    pub denied: DeniedReply,
}

/// What happens to a request that nobody could decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailureMode {
    /// It passes.
    #[default]
    Allow,
    /// It is answered with 500, as Envoy's own filter does.
    Deny,
}

/// The recipe of one descriptor: one action per entry.
#[derive(Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// The recipe's steps; never empty.
    pub actions: Vec<Action>,
}

/// The recipe of one entry, named as in Envoy's route configuration.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// The value of a request header.
    RequestHeaders {
        /// The header, in lower case; may be a pseudo-header such as `:path`.
        header_name: String,
        /// The entry's key.
        descriptor_key: String,
        /// What a request without the header gets.
        when_absent: WhenAbsent,
    },
    /// The client's address as Envoy trusts it, without the port.
    RemoteAddress,
    /// A fixed value.
    GenericKey {
        /// The entry's key.
        descriptor_key: String,
        /// The entry's value.
        descriptor_value: String,
    },
}

/// What an action does when the request lacks what it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenAbsent {
    /// Drop the whole descriptor.
    DropDescriptor,
    /// Leave out this entry (`skip_if_absent`).
    SkipEntry,
}

/// Which headers tell clients about their limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeaderStyle {
    /// `RateLimit-Policy` and `RateLimit` of the current IETF draft.
    #[default]
    Ietf,
    /// `x-ratelimit-limit`, `-remaining` and `-reset`, as Envoy's own filter has them.
    Draft03,
    /// None.
    Off,
}

/// The reply to a denied request.
#[derive(Debug, PartialEq, Eq)]
pub struct DeniedReply {
    /// HTTP status, 400 to 599.
    pub status: u32,
    /// The body; may be empty.
    pub body: String,
}

/// A mistake in the configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Where it is; empty for the document as a whole.
    pub path: String,
    /// What is wrong, and what was expected.
    pub message: String,
}

impl ConfigError {
    fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        ConfigError { path: path.into(), message: message.into() }
    }
}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.path.is_empty() {
            write!(f, "plugin configuration: {}", self.message)
        } else {
            write!(f, "plugin configuration: {}: {}", self.path, self.message)
        }
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Reads and checks a configuration as Envoy hands it over: the text of a JSON object, or
    /// the bytes of a protobuf Struct.
    ///
    /// # Errors
    /// The first mistake, with the path of its field.
    pub fn from_envoy(bytes: &[u8]) -> Result<Config, ConfigError> {
        // JSON first: its text may begin with a line feed, which is a Struct's first byte, but a
        // Struct is never JSON to its end.
        let value = match (serde_json::from_slice(bytes), structured::json_of_struct(bytes)) {
            (Ok(json), _) => json,
            (Err(_), Some(structured)) => structured,
            (Err(error), None) if bytes.trim_ascii_start().first() == Some(&b'{') => {
                return Err(ConfigError::new("", format!("not JSON: {error}")));
            }
            (Err(_), None) => serde_json::Value::Null,
        };
        if !value.is_object() {
            let message = "expected a JSON object with `domain`, `sidecar` and `rate_limits`";
            return Err(ConfigError::new("", message));
        }
        let raw: raw::Config = serde_path_to_error::deserialize(value).map_err(|error| {
            let path = error.path().to_string();
            let path = if path == "." { String::new() } else { path };
            ConfigError::new(path, in_users_words(error.inner().to_string()))
        })?;
        raw.validate()
    }
}

/// The library names the Rust type that it wanted; who writes JSON knows numbers.
fn in_users_words(message: String) -> String {
    match message.strip_suffix("expected u64").or(message.strip_suffix("expected u32")) {
        Some(start) => format!("{start}expected a whole number"),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = r#"{
        "domain": "shop",
        "sidecar": {"cluster": "tidegate", "timeout_ms": 20},
        "failure_mode": "deny",
        "rate_limits": [{"actions": [
            {"request_headers": {"header_name": "X-App", "descriptor_key": "app"}},
            {"remote_address": {}},
            {"generic_key": {"descriptor_value": "v"}}
        ]}],
        "headers": "draft03",
        "denied": {"status": 503, "body": "later"}
    }"#;

    #[test]
    fn a_full_configuration_is_read() {
        let config = Config::from_envoy(FULL.as_bytes()).unwrap();
        assert_eq!((config.domain.as_str(), config.cluster.as_str()), ("shop", "tidegate"));
        assert_eq!(config.timeout, Duration::from_millis(20));
        assert_eq!(config.failure_mode, FailureMode::Deny);
        assert_eq!(config.headers, HeaderStyle::Draft03);
        assert_eq!(config.denied, DeniedReply { status: 503, body: "later".into() });
        let [RateLimit { actions }] = config.rate_limits.as_slice() else { panic!("one recipe") };
        let header = Action::RequestHeaders {
            header_name: "x-app".into(),
            descriptor_key: "app".into(),
            when_absent: WhenAbsent::DropDescriptor,
        };
        let generic = Action::GenericKey {
            descriptor_key: "generic_key".into(),
            descriptor_value: "v".into(),
        };
        assert_eq!(actions, &[header, Action::RemoteAddress, generic]);
    }

    #[test]
    fn what_is_left_out_has_envoys_defaults() {
        let json = r#"{"domain":"d","sidecar":{"cluster":"c"},
            "rate_limits":[{"actions":[{"remote_address":{}}]}]}"#;
        let config = Config::from_envoy(json.as_bytes()).unwrap();
        assert_eq!(config.timeout, Duration::from_millis(20));
        assert_eq!(config.failure_mode, FailureMode::Allow);
        assert_eq!(config.headers, HeaderStyle::Ietf);
        assert_eq!(config.denied.status, 429);
    }

    /// One row per way to get it wrong: what is replaced in FULL, by what, and the message.
    #[test]
    fn every_mistake_names_its_field_and_what_was_expected() {
        let table = [
            (r#""shop""#, "7", "domain: invalid type: integer `7`, expected a string"),
            (r#""shop""#, r#""""#, "domain: must not be empty"),
            (r#""domain": "shop","#, "", "missing field `domain`"),
            (
                r#""sidecar""#,
                r#""sidecars""#,
                "sidecars: unknown field `sidecars`, expected one of `domain`, `sidecar`, \
                 `failure_mode`, `rate_limits`, `headers`, `denied`",
            ),
            (r#""tidegate""#, r#""""#, "sidecar.cluster: must not be empty"),
            (
                r#""timeout_ms": 20"#,
                r#""timeout_ms": 0"#,
                "sidecar.timeout_ms: 0 is out of range (1 to 60000)",
            ),
            (
                r#""timeout_ms": 20"#,
                r#""timeout_ms": "20ms""#,
                "sidecar.timeout_ms: invalid type: string \"20ms\", expected a whole number",
            ),
            (
                r#""failure_mode": "deny""#,
                r#""failure_mode": "open""#,
                "failure_mode: unknown variant `open`, expected `allow` or `deny`",
            ),
            (
                r#""draft03""#,
                r#""x""#,
                "headers: unknown variant `x`, expected one of `ietf`, `draft03`, `off`",
            ),
            (
                r#"{"remote_address": {}}"#,
                r#"{"remote_adress": {}}"#,
                "rate_limits[0].actions[1].remote_adress: unknown field `remote_adress`, \
                 expected one of `request_headers`, `remote_address`, `generic_key`",
            ),
            (
                r#"{"remote_address": {}}"#,
                "{}",
                "rate_limits[0].actions[1]: expected exactly one of `request_headers`, \
                 `remote_address`, `generic_key`",
            ),
            (
                r#"{"remote_address": {}}"#,
                r#"{"remote_address": {}, "generic_key": {"descriptor_value": "v"}}"#,
                "rate_limits[0].actions[1]: expected exactly one of `request_headers`, \
                 `remote_address`, `generic_key`",
            ),
            (
                r#""X-App""#,
                r#""x app""#,
                "rate_limits[0].actions[0].request_headers.header_name: \"x app\" is not a \
                 header name",
            ),
            (
                r#""descriptor_key": "app""#,
                r#""descriptor_key": """#,
                "rate_limits[0].actions[0].request_headers.descriptor_key: must not be empty",
            ),
            (
                r#"{"descriptor_value": "v"}"#,
                "{}",
                "rate_limits[0].actions[2].generic_key: missing field `descriptor_value`",
            ),
            (
                r#"{"cluster": "tidegate", "timeout_ms": 20}"#,
                r#""tidegate""#,
                "sidecar: invalid type: string \"tidegate\", expected an object with `cluster`",
            ),
            (
                r#""status": 503"#,
                r#""status": 200"#,
                "denied.status: 200 is out of range (400 to 599)",
            ),
        ];
        for (part, replacement, message) in table {
            assert!(FULL.contains(part), "the row replaces nothing: {part}");
            let json = FULL.replacen(part, replacement, 1);
            let error = Config::from_envoy(json.as_bytes()).unwrap_err().to_string();
            assert_eq!(error, format!("plugin configuration: {message}"), "for {replacement}");
        }
    }

    #[test]
    fn as_many_rate_limits_as_the_sidecar_answers_for_and_no_more() {
        let with = |count: usize| {
            let mut value: serde_json::Value = serde_json::from_str(FULL).unwrap();
            value["rate_limits"] = vec![value["rate_limits"][0].clone(); count].into();
            Config::from_envoy(value.to_string().as_bytes())
        };
        assert!(with(128).is_ok());
        let error = ConfigError::new("rate_limits", "129 are too many (maximum 128)");
        assert_eq!(with(129), Err(error));
    }

    #[test]
    fn what_is_no_json_object_is_refused() {
        let object = "expected a JSON object with `domain`, `sidecar` and `rate_limits`";
        let table: [(&[u8], &str); 5] = [
            (b" ", object),
            (b"[]", object),
            (b"null", object),
            (b"\xff", object),
            (b"{", "not JSON: EOF while parsing an object at line 1 column 1"),
        ];
        for (json, message) in table {
            let error = Config::from_envoy(json).unwrap_err();
            assert_eq!(error.to_string(), format!("plugin configuration: {message}"));
        }
        let twice = format!("{FULL} {FULL}");
        assert!(Config::from_envoy(twice.as_bytes()).is_err());
    }

    /// Envoy 1.40 hands a configuration written as a Struct over as protobuf bytes, and the
    /// filter took them for bad JSON.
    #[test]
    fn a_struct_means_the_same_as_its_json() {
        let value: serde_json::Value = serde_json::from_str(FULL).unwrap();
        let bytes = structured::tests::struct_of_json(&value);
        let expected = Config::from_envoy(FULL.as_bytes()).unwrap();
        assert_eq!(Config::from_envoy(&bytes), Ok(expected));
        let spaced = format!("\n{FULL}");
        assert!(Config::from_envoy(spaced.as_bytes()).is_ok());
        let mut wrong = value;
        wrong["sidecar"]["timeout_ms"] = serde_json::json!(20.5);
        let error = Config::from_envoy(&structured::tests::struct_of_json(&wrong)).unwrap_err();
        let message = "invalid type: floating point `20.5`, expected a whole number";
        assert_eq!(error, ConfigError::new("sidecar.timeout_ms", message));
    }

    #[test]
    fn no_bytes_make_it_panic() {
        // Every prefix and every single-byte change of a valid document.
        for end in 0..FULL.len() {
            let _ = Config::from_envoy(&FULL.as_bytes()[..end]);
            let mut changed = FULL.as_bytes().to_vec();
            changed[end] ^= 0x5a;
            let _ = Config::from_envoy(&changed);
        }
    }
}
