"""RFC 9113, section 6: each frame with wrong lengths, streams, flags, padding and values."""

from case import Case, barrier, until_bytes
from expect import accepted, answered, connection_error, silence, status, stream_error, that
from peer import Failed
from wire import (
    ACK, CONTINUATION, DATA, ENABLE_PUSH, END_HEADERS, END_STREAM, FRAME_MAX, GOAWAY, HEADERS, HEADER_TABLE_SIZE,
    INITIAL_WINDOW_SIZE, MAX_CONCURRENT_STREAMS, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE, MESSAGE, PADDED, PING, PRIORITY,
    PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_MAX, WINDOW_UPDATE, WITH_PRIORITY, block, call, call_fields, data,
    envelope, frame, goaway, headers, ping, rst, settings, window,
)  # fmt: skip

MESSAGE_MAX = 4 * 1024 * 1024
PROTOCOL = connection_error("PROTOCOL_ERROR")
SIZE = connection_error("FRAME_SIZE_ERROR")
FLOW = connection_error("FLOW_CONTROL_ERROR")
# What breaks one stream may break the connection (5.4.1).
STREAM_SIZE = stream_error("FRAME_SIZE_ERROR") | SIZE

REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
# Asks for the file of a symbol: a large answer.
LARGE = envelope(b"\x22\x2b" + b"envoy.service.ratelimit.v3.RateLimitService")


def padded(kind, flags, padding, body, fill=None):
    """A frame with PADDED; `padding` is what the field says, `fill` the bytes that there are."""
    fill = bytes(padding) if fill is None else fill

    def write(peer):
        inner = body(peer) if callable(body) else body
        return frame(kind, flags | PADDED, 1, bytes([padding]) + inner + fill)

    return write


def pongs(*payloads):
    return that(f"answered by {payloads} in order", lambda peer: peer.pongs == list(payloads)) & accepted()


def acknowledged(times):
    return that(f"acknowledged {times} times", lambda peer: peer.settings_acks == times) & accepted()


def body_of(stream):
    return that("the whole answer", lambda peer: int.from_bytes(peer.streams[stream].data[1:5]) + 5
                == len(peer.streams[stream].data))  # fmt: skip


def large_calls(peer):
    """Asks for more than the connection's window holds, on streams whose own windows are wide."""
    for stream in range(1, 81, 2):
        peer.send(headers(stream, call_fields(REFLECTION)), data(stream, LARGE, end=True))


def is_used_up(peer):
    if peer.window != 0:
        raise Failed(f"{peer.window} bytes of the connection's window are left")


CASES = [
    Case("6.1", "DATA on the connection", [data(0, b"x")], PROTOCOL),
    Case("6.1", "padding of 0 bytes", [headers(1), padded(DATA, END_STREAM, 0, MESSAGE)], answered()),
    Case("6.1", "padding of 255 bytes", [headers(1), padded(DATA, END_STREAM, 255, MESSAGE)], answered()),
    Case("6.1", "nothing but padding", [headers(1), padded(DATA, 0, 9, b""), data(1, MESSAGE, end=True)], answered()),
    Case("6.1", "padding that is not zero",
         [headers(1), padded(DATA, END_STREAM, 3, MESSAGE, fill=b"abc")], answered() | PROTOCOL),
    Case("6.1", "padding as long as the payload", [headers(1), padded(DATA, 0, 4, b"abc", fill=b"")], PROTOCOL),
    Case("6.1", "padding longer than the payload", [headers(1), padded(DATA, 0, 255, b"abc", fill=b"")], PROTOCOL),
    Case("6.1", "PADDED without room for the length", [headers(1), data(1, flags=PADDED)],
         STREAM_SIZE | PROTOCOL),
    Case("6.1", "a body in frames of one byte", [headers(1), *[data(1, bytes([byte])) for byte in MESSAGE],
         data(1, end=True)], answered()),
    Case("6.1", "empty frames in a body", [headers(1), data(1), data(1, MESSAGE), data(1), data(1, end=True)], answered()),
    Case("6.2", "HEADERS on the connection", [headers(0)], PROTOCOL),
    Case("6.2", "padding", [padded(HEADERS, END_HEADERS, 255, block(call_fields())), data(1, MESSAGE, end=True)],
         answered()),
    Case("6.2", "padding and priority",
         [padded(HEADERS, END_HEADERS | WITH_PRIORITY, 7, lambda peer: bytes(5) + block(call_fields())(peer)),
          data(1, MESSAGE, end=True)], answered()),
    Case("6.2", "padding as long as the payload", [padded(HEADERS, END_HEADERS, 4, b"abc", fill=b"")], PROTOCOL),
    Case("6.2", "padding that reaches into priority",
         [padded(HEADERS, END_HEADERS | WITH_PRIORITY, 3, bytes(4), fill=bytes(3))], SIZE | PROTOCOL),
    Case("6.2", "priority of 4 bytes", [frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, bytes(4))], SIZE | PROTOCOL),
    Case("6.2", "PADDED without room for the length", [frame(HEADERS, END_HEADERS | PADDED, 1)], SIZE | PROTOCOL),
    Case("6.2", "END_STREAM, then CONTINUATION",
         [lambda peer: frame(HEADERS, END_STREAM, 1, (whole := block(call_fields())(peer))[:4])
          + frame(CONTINUATION, END_HEADERS, 1, whole[4:]), barrier, data(1, MESSAGE)],
         stream_error("STREAM_CLOSED") | connection_error("STREAM_CLOSED")),
    Case("6.3", "PRIORITY on the connection", [frame(PRIORITY, 0, 0, bytes(5))], PROTOCOL),
    Case("6.3", "PRIORITY of 4 bytes", [headers(1), frame(PRIORITY, 0, 1, bytes(4))], STREAM_SIZE),
    Case("6.3", "PRIORITY of 6 bytes", [headers(1), frame(PRIORITY, 0, 1, bytes(6))], STREAM_SIZE),
    Case("6.4", "RST_STREAM on the connection", [rst(0)], PROTOCOL),
    Case("6.4", "RST_STREAM of 3 bytes", [headers(1), frame(RST_STREAM, 0, 1, bytes(3))], SIZE),
    Case("6.4", "RST_STREAM of 5 bytes", [headers(1), frame(RST_STREAM, 0, 1, bytes(5))], SIZE),
    Case("6.4", "RST_STREAM of an idle stream of 3 bytes", [frame(RST_STREAM, 0, 1, bytes(3))], SIZE | PROTOCOL),
    Case("6.4", "nothing is sent on a stream that the client has reset",
         [headers(1), rst(1), barrier, headers(3)], silence()),
    Case("6.5", "SETTINGS on a stream", [settings(stream=1)], PROTOCOL),
    Case("6.5", "SETTINGS of 5 bytes", [frame(SETTINGS, 0, 0, bytes(5))], SIZE),
    Case("6.5", "SETTINGS of 7 bytes", [frame(SETTINGS, 0, 0, bytes(7))], SIZE),
    Case("6.5", "an acknowledgement that has settings", [settings([(99, 0)], flags=ACK)], SIZE),
    Case("6.5", "an acknowledgement on a stream", [settings(flags=ACK, stream=1)], PROTOCOL),
    Case("6.5", "the last of two values counts",
         [settings([(INITIAL_WINDOW_SIZE, 0), (INITIAL_WINDOW_SIZE, 100)]), call(1)], answered()),
    Case("6.5.2", "HEADER_TABLE_SIZE of 2^32 - 1", [settings({HEADER_TABLE_SIZE: 2**32 - 1}), call(1)], answered()),
    Case("6.5.2", "ENABLE_PUSH 0", [settings({ENABLE_PUSH: 0}), call(1)], answered()),
    Case("6.5.2", "ENABLE_PUSH 1", [settings({ENABLE_PUSH: 1}), call(1)], answered()),
    Case("6.5.2", "ENABLE_PUSH 2", [settings({ENABLE_PUSH: 2})], PROTOCOL),
    Case("6.5.2", "MAX_CONCURRENT_STREAMS 0", [settings({MAX_CONCURRENT_STREAMS: 0}), call(1)], answered()),
    Case("6.5.2", "INITIAL_WINDOW_SIZE of 2^31 - 1", [settings({INITIAL_WINDOW_SIZE: WINDOW_MAX}), call(1)], answered()),
    Case("6.5.2", "INITIAL_WINDOW_SIZE of 2^31", [settings({INITIAL_WINDOW_SIZE: 2**31})], FLOW),
    Case("6.5.2", "MAX_FRAME_SIZE of 2^14 - 1", [settings({MAX_FRAME_SIZE: FRAME_MAX - 1})], PROTOCOL),
    Case("6.5.2", "MAX_FRAME_SIZE of 2^24", [settings({MAX_FRAME_SIZE: 2**24})], PROTOCOL),
    Case("6.5.2", "MAX_FRAME_SIZE of 2^24 - 1", [settings({MAX_FRAME_SIZE: 2**24 - 1}), call(1)], answered()),
    Case("6.5.2", "MAX_HEADER_LIST_SIZE 0 is only advice", [settings({MAX_HEADER_LIST_SIZE: 0}), call(1)], answered()),
    Case("6.5.2", "a bad value after good ones", [settings({99: 1, HEADER_TABLE_SIZE: 0, ENABLE_PUSH: 7})], PROTOCOL),
    Case("6.5.3", "each SETTINGS is acknowledged, once",
         [settings(), settings({MAX_FRAME_SIZE: FRAME_MAX}), settings([(99, 1)] * 20)], acknowledged(4)),
    Case("6.5.3", "an acknowledgement is not acknowledged", [settings(flags=ACK)] * 3, acknowledged(1)),
    Case("6.6", "PUSH_PROMISE of a client", [headers(1), frame(PUSH_PROMISE, END_HEADERS, 1, bytes([0, 0, 0, 2]))],
         PROTOCOL),
    Case("6.6", "PUSH_PROMISE on the connection", [frame(PUSH_PROMISE, END_HEADERS, 0, bytes([0, 0, 0, 2]))], PROTOCOL),
    Case("6.6", "PUSH_PROMISE on an idle stream", [frame(PUSH_PROMISE, END_HEADERS, 1, bytes([0, 0, 0, 2]))], PROTOCOL),
    Case("6.7", "PING is answered with its payload, in order",
         [ping(b"abcdefgh"), ping(b"\0" * 8), ping(b"\xff" * 8)], pongs(b"abcdefgh", b"\0" * 8, b"\xff" * 8)),
    Case("6.7", "PING with ACK is not answered", [ping(flags=ACK)], pongs()),
    Case("6.7", "PING between the frames of a body",
         [headers(1), data(1, MESSAGE[:9]), ping(b"abcdefgh"), data(1, MESSAGE[9:], end=True)],
         pongs(b"abcdefgh") & answered()),
    Case("6.7", "PING on a stream", [ping(stream=1)], PROTOCOL),
    Case("6.7", "PING of 7 bytes", [frame(PING, 0, 0, bytes(7))], SIZE),
    Case("6.7", "PING of 9 bytes", [frame(PING, 0, 0, bytes(9))], SIZE),
    Case("6.7", "empty PING", [frame(PING, 0, 0)], SIZE),
    Case("6.7", "PING with ACK of 7 bytes", [frame(PING, ACK, 0, bytes(7))], SIZE),
    Case("6.8", "calls under way go on after a client's GOAWAY",
         [headers(1), goaway(debug=b"bye"), data(1, MESSAGE, end=True)], answered(), probe=False),
    Case("6.8", "two GOAWAY", [goaway(), goaway(), headers(1), data(1, MESSAGE, end=True)], answered()),
    Case("6.8", "GOAWAY on a stream", [goaway(stream=1)], PROTOCOL),
    Case("6.8", "GOAWAY of 7 bytes", [frame(GOAWAY, 0, 0, bytes(7))], SIZE),
    Case("6.9", "WINDOW_UPDATE of 3 bytes", [frame(WINDOW_UPDATE, 0, 0, bytes(3))], SIZE),
    Case("6.9", "WINDOW_UPDATE of 5 bytes", [frame(WINDOW_UPDATE, 0, 0, bytes(5))], SIZE),
    Case("6.9", "WINDOW_UPDATE of 5 bytes on a stream", [headers(1), frame(WINDOW_UPDATE, 0, 1, bytes(5))], SIZE),
    Case("6.9", "WINDOW_UPDATE by 0 on a stream", [headers(1), window(1, 0)], stream_error("PROTOCOL_ERROR")),
    Case("6.9", "WINDOW_UPDATE by 0 on the connection", [window(0, 0)], PROTOCOL),
    Case("6.9", "the reserved bit of an increment is ignored",
         [settings({INITIAL_WINDOW_SIZE: 0}), call(1), window(1, 1 << 31 | 3), until_bytes(1, 3), window(1, 500)],
         answered(), probe=False),
    Case("6.9.1", "no window for a stream: fields come, a body does not",
         [settings({INITIAL_WINDOW_SIZE: 0}), call(1), until_bytes(1, 0), window(1, 500)], answered(), probe=False),
    Case("6.9.1", "a body comes byte by byte as its window opens",
         [settings({INITIAL_WINDOW_SIZE: 0}), call(1), window(1, 1), until_bytes(1, 1), window(1, 1), until_bytes(1, 2),
          window(1, 500)], answered(), probe=False),
    Case("6.9.1", "padding counts: windows are opened for it, too, so that a large message arrives",
         [headers(1), data(1, envelope(length=MESSAGE_MAX)), *[padded(DATA, 0, 255, bytes(128))] * (MESSAGE_MAX // 128),
          data(1, end=True)], status("INVALID_ARGUMENT")),
    Case("6.9.1", "a stream's window beyond 2^31 - 1", [headers(1), window(1, WINDOW_MAX)],
         stream_error("FLOW_CONTROL_ERROR")),
    Case("6.9.1", "a stream's window beyond 2^31 - 1 by small steps",
         [headers(1), window(1, WINDOW_MAX - 65_535), window(1, 1)], stream_error("FLOW_CONTROL_ERROR")),
    Case("6.9.1", "a stream's window of exactly 2^31 - 1",
         [headers(1), window(1, WINDOW_MAX - 65_535), data(1, MESSAGE, end=True)], answered()),
    Case("6.9.1", "the connection's window beyond 2^31 - 1", [window(0, WINDOW_MAX)], FLOW),
    Case("6.9.1", "the connection's window beyond 2^31 - 1 by small steps",
         [window(0, WINDOW_MAX - 65_535), window(0, 1)], FLOW),
    Case("6.9.1", "the connection's window of exactly 2^31 - 1", [window(0, WINDOW_MAX - 65_535), call(1)], answered()),
    Case("6.9.1", "answers use the connection's window to its last byte and wait for more",
         [settings({INITIAL_WINDOW_SIZE: 1 << 20}), large_calls, barrier, is_used_up, window(0, 1 << 20)],
         body_of(1) & body_of(79)),
    Case("6.9.1", "DATA beyond a stream's window, which is not opened for a call that has failed",
         [settings({INITIAL_WINDOW_SIZE: 0}), headers(1), data(1, MESSAGE), data(1, b"\x09" + bytes(4)),
          *[data(1, bytes(FRAME_MAX))] * 257],
         stream_error("FLOW_CONTROL_ERROR", "NO_ERROR") | FLOW, probe=False),
    Case("6.9.2", "a larger initial window lets waiting bodies go on",
         [settings({INITIAL_WINDOW_SIZE: 5}), call(1), until_bytes(1, 5), settings({INITIAL_WINDOW_SIZE: 500})],
         answered()),
    Case("6.9.2", "a window may become negative",
         [settings({INITIAL_WINDOW_SIZE: 5}), call(1), until_bytes(1, 5), settings({INITIAL_WINDOW_SIZE: 0}),
          window(1, 5), until_bytes(1, 5), window(1, 1), until_bytes(1, 6), settings({INITIAL_WINDOW_SIZE: 500})],
         answered()),
    Case("6.9.2", "the connection's window is not changed by SETTINGS",
         [settings({INITIAL_WINDOW_SIZE: 0}), call(1), settings({INITIAL_WINDOW_SIZE: 65_535})], answered()),
    Case("6.9.2", "an initial window that makes a stream's larger than 2^31 - 1",
         [headers(1), window(1, WINDOW_MAX - 65_535), settings({INITIAL_WINDOW_SIZE: 65_536})], FLOW),
    Case("6.10", "CONTINUATION without HEADERS", [frame(CONTINUATION, END_HEADERS, 1)], PROTOCOL),
    Case("6.10", "CONTINUATION after END_HEADERS", [headers(1), frame(CONTINUATION, END_HEADERS, 1)], PROTOCOL),
    Case("6.10", "CONTINUATION after DATA", [headers(1), data(1, b"x"), frame(CONTINUATION, END_HEADERS, 1)], PROTOCOL),
    Case("6.10", "CONTINUATION on the connection", [frame(CONTINUATION, END_HEADERS, 0)], PROTOCOL),
    Case("6.10", "trailers in CONTINUATION frames",
         [headers(1), data(1, MESSAGE), headers(1, b"", end=True, flags=0), frame(CONTINUATION, 0, 1),
          frame(CONTINUATION, END_HEADERS, 1)], answered()),
]  # fmt: skip
