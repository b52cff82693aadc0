//! gRPC's reflection service, which describes the services to generic clients.
//!
//! Knows the files of the services and their imports, as far as the services use them.

use super::messages::{
    ExtensionNumbers, Files, MessageRequest, MessageResponse, ReflectionError, ReflectionRequest,
    ReflectionResponse, ServiceName, Services,
};
use prost::Message;
use prost_reflect::{DescriptorPool, FileDescriptor};
use std::sync::LazyLock;
use tidegate_grpc::server::Outcome;
use tidegate_grpc::{Code, Status};

/// The service's names; both versions have the same messages.
pub(super) const SERVICES: [&str; 2] =
    ["grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"];

/// The published files of the services; services.py makes them.
static FILES: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(include_bytes!("reflection/services.binpb").as_slice())
        .expect("a test decodes the same bytes")
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
        message_response: Some(respond(&request)),
        original_request: Some(request),
    };
    response.encode_raw(answer);
    Outcome::Answered
}

fn respond(request: &ReflectionRequest) -> MessageResponse {
    let files = |file: Option<FileDescriptor>, name: &str| match file {
        Some(file) => MessageResponse::Files(Files { descriptors: with_imports(file) }),
        None => not_found(name),
    };
    match &request.message_request {
        Some(MessageRequest::FileByFilename(name)) => files(FILES.get_file_by_name(name), name),
        Some(MessageRequest::FileContainingSymbol(symbol)) => files(file_of(symbol), symbol),
        Some(MessageRequest::FileContainingExtension(extension)) => {
            not_found(&extension.containing_type)
        }
        Some(MessageRequest::AllExtensionNumbersOfType(name)) => match file_of(name) {
            Some(_) => MessageResponse::ExtensionNumbers(ExtensionNumbers {
                base_type: name.clone(),
                numbers: Vec::new(),
            }),
            None => not_found(name),
        },
        Some(MessageRequest::ListServices(_)) => {
            let names = FILES.services().map(|service| service.full_name().to_owned());
            let services = names.map(|name| ServiceName { name }).collect();
            MessageResponse::Services(Services { services })
        }
        None => error(Code::InvalidArgument, "the request has no message_request".to_owned()),
    }
}

/// The file that defines a message, an enum, a service or a method.
fn file_of(symbol: &str) -> Option<FileDescriptor> {
    let method = || {
        let (service, name) = symbol.rsplit_once('.')?;
        let service = FILES.get_service_by_name(service)?;
        service.methods().any(|method| method.name() == name).then(|| service.parent_file())
    };
    let message = FILES.get_message_by_name(symbol).map(|message| message.parent_file());
    message
        .or_else(|| FILES.get_enum_by_name(symbol).map(|found| found.parent_file()))
        .or_else(|| FILES.get_service_by_name(symbol).map(|service| service.parent_file()))
        .or_else(method)
}

/// The encoded file, which is the first, and all files that it imports.
fn with_imports(file: FileDescriptor) -> Vec<Vec<u8>> {
    let mut files = vec![file];
    let mut next = 0;
    while let Some(file) = files.get(next) {
        let new: Vec<_> = file.dependencies().filter(|found| !files.contains(found)).collect();
        files.extend(new);
        next += 1;
    }
    files.iter().map(FileDescriptor::encode_to_vec).collect()
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
    use prost_reflect::{DynamicMessage, Value};
    use prost_types::FileDescriptorProto;
    use tidegate_wire::RLS_SERVICE;
    use tidegate_wire::rls::{
        DescriptorEntry, DescriptorStatus, HeaderValue, Quota, RateLimit, RateLimitDescriptor,
        RateLimitOverride, RateLimitRequest, RateLimitResponse,
    };

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

    /// Every field that the server reads or writes is described with its number and type.
    #[test]
    fn fields_of_calls_are_described() {
        let request = RateLimitRequest {
            domain: "d".to_owned(),
            descriptors: vec![RateLimitDescriptor {
                entries: vec![DescriptorEntry { key: "k".to_owned(), value: "v".to_owned() }],
                limit: Some(RateLimitOverride { requests_per_unit: 1, unit: 7 }),
                hits_addend: Some(1),
                is_negative_hits: true,
            }],
            hits_addend: 1,
        };
        let end = Some(prost_types::Timestamp { seconds: 1, nanos: 1 });
        let header = HeaderValue { key: "k".to_owned(), value: "v".to_owned() };
        let response = RateLimitResponse {
            overall_code: 1,
            statuses: vec![DescriptorStatus {
                code: 1,
                current_limit: Some(RateLimit {
                    requests_per_unit: 1,
                    unit: 7,
                    name: "n".to_owned(),
                }),
                limit_remaining: 1,
                duration_until_reset: Some(prost_types::Duration { seconds: 1, nanos: 1 }),
                quota: Some(Quota { requests: 1, valid_until: end, id: "i".to_owned() }),
                // Tidegate's own fields are not in Envoy's files.
                ..DescriptorStatus::default()
            }],
            response_headers_to_add: vec![header.clone()],
            request_headers_to_add: vec![header],
            raw_body: b"b".to_vec(),
            dynamic_metadata: Some(prost_types::Struct {
                fields: [("n".to_owned(), 1.0.into())].into(),
            }),
        };
        let list = ReflectionResponse {
            valid_host: "h".to_owned(),
            original_request: None,
            message_response: Some(error(Code::NotFound, "x".to_owned())),
        };
        for (name, bytes) in [
            ("envoy.service.ratelimit.v3.RateLimitRequest", request.encode_to_vec()),
            ("envoy.service.ratelimit.v3.RateLimitResponse", response.encode_to_vec()),
            ("grpc.reflection.v1.ServerReflectionResponse", list.encode_to_vec()),
            ("grpc.reflection.v1alpha.ServerReflectionResponse", list.encode_to_vec()),
        ] {
            let described = FILES.get_message_by_name(name).unwrap();
            let message = DynamicMessage::decode(described, bytes.as_slice()).unwrap();
            assert!(is_described(&Value::Message(message.clone())), "{message}");
        }
    }

    fn is_described(value: &Value) -> bool {
        match value {
            Value::Message(message) => {
                let mut fields = message.fields();
                message.unknown_fields().next().is_none()
                    && fields.all(|(_, value)| is_described(value))
            }
            Value::List(values) => values.iter().all(is_described),
            _ => true,
        }
    }
}
