"""RFC 9113, section 5: states of streams, their numbers, how many, errors, extensions."""

from case import Case, barrier, until_answered
from expect import Expected, accepted, answered, connection_error, silence, stream_error, that
from wire import (
    CONTINUATION, END_HEADERS, HEADERS, MESSAGE, WATCH, WINDOW_MAX, WITH_PRIORITY,
    call, call_fields, data, envelope, frame, headers, priority, rst, settings, window, without,
)  # fmt: skip

UNKNOWN = 0xFE
PROTOCOL = connection_error("PROTOCOL_ERROR")
STREAM_CLOSED = stream_error("STREAM_CLOSED") | connection_error("STREAM_CLOSED")

# A stream that the client has ended and the server has not: "half-closed (remote)" for the server.
HALF_CLOSED = [headers(1, call_fields(WATCH)), data(1, envelope(), end=True)]
# A stream that both have ended.
ENDED = [call(1), until_answered(1)]
# A stream that the client has reset.
RESET = [headers(1), rst(1), barrier]
# A stream that the server has reset.
REFUSED = [headers(1, without(":path")), barrier]

# The streams that SETTINGS_MAX_CONCURRENT_STREAMS of the server allows.
ALLOWED = 128
FULL = [headers(stream) for stream in range(1, 2 * ALLOWED, 2)]
ALL = range(1, 2 * ALLOWED, 2)


def is_allowed(peer):
    return peer.server_settings.get(3) == ALLOWED


def last_stream(number):
    names = lambda peer: peer.goaway.last_stream_id == number  # noqa: E731
    return Expected(f"last stream {number}", names, ends=True)


def with_priority(depends_on):
    """HEADERS with the priority fields that RFC 9113 deprecates."""

    def write(peer):
        fields = depends_on.to_bytes(4) + b"\x0f" + peer.encoder.encode(call_fields())
        return frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, fields)

    return write


CASES = [
    # Idle streams: only HEADERS and PRIORITY.
    Case("5.1", "idle: DATA", [data(1, b"x")], PROTOCOL),
    Case("5.1", "idle: RST_STREAM", [rst(1)], PROTOCOL),
    Case("5.1", "idle: WINDOW_UPDATE", [window(1, 1)], PROTOCOL),
    Case("5.1", "idle: CONTINUATION", [frame(CONTINUATION, END_HEADERS, 1, b"")], PROTOCOL),
    Case("5.1", "idle: PRIORITY", [priority(1), call(1)], answered()),
    Case("5.1", "idle: DATA above a stream that is open", [headers(1), data(3, b"x")], PROTOCOL),
    Case("5.1", "idle: DATA on a stream of the server", [headers(5), data(2, b"x")], PROTOCOL),
    Case("5.1", "idle: DATA on a stream of the server, below one that was refused",
         [headers(5, without(":path")), data(2, b"x")], PROTOCOL),
    Case("5.1", "idle: RST_STREAM on a stream of the server", [headers(5), rst(2)], PROTOCOL),
    Case("5.1", "idle: WINDOW_UPDATE on a stream of the server", [headers(5), window(2, 1)], PROTOCOL),
    # Open streams: anything.
    Case("5.1", "open: PRIORITY, WINDOW_UPDATE and an unknown frame",
         [headers(1), priority(1), window(1, 1), frame(UNKNOWN, 0, 1), data(1, MESSAGE, end=True)], answered()),
    Case("5.1", "open: RST_STREAM", [headers(1), data(1, MESSAGE[:7]), rst(1)], accepted()),
    # Half-closed (remote) streams: only PRIORITY, WINDOW_UPDATE, RST_STREAM.
    Case("5.1", "half-closed: DATA", [*HALF_CLOSED, data(1, b"x")], STREAM_CLOSED),
    Case("5.1", "half-closed: empty DATA with END_STREAM", [*HALF_CLOSED, data(1, end=True)], STREAM_CLOSED),
    Case("5.1", "half-closed: HEADERS", [*HALF_CLOSED, headers(1, [("x", "y")], end=True)], STREAM_CLOSED),
    Case("5.1", "half-closed: HEADERS without END_STREAM", [*HALF_CLOSED, headers(1, [("x", "y")])],
         STREAM_CLOSED | stream_error("PROTOCOL_ERROR")),
    Case("5.1", "half-closed: CONTINUATION", [*HALF_CLOSED, frame(CONTINUATION, END_HEADERS, 1, b"")], PROTOCOL),
    Case("5.1", "half-closed: PRIORITY and WINDOW_UPDATE", [*HALF_CLOSED, priority(1), window(1, 1)], accepted()),
    Case("5.1", "half-closed: RST_STREAM", [*HALF_CLOSED, rst(1)], accepted()),
    # Closed streams.
    Case("5.1", "closed: DATA", [*ENDED, data(1, b"x")], connection_error("STREAM_CLOSED")),
    Case("5.1", "closed: HEADERS", [*ENDED, headers(1)], connection_error("STREAM_CLOSED", "PROTOCOL_ERROR")),
    Case("5.1", "closed: HEADERS, below a newer stream", [*ENDED, call(3), headers(1)],
         connection_error("STREAM_CLOSED", "PROTOCOL_ERROR")),
    Case("5.1", "closed: CONTINUATION", [*ENDED, frame(CONTINUATION, END_HEADERS, 1, b"")], PROTOCOL),
    Case("5.1", "closed: PRIORITY", [*ENDED, priority(1)], answered()),
    Case("5.1", "closed: WINDOW_UPDATE and RST_STREAM that were on their way", [*ENDED, window(1, 1), rst(1)],
         answered()),
    Case("5.1", "reset by the client: DATA", [*RESET, data(1, b"x")], STREAM_CLOSED),
    Case("5.1", "reset by the client: HEADERS", [*RESET, headers(1, [("x", "y")], end=True)], STREAM_CLOSED),
    Case("5.1", "reset by the client: PRIORITY", [*RESET, priority(1)], accepted()),
    Case("5.1", "reset by the client: RST_STREAM again is not answered", [*RESET, rst(1)], silence()),
    Case("5.1", "reset by the server: DATA is discarded", [*REFUSED, data(1, MESSAGE, end=True)],
         stream_error("PROTOCOL_ERROR")),
    Case("5.1", "reset by the server: trailers are discarded", [*REFUSED, headers(1, [("x", "y")], end=True)],
         stream_error("PROTOCOL_ERROR")),
    Case("5.1", "reset by the server: WINDOW_UPDATE, PRIORITY and RST_STREAM",
         [*REFUSED, window(1, 1), priority(1), rst(1)], stream_error("PROTOCOL_ERROR")),
    Case("5.1", "reset by the server: discarded DATA opens the connection's window again",
         [*REFUSED, *[data(1, bytes(16_384))] * 1_100],
         stream_error("PROTOCOL_ERROR") & that("windows opened by as much", lambda peer: sum(
             frame.window_increment for frame in peer.frames if getattr(frame, "window_increment", 0)) > 1_100 * 16_384)),
    # Numbers.
    Case("5.1.1", "HEADERS on the connection", [headers(0)], PROTOCOL),
    Case("5.1.1", "a stream of an even number", [headers(2)], PROTOCOL),
    Case("5.1.1", "a number lower than the last", [headers(5), headers(3)], PROTOCOL),
    Case("5.1.1", "a number lower than the last, after both have ended", [call(5), until_answered(5), call(3)], PROTOCOL),
    Case("5.1.1", "a number that was passed over, below one that was refused", [headers(5, without(":path")), call(3)],
         PROTOCOL),
    Case("5.1.1", "WINDOW_UPDATE on a stream that was passed over", [headers(5), window(3, 1)], accepted()),
    Case("5.1.1", "numbers may be passed over", [call(1), call(101), call(4_001)], answered(1, 101, 4_001)),
    Case("5.1.1", "the highest number", [call(WINDOW_MAX)], answered(WINDOW_MAX), probe=False),
    # How many at once.
    Case("5.1.2", f"{ALLOWED} calls at once, as SETTINGS says",
         [*FULL, *[data(stream, MESSAGE, end=True) for stream in ALL]],
         that("128 allowed", is_allowed) & answered(*ALL)),
    Case("5.1.2", "one more is refused, and those before it are answered",
         [*FULL, headers(257), *[data(stream, MESSAGE, end=True) for stream in ALL]],
         stream_error("REFUSED_STREAM", "PROTOCOL_ERROR", stream=257) & answered(*ALL)),
    Case("5.1.2", "half-closed streams count",
         [headers(1, call_fields(WATCH)), data(1, envelope(), end=True), *FULL[1:], headers(257), rst(1)],
         stream_error("REFUSED_STREAM", "PROTOCOL_ERROR", stream=257)),
    Case("5.1.2", "a stream that is reset makes room", [*FULL, rst(1), call(257)], answered(257), probe=False),
    Case("5.1.2", "a stream that ends makes room", [*FULL, data(1, MESSAGE, end=True), call(257)], answered(1, 257)),
    # Priorities are deprecated, so they say nothing.
    Case("5.3.2", "HEADERS with priority", [with_priority(0), data(1, MESSAGE, end=True)], answered()),
    Case("5.3.2", "HEADERS with an exclusive dependency on a stream that is idle",
         [with_priority(1 << 31 | 77), data(1, MESSAGE, end=True)], answered()),
    Case("5.3.2", "HEADERS that depend on their own stream", [with_priority(1), data(1, MESSAGE, end=True)], answered()),
    Case("5.3.2", "PRIORITY that depends on its own stream", [priority(1, 1), call(1), priority(1, 1)], answered()),
    # Errors.
    Case("5.4.1", "GOAWAY names the last stream that was taken", [*ENDED, call(3), until_answered(3), data(0, b"x")],
         PROTOCOL & last_stream(3)),
    Case("5.4.2", "a stream error leaves the other streams as they are",
         [headers(1), headers(3), window(1, 0), data(3, MESSAGE, end=True)],
         stream_error("PROTOCOL_ERROR") & answered(3)),
    Case("5.4.2", "RST_STREAM is not answered by RST_STREAM", [headers(1), rst(1), barrier, rst(1)], silence()),
    Case("5.5", "unknown settings are ignored", [settings([(0x99, 7), (0xFFFF, 0)]), call(1)], answered()),
    Case("5.5", "unknown error codes are nothing special", [headers(1), rst(1, 0xDEADBEEF)], accepted()),
]  # fmt: skip
