"""RFC 9113, section 8: malformed messages, fields, pseudo-header fields, push."""

from case import Case, barrier
from expect import answered, connection_error, http, stream_error, that
from wire import (
    ENABLE_PUSH, MESSAGE, call, call_fields, data, headers, plain, settings, without,
)  # fmt: skip

MALFORMED = stream_error("PROTOCOL_ERROR")
# 8.2.1: a server may say what is wrong instead.
MALFORMED_FIELD = MALFORMED | http(400)


def with_field(name, value, encode=plain):
    """A call with one more field, byte for byte."""

    def write(peer):
        block = peer.encoder.encode(call_fields()) + encode((name, value))
        return headers(1, block)(peer) + data(1, MESSAGE, end=True)

    return [write]


def with_trailers(*fields, end=True):
    return [headers(1), data(1, MESSAGE), headers(1, plain(*fields), end=end)]


def call_of(fields):
    return [call(1, fields)]


def changed(name, value):
    return [(field, value if field == name else other) for field, other in call_fields()]


def length(value, body=MESSAGE):
    return [call(1, call_fields() + [("content-length", str(value))], body)]


ALLOW = that("allow: POST", lambda peer: peer.streams[1].fields.get("allow") == "POST")

CONNECTION_SPECIFIC = [
    ("connection", "close"), ("keep-alive", "timeout=5"), ("proxy-connection", "keep-alive"),
    ("transfer-encoding", "chunked"), ("upgrade", "h2c"),
]  # fmt: skip

BAD_NAMES = [
    ("an upper-case letter", b"X-a"), ("a space", b"x a"), ("a colon", b"x:a"), ("a NUL", b"x\0"), ("a line feed", b"x\n"),
    ("a tab", b"x\ta"), ("DEL", b"x\x7f"), ("a byte above ASCII", b"x\xe9"), ("no bytes", b""),
]  # fmt: skip

BAD_VALUES = [
    ("NUL", b"a\0b"), ("a line feed", b"a\nb"), ("a carriage return", b"a\rb"), ("CR LF and another field", b"a\r\nb: c"),
]  # fmt: skip

CASES = [
    # Framing of messages.
    Case("8.1", "fields, body, trailers", with_trailers(("x-sum", "1")), answered()),
    Case("8.1", "empty trailers", with_trailers(), answered()),
    Case("8.1", "trailers that do not end the stream", with_trailers(("x-sum", "1"), end=False), MALFORMED),
    Case("8.1", "DATA after trailers", [*with_trailers(("x-sum", "1")), barrier, data(1, b"x")],
         connection_error("STREAM_CLOSED")),
    Case("8.1", "trailers with a pseudo-header field", with_trailers((":path", "/")), MALFORMED),
    Case("8.1", "a response as a request", call_of([(":status", "200"), ("content-type", "application/grpc")]), MALFORMED),
    Case("8.1", "an early answer: the rest of the request is not needed",
         [headers(1, changed("content-type", "text/plain"))], http(415)),
    # Length.
    Case("8.1.1", "content-length that is right", length(len(MESSAGE)), answered()),
    Case("8.1.1", "content-length that is right, over padding and several frames",
         [headers(1, call_fields() + [("content-length", str(len(MESSAGE)))]),
          data(1, b"\x03" + MESSAGE[:5] + bytes(3), flags=8), data(1, MESSAGE[5:], end=True)], answered()),
    Case("8.1.1", "content-length beyond the body", length(len(MESSAGE) + 1), MALFORMED),
    Case("8.1.1", "content-length below the body", length(len(MESSAGE) - 1), MALFORMED),
    Case("8.1.1", "content-length 0 and a body", length(0), MALFORMED),
    Case("8.1.1", "content-length without a body", [headers(1, call_fields() + [("content-length", "5")], end=True)],
         MALFORMED),
    Case("8.1.1", "content-length and a body that trailers end too early",
         [headers(1, call_fields() + [("content-length", "999")]), data(1, MESSAGE), headers(1, b"", end=True)], MALFORMED),
    Case("8.1.1", "two lengths that differ",
         [call(1, call_fields() + [("content-length", str(len(MESSAGE))), ("content-length", "7")])], MALFORMED),
    *[
        Case("8.1.1", f"content-length {value!r}", length(value), MALFORMED)
        for value in ("", "x", "-1", "+1", "0x10", "1 1", "99999999999999999999999")
    ],
    # Fields.
    *[Case("8.2.1", f"a name with {what}", with_field(name, "v"), MALFORMED_FIELD) for what, name in BAD_NAMES],
    *[Case("8.2.1", f"a value with {what}", with_field("x-a", value), MALFORMED_FIELD) for what, value in BAD_VALUES],
    *[
        Case("8.2.1", f"a value with {what}", with_field("x-a", value), MALFORMED_FIELD)
        for what, value in [("a space before it", b" a"), ("a space after it", b"a "), ("a tab before it", b"\ta")]
    ],
    Case("8.2.1", "a value of bytes above ASCII", with_field("x-a", b"\xc3\xa9\xff"), answered()),
    Case("8.2.1", "a value with spaces and tabs inside", with_field("x-a", "a \t b"), answered()),
    Case("8.2.1", "an empty value", with_field("x-a", ""), answered()),
    Case("8.2.1", "a name of all other characters of a token", with_field("!#$%&'*+-.^_`|~09az", "v"), answered()),
    Case("8.2.1", "trailers with an upper-case name", with_trailers(("X-Sum", "1")), MALFORMED),
    Case("8.2.1", "trailers with a line feed in a value", with_trailers(("x-sum", "1\n")), MALFORMED),
    *[Case("8.2.2", f"{name}", with_field(name, value), MALFORMED) for name, value in CONNECTION_SPECIFIC],
    *[
        Case("8.2.2", f"{name} in trailers", with_trailers((name, value)), MALFORMED)
        for name, value in CONNECTION_SPECIFIC
    ],
    Case("8.2.2", "te: gzip", call_of(changed("te", "gzip")), MALFORMED),
    Case("8.2.2", "te: trailers, gzip", call_of(changed("te", "trailers, gzip")), MALFORMED),
    Case("8.2.2", "te: trailers", call_of(call_fields()), answered()),
    Case("8.2.3", "cookies in several fields", call_of(call_fields() + [("cookie", "a=b"), ("cookie", "c=d")]), answered()),
    # Pseudo-header fields.
    *[
        Case("8.3", f"{name} after a field", call_of(without(name) + [(name, dict(call_fields())[name])]), MALFORMED)
        for name in (":method", ":scheme", ":path", ":authority")
    ],
    *[
        Case("8.3", f"{name} twice", call_of([(name, dict(call_fields())[name])] + call_fields()), MALFORMED)
        for name in (":method", ":scheme", ":path", ":authority")
    ],
    Case("8.3", ":path twice with two values", call_of([(":path", "/other/Method")] + call_fields()), MALFORMED),
    Case("8.3", "an unknown one", call_of([(":unknown", "a")] + call_fields()), MALFORMED),
    Case("8.3", ":status", call_of([(":status", "200")] + call_fields()), MALFORMED),
    Case("8.3", ":protocol, which SETTINGS does not offer",
         call_of([(":protocol", "websocket")] + call_fields()), MALFORMED),
    Case("8.3", "a lone colon", with_field(":", "a"), MALFORMED),
    *[Case("8.3.1", f"without {name}", call_of(without(name)), MALFORMED) for name in (":method", ":scheme", ":path")],
    Case("8.3.1", "an empty :path", call_of(changed(":path", "")), MALFORMED),
    Case("8.3.1", "no fields at all", [headers(1, b"", end=True)], MALFORMED),
    Case("8.3.1", "without :authority", call_of(without(":authority")), answered()),
    Case("8.3.1", "host instead of :authority", call_of(without(":authority") + [("host", "sidecar")]), answered()),
    Case("8.3.1", "host that is :authority", call_of(call_fields() + [("host", "sidecar")]), answered()),
    Case("8.3.1", "host that is not :authority", call_of(call_fields() + [("host", "other")]), MALFORMED),
    Case("8.3.1", ":scheme https", call_of(changed(":scheme", "https")), answered()),
    # Push.
    Case("8.4", "nothing is pushed to a client that allows it", [settings({ENABLE_PUSH: 1}), call(1), call(3)],
         answered(1, 3)),
    # CONNECT has neither scheme nor path; this is no proxy.
    Case("8.5", "CONNECT", [headers(1, [(":method", "CONNECT"), (":authority", "a:1")])],
         MALFORMED | http(400, 405, 501)),
    Case("8.5", "CONNECT with :scheme and :path", [headers(1, changed(":method", "CONNECT"))],
         MALFORMED | http(400, 405, 501)),
    # 405 says which methods there are (RFC 9110, 15.5.6).
    *[
        Case("8.8", f"{method}", [headers(1, changed(":method", method), end=True)], http(405) & ALLOW)
        for method in ("GET", "HEAD", "PUT", "OPTIONS", "PRI")
    ],
]  # fmt: skip
