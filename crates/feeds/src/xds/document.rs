//! A resource as a limits file, so that one reader gives limits their meaning, wherever they come from.
//!
//! Owns the writing of the file and the way back: from the line of a mistake to the descriptor. Line 1 is the
//! domain, and each descriptor begins a line of its own, in the order of the resource.

use super::messages::{
    Any, RATE_LIMIT_CONFIG, RateLimitConfig, RateLimitDescriptor, RateLimitPolicy,
    RateLimitReplace, unit_name,
};
use bytes::Bytes;
use prost::Message;
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use std::fmt::Write;
use std::path::PathBuf;
use tidegate_limits::{Diagnostic, SourceFile};

/// Levels of descriptors: as many as a limits file may have.
const LEVELS_MAX: usize = 30;
/// Levels of metadata; the decoder refuses more than a hundred.
const METADATA_LEVELS_MAX: usize = 100;
/// Characters of a key or value in a message.
const SHOWN_CHARS_MAX: usize = 64;

/// A resource and its limits file.
#[derive(Debug, Clone)]
pub(super) struct Document {
    /// The resource's name, as messages have it.
    name: String,
    descriptors: Vec<Bytes>,
    pub(super) file: SourceFile,
}

impl Document {
    /// The document of a resource, which is an `Any`. The error is a sentence about the resource at this index.
    pub(super) fn read(index: usize, resource: Bytes) -> Result<Document, String> {
        let at = |error: &dyn std::fmt::Display| format!("resources[{index}]: {error}");
        let any = Any::decode(resource).map_err(|error| at(&error))?;
        if any.type_url != RATE_LIMIT_CONFIG {
            let found = shown(&any.type_url);
            return Err(at(&format!("expected the type {RATE_LIMIT_CONFIG}, found {found}")));
        }
        let config = RateLimitConfig::decode(any.value).map_err(|error| at(&error))?;
        let name = match config.name.as_str() {
            "" => format!("resources[{index}]"),
            name => format!("resource {}", shown(name)),
        };
        let mut text = "{\"domain\":".to_owned();
        string(&mut text, &config.domain);
        descriptors(&mut text, &config.descriptors, 1)
            .map_err(|error| format!("{name}: {error}"))?;
        text.push_str("}\n");
        let path = PathBuf::from(format!("{name} (xDS)"));
        let file = SourceFile { path, bytes: Ok(text.into_bytes()) };
        Ok(Document { name, descriptors: config.descriptors, file })
    }

    /// A mistake in the file as a sentence about the resource; none if it is in another file.
    pub(super) fn explain(&self, mistake: &Diagnostic) -> Option<String> {
        if mistake.file != self.file.path {
            return None;
        }
        // Positions in the file mean nothing to its readers.
        let message = mistake.message.split("; the first is at ").next().unwrap_or_default();
        let line = mistake.position.map_or(1, |(line, _)| line);
        let mut skipped = line.saturating_sub(2);
        let descriptor = (line > 1).then(|| path_of(&self.descriptors, &mut skipped)).flatten();
        Some(match descriptor {
            Some(path) => format!("{}: descriptor {path}: {message}", self.name),
            None => format!("{}: {message}", self.name),
        })
    }
}

/// The path of the descriptor after `skipped` others, in the order of the file.
fn path_of(descriptors: &[Bytes], skipped: &mut u64) -> Option<String> {
    for bytes in descriptors {
        let descriptor = RateLimitDescriptor::decode(bytes.clone()).ok()?;
        let mut path = shown(&descriptor.key);
        if !descriptor.value.is_empty() {
            let _ = write!(path, "={}", shown(&descriptor.value));
        }
        let Some(left) = skipped.checked_sub(1) else { return Some(path) };
        *skipped = left;
        if let Some(below) = path_of(&descriptor.descriptors, skipped) {
            return Some(format!("{path}/{below}"));
        }
    }
    None
}

fn descriptors(text: &mut String, list: &[Bytes], level: usize) -> Result<(), String> {
    if list.is_empty() {
        return Ok(());
    }
    if level > LEVELS_MAX {
        return Err(format!("nested too deeply (maximum: {LEVELS_MAX} levels of descriptors)"));
    }
    text.push_str(",\"descriptors\":[");
    for bytes in list {
        let descriptor =
            RateLimitDescriptor::decode(bytes.clone()).map_err(|error| error.to_string())?;
        text.push_str("\n {\"key\":");
        string(text, &descriptor.key);
        if !descriptor.value.is_empty() {
            text.push_str(",\"value\":");
            string(text, &descriptor.value);
        }
        if let Some(policy) = &descriptor.rate_limit {
            rate_limit(text, policy)?;
            settings(text, &descriptor);
        }
        descriptors(text, &descriptor.descriptors, level + 1)?;
        text.push_str("},");
    }
    text.push(']');
    Ok(())
}

/// What belongs to the limit of a descriptor, and has no effect on one without.
fn settings(text: &mut String, descriptor: &RateLimitDescriptor) {
    for (name, is_on) in [
        ("shadow_mode", descriptor.shadow_mode),
        // Shadow mode wins.
        ("quota_mode", descriptor.quota_mode && !descriptor.shadow_mode),
        ("detailed_metric", descriptor.detailed_metric),
    ] {
        if is_on {
            let _ = write!(text, ",\"{name}\":true");
        }
    }
    if let Some(metadata) = &descriptor.metadata {
        text.push_str(",\"metadata\":");
        map(text, metadata, 0);
    }
}

fn rate_limit(text: &mut String, policy: &RateLimitPolicy) -> Result<(), String> {
    text.push_str(",\"rate_limit\":{");
    // Without a unit there is none in the file, which is a mistake unless the limit is unlimited.
    match (unit_name(policy.unit), policy.unit) {
        (Some(name), _) => _ = write!(text, "\"unit\":\"{name}\","),
        (None, 0) => {}
        (None, number) => _ = write!(text, "\"unit\":\"unit number {number}\","),
    }
    if policy.unlimited {
        text.push_str("\"unlimited\":true,");
    } else {
        let _ = write!(text, "\"requests_per_unit\":{},", policy.requests_per_unit);
    }
    if !policy.name.is_empty() {
        text.push_str("\"name\":");
        string(text, &policy.name);
        text.push(',');
    }
    if !policy.replaces.is_empty() {
        text.push_str("\"replaces\":[");
        for bytes in &policy.replaces {
            let replace = RateLimitReplace::decode(bytes.clone());
            text.push_str("{\"name\":");
            string(text, &replace.map_err(|error| error.to_string())?.name);
            text.push_str("},");
        }
        text.push_str("],");
    }
    text.push('}');
    Ok(())
}

fn map(text: &mut String, of: &Struct, level: usize) {
    text.push('{');
    for (name, of) in &of.fields {
        string(text, name);
        text.push(':');
        value(text, of, level + 1);
        text.push(',');
    }
    text.push('}');
}

fn value(text: &mut String, of: &Value, level: usize) {
    if level > METADATA_LEVELS_MAX {
        return text.push_str("null");
    }
    match &of.kind {
        None | Some(Kind::NullValue(_)) => text.push_str("null"),
        Some(Kind::BoolValue(of)) => _ = write!(text, "{of}"),
        // Not finite: a mistake that the reader of files reports.
        Some(Kind::NumberValue(of)) if of.is_nan() => text.push_str(".nan"),
        Some(Kind::NumberValue(of)) if of.is_infinite() => text.push_str(".inf"),
        Some(Kind::NumberValue(of)) => _ = write!(text, "{of:?}"),
        Some(Kind::StringValue(of)) => string(text, of),
        Some(Kind::StructValue(of)) => map(text, of, level),
        Some(Kind::ListValue(of)) => {
            text.push('[');
            for of in &of.values {
                value(text, of, level + 1);
                text.push(',');
            }
            text.push(']');
        }
    }
}

/// A string in double quotes. All but plain ASCII and letters is escaped, as YAML has characters of its own.
fn string(text: &mut String, of: &str) {
    text.push('"');
    for char in of.chars() {
        match char {
            '"' | '\\' => text.extend(['\\', char]),
            ' '..='~' => text.push(char),
            _ if char.is_alphanumeric() => text.push(char),
            _ if (char as u32) < 0x100 => _ = write!(text, "\\x{:02x}", char as u32),
            _ => _ = write!(text, "\\U{:08x}", char as u32),
        }
    }
    text.push('"');
}

/// A name in a message: printable and short.
fn shown(name: &str) -> String {
    let mut chars = name.chars();
    let mut shown: String =
        chars.by_ref().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect();
    if chars.next().is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
#[path = "document_tests.rs"]
mod tests;
