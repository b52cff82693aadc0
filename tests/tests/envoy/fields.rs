//! The page of Envoy's fields has all of them and no others. The messages are those that Envoy's program
//! contains, so they are of its version.

use anyhow::{Context, ensure};
use memchr::memmem;
use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto};
use std::collections::BTreeMap;
use tidegate_tests::artifacts;

/// The messages whose fields the page lists, with all that their fields refer to.
const ROOTS: [(&str, &str); 4] = [
    (
        "envoy/extensions/filters/http/ratelimit/v3/rate_limit.proto",
        "envoy.extensions.filters.http.ratelimit.v3.RateLimit",
    ),
    (
        "envoy/extensions/filters/http/ratelimit/v3/rate_limit.proto",
        "envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute",
    ),
    (
        "envoy/extensions/rate_limit_descriptors/jwt_claim/v3/jwt_claim.proto",
        "envoy.extensions.rate_limit_descriptors.jwt_claim.v3.Descriptor",
    ),
    (
        "envoy/extensions/rate_limit_descriptors/expr/v3/expr.proto",
        "envoy.extensions.rate_limit_descriptors.expr.v3.Descriptor",
    ),
];

/// Messages of protobuf, of CEL, and of every part of Envoy.
const SHARED: [&str; 4] = [
    "google.",
    "envoy.config.core.v3.GrpcService",
    "envoy.config.core.v3.TypedExtensionConfig",
    "xds.core.v3.TypedExtensionConfig",
];

/// The name and the type of each field, by message.
type Fields = BTreeMap<String, BTreeMap<String, String>>;

/// The files of messages in a program, where each is the bytes of a `FileDescriptorProto`.
struct Program<'a>(&'a [u8]);

impl Program<'_> {
    fn file(&self, name: &str) -> anyhow::Result<FileDescriptorProto> {
        // Its name comes first, then its package.
        let length = u8::try_from(name.len())?;
        let beginning = [&[0x0a, length], name.as_bytes(), &[0x12]].concat();
        let found = memmem::find(self.0, &beginning);
        let bytes = &self.0[found.with_context(|| format!("Envoy has no {name}"))?..];
        let length = message_length(bytes).with_context(|| name.to_owned())?;
        FileDescriptorProto::decode(&bytes[..length]).with_context(|| name.to_owned())
    }

    /// The messages of a file and of its imports, by name.
    fn add(&self, name: &str, to: &mut BTreeMap<String, DescriptorProto>) -> anyhow::Result<()> {
        const SYNTAX_AND_RULES: [&str; 6] = [
            "google/protobuf/",
            "google/api/",
            "cel/",
            "validate/",
            "udpa/annotations/",
            "envoy/annotations/",
        ];
        let file = self.file(name)?;
        let package = file.package();
        let before = to.len();
        for message in &file.message_type {
            add_message(package, message, to);
        }
        if to.len() == before {
            // It was read before.
            return Ok(());
        }
        let is_needed =
            |name: &&String| !SYNTAX_AND_RULES.iter().any(|start| name.starts_with(start));
        file.dependency.iter().filter(is_needed).try_for_each(|name| self.add(name, to))
    }
}

fn add_message(scope: &str, message: &DescriptorProto, to: &mut BTreeMap<String, DescriptorProto>) {
    let name = format!("{scope}.{}", message.name());
    for nested in &message.nested_type {
        add_message(&name, nested, to);
    }
    to.insert(name, message.clone());
}

/// The length of the `FileDescriptorProto` at the beginning: its last field is the syntax.
fn message_length(bytes: &[u8]) -> anyhow::Result<usize> {
    const SYNTAX: u8 = 12 << 3 | 2;
    const TEXT_OR_MESSAGE: u8 = 2;
    let mut rest = bytes;
    loop {
        let tag = *rest.first().context("no syntax")?;
        rest = &rest[1..];
        // A number is encoded as a length is.
        let number = prost::decode_length_delimiter(&mut rest)?;
        if tag & 7 == TEXT_OR_MESSAGE {
            rest = rest.get(number..).context("a field without an end")?;
        }
        if tag == SYNTAX {
            return Ok(bytes.len() - rest.len());
        }
    }
}

/// The name of a type without its package, as the page has it.
fn type_name(field: &FieldDescriptorProto) -> String {
    let name = match field.r#type() {
        Type::Message | Type::Enum => {
            // Packages are in lower case, types are not.
            let parts = field.type_name().trim_start_matches('.').split('.');
            let is_package = |part: &&str| part.starts_with(|char: char| char.is_lowercase());
            parts.skip_while(is_package).collect::<Vec<_>>().join(".")
        }
        scalar => scalar.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
    };
    if field.label() == Label::Repeated { format!("list of {name}") } else { name }
}

/// The fields of a message, and of the messages that it refers to. Those without fields are left out.
fn add_fields(
    name: &str,
    messages: &BTreeMap<String, DescriptorProto>,
    to: &mut Fields,
) -> anyhow::Result<()> {
    let message = messages.get(name).with_context(|| format!("Envoy has no {name}"))?;
    if to.contains_key(name) || message.field.is_empty() {
        return Ok(());
    }
    let fields = message.field.iter().map(|field| (field.name().to_owned(), type_name(field)));
    to.insert(name.to_owned(), fields.collect());
    for field in message.field.iter().filter(|field| field.r#type() == Type::Message) {
        let of = field.type_name().trim_start_matches('.');
        if !SHARED.iter().any(|shared| of.starts_with(shared)) {
            add_fields(of, messages, to)?;
        }
    }
    Ok(())
}

/// The fields that the page lists: a heading with the name of a message, and a table.
fn listed(page: &str) -> anyhow::Result<Fields> {
    let mut fields = Fields::new();
    let mut message = None;
    for line in page.lines() {
        if line.starts_with('#') {
            let name = line.strip_prefix("### `").and_then(|rest| rest.strip_suffix('`'));
            message = name.map(|name| fields.entry(name.to_owned()).or_default());
        } else if let Some(message) = &mut message
            && let Some(row) = line.strip_prefix("| `")
        {
            let mut cells = row.split(" | ");
            let name =
                cells.next().and_then(|name| name.strip_suffix('`')).context(row.to_owned())?;
            let of = cells.next().context(row.to_owned())?;
            let before = message.insert(name.to_owned(), of.to_owned());
            ensure!(before.is_none(), "{name} is listed twice");
        }
    }
    Ok(fields)
}

#[test]
fn the_page_lists_the_fields_of_envoys_messages() -> anyhow::Result<()> {
    let program = std::fs::read(artifacts::envoy()?)?;
    let mut published = Fields::new();
    let mut messages = BTreeMap::new();
    for (file, message) in ROOTS {
        Program(&program).add(file, &mut messages)?;
        add_fields(message, &messages, &mut published)?;
    }
    let page = std::fs::read_to_string(artifacts::root().join("docs/reference/envoy-fields.md"))?;
    let listed = listed(&page)?;
    let names = |fields: &Fields| fields.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&listed), names(&published));
    for (message, fields) in published {
        assert_eq!(listed[&message], fields, "{message}");
    }
    Ok(())
}
