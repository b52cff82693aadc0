//! gRPC's reflection service, which tells generic clients what can be called and how.
//!
//! Knows the files of the services that are served, and those that they import, as far as they are used.

mod envoy;
mod files;
mod google;
mod grpc;

use super::messages::{
    Asked, ExtensionNumbers, Files, ReflectionError, ReflectionRequest, ReflectionResponse,
    ServiceName, Services, Told,
};
use files::Known;
use prost::Message;
use std::sync::LazyLock;
use tidegate_grpc::server::Outcome;
use tidegate_grpc::{Code, Status};

/// The service's names; both versions have the same messages.
pub(super) const SERVICES: [&str; 2] =
    ["grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"];

static KNOWN: LazyLock<Known> = LazyLock::new(|| {
    Known::new([envoy::files(), google::files(), grpc::files()].into_iter().flatten().collect())
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
        told: Some(told(&KNOWN, &request)),
        original_request: Some(request),
    };
    response.encode_raw(answer);
    Outcome::Answered
}

fn told(known: &Known, request: &ReflectionRequest) -> Told {
    let files = |found: Option<Vec<Vec<u8>>>, name: &str| match found {
        Some(descriptors) => Told::Files(Files { descriptors }),
        None => not_found(name),
    };
    match &request.asked {
        Some(Asked::FileByFilename(name)) => files(known.file(name), name),
        Some(Asked::FileContainingSymbol(symbol)) => files(known.file_of(symbol), symbol),
        Some(Asked::FileContainingExtension(extension)) => not_found(&extension.containing_type),
        Some(Asked::AllExtensionNumbersOfType(name)) => match known.file_of(name) {
            Some(_) => Told::ExtensionNumbers(ExtensionNumbers {
                base_type: name.clone(),
                numbers: Vec::new(),
            }),
            None => not_found(name),
        },
        Some(Asked::ListServices(_)) => Told::Services(Services {
            services: known.services().map(|name| ServiceName { name }).collect(),
        }),
        None => error(Code::InvalidArgument, "the request asks for nothing".to_owned()),
    }
}

fn not_found(name: &str) -> Told {
    error(Code::NotFound, format!("{name} is not known"))
}

fn error(code: Code, error_message: String) -> Told {
    Told::Error(ReflectionError { error_code: code as i32, error_message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost_types::FileDescriptorProto;
    use tidegate_wire::RLS_SERVICE;

    fn ask(asked: Asked) -> Told {
        let request = ReflectionRequest { host: "h".to_owned(), asked: Some(asked) };
        let mut bytes = Vec::new();
        assert_eq!(answer(&request.encode_to_vec(), &mut bytes), Outcome::Answered);
        let response = ReflectionResponse::decode(bytes.as_slice()).unwrap();
        assert_eq!((response.valid_host.as_str(), response.original_request), ("h", Some(request)));
        response.told.unwrap()
    }

    fn names(told: Told) -> Vec<String> {
        let Told::Files(files) = told else { panic!("{told:?} is no file") };
        let name = |bytes: &Vec<u8>| FileDescriptorProto::decode(bytes.as_slice()).unwrap().name;
        files.descriptors.iter().filter_map(name).collect()
    }

    #[test]
    fn services_are_listed() {
        let Told::Services(services) = ask(Asked::ListServices(String::new())) else {
            panic!("no list")
        };
        let mut names: Vec<_> = services.services.into_iter().map(|service| service.name).collect();
        names.sort_unstable();
        let [v1, v1alpha] = SERVICES;
        assert_eq!(names, [RLS_SERVICE, super::super::health::SERVICE, v1, v1alpha]);
    }

    #[test]
    fn a_file_comes_with_all_that_it_imports() {
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
        for asked in [
            Asked::FileByFilename(rls[0].to_owned()),
            Asked::FileContainingSymbol(RLS_SERVICE.to_owned()),
            Asked::FileContainingSymbol(format!("{RLS_SERVICE}.ShouldRateLimit")),
            Asked::FileContainingSymbol(
                "envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit".to_owned(),
            ),
        ] {
            let mut found = names(ask(asked));
            assert_eq!(found[0], rls[0], "the file itself is the first");
            found.sort_unstable();
            assert_eq!(found, expected);
        }
        let value = Asked::FileContainingSymbol("google.protobuf.Value".to_owned());
        assert_eq!(names(ask(value)), ["google/protobuf/struct.proto"]);
    }

    #[test]
    fn what_is_not_known_is_not_found() {
        for asked in [
            Asked::FileByFilename("rls.proto".to_owned()),
            Asked::FileContainingSymbol("envoy.service.ratelimit.v3".to_owned()),
            Asked::FileContainingSymbol(String::new()),
            Asked::AllExtensionNumbersOfType("x.Y".to_owned()),
        ] {
            let told = ask(asked);
            let code = match &told {
                Told::Error(error) => Some(error.error_code),
                _ => None,
            };
            assert_eq!(code, Some(Code::NotFound as i32), "{told:?}");
        }
    }

    /// The messages that are told of are those that the code reads and writes.
    #[test]
    fn every_type_that_is_named_is_there() {
        let known = &*KNOWN;
        for file in known.files() {
            for message in &file.message_type {
                for field in &message.field {
                    let name = field.type_name().trim_start_matches('.');
                    assert!(name.is_empty() || known.file_of(name).is_some(), "{name}");
                }
            }
            for name in &file.dependency {
                assert!(known.file(name).is_some(), "{name}");
            }
        }
    }
}
