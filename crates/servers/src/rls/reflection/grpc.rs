//! gRPC's own services: health and reflection.

use super::files::Kind::{Enum, Message, Scalar};
use super::files::{Kind, Streams, either, file, many, message, method, one, service, values};
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FileDescriptorProto};

pub(super) fn files() -> Vec<FileDescriptorProto> {
    let v1 = Names {
        file: "grpc/reflection/v1/reflection.proto",
        package: "grpc.reflection.v1",
        request: ".grpc.reflection.v1.ServerReflectionRequest",
        response: ".grpc.reflection.v1.ServerReflectionResponse",
        extension: ".grpc.reflection.v1.ExtensionRequest",
        files: ".grpc.reflection.v1.FileDescriptorResponse",
        numbers: ".grpc.reflection.v1.ExtensionNumberResponse",
        services: ".grpc.reflection.v1.ListServiceResponse",
        service: ".grpc.reflection.v1.ServiceResponse",
        error: ".grpc.reflection.v1.ErrorResponse",
    };
    let v1alpha = Names {
        file: "grpc/reflection/v1alpha/reflection.proto",
        package: "grpc.reflection.v1alpha",
        request: ".grpc.reflection.v1alpha.ServerReflectionRequest",
        response: ".grpc.reflection.v1alpha.ServerReflectionResponse",
        extension: ".grpc.reflection.v1alpha.ExtensionRequest",
        files: ".grpc.reflection.v1alpha.FileDescriptorResponse",
        numbers: ".grpc.reflection.v1alpha.ExtensionNumberResponse",
        services: ".grpc.reflection.v1alpha.ListServiceResponse",
        service: ".grpc.reflection.v1alpha.ServiceResponse",
        error: ".grpc.reflection.v1alpha.ErrorResponse",
    };
    vec![health(), reflection(&v1), reflection(&v1alpha)]
}

fn health() -> FileDescriptorProto {
    let request = ".grpc.health.v1.HealthCheckRequest";
    let response = ".grpc.health.v1.HealthCheckResponse";
    let status = Enum(".grpc.health.v1.HealthCheckResponse.ServingStatus");
    let statuses = ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"];
    FileDescriptorProto {
        message_type: vec![
            message("HealthCheckRequest", [one("service", 1, TEXT)]),
            DescriptorProto {
                enum_type: vec![values("ServingStatus", &statuses)],
                ..message("HealthCheckResponse", [one("status", 1, status)])
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

const TEXT: Kind = Scalar(Type::String);
const NUMBER: Kind = Scalar(Type::Int32);

/// What differs between the versions.
struct Names {
    file: &'static str,
    package: &'static str,
    request: &'static str,
    response: &'static str,
    extension: &'static str,
    files: &'static str,
    numbers: &'static str,
    services: &'static str,
    service: &'static str,
    error: &'static str,
}

fn reflection(names: &Names) -> FileDescriptorProto {
    let mut request = message(
        "ServerReflectionRequest",
        [
            one("host", 1, TEXT),
            one("file_by_filename", 3, TEXT),
            one("file_containing_symbol", 4, TEXT),
            one("file_containing_extension", 5, Message(names.extension)),
            one("all_extension_numbers_of_type", 6, TEXT),
            one("list_services", 7, TEXT),
        ],
    );
    either(&mut request, "message_request", &[3, 4, 5, 6, 7]);
    let mut response = message(
        "ServerReflectionResponse",
        [
            one("valid_host", 1, TEXT),
            one("original_request", 2, Message(names.request)),
            one("file_descriptor_response", 4, Message(names.files)),
            one("all_extension_numbers_response", 5, Message(names.numbers)),
            one("list_services_response", 6, Message(names.services)),
            one("error_response", 7, Message(names.error)),
        ],
    );
    either(&mut response, "message_response", &[4, 5, 6, 7]);
    FileDescriptorProto {
        message_type: vec![
            request,
            response,
            message(
                "ExtensionRequest",
                [one("containing_type", 1, TEXT), one("extension_number", 2, NUMBER)],
            ),
            message(
                "FileDescriptorResponse",
                [many("file_descriptor_proto", 1, Scalar(Type::Bytes))],
            ),
            message(
                "ExtensionNumberResponse",
                [one("base_type_name", 1, TEXT), many("extension_number", 2, NUMBER)],
            ),
            message("ListServiceResponse", [many("service", 1, Message(names.service))]),
            message("ServiceResponse", [one("name", 1, TEXT)]),
            message("ErrorResponse", [one("error_code", 1, NUMBER), one("error_message", 2, TEXT)]),
        ],
        service: vec![service(
            "ServerReflection",
            [method("ServerReflectionInfo", names.request, names.response, Streams::Both)],
        )],
        ..file(names.file, names.package, &[])
    }
}
