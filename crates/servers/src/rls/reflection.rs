//! gRPC's reflection service, which describes the services to generic clients.
//!
//! Knows the files of the services, and their imports as far as the services use them.

mod envoy;
mod files;
mod google;
mod grpc;

use super::messages::{
    ExtensionNumbers, Files, MessageRequest, MessageResponse, ReflectionError, ReflectionRequest,
    ReflectionResponse, ServiceName, Services,
};
use files::FileIndex;
use prost::Message;
use std::sync::LazyLock;
use tidegate_grpc::server::Outcome;
use tidegate_grpc::{Code, Status};

/// The service's names; both versions have the same messages.
pub(super) const SERVICES: [&str; 2] =
    ["grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"];

static FILES: LazyLock<FileIndex> = LazyLock::new(|| {
    FileIndex::new([envoy::files(), google::files(), grpc::files()].into_iter().flatten().collect())
});

/// Answers one message of ServerReflectionInfo.
pub(super) fn answer(message: &[u8], answer: &mut Vec<u8>) -> Outcome {
    let request = match ReflectionRequest::decode(message) {
        Ok(request) => request,
        Err(error) => {
            let message = format!("not a ServerReflectionRequest: {error}");
            return Outcome::Refused(Status::new(Code::InvalidArgument, message));
        }
    };
    let response = ReflectionResponse {
        valid_host: request.host.clone(),
        message_response: Some(respond(&FILES, &request)),
        original_request: Some(request),
    };
    response.encode_raw(answer);
    Outcome::Answered
}

fn respond(index: &FileIndex, request: &ReflectionRequest) -> MessageResponse {
    let files = |found: Option<Vec<Vec<u8>>>, name: &str| match found {
        Some(descriptors) => MessageResponse::Files(Files { descriptors }),
        None => not_found(name),
    };
    match &request.message_request {
        Some(MessageRequest::FileByFilename(name)) => files(index.file(name), name),
        Some(MessageRequest::FileContainingSymbol(symbol)) => {
            files(index.file_with_symbol(symbol), symbol)
        }
        Some(MessageRequest::FileContainingExtension(extension)) => {
            not_found(&extension.containing_type)
        }
        Some(MessageRequest::AllExtensionNumbersOfType(name)) => match index.file_with_symbol(name)
        {
            Some(_) => MessageResponse::ExtensionNumbers(ExtensionNumbers {
                base_type: name.clone(),
                numbers: Vec::new(),
            }),
            None => not_found(name),
        },
        Some(MessageRequest::ListServices(_)) => MessageResponse::Services(Services {
            services: index.services().map(|name| ServiceName { name }).collect(),
        }),
        None => error(Code::InvalidArgument, "the request has no message_request".to_owned()),
    }
}

fn not_found(name: &str) -> MessageResponse {
    error(Code::NotFound, format!("{name} is not known"))
}

fn error(code: Code, error_message: String) -> MessageResponse {
    MessageResponse::Error(ReflectionError { error_code: code as i32, error_message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost_types::FileDescriptorProto;
    use tidegate_wire::RLS_SERVICE;

    fn call(message_request: MessageRequest) -> MessageResponse {
        let request =
            ReflectionRequest { host: "h".to_owned(), message_request: Some(message_request) };
        let mut bytes = Vec::new();
        assert_eq!(answer(&request.encode_to_vec(), &mut bytes), Outcome::Answered);
        let response = ReflectionResponse::decode(bytes.as_slice()).unwrap();
        assert_eq!((response.valid_host.as_str(), response.original_request), ("h", Some(request)));
        response.message_response.unwrap()
    }

    fn names(response: MessageResponse) -> Vec<String> {
        let MessageResponse::Files(files) = response else { panic!("{response:?} is no file") };
        let name = |bytes: &Vec<u8>| FileDescriptorProto::decode(bytes.as_slice()).unwrap().name;
        files.descriptors.iter().filter_map(name).collect()
    }

    #[test]
    fn services_are_listed() {
        let MessageResponse::Services(services) = call(MessageRequest::ListServices(String::new()))
        else {
            panic!("no list")
        };
        let mut names: Vec<_> = services.services.into_iter().map(|service| service.name).collect();
        names.sort_unstable();
        let [v1, v1alpha] = SERVICES;
        assert_eq!(names, [RLS_SERVICE, super::super::health::SERVICE, v1, v1alpha]);
    }

    #[test]
    fn a_file_comes_with_all_its_imports() {
        let rls = [
            "envoy/service/ratelimit/v3/rls.proto",
            "envoy/config/core/v3/base.proto",
            "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
            "envoy/type/v3/ratelimit_unit.proto",
            "google/protobuf/wrappers.proto",
            "google/protobuf/duration.proto",
            "google/protobuf/struct.proto",
            "google/protobuf/timestamp.proto",
        ];
        let mut expected: Vec<_> = rls.to_vec();
        expected.sort_unstable();
        for message_request in [
            MessageRequest::FileByFilename(rls[0].to_owned()),
            MessageRequest::FileContainingSymbol(RLS_SERVICE.to_owned()),
            MessageRequest::FileContainingSymbol(format!("{RLS_SERVICE}.ShouldRateLimit")),
            MessageRequest::FileContainingSymbol(
                "envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit".to_owned(),
            ),
        ] {
            let mut found = names(call(message_request));
            assert_eq!(found[0], rls[0], "the file itself is the first");
            found.sort_unstable();
            assert_eq!(found, expected);
        }
        let value = MessageRequest::FileContainingSymbol("google.protobuf.Value".to_owned());
        assert_eq!(names(call(value)), ["google/protobuf/struct.proto"]);
    }

    #[test]
    fn unknown_names_are_not_found() {
        for message_request in [
            MessageRequest::FileByFilename("rls.proto".to_owned()),
            MessageRequest::FileContainingSymbol("envoy.service.ratelimit.v3".to_owned()),
            MessageRequest::FileContainingSymbol(String::new()),
            MessageRequest::AllExtensionNumbersOfType("x.Y".to_owned()),
        ] {
            let response = call(message_request);
            let code = match &response {
                MessageResponse::Error(error) => Some(error.error_code),
                _ => None,
            };
            assert_eq!(code, Some(Code::NotFound as i32), "{response:?}");
        }
    }

    /// Every type named in a field is defined in a file, and every import exists.
    #[test]
    fn every_referenced_type_and_file_exists() {
        let index = &*FILES;
        for file in index.files() {
            for message in &file.message_type {
                for field in &message.field {
                    let name = field.type_name().trim_start_matches('.');
                    assert!(name.is_empty() || index.file_with_symbol(name).is_some(), "{name}");
                }
            }
            for name in &file.dependency {
                assert!(index.file(name).is_some(), "{name}");
            }
        }
    }
}
