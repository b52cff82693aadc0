//! The messages of the rate limit service in proto-JSON, as protobuf's Go library reads and writes them.
//!
//! Accepts field names in camelCase and in snake_case, numbers also as strings, enums by name and by number,
//! and null as absent. Refuses unknown and repeated fields, and reads no more descriptors than a request may
//! have, so memory is bounded by the size of the body. `write` omits defaults.
//!
//! By hand, as prost-reflect 0.16 accepts repeated fields, any number of descriptors, `"+1"` and 2^64 (as
//! 2^64 - 1), refuses `"1e2"`, and writes the whole numbers of metadata as 3.0.

mod number;
mod write;

use number::{Unit, Unsigned};
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;
use tidegate_wire::DESCRIPTORS_MAX;
use tidegate_wire::rls::{
    DescriptorEntry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest,
};
pub(super) use write::write;

/// The longest error message, in characters: a field name can take a mebibyte.
const ERROR_CHARS_MAX: usize = 300;

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Malformed(String);

impl From<serde_json::Error> for Malformed {
    fn from(error: serde_json::Error) -> Self {
        let mut text = error.to_string();
        if let Some((end, _)) = text.char_indices().nth(ERROR_CHARS_MAX) {
            text.truncate(end);
            text.push('…');
        }
        Malformed(text)
    }
}

/// Reads a request. The parser bounds the nesting.
pub(super) fn read(text: &[u8]) -> Result<RateLimitRequest, Malformed> {
    let Object(Request { domain, descriptors, hits_addend }) = serde_json::from_slice(text)?;
    let descriptors = descriptors.into_iter().map(|Object(descriptor)| RateLimitDescriptor {
        entries: descriptor
            .entries
            .into_iter()
            .map(|Object(entry)| DescriptorEntry { key: entry.key, value: entry.value })
            .collect(),
        limit: descriptor.limit.map(|Object(limit)| RateLimitOverride {
            requests_per_unit: limit.requests_per_unit.0,
            unit: limit.unit.0,
        }),
        hits_addend: descriptor.hits_addend.map(|hits| hits.0),
        is_negative_hits: descriptor.is_negative_hits,
    });
    Ok(RateLimitRequest { domain, descriptors: descriptors.collect(), hits_addend: hits_addend.0 })
}

#[derive(Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Request {
    #[serde(deserialize_with = "or_default")]
    domain: String,
    #[serde(deserialize_with = "descriptors")]
    descriptors: Vec<Object<Descriptor>>,
    #[serde(alias = "hits_addend", deserialize_with = "or_default")]
    hits_addend: Unsigned<u32>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Descriptor {
    #[serde(deserialize_with = "or_default")]
    entries: Vec<Object<Entry>>,
    limit: Option<Object<Override>>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Unsigned<u64>>,
    #[serde(alias = "is_negative_hits", deserialize_with = "or_default")]
    is_negative_hits: bool,
}

#[derive(Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Entry {
    #[serde(deserialize_with = "or_default")]
    key: String,
    #[serde(deserialize_with = "or_default")]
    value: String,
}

#[derive(Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Override {
    #[serde(alias = "requests_per_unit", deserialize_with = "or_default")]
    requests_per_unit: Unsigned<u32>,
    #[serde(deserialize_with = "or_default")]
    unit: Unit,
}

/// A value, or its default for null.
fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A message, which must be an object. A derived implementation would also accept a list of its fields.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(de::value::MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

/// The descriptors, up to their maximum.
fn descriptors<'de, D>(deserializer: D) -> Result<Vec<Object<Descriptor>>, D::Error>
where
    D: Deserializer<'de>,
{
    struct DescriptorsVisitor;
    impl<'de> Visitor<'de> for DescriptorsVisitor {
        type Value = Vec<Object<Descriptor>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {DESCRIPTORS_MAX} descriptors")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Vec::new())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut read = Vec::new();
            while let Some(descriptor) = list.next_element()? {
                if read.len() == DESCRIPTORS_MAX {
                    return Err(de::Error::invalid_length(DESCRIPTORS_MAX + 1, &self));
                }
                read.push(descriptor);
            }
            Ok(read)
        }
    }
    deserializer.deserialize_any(DescriptorsVisitor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(descriptor: RateLimitDescriptor) -> RateLimitRequest {
        RateLimitRequest { domain: "d".into(), descriptors: vec![descriptor], hits_addend: 3 }
    }

    fn descriptor() -> RateLimitDescriptor {
        RateLimitDescriptor {
            entries: vec![DescriptorEntry { key: "k".into(), value: "v".into() }],
            limit: Some(RateLimitOverride { requests_per_unit: 9, unit: 2 }),
            hits_addend: Some(u64::MAX),
            is_negative_hits: true,
        }
    }

    #[test]
    fn both_spellings_of_fields_numbers_and_enums_are_read() {
        let camel = r#"{"domain":"d","hitsAddend":3,"descriptors":[{"entries":[{"key":"k","value":"v"}],
            "limit":{"requestsPerUnit":9,"unit":"MINUTE"},"hitsAddend":"18446744073709551615",
            "isNegativeHits":true}]}"#;
        let snake = r#"{"domain":"d","hits_addend":"3","descriptors":[{"entries":[{"key":"k","value":"v"}],
            "limit":{"requests_per_unit":9.0,"unit":2},"hits_addend":18446744073709551615,
            "is_negative_hits":true}]}"#;
        for text in [camel, snake] {
            assert_eq!(read(text.as_bytes()).unwrap(), request(descriptor()), "{text}");
        }
    }

    #[test]
    fn null_and_absence_are_the_default() {
        let plain = RateLimitDescriptor::default();
        let nulls = r#"{"domain":"d","hitsAddend":3e0,"descriptors":[{"entries":null,"limit":null,
            "hitsAddend":null,"isNegativeHits":null}]}"#;
        let absent = r#"{"domain":"d","hitsAddend":"3","descriptors":[{}]}"#;
        for text in [nulls, absent] {
            assert_eq!(read(text.as_bytes()).unwrap(), request(plain.clone()), "{text}");
        }
        let nothing = RateLimitRequest::default();
        let all_null = r#"{"domain":null,"descriptors":null,"hitsAddend":null}"#;
        assert_eq!(read(b"{}").unwrap(), nothing);
        assert_eq!(read(all_null.as_bytes()).unwrap(), nothing);
        // An explicit 0 (a peek) differs from an absent field.
        let peek = read(br#"{"descriptors":[{"hitsAddend":0}]}"#).unwrap();
        assert_eq!(peek.descriptors[0].hits_addend, Some(0));
    }

    #[track_caller]
    fn refused(text: &str, message: &str) {
        let error = read(text.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with(message), "{text}: {error}");
    }

    #[test]
    fn other_texts_are_refused_with_the_position() {
        refused("", "EOF while parsing a value at line 1 column 0");
        refused("[]", "invalid type: sequence, expected an object at line 1");
        refused(r#"["d", [], 1]"#, "invalid type: sequence, expected an object at line 1");
        refused("null", "invalid type: null, expected an object");
        refused("{} {}", "trailing characters at line 1 column 4");
        refused(r#"{"domian":"d"}"#, "unknown field `domian`, expected one of `domain`");
        refused(r#"{"domain":"d","domain":"e"}"#, "duplicate field `domain`");
        refused(r#"{"hitsAddend":1,"hits_addend":2}"#, "duplicate field `hitsAddend`");
        refused(r#"{"domain":1}"#, "invalid type: integer `1`, expected a string");
        refused(r#"{"descriptors":{}}"#, "invalid type: map, expected a list of at most 128");
        refused(r#"{"descriptors":[null]}"#, "invalid type: null, expected an object");
        refused(
            r#"{"descriptors":[{"entries":[["k","v"]]}]}"#,
            "invalid type: sequence, expected an",
        );
        refused(
            r#"{"descriptors":[{"is_negative_hits":"true"}]}"#,
            "invalid type: string \"true\"",
        );
    }

    #[test]
    fn numbers_not_valid_or_out_of_range_are_refused() {
        for number in
            ["-1", "4294967296", "1.5", "1e10", "\"\"", "\" 1\"", "\"+1\"", "\"x\"", "true"]
        {
            let text = format!(r#"{{"hitsAddend":{number}}}"#);
            let error = read(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("expected a number from 0 to 4294967295"), "{number}: {error}");
        }
        let hits = |number: &str| format!(r#"{{"descriptors":[{{"hitsAddend":{number}}}]}}"#);
        for number in ["18446744073709551616", "-1", "\"18446744073709551616\"", "1e99"] {
            assert!(read(hits(number).as_bytes()).is_err(), "{number}");
        }
        let unit = |unit: &str| format!(r#"{{"descriptors":[{{"limit":{{"unit":{unit}}}}}]}}"#);
        for wrong in ["\"minute\"", "\"EON\"", "\"2\"", "1.5", "3000000000", "{}"] {
            let error = read(unit(wrong).as_bytes()).unwrap_err().to_string();
            assert!(error.contains("expected a unit by name, such as MINUTE"), "{wrong}: {error}");
        }
        // A unit without a name is no syntax error; its meaning is checked later.
        assert_eq!(read(unit("99").as_bytes()).unwrap().descriptors[0].limit.unwrap().unit, 99);
    }

    /// A body of a mebibyte could hold hundreds of thousands of descriptors, nest without end, or have its
    /// own text sent back.
    #[test]
    fn hostile_texts_cost_little() {
        let empty = vec!["{}"; DESCRIPTORS_MAX].join(",");
        let most = format!(r#"{{"descriptors":[{empty}]}}"#);
        assert_eq!(read(most.as_bytes()).unwrap().descriptors.len(), DESCRIPTORS_MAX);
        let too_many = format!(r#"{{"descriptors":[{empty},{{}},"#);
        refused(&too_many, "invalid length 129, expected a list of at most 128 descriptors");
        let deep = "[".repeat(500_000);
        refused(&format!(r#"{{"descriptors":[{{"limit":{deep}"#), "invalid type: sequence");
        refused(&format!(r#"{{"unknown":{deep}"#), "unknown field `unknown`");
        let long = "x".repeat(1_000_000);
        let error = read(format!(r#"{{"{long}":1}}"#).as_bytes()).unwrap_err().to_string();
        assert!(error.chars().count() <= ERROR_CHARS_MAX + 1, "{}", error.len());
    }
}
