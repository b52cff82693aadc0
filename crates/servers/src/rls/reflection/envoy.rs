//! Envoy's files, with the field numbers of Envoy 1.40. `base.proto` and `ratelimit.proto` contain only the
//! parts that the rate limit service uses.

use super::files::FieldType::{Enum, Message, Scalar};
use super::files::{Streams, enumeration, field, file, message, method, oneof, repeated, service};
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FileDescriptorProto};

pub(super) fn files() -> Vec<FileDescriptorProto> {
    vec![rls(), ratelimit(), ratelimit_unit(), base()]
}

fn rls() -> FileDescriptorProto {
    let imports = [
        "envoy/config/core/v3/base.proto",
        "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
        "google/protobuf/duration.proto",
        "google/protobuf/struct.proto",
        "google/protobuf/timestamp.proto",
    ];
    let descriptor = ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor";
    let request = message(
        "RateLimitRequest",
        [
            field("domain", 1, Scalar(Type::String)),
            repeated("descriptors", 2, Message(descriptor)),
            field("hits_addend", 3, Scalar(Type::Uint32)),
        ],
    );
    FileDescriptorProto {
        message_type: vec![request, response()],
        service: vec![service(
            "RateLimitService",
            [method(
                "ShouldRateLimit",
                ".envoy.service.ratelimit.v3.RateLimitRequest",
                ".envoy.service.ratelimit.v3.RateLimitResponse",
                Streams::Neither,
            )],
        )],
        ..file("envoy/service/ratelimit/v3/rls.proto", "envoy.service.ratelimit.v3", &imports)
    }
}

fn response() -> DescriptorProto {
    let header = Message(".envoy.config.core.v3.HeaderValue");
    let code = Enum(".envoy.service.ratelimit.v3.RateLimitResponse.Code");
    let quota = Message(".envoy.service.ratelimit.v3.RateLimitResponse.Quota");
    let status = ".envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus";
    let fields = [
        field("overall_code", 1, code),
        repeated("statuses", 2, Message(status)),
        repeated("response_headers_to_add", 3, header),
        repeated("request_headers_to_add", 4, header),
        field("raw_body", 5, Scalar(Type::Bytes)),
        field("dynamic_metadata", 6, Message(".google.protobuf.Struct")),
        field("quota", 7, quota),
    ];
    let units = ["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK"];
    let unit = Enum(".envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit");
    let limit = DescriptorProto {
        enum_type: vec![enumeration("Unit", &units)],
        ..message(
            "RateLimit",
            [
                field("name", 3, Scalar(Type::String)),
                field("requests_per_unit", 1, Scalar(Type::Uint32)),
                field("unit", 2, unit),
            ],
        )
    };
    let mut lease = message(
        "Quota",
        [
            field("requests", 1, Scalar(Type::Uint32)),
            field("valid_until", 2, Message(".google.protobuf.Timestamp")),
            field("id", 3, Scalar(Type::String)),
        ],
    );
    oneof(&mut lease, "expiration_specifier", &[2]);
    let limit_name = ".envoy.service.ratelimit.v3.RateLimitResponse.RateLimit";
    let status = message(
        "DescriptorStatus",
        [
            field("code", 1, code),
            field("current_limit", 2, Message(limit_name)),
            field("limit_remaining", 3, Scalar(Type::Uint32)),
            field("duration_until_reset", 4, Message(".google.protobuf.Duration")),
            field("quota", 5, quota),
        ],
    );
    DescriptorProto {
        nested_type: vec![limit, lease, status],
        enum_type: vec![enumeration("Code", &["UNKNOWN", "OK", "OVER_LIMIT"])],
        ..message("RateLimitResponse", fields)
    }
}

fn ratelimit() -> FileDescriptorProto {
    let imports = ["envoy/type/v3/ratelimit_unit.proto", "google/protobuf/wrappers.proto"];
    let entry = message(
        "Entry",
        [field("key", 1, Scalar(Type::String)), field("value", 2, Scalar(Type::String))],
    );
    let limit = message(
        "RateLimitOverride",
        [
            field("requests_per_unit", 1, Scalar(Type::Uint32)),
            field("unit", 2, Enum(".envoy.type.v3.RateLimitUnit")),
        ],
    );
    let entry_name = ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry";
    let limit_name = ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride";
    let descriptor = DescriptorProto {
        nested_type: vec![entry, limit],
        ..message(
            "RateLimitDescriptor",
            [
                repeated("entries", 1, Message(entry_name)),
                field("limit", 2, Message(limit_name)),
                field("hits_addend", 3, Message(".google.protobuf.UInt64Value")),
                field("is_negative_hits", 4, Scalar(Type::Bool)),
            ],
        )
    };
    FileDescriptorProto {
        message_type: vec![descriptor],
        ..file(
            "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
            "envoy.extensions.common.ratelimit.v3",
            &imports,
        )
    }
}

fn ratelimit_unit() -> FileDescriptorProto {
    let units = ["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK"];
    FileDescriptorProto {
        enum_type: vec![enumeration("RateLimitUnit", &units)],
        ..file("envoy/type/v3/ratelimit_unit.proto", "envoy.type.v3", &[])
    }
}

fn base() -> FileDescriptorProto {
    let header = message(
        "HeaderValue",
        [
            field("key", 1, Scalar(Type::String)),
            field("value", 2, Scalar(Type::String)),
            field("raw_value", 3, Scalar(Type::Bytes)),
        ],
    );
    FileDescriptorProto {
        message_type: vec![header],
        ..file("envoy/config/core/v3/base.proto", "envoy.config.core.v3", &[])
    }
}
