//! The messages of `grpc.health.v1`, and of `grpc.reflection.v1` and its `v1alpha`, which are the same.

/// `grpc.health.v1.HealthCheckRequest`
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    pub(super) service: String,
}

/// `grpc.health.v1.HealthCheckResponse`
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    pub(super) status: i32,
}

/// `grpc.health.v1.HealthCheckResponse.ServingStatus`
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

/// `grpc.reflection.v1.ServerReflectionRequest`
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct ReflectionRequest {
    #[prost(string, tag = "1")]
    pub(super) host: String,
    #[prost(oneof = "MessageRequest", tags = "3, 4, 5, 6, 7")]
    pub(super) message_request: Option<MessageRequest>,
}

/// `grpc.reflection.v1.ServerReflectionRequest.message_request`
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub(super) enum MessageRequest {
    #[prost(string, tag = "3")]
    FileByFilename(String),
    #[prost(string, tag = "4")]
    FileContainingSymbol(String),
    #[prost(message, tag = "5")]
    FileContainingExtension(ExtensionRequest),
    #[prost(string, tag = "6")]
    AllExtensionNumbersOfType(String),
    #[prost(string, tag = "7")]
    ListServices(String),
}

/// `grpc.reflection.v1.ExtensionRequest`
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct ExtensionRequest {
    #[prost(string, tag = "1")]
    pub(super) containing_type: String,
    #[prost(int32, tag = "2")]
    pub(super) extension_number: i32,
}

/// `grpc.reflection.v1.ServerReflectionResponse`
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ReflectionResponse {
    #[prost(string, tag = "1")]
    pub(super) valid_host: String,
    #[prost(message, optional, tag = "2")]
    pub(super) original_request: Option<ReflectionRequest>,
    #[prost(oneof = "MessageResponse", tags = "4, 5, 6, 7")]
    pub(super) message_response: Option<MessageResponse>,
}

/// `grpc.reflection.v1.ServerReflectionResponse.message_response`
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub(super) enum MessageResponse {
    #[prost(message, tag = "4")]
    Files(Files),
    #[prost(message, tag = "5")]
    ExtensionNumbers(ExtensionNumbers),
    #[prost(message, tag = "6")]
    Services(Services),
    #[prost(message, tag = "7")]
    Error(ReflectionError),
}

/// `grpc.reflection.v1.FileDescriptorResponse`
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Files {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub(super) descriptors: Vec<Vec<u8>>,
}

/// `grpc.reflection.v1.ExtensionNumberResponse`
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct ExtensionNumbers {
    #[prost(string, tag = "1")]
    pub(super) base_type: String,
    #[prost(int32, repeated, tag = "2")]
    pub(super) numbers: Vec<i32>,
}

/// `grpc.reflection.v1.ListServiceResponse`
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Services {
    #[prost(message, repeated, tag = "1")]
    pub(super) services: Vec<ServiceName>,
}

/// `grpc.reflection.v1.ServiceResponse`
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct ServiceName {
    #[prost(string, tag = "1")]
    pub(super) name: String,
}

/// `grpc.reflection.v1.ErrorResponse`
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct ReflectionError {
    #[prost(int32, tag = "1")]
    pub(super) error_code: i32,
    #[prost(string, tag = "2")]
    pub(super) error_message: String,
}
