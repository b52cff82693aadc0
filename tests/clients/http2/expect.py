"""What a section requires, as functions of the connection after a case: None, or what differs."""

from envoy.service.ratelimit.v3 import rls_pb2

import wire

GRPC = [
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
]  # fmt: skip


class Expected:
    """`check` says whether it holds; the connection goes on unless `ends`."""

    def __init__(self, text, check, ends=False):
        self.text, self.check, self.ends = text, check, ends

    def __or__(self, other):
        check = lambda peer: self.check(peer) or other.check(peer)  # noqa: E731
        return Expected(f"{self.text}, or {other.text}", check, self.ends or other.ends)

    def __and__(self, other):
        check = lambda peer: self.check(peer) and other.check(peer)  # noqa: E731
        return Expected(f"{self.text}, {other.text}", check, self.ends or other.ends)


def connection_error(*codes):
    """A GOAWAY with one of these codes, then the end."""

    def check(peer):
        return peer.closed and peer.goaway is not None and wire.ERRORS[peer.goaway.error_code] in codes

    return Expected(f"connection error {' or '.join(codes)}", check, ends=True)


def closed():
    """The end, with or without GOAWAY."""
    return Expected("the connection is closed", lambda peer: peer.closed, ends=True)


def stream_error(*codes, stream=1):
    """A RST_STREAM with one of these codes; the connection goes on."""

    def check(peer):
        reset = peer.streams[stream].reset
        return not peer.closed and reset is not None and wire.ERRORS[reset] in codes

    return Expected(f"stream error {' or '.join(codes)} on {stream}", check)


def accepted():
    """Nothing is said against it."""

    def check(peer):
        resets = [stream for stream in peer.streams.values() if stream.reset not in (None, 0)]
        return not peer.closed and peer.goaway is None and not resets

    return Expected("accepted", check)


def silence(stream=1):
    """Accepted, and nothing is said on this stream."""

    def check(peer):
        seen = peer.streams.get(stream)
        return seen is None or (not seen.blocks and not seen.data and seen.reset is None and not seen.ended)

    return accepted() & Expected(f"nothing on {stream}", check)


def answered(*streams):
    """A message that is a decision, and `grpc-status: 0`, on each stream."""
    streams = streams or (1,)

    def check(peer):
        return not peer.closed and all(is_answered(peer.streams[stream]) for stream in streams)

    return Expected(f"answered on {', '.join(map(str, streams))}", check)


def is_answered(stream):
    if len(stream.blocks) != 2 or not stream.ended or stream.reset not in (None, 0):
        return False
    head, trailers = dict(stream.blocks[0]), dict(stream.blocks[1])
    if (head[":status"], head.get("content-type"), trailers.get("grpc-status")) != ("200", "application/grpc", "0"):
        return False
    flag, length = stream.data[0], int.from_bytes(stream.data[1:5])
    answer = rls_pb2.RateLimitResponse.FromString(stream.data[5:])
    return flag == 0 and length == len(stream.data) - 5 and answer.overall_code == rls_pb2.RateLimitResponse.OK


def status(*names, stream=1):
    """The call ends with one of these statuses of gRPC, at once, by a block that ends the stream."""

    def check(peer):
        seen = peer.streams[stream]
        code = seen.fields.get("grpc-status")
        whole = seen.ended and seen.fields.get(":status") == "200" and seen.reset in (None, 0)
        return not peer.closed and whole and code is not None and GRPC[int(code)] in names

    return Expected(f"grpc-status {' or '.join(names)} on {stream}", check)


def http(*codes, stream=1):
    """The request ends with one of these statuses of HTTP."""

    def check(peer):
        seen = peer.streams[stream]
        return not peer.closed and seen.ended and seen.fields.get(":status") in map(str, codes)

    return Expected(f":status {' or '.join(map(str, codes))} on {stream}", check)


def that(text, check):
    """Something of this case's own."""
    return Expected(text, lambda peer: not peer.closed and check(peer))
