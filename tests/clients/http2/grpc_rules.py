"""gRPC over HTTP/2 (grpc/grpc, doc/PROTOCOL-HTTP2.md): what makes a call, and how one ends."""

from case import Case
from expect import accepted, answered, http, status, stream_error, that
from wire import (
    CONTINUATION, END_HEADERS, FRAME_MAX, HEADERS, MESSAGE, WATCH, call, call_fields, data, envelope, frame, headers,
    plain, rst, without,
)  # fmt: skip

MESSAGE_MAX = 4 * 1024 * 1024
FIELDS_MAX = 16 * 1024
# A call of one message that has another number of them: doc/statuscodes.md says UNIMPLEMENTED, grpc-go and
# grpc-java say INTERNAL.
CARDINALITY = status("INTERNAL", "UNIMPLEMENTED")
INVALID = status("INVALID_ARGUMENT")


def changed(name, value):
    return [(field, value if field == name else other) for field, other in call_fields()]


def more(*fields):
    return call_fields() + list(fields)


def metadata(size):
    """A call whose metadata has this size as MAX_HEADER_LIST_SIZE counts it, in fields of 1000 bytes."""
    fields = [(f"x-{number}", "v" * (1_000 - 32 - len(f"x-{number}"))) for number in range(size // 1_000)]
    return lambda peer: in_frames(1, peer.encoder.encode(more(*fields), huffman=False)) + data(1, MESSAGE, end=True)


def in_frames(stream, block):
    parts = [block[at : at + FRAME_MAX] for at in range(0, len(block), FRAME_MAX)]
    kinds = [HEADERS] + [CONTINUATION] * (len(parts) - 1)
    flags = [0] * (len(parts) - 1) + [END_HEADERS]
    return b"".join(frame(kind, flag, stream, part) for kind, flag, part in zip(kinds, flags, parts))


def trailers_only(peer):
    stream = peer.streams[1]
    return len(stream.blocks) == 1 and stream.ended and not stream.data


def body(*parts, end=True):
    """A call whose body comes in these frames."""
    return [headers(1), *[data(1, part) for part in parts[:-1]], data(1, parts[-1], end=end)]


TRAILERS_ONLY = that("in one block", trailers_only)

CASES = [
    # Requests.
    *[
        Case("grpc request", f"content-type {value}", [call(1, changed("content-type", value))], answered())
        for value in ("application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8")
    ],
    *[
        Case("grpc request", f"content-type {value}", [call(1, changed("content-type", value))], http(415))
        for value in ("application/grpcx", "application/grpc-web", "application/json", "text/html", "")
    ],
    Case("grpc request", "no content-type", [call(1, without("content-type"))], http(415)),
    Case("grpc request", "no te: some proxies drop it", [call(1, without("te"))], answered()),
    Case("grpc request", "an unknown method of a known service",
         [call(1, changed(":path", "/envoy.service.ratelimit.v3.RateLimitService/Other"))],
         status("UNIMPLEMENTED") & TRAILERS_ONLY),
    Case("grpc request", "an unknown service", [call(1, changed(":path", "/a.B/C"))], status("UNIMPLEMENTED")),
    Case("grpc request", "a path without service and method", [call(1, changed(":path", "/"))], status("UNIMPLEMENTED")),
    Case("grpc request", "a path without a slash", [call(1, changed(":path", "x"))], status("UNIMPLEMENTED")),
    Case("grpc request", "a path of bytes above ASCII is told, percent-encoded",
         [call(1, plain(*changed(":path", "/a/\u00fc%\u20ac")))],
         status("UNIMPLEMENTED") & that("%C3%BC%25%E2%82%AC",
                                        lambda peer: "%C3%BC%25%E2%82%AC" in peer.streams[1].fields["grpc-message"])),
    Case("grpc request", "a path that ends with a space is told, too",
         [call(1, plain(*changed(":path", "/a/b ")))],
         status("UNIMPLEMENTED")
         & that("its space as %20", lambda peer: peer.streams[1].fields["grpc-message"].endswith("/a/b%20"))),
    Case("grpc request", "a path of 15 KB",
         [call(1, plain(*changed(":path", "/" + "\u00fc" * 7_500)))], status("UNIMPLEMENTED")),
    Case("grpc request", "an unknown method is refused before its first message",
         [headers(1, changed(":path", "/a.B/C"))], status("UNIMPLEMENTED")),
    *[
        Case("grpc request", f"grpc-timeout {value!r}", [call(1, more(("grpc-timeout", value)))], answered())
        for value in ("1S", "99999999H", "10000000n")
    ],
    *[
        # What makes no sense may be refused or ignored: calls are answered at once, so no timeout matters.
        Case("grpc request", f"grpc-timeout {value!r}", [call(1, more(("grpc-timeout", value)))],
             answered() | status("INTERNAL", "INVALID_ARGUMENT"))
        for value in ("", "1", "S", "-1S", "999999999S", "1x")
    ],
    Case("grpc request", "metadata of bytes, and some that are not base64",
         [call(1, more(("x-a-bin", "AAECAw"), ("x-b-bin", "%%%")))], answered()),
    Case("grpc request", "metadata that occurs twice", [call(1, more(("x-a", "1"), ("x-a", "2")))], answered()),
    Case("grpc request", "metadata of 15 KB", [metadata(15_000)], answered()),
    Case("grpc request", "metadata of 17 KB, beyond MAX_HEADER_LIST_SIZE, ends this call only", [metadata(17_000)],
         that("16 KiB offered", lambda peer: peer.server_settings.get(6) == FIELDS_MAX) & status("RESOURCE_EXHAUSTED")),
    Case("grpc request", "metadata of 30 KB", [metadata(30_000)], status("RESOURCE_EXHAUSTED")),
    Case("grpc request", "metadata of 64 KB", [metadata(64_000)],
         status("RESOURCE_EXHAUSTED") | stream_error("ENHANCE_YOUR_CALM", "PROTOCOL_ERROR")),
    # Messages.
    Case("grpc message", "in one frame", body(MESSAGE), answered()),
    Case("grpc message", "prefix and message in two frames", body(MESSAGE[:5], MESSAGE[5:]), answered()),
    Case("grpc message", "a prefix in five frames", body(*[bytes([byte]) for byte in MESSAGE[:5]], MESSAGE[5:]), answered()),
    Case("grpc message", "END_STREAM in an empty frame", body(MESSAGE, b""), answered()),
    Case("grpc message", "no message, END_STREAM with the fields", [headers(1, end=True)], CARDINALITY & TRAILERS_ONLY),
    Case("grpc message", "no message, END_STREAM in an empty frame", body(b""), CARDINALITY & TRAILERS_ONLY),
    Case("grpc message", "two messages on a unary method, in one frame", body(MESSAGE + MESSAGE), CARDINALITY),
    Case("grpc message", "two messages on a unary method, in two frames", body(MESSAGE, MESSAGE), CARDINALITY),
    Case("grpc message", "three messages and no end: an error at once", body(MESSAGE, MESSAGE, MESSAGE, end=False),
         CARDINALITY),
    Case("grpc message", "an empty message, which is no request", body(envelope()), INVALID),
    Case("grpc message", "half a prefix at END_STREAM", body(MESSAGE[:3]), status("INTERNAL")),
    Case("grpc message", "half a message at END_STREAM", body(MESSAGE[:-1]), status("INTERNAL")),
    Case("grpc message", "half a second message at END_STREAM", body(MESSAGE + MESSAGE[:9]), CARDINALITY),
    Case("grpc message", "half a message, ended by trailers",
         [headers(1), data(1, MESSAGE[:-1]), headers(1, plain(("x", "y")), end=True)], status("INTERNAL")),
    Case("grpc message", "larger than allowed, refused by its prefix alone",
         body(envelope(length=MESSAGE_MAX + 1), end=False), status("RESOURCE_EXHAUSTED") & TRAILERS_ONLY),
    Case("grpc message", "of 2^32 - 1 bytes, as its prefix says", body(envelope(length=2**32 - 1), end=False),
         status("RESOURCE_EXHAUSTED")),
    Case("grpc message", "of exactly the largest size",
         [headers(1), data(1, envelope(length=MESSAGE_MAX)), *[data(1, b"\xff" * 16_384)] * 255,
          data(1, b"\xff" * 16_384, end=True)], INVALID),
    Case("grpc message", "compressed, by an encoding that is not understood",
         [headers(1, more(("grpc-encoding", "gzip"))), data(1, envelope(b"x", flag=1), end=True)],
         status("UNIMPLEMENTED")
         & that("grpc-accept-encoding", lambda peer: "grpc-accept-encoding" in peer.streams[1].fields)),
    Case("grpc message", "not compressed, though an encoding is named",
         [call(1, more(("grpc-encoding", "gzip")))], answered()),
    Case("grpc message", "compressed, without an encoding", body(envelope(b"x", flag=1)), status("INTERNAL")),
    Case("grpc message", "compressed by identity",
         [headers(1, more(("grpc-encoding", "identity"))), data(1, envelope(b"x", flag=1), end=True)], status("INTERNAL")),
    Case("grpc message", "a flag that means nothing", body(envelope(b"x", flag=2)), status("INTERNAL")),
    Case("grpc message", "no protobuf", body(envelope(b"\xff" * 9)), INVALID & TRAILERS_ONLY),
    # Responses and ends.
    Case("grpc response", "fields, one message, trailers; or one block", [call(1)], answered()),
    Case("grpc response", "a call that is given up while its message arrives", [headers(1), data(1, MESSAGE[:9]), rst(1)],
         accepted()),
    Case("grpc response", "an answer while the client still sends is an end for both",
         body(envelope(b"\xff" * 9), end=False), INVALID & stream_error("NO_ERROR")),
    Case("grpc response", "a call that stays open", [headers(1, call_fields(WATCH)), data(1, envelope(), end=True)],
         that("one message, no end", lambda peer: len(peer.streams[1].data) == 7 and not peer.streams[1].ended)),
]  # fmt: skip
