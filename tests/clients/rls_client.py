"""Asks a rate limit service with gRPC's own Python implementation and Envoy's own messages.

Usage: rls_client.py TARGET [--tls CA CERTIFICATE KEY]

Each check is a function of a channel; what it expects of the limits is in rls_client.yaml beside this
file. Prints a line for each, and exits with 1 if one fails.
"""

import concurrent.futures
import sys
import threading
import traceback
import uuid

import grpc
from envoy.extensions.common.ratelimit.v3 import ratelimit_pb2
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from envoy.type.v3 import ratelimit_unit_pb2
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

OK = rls_pb2.RateLimitResponse.OK
OVER = rls_pb2.RateLimitResponse.OVER_LIMIT
WAIT = 30  # seconds, for a call that is to be answered at once, on a busy machine
SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
METHOD = f"/{SERVICE}/ShouldRateLimit"

# Known defects: a check that holds again fails until it is taken out.
PENDING = {}


def descriptor(*entries, **more):
    entry = ratelimit_pb2.RateLimitDescriptor.Entry
    entries = [entry(key=key, value=value) for key, value in entries]
    return ratelimit_pb2.RateLimitDescriptor(entries=entries, **more)


def ask(channel, *descriptors, domain="outside", hits=0, **call):
    stub = rls_pb2_grpc.RateLimitServiceStub(channel)
    request = rls_pb2.RateLimitRequest(domain=domain, descriptors=descriptors, hits_addend=hits)
    return stub.ShouldRateLimit(request, timeout=WAIT, **call)


def fresh():
    """A value that no counter has met."""
    return uuid.uuid4().hex


def refused(code, call):
    """The details of a call that must be refused with this code."""
    try:
        answer = call()
    except grpc.RpcError as error:
        assert error.code() == code, f"{error.code()} {error.details()!r}, not {code}"
        return error.details()
    raise AssertionError(f"answered: {answer}")


def a_limit_is_counted_down(channel):
    value = fresh()
    for left in (2, 1, 0):
        answer = ask(channel, descriptor(("client", value)))
        assert answer.overall_code == OK, answer
        (status,) = answer.statuses
        assert (status.code, status.limit_remaining) == (OK, left), answer
        limit = status.current_limit
        assert (limit.requests_per_unit, limit.unit) == (3, rls_pb2.RateLimitResponse.RateLimit.DAY)
        assert limit.name == "per-client", answer
        assert 0 < status.duration_until_reset.seconds <= 86_400, answer
    answer = ask(channel, descriptor(("client", value)))
    assert answer.overall_code == OVER, answer
    assert [status.code for status in answer.statuses] == [OVER], answer


def statuses_come_in_the_order_of_descriptors(channel):
    value = fresh()
    asked = [
        descriptor(("unknown", value)),
        descriptor(("client", value)),
        descriptor(("free", value)),
        descriptor(("client", value), ("unknown", value)),
    ]
    answer = ask(channel, *asked)
    limits = [status.HasField("current_limit") for status in answer.statuses]
    left = [status.limit_remaining for status in answer.statuses]
    assert limits == [False, True, False, False], answer
    assert left == [0, 2, 2**32 - 1, 0], answer


def hits_are_those_of_the_descriptor_or_of_the_request(channel):
    value = fresh()
    (status,) = ask(channel, descriptor(("many", value)), hits=40).statuses
    assert status.limit_remaining == 260, status
    own = descriptor(("many", value))
    own.hits_addend.value = 100
    (status,) = ask(channel, own, hits=7).statuses
    assert status.limit_remaining == 160, status
    own.hits_addend.value = 0
    (status,) = ask(channel, own, hits=7).statuses
    assert status.limit_remaining == 160, status
    answer = ask(channel, descriptor(("many", value)), hits=161)
    assert answer.overall_code == OVER, answer
    # More than there is takes nothing.
    (status,) = ask(channel, descriptor(("many", value)), hits=160).statuses
    assert (status.code, status.limit_remaining) == (OK, 0), status


def a_request_may_bring_its_limit_along(channel):
    value = fresh()
    limit = ratelimit_pb2.RateLimitDescriptor.RateLimitOverride(
        requests_per_unit=1, unit=ratelimit_unit_pb2.DAY
    )
    own = descriptor(("client", value), limit=limit)
    assert [ask(channel, own).overall_code for _ in range(2)] == [OK, OVER]


def shadowed_rules_never_deny(channel):
    value = fresh()
    codes = [ask(channel, descriptor(("watched", value))).overall_code for _ in range(3)]
    assert codes == [OK] * 3, codes


def a_request_without_meaning_is_refused(channel):
    def details(**request):
        arguments = {"domain": "outside"} | request
        descriptors = arguments.pop("descriptors", [descriptor(("client", "a"))])
        return refused(
            grpc.StatusCode.INVALID_ARGUMENT, lambda: ask(channel, *descriptors, **arguments)
        )

    assert details(domain="") == "rate limit domain must not be empty"
    assert details(descriptors=[]) == "rate limit descriptor list must not be empty"
    assert "key must not be empty" in details(descriptors=[descriptor(("", "a"))])
    assert "entries must not be empty" in details(descriptors=[descriptor()])


def an_unknown_domain_has_no_limits(channel):
    answer = ask(channel, descriptor(("client", "a")), domain="elsewhere")
    assert answer.overall_code == OK and not answer.statuses[0].HasField("current_limit"), answer


def bytes_that_are_no_message_are_refused(channel):
    raw = channel.unary_unary(METHOD)
    code = grpc.StatusCode.INVALID_ARGUMENT
    for data in (b"\xff" * 20, b"\x0a\x05ab", b"\x0a\x02\xff\xfe"):
        refused(code, lambda data=data: raw(data, timeout=WAIT))


def unknown_methods_are_unimplemented(channel):
    code = grpc.StatusCode.UNIMPLEMENTED
    for method in (f"/{SERVICE}/Other", "/other.Service/ShouldRateLimit"):
        refused(code, lambda method=method: channel.unary_unary(method)(b"", timeout=WAIT))


def compressed_messages_are_unimplemented(channel):
    call = lambda: ask(  # noqa: E731
        channel, descriptor(("client", "a" * 5_000)), compression=grpc.Compression.Gzip
    )
    refused(grpc.StatusCode.UNIMPLEMENTED, call)


def messages_beyond_the_bound_are_refused(channel):
    big = descriptor(("client", "a" * (5 * 1024 * 1024)))
    refused(grpc.StatusCode.RESOURCE_EXHAUSTED, lambda: ask(channel, big))
    # The connection goes on.
    assert ask(channel, descriptor(("client", fresh()))).overall_code == OK


def a_large_message_is_taken(channel):
    value = fresh() + "a" * 1_000_000
    left = [ask(channel, descriptor(("client", value))).statuses[0].limit_remaining for _ in "ab"]
    assert left == [2, 1], left


def many_calls_at_once_are_all_answered_and_counted(channel):
    value = fresh()
    stub = rls_pb2_grpc.RateLimitServiceStub(channel)
    request = rls_pb2.RateLimitRequest(
        domain="outside", descriptors=[descriptor(("many", value))]
    )
    calls = [stub.ShouldRateLimit.future(request, timeout=WAIT) for _ in range(2_000)]
    codes = [call.result().overall_code for call in calls]
    assert (codes.count(OK), codes.count(OVER)) == (300, 1_700), codes


def threads_share_a_channel(channel):
    value = fresh()
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        asked = lambda _: ask(channel, descriptor(("many", value))).overall_code  # noqa: E731
        codes = list(pool.map(asked, range(400)))
    assert (codes.count(OK), codes.count(OVER)) == (300, 100), codes


def metadata_may_be_large_and_odd(channel):
    metadata = [("x-long", "v" * 4_000), ("x-many-bin", bytes(range(256))), ("user-agent", "odd")]
    metadata += [(f"x-{number}", str(number)) for number in range(50)]
    for _ in range(3):
        answer = ask(channel, descriptor(("client", fresh())), metadata=metadata)
        assert answer.overall_code == OK, answer


def oversized(channel, size):
    """Metadata beyond what SETTINGS allows ends its own call at most: one that is open beside it goes on."""
    stub = health_pb2_grpc.HealthStub(channel)
    watching = stub.Watch(health_pb2.HealthCheckRequest())
    assert next(watching).status == health_pb2.HealthCheckResponse.SERVING
    metadata = [(f"x-{number}", "v" * 1_000) for number in range(size // 1_000)]
    for _ in range(5):
        call = lambda: ask(channel, descriptor(("free", "a")), metadata=metadata)  # noqa: E731
        refused(grpc.StatusCode.RESOURCE_EXHAUSTED, call)
        assert ask(channel, descriptor(("free", "a"))).overall_code == OK
    assert watching.is_active(), watching.code()
    watching.cancel()


def metadata_of_20_kb_ends_one_call_at_most(channel):
    oversized(channel, 20_000)


def metadata_of_64_kb_ends_one_call_at_most(channel):
    oversized(channel, 64_000)


def a_client_streaming_stub_gets_an_error_at_once(channel):
    """It sends three messages to a method that takes one, and does not end."""
    request = rls_pb2.RateLimitRequest(domain="outside", descriptors=[descriptor(("free", "a"))])
    answered = threading.Event()

    def requests():
        for _ in range(3):
            yield request.SerializeToString()
        answered.wait()

    stub = channel.stream_unary(METHOD)
    try:
        stub(requests(), timeout=WAIT)
        raise AssertionError("answered")
    except grpc.RpcError as error:
        assert error.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNIMPLEMENTED), error
    finally:
        answered.set()


def a_client_streaming_stub_of_one_message_is_answered(channel):
    request = rls_pb2.RateLimitRequest(domain="outside", descriptors=[descriptor(("free", "a"))])
    stub = channel.stream_unary(METHOD, response_deserializer=rls_pb2.RateLimitResponse.FromString)
    assert stub(iter([request.SerializeToString()]), timeout=WAIT).overall_code == OK


def first_in_time(stream):
    """The first message of a stream; none if its deadline came before."""
    try:
        return next(stream)
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error.code()
        return None


def deadlines_end_calls_and_nothing_else(channel):
    stub = health_pb2_grpc.HealthStub(channel)
    # A busy machine may need longer than the first of these for the first message.
    for timeout in (0.2, 2, WAIT):
        watching = stub.Watch(health_pb2.HealthCheckRequest(), timeout=timeout)
        first = first_in_time(watching)
        if first:
            break
    assert first and first.status == health_pb2.HealthCheckResponse.SERVING
    refused(grpc.StatusCode.DEADLINE_EXCEEDED, lambda: next(watching))
    assert ask(channel, descriptor(("free", "a"))).overall_code == OK


def messages_of_nearly_4_mb_are_taken(channel):
    value = fresh() + "a" * (4 * 1024 * 1024 - 200)
    left = [ask(channel, descriptor(("client", value))).statuses[0].limit_remaining for _ in "abc"]
    assert left == [2, 1, 0], left


def cancelled_calls_leave_the_connection_whole(channel):
    stub = rls_pb2_grpc.RateLimitServiceStub(channel)
    request = rls_pb2.RateLimitRequest(domain="outside", descriptors=[descriptor(("free", "a"))])
    for _ in range(200):
        stub.ShouldRateLimit.future(request, timeout=WAIT).cancel()
    assert ask(channel, descriptor(("client", fresh()))).overall_code == OK


def health_is_told(channel):
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", "ratelimit", SERVICE):
        request = health_pb2.HealthCheckRequest(service=service)
        status = stub.Check(request, timeout=WAIT).status
        assert status == health_pb2.HealthCheckResponse.SERVING, (service, status)
    request = health_pb2.HealthCheckRequest(service="other")
    refused(grpc.StatusCode.NOT_FOUND, lambda: stub.Check(request, timeout=WAIT))


def health_is_watched(channel):
    stub = health_pb2_grpc.HealthStub(channel)
    watching = stub.Watch(health_pb2.HealthCheckRequest(service="ratelimit"), timeout=WAIT)
    assert next(watching).status == health_pb2.HealthCheckResponse.SERVING
    watching.cancel()
    watching = stub.Watch(health_pb2.HealthCheckRequest(service="other"), timeout=WAIT)
    assert next(watching).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watching.cancel()


def reflection_is_enough_to_ask(channel):
    database = ProtoReflectionDescriptorDatabase(channel)
    assert SERVICE in database.get_services(), database.get_services()
    assert "grpc.health.v1.Health" in database.get_services(), database.get_services()
    pool = descriptor_pool.DescriptorPool(database)
    method = pool.FindServiceByName(SERVICE).FindMethodByName("ShouldRateLimit")
    request = message_factory.GetMessageClass(method.input_type)(domain="outside")
    request.descriptors.add().entries.add(key="client", value=fresh())
    call = channel.unary_unary(
        METHOD,
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
    )
    answer = call(request, timeout=WAIT)
    assert (answer.overall_code, answer.statuses[0].limit_remaining) == (OK, 2), answer


def channel_to(target, tls):
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    if not tls:
        return grpc.insecure_channel(target, options)
    ca, certificate, key = (open(path, "rb").read() for path in tls)
    credentials = grpc.ssl_channel_credentials(ca, key, certificate)
    return grpc.secure_channel(target, credentials, options)


def main():
    target, *rest = sys.argv[1:]
    tls = rest[1:] if rest[:1] == ["--tls"] else []
    checks = [
        a_limit_is_counted_down,
        statuses_come_in_the_order_of_descriptors,
        hits_are_those_of_the_descriptor_or_of_the_request,
        a_request_may_bring_its_limit_along,
        shadowed_rules_never_deny,
        a_request_without_meaning_is_refused,
        an_unknown_domain_has_no_limits,
        bytes_that_are_no_message_are_refused,
        unknown_methods_are_unimplemented,
        compressed_messages_are_unimplemented,
        messages_beyond_the_bound_are_refused,
        a_large_message_is_taken,
        many_calls_at_once_are_all_answered_and_counted,
        threads_share_a_channel,
        metadata_may_be_large_and_odd,
        metadata_of_20_kb_ends_one_call_at_most,
        metadata_of_64_kb_ends_one_call_at_most,
        a_client_streaming_stub_gets_an_error_at_once,
        a_client_streaming_stub_of_one_message_is_answered,
        deadlines_end_calls_and_nothing_else,
        messages_of_nearly_4_mb_are_taken,
        cancelled_calls_leave_the_connection_whole,
        health_is_told,
        health_is_watched,
        reflection_is_enough_to_ask,
    ]
    failed = 0
    with channel_to(target, tls) as channel:
        for check in checks:
            reason = PENDING.get(check.__name__)
            try:
                check(channel)
                error = "it holds now: take it out of PENDING" if reason else None
            except Exception:
                error = None if reason else traceback.format_exc()
            if error:
                failed += 1
                print("FAILED", check.__name__, error, sep="\n")
            else:
                print("pending" if reason else "ok", check.__name__, reason or "")
    print(f"{failed} of {len(checks)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
