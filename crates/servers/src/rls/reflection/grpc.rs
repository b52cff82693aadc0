//! gRPC's own services: health and reflection.

use super::files::FieldType::{Enum, Message, Scalar};
use super::files::{
    FieldType, Streams, enumeration, field, file, message, method, oneof, repeated, service,
};
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FileDescriptorProto};

pub(super) fn files() -> Vec<FileDescriptorProto> {
    vec![health(), reflection("v1"), reflection("v1alpha")]
}

fn health() -> FileDescriptorProto {
    let request = ".grpc.health.v1.HealthCheckRequest";
    let response = ".grpc.health.v1.HealthCheckResponse";
    let status = Enum(".grpc.health.v1.HealthCheckResponse.ServingStatus");
    let statuses = ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"];
    FileDescriptorProto {
        message_type: vec![
            message("HealthCheckRequest", [field("service", 1, TEXT)]),
            DescriptorProto {
                enum_type: vec![enumeration("ServingStatus", &statuses)],
                ..message("HealthCheckResponse", [field("status", 1, status)])
            },
        ],
        service: vec![service(
            "Health",
            [
                method("Check", request, response, Streams::Neither),
                method("Watch", request, response, Streams::Server),
            ],
        )],
        ..file("grpc/health/v1/health.proto", "grpc.health.v1", &[])
    }
}

const TEXT: FieldType<'static> = Scalar(Type::String);
const NUMBER: FieldType<'static> = Scalar(Type::Int32);

fn reflection(version: &str) -> FileDescriptorProto {
    let package = format!("grpc.reflection.{version}");
    let path = |message: &str| format!(".{package}.{message}");
    let field_of = |name: &str, number, message: &str| field(name, number, Message(&path(message)));
    let mut request = message(
        "ServerReflectionRequest",
        [
            field("host", 1, TEXT),
            field("file_by_filename", 3, TEXT),
            field("file_containing_symbol", 4, TEXT),
            field_of("file_containing_extension", 5, "ExtensionRequest"),
            field("all_extension_numbers_of_type", 6, TEXT),
            field("list_services", 7, TEXT),
        ],
    );
    oneof(&mut request, "message_request", &[3, 4, 5, 6, 7]);
    let mut response = message(
        "ServerReflectionResponse",
        [
            field("valid_host", 1, TEXT),
            field_of("original_request", 2, "ServerReflectionRequest"),
            field_of("file_descriptor_response", 4, "FileDescriptorResponse"),
            field_of("all_extension_numbers_response", 5, "ExtensionNumberResponse"),
            field_of("list_services_response", 6, "ListServiceResponse"),
            field_of("error_response", 7, "ErrorResponse"),
        ],
    );
    oneof(&mut response, "message_response", &[4, 5, 6, 7]);
    FileDescriptorProto {
        message_type: vec![
            request,
            response,
            message(
                "ExtensionRequest",
                [field("containing_type", 1, TEXT), field("extension_number", 2, NUMBER)],
            ),
            message(
                "FileDescriptorResponse",
                [repeated("file_descriptor_proto", 1, Scalar(Type::Bytes))],
            ),
            message(
                "ExtensionNumberResponse",
                [field("base_type_name", 1, TEXT), repeated("extension_number", 2, NUMBER)],
            ),
            message(
                "ListServiceResponse",
                [repeated("service", 1, Message(&path("ServiceResponse")))],
            ),
            message("ServiceResponse", [field("name", 1, TEXT)]),
            message(
                "ErrorResponse",
                [field("error_code", 1, NUMBER), field("error_message", 2, TEXT)],
            ),
        ],
        service: vec![service(
            "ServerReflection",
            [method(
                "ServerReflectionInfo",
                &path("ServerReflectionRequest"),
                &path("ServerReflectionResponse"),
                Streams::Both,
            )],
        )],
        ..file(&format!("grpc/reflection/{version}/reflection.proto"), &package, &[])
    }
}
