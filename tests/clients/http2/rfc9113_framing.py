"""RFC 9113, sections 3 and 4: the preface, frames, their sizes, field blocks."""

from case import Case, pieces
from expect import accepted, answered, closed, connection_error, stream_error
from wire import (
    CONTINUATION, DATA, END_HEADERS, END_STREAM, FRAME_MAX, HEADERS, MESSAGE, PADDED, PREFACE, PUSH_PROMISE, SETTINGS,
    block, call, call_fields, data, envelope, frame, goaway, headers, in_parts, ping, plain, priority, rst, settings,
    window, without,
)  # fmt: skip

UNKNOWN = 0xFE


def padded_to(size):
    """HEADERS of a whole call whose payload has exactly this size."""

    def write(peer):
        block = peer.encoder.encode(call_fields() + [("x-fill", "a" * 8)])
        fill = size - len(block) - 1
        # Most of the size is a field that no table keeps, the rest is padding.
        field = plain(("x-long", b"a" * (fill - 250)))
        padding = size - 1 - len(block) - len(field)
        return frame(HEADERS, END_HEADERS | PADDED, 1, bytes([padding]) + block + field + bytes(padding))

    return write


def interrupted(*between):
    """A field block with something between its frames."""

    def write(peer):
        encoded = peer.encoder.encode(call_fields())
        inner = b"".join(step(peer) if callable(step) else step for step in between)
        begun = frame(HEADERS, END_STREAM, 1, encoded[:5])
        return begun + inner + frame(CONTINUATION, END_HEADERS, 1, encoded[5:])

    return [write]


PROTOCOL = connection_error("PROTOCOL_ERROR")
TOO_LARGE = connection_error("FRAME_SIZE_ERROR")
# 3.4: GOAWAY may be left out when the peer does not speak HTTP/2.
NOT_HTTP2 = PROTOCOL | closed()
WHOLE = [PREFACE, settings()]

CASES = [
    Case("3.4", "preface and settings, then a call, in one piece", [*WHOLE, call(1)], answered(), greet=False),
    Case("3.4", "the same byte by byte", [pieces([*WHOLE, call(1)], 1)], answered(), greet=False),
    Case("3.4", "a preface whose last byte differs", [PREFACE[:-1] + b"x", settings()], NOT_HTTP2, greet=False),
    Case("3.4", "another version in the preface", [PREFACE.replace(b"2.0", b"2.1")], NOT_HTTP2, greet=False),
    Case("3.4", "a request of HTTP/1.1", [b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"], NOT_HTTP2, greet=False),
    Case("3.4", "a ClientHello of TLS", [b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03"], NOT_HTTP2, greet=False),
    Case("3.4", "settings without a preface", [settings()], NOT_HTTP2, greet=False),
    Case("3.4", "HEADERS as the first frame", [PREFACE, call(1)], PROTOCOL, greet=False),
    Case("3.4", "PING as the first frame", [PREFACE, ping()], PROTOCOL, greet=False),
    Case("3.4", "WINDOW_UPDATE as the first frame", [PREFACE, window(0, 1)], PROTOCOL, greet=False),
    Case("3.4", "an acknowledgement as the first SETTINGS", [PREFACE, settings(flags=1)], PROTOCOL, greet=False),
    Case("3.4", "an unknown frame as the first", [PREFACE, frame(UNKNOWN, 0, 0)], PROTOCOL, greet=False),
    Case("4.1", "the reserved bit of a stream's number is ignored",
         [headers(1 << 31 | 1), data(1 << 31 | 1, MESSAGE, end=True)], answered()),
    Case("4.1", "flags without a meaning are ignored",
         [headers(1, flags=END_HEADERS | 0xD2), ping(flags=0xFE), settings(flags=0xFE), window(0, 1),
          frame(DATA, 0xF6 | END_STREAM, 1, MESSAGE)], answered()),
    Case("4.1", "frames of unknown types are ignored: connection, open, idle and closed streams",
         [frame(UNKNOWN, 0xFF, 0, b"abc"), headers(1), frame(UNKNOWN, 0xFF, 1, b"abc"), data(1, MESSAGE, end=True),
          frame(UNKNOWN, 0xFF, 1), frame(UNKNOWN, 0, 99), frame(UNKNOWN, 0, 2)], answered()),
    Case("4.2", "DATA of 2^14 bytes", [headers(1), data(1, envelope(b"\xff" * (FRAME_MAX - 5)), end=True)], accepted()),
    Case("4.2", "HEADERS of 2^14 bytes", [padded_to(FRAME_MAX)], accepted()),
    Case("4.2", "DATA of 2^14 + 1 bytes", [headers(1), data(1, bytes(FRAME_MAX + 1))],
         stream_error("FRAME_SIZE_ERROR") | TOO_LARGE),
    Case("4.2", "HEADERS of 2^14 + 1 bytes", [padded_to(FRAME_MAX + 1)], TOO_LARGE),
    Case("4.2", "SETTINGS beyond 2^14 bytes", [settings([(99, 0)] * (FRAME_MAX // 6 + 1))], TOO_LARGE),
    Case("4.2", "CONTINUATION of 2^14 + 1 bytes",
         [headers(1, b"", flags=0), frame(CONTINUATION, END_HEADERS, 1, bytes(FRAME_MAX + 1))], TOO_LARGE),
    Case("4.2", "an unknown frame of 2^14 + 1 bytes", [frame(UNKNOWN, 0, 0, bytes(FRAME_MAX + 1))], TOO_LARGE),
    Case("4.2", "the head of a frame of 2^24 - 1 bytes is enough to refuse it",
         [frame(SETTINGS, 0, 0, length=2**24 - 1)], TOO_LARGE),
    Case("4.3", "a field block in CONTINUATION frames of one byte",
         [in_parts(1, [1] * 40), data(1, MESSAGE, end=True)], answered()),
    Case("4.3", "an empty HEADERS frame, all in one CONTINUATION",
         [in_parts(1, [0]), data(1, MESSAGE, end=True)], answered()),
    Case("4.3", "empty CONTINUATION frames in between",
         [in_parts(1, [3, 0, 0, 3, 0]), data(1, MESSAGE, end=True)], answered()),
    Case("4.3", "a field block in two pieces, segment by segment",
         [pieces([in_parts(1, [7]), data(1, MESSAGE, end=True)], 3)], answered()),
    *[
        Case("4.3", f"a field block is interrupted by {what}", interrupted(step), PROTOCOL)
        for what, step in [
            ("DATA", data(1, b"x")), ("DATA of another stream", data(3, b"x")), ("HEADERS", headers(1)),
            ("HEADERS of another stream", headers(3)), ("PRIORITY", priority(1)), ("RST_STREAM", rst(1)),
            ("SETTINGS", settings()), ("PUSH_PROMISE", frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4))),
            ("PING", ping()), ("GOAWAY", goaway()), ("WINDOW_UPDATE", window(0, 1)),
            ("an unknown frame", frame(UNKNOWN, 0, 1)),
            ("CONTINUATION of another stream", frame(CONTINUATION, 0, 3, b"")),
            ("CONTINUATION of the connection", frame(CONTINUATION, 0, 0, b"")),
        ]
    ],
    Case("4.3", "a field block that ends within a field",
         [lambda peer: frame(HEADERS, END_HEADERS, 1, block(call_fields())(peer)[:-3])],
         connection_error("COMPRESSION_ERROR")),
    Case("4.3", "the block of a refused request counts for those after it",
         [headers(1, without(":path") + [("x-kept", "a")], end=True), call(3, call_fields() + [("x-kept", "a")])],
         stream_error("PROTOCOL_ERROR") & answered(3)),
    Case("4.3", "the block of a stream that was refused already counts, too",
         [headers(1, without(":path")), headers(1, [("x-kept", "b")], end=True),
          call(3, call_fields() + [("x-kept", "b")])],
         stream_error("PROTOCOL_ERROR") & answered(3)),
]  # fmt: skip
