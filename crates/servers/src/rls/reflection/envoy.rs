//! Envoy's files, with the field numbers of Envoy 1.40. Of `base.proto` and `ratelimit.proto` there is
//! what the rate limit service uses.

use super::files::Kind::{Enum, Message, Scalar};
use super::files::{Streams, either, file, many, message, method, one, service, values};
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
            one("domain", 1, Scalar(Type::String)),
            many("descriptors", 2, Message(descriptor)),
            one("hits_addend", 3, Scalar(Type::Uint32)),
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
        one("overall_code", 1, code),
        many("statuses", 2, Message(status)),
        many("response_headers_to_add", 3, header),
        many("request_headers_to_add", 4, header),
        one("raw_body", 5, Scalar(Type::Bytes)),
        one("dynamic_metadata", 6, Message(".google.protobuf.Struct")),
        one("quota", 7, quota),
    ];
    let units = ["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK"];
    let unit = Enum(".envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit");
    let limit = DescriptorProto {
        enum_type: vec![values("Unit", &units)],
        ..message(
            "RateLimit",
            [
                one("name", 3, Scalar(Type::String)),
                one("requests_per_unit", 1, Scalar(Type::Uint32)),
                one("unit", 2, unit),
            ],
        )
    };
    let mut lease = message(
        "Quota",
        [
            one("requests", 1, Scalar(Type::Uint32)),
            one("valid_until", 2, Message(".google.protobuf.Timestamp")),
            one("id", 3, Scalar(Type::String)),
        ],
    );
    either(&mut lease, "expiration_specifier", &[2]);
    let limit_name = ".envoy.service.ratelimit.v3.RateLimitResponse.RateLimit";
    let status = message(
        "DescriptorStatus",
        [
            one("code", 1, code),
            one("current_limit", 2, Message(limit_name)),
            one("limit_remaining", 3, Scalar(Type::Uint32)),
            one("duration_until_reset", 4, Message(".google.protobuf.Duration")),
            one("quota", 5, quota),
        ],
    );
    DescriptorProto {
        nested_type: vec![limit, lease, status],
        enum_type: vec![values("Code", &["UNKNOWN", "OK", "OVER_LIMIT"])],
        ..message("RateLimitResponse", fields)
    }
}

fn ratelimit() -> FileDescriptorProto {
    let imports = ["envoy/type/v3/ratelimit_unit.proto", "google/protobuf/wrappers.proto"];
    let entry = message(
        "Entry",
        [one("key", 1, Scalar(Type::String)), one("value", 2, Scalar(Type::String))],
    );
    let limit = message(
        "RateLimitOverride",
        [
            one("requests_per_unit", 1, Scalar(Type::Uint32)),
            one("unit", 2, Enum(".envoy.type.v3.RateLimitUnit")),
        ],
    );
    let entry_name = ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry";
    let limit_name = ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride";
    let descriptor = DescriptorProto {
        nested_type: vec![entry, limit],
        ..message(
            "RateLimitDescriptor",
            [
                many("entries", 1, Message(entry_name)),
                one("limit", 2, Message(limit_name)),
                one("hits_addend", 3, Message(".google.protobuf.UInt64Value")),
                one("is_negative_hits", 4, Scalar(Type::Bool)),
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
        enum_type: vec![values("RateLimitUnit", &units)],
        ..file("envoy/type/v3/ratelimit_unit.proto", "envoy.type.v3", &[])
    }
}

fn base() -> FileDescriptorProto {
    let header = message(
        "HeaderValue",
        [
            one("key", 1, Scalar(Type::String)),
            one("value", 2, Scalar(Type::String)),
            one("raw_value", 3, Scalar(Type::Bytes)),
        ],
    );
    FileDescriptorProto {
        message_type: vec![header],
        ..file("envoy/config/core/v3/base.proto", "envoy.config.core.v3", &[])
    }
}
