"""Bytes of HTTP/2: frames, legal and illegal, and the header fields of a valid call.

`frame` takes anything, so that a case can break any rule; the other functions write what their names say.
A function that returns a function needs the connection's encoder: `peer.Peer.send` calls it.
"""

import struct

from envoy.service.ratelimit.v3 import rls_pb2

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

# Flags.
END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20

# Settings.
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS = 1, 2, 3
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 4, 5, 6

# Error codes (RFC 9113, section 7).
ERRORS = [
    "NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT", "STREAM_CLOSED",
    "FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED",
]  # fmt: skip

SHOULD_RATE_LIMIT = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
WATCH = "/grpc.health.v1.Health/Watch"

WINDOW_MAX = 2**31 - 1
FRAME_MAX = 16_384  # until a peer says otherwise; the server never does


def frame(kind, flags, stream, payload=b"", length=None):
    """A frame of any kind; `length` may lie."""
    length = len(payload) if length is None else length
    head = struct.pack(">HBBBL", length >> 8, length & 0xFF, kind, flags, stream)
    return head + payload


def settings(pairs=(), flags=0, stream=0):
    pairs = pairs.items() if isinstance(pairs, dict) else pairs
    payload = b"".join(struct.pack(">HL", *pair) for pair in pairs)
    return frame(SETTINGS, flags, stream, payload)


def ping(payload=b"12345678", flags=0, stream=0):
    return frame(PING, flags, stream, payload)


def data(stream, payload=b"", end=False, flags=0):
    return frame(DATA, flags | (END_STREAM if end else 0), stream, payload)


def rst(stream, code=8):
    return frame(RST_STREAM, 0, stream, struct.pack(">L", code))


def window(stream, increment):
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">L", increment))


def priority(stream, depends_on=0, weight=15):
    return frame(PRIORITY, 0, stream, struct.pack(">LB", depends_on, weight))


def goaway(last_stream=0, code=0, debug=b"", stream=0):
    return frame(GOAWAY, 0, stream, struct.pack(">LL", last_stream, code) + debug)


def envelope(message=b"", flag=0, length=None):
    """A message of gRPC: flag, length, bytes; `length` may lie."""
    return struct.pack(">BL", flag, len(message) if length is None else length) + message


def _message():
    request = rls_pb2.RateLimitRequest(domain="outside")
    request.descriptors.add().entries.add(key="free", value="a")
    return envelope(request.SerializeToString())


# A question that is always answered OK.
MESSAGE = _message()


def call_fields(path=SHOULD_RATE_LIMIT, method="POST", scheme="http", authority="sidecar", content="application/grpc"):
    """The header fields of a valid call, as a list of pairs to be changed."""
    return [
        (":method", method),
        (":scheme", scheme),
        (":path", path),
        (":authority", authority),
        ("content-type", content),
        ("te", "trailers"),
    ]


def without(*names):
    """The fields of a valid call but for these."""
    return [field for field in call_fields() if field[0] not in names]


def block(fields):
    """A field block, by the connection's encoder."""
    return lambda peer: peer.encoder.encode(fields, huffman=True)


def plain(*fields):
    """A field block of literals that no table keeps, byte for byte: for what no encoder would write."""
    encoded = b""
    for name, value in fields:
        name, value = (text.encode() if isinstance(text, str) else text for text in (name, value))
        encoded += b"\x00" + text_literal(name) + text_literal(value)
    return encoded


def text_literal(text):
    """A string literal of HPACK without the Huffman code."""
    if len(text) < 127:
        return bytes([len(text)]) + text
    return b"\x7f" + integer(len(text) - 127) + text


def integer(rest):
    """What follows a full prefix of an HPACK integer."""
    encoded = b""
    while rest >= 128:
        encoded += bytes([rest & 127 | 128])
        rest >>= 7
    return encoded + bytes([rest])


def headers(stream, fields=None, end=False, flags=END_HEADERS):
    """A HEADERS frame; `fields` are pairs, or a block that is encoded already."""
    fields = call_fields() if fields is None else fields

    def write(peer):
        encoded = fields if isinstance(fields, bytes) else peer.encoder.encode(fields, huffman=True)
        return frame(HEADERS, flags | (END_STREAM if end else 0), stream, encoded)

    return write


def call(stream, fields=None, message=MESSAGE):
    """A whole call."""

    def write(peer):
        return headers(stream, fields)(peer) + data(stream, message, end=True)

    return write


def in_parts(stream, sizes, fields=None, end=False, kinds=CONTINUATION):
    """A field block cut into a HEADERS frame and CONTINUATION frames of these sizes; the last takes the rest."""

    def write(peer):
        rest = peer.encoder.encode(call_fields() if fields is None else fields, huffman=True)
        frames, kind, flags = b"", HEADERS, END_STREAM if end else 0
        for size in sizes:
            frames += frame(kind, flags, stream, rest[:size])
            rest, kind, flags = rest[size:], kinds, 0
        return frames + frame(kind, flags | END_HEADERS, stream, rest)

    return write
