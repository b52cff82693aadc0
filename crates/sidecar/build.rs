//! Generates the gRPC server glue of the rate limit service over the messages of `tidegate-wire`.

fn main() {
    let should_rate_limit = tonic_build::manual::Method::builder()
        .name("should_rate_limit")
        .route_name("ShouldRateLimit")
        .input_type("tidegate_wire::rls::RateLimitRequest")
        .output_type("tidegate_wire::rls::RateLimitResponse")
        .codec_path("tonic_prost::ProstCodec")
        .build();
    let service = tonic_build::manual::Service::builder()
        .name("RateLimitService")
        .package("envoy.service.ratelimit.v3")
        .method(should_rate_limit)
        .build();
    tonic_build::manual::Builder::new().build_client(false).compile(&[service]);
}
