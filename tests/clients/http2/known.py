"""Cases whose requirement this server does not meet.

DEVIATIONS are deliberate: what comes instead, which is held to as well, and why. docs/reference/grpc.md tells of them.
PENDING are defects that are known. One that holds again fails the suite until it is taken out.
"""

from expect import answered, silence, stream_error

SPACES = (
    answered(),
    "gRPC lets a server strip spaces around metadata (PROTOCOL-HTTP2.md, ASCII-Value), and gRPC's own clients send them",
)

DEVIATIONS = {
    "RFC 9113 5.1.1 a number that was passed over, below one that was refused": (
        stream_error("PROTOCOL_ERROR", stream=5),
        "which streams were refused early is not kept one by one, so all below the last of them count as closed by the "
        "server, whose late frames section 5.1 has it discard",
    ),
    "RFC 9113 8.2.1 a value with a space before it": SPACES,
    "RFC 9113 8.2.1 a value with a space after it": SPACES,
    "RFC 9113 8.2.1 a value with a tab before it": SPACES,
    "RFC 9113 8.3.1 host that is not :authority": (
        answered(),
        "a SHOULD against confusion of virtual hosts; the server has one host and reads neither field",
    ),
    "gRPC grpc request an unknown method is refused before its first message": (
        silence(),
        "calls are decided when their message has arrived, whatever their method",
    ),
}

PENDING = {}
