//! Protobuf's well-known files that the others import.

use super::files::FieldType::{Enum, Message, Scalar};
use super::files::{enumeration, field, file, message, oneof, repeated};
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FileDescriptorProto, MessageOptions};

const PACKAGE: &str = "google.protobuf";

pub(super) fn files() -> Vec<FileDescriptorProto> {
    vec![
        seconds_and_nanos("google/protobuf/duration.proto", "Duration"),
        seconds_and_nanos("google/protobuf/timestamp.proto", "Timestamp"),
        wrappers(),
        r#struct(),
    ]
}

fn seconds_and_nanos(name: &str, message_name: &str) -> FileDescriptorProto {
    let fields = [field("seconds", 1, Scalar(Type::Int64)), field("nanos", 2, Scalar(Type::Int32))];
    FileDescriptorProto {
        message_type: vec![message(message_name, fields)],
        ..file(name, PACKAGE, &[])
    }
}

fn wrappers() -> FileDescriptorProto {
    let wrapped = [
        ("DoubleValue", Type::Double),
        ("FloatValue", Type::Float),
        ("Int64Value", Type::Int64),
        ("UInt64Value", Type::Uint64),
        ("Int32Value", Type::Int32),
        ("UInt32Value", Type::Uint32),
        ("BoolValue", Type::Bool),
        ("StringValue", Type::String),
        ("BytesValue", Type::Bytes),
    ];
    let wrapper = |(name, scalar)| message(name, [field("value", 1, Scalar(scalar))]);
    FileDescriptorProto {
        message_type: wrapped.into_iter().map(wrapper).collect(),
        ..file("google/protobuf/wrappers.proto", PACKAGE, &[])
    }
}

fn r#struct() -> FileDescriptorProto {
    let value = Message(".google.protobuf.Value");
    // On the wire a map is a list of entries.
    let entry = DescriptorProto {
        options: Some(MessageOptions { map_entry: Some(true), ..MessageOptions::default() }),
        ..message("FieldsEntry", [field("key", 1, Scalar(Type::String)), field("value", 2, value)])
    };
    let fields = repeated("fields", 1, Message(".google.protobuf.Struct.FieldsEntry"));
    let map = DescriptorProto { nested_type: vec![entry], ..message("Struct", [fields]) };
    let mut any = message(
        "Value",
        [
            field("null_value", 1, Enum(".google.protobuf.NullValue")),
            field("number_value", 2, Scalar(Type::Double)),
            field("string_value", 3, Scalar(Type::String)),
            field("bool_value", 4, Scalar(Type::Bool)),
            field("struct_value", 5, Message(".google.protobuf.Struct")),
            field("list_value", 6, Message(".google.protobuf.ListValue")),
        ],
    );
    oneof(&mut any, "kind", &[1, 2, 3, 4, 5, 6]);
    FileDescriptorProto {
        message_type: vec![map, any, message("ListValue", [repeated("values", 1, value)])],
        enum_type: vec![enumeration("NullValue", &["NULL_VALUE"])],
        ..file("google/protobuf/struct.proto", PACKAGE, &[])
    }
}
