"""RFC 9113, section 10.5: useless frames without end. A server bears some, and then ends the connection.

Each flood is sent in bursts that are read out, so that it is never the unread answers that end it.
"""

from case import Case
from expect import connection_error
from peer import Failed
from wire import CONTINUATION, data, frame, goaway, headers, ping, priority, rst, settings, window, without

CALM = connection_error("ENHANCE_YOUR_CALM")
BURST, BURSTS = 500, 100


def flood(piece, begin=None):
    """A step that sends `piece(n)` until the connection ends."""

    def step(peer):
        if begin:
            peer.send(begin)
        for burst in range(BURSTS):
            numbers = range(burst * BURST, (burst + 1) * BURST)
            parts = [piece(number) for number in numbers]
            peer.send(b"".join(part(peer) if callable(part) else part for part in parts))
            peer.settle()
            if peer.closed:
                return
        raise Failed(f"{BURST * BURSTS} were borne")

    return [step]


def field_block(piece):
    """A step that sends a HEADERS frame and then CONTINUATION frames which never end."""

    def step(peer):
        peer.send(headers(1, b"", flags=0))
        for _ in range(BURSTS):
            peer.send(piece * BURST)
            if peer.unread or peer.closed:
                return

    return [step]


def stream(number):
    return 2 * number + 1


def both(*steps):
    return lambda peer: b"".join(step(peer) if callable(step) else step for step in steps)


FLOODS = {
    "streams that are reset at once": lambda n: both(headers(stream(n)), rst(stream(n))),
    "streams that the server has to reset": lambda n: both(headers(stream(n)), window(stream(n), 0)),
    "malformed requests": lambda n: headers(stream(n), without(":path"), end=True),
    "calls without a message": lambda n: headers(stream(n), end=True),
    "streams beyond those allowed": lambda n: headers(stream(n)),
    "SETTINGS": lambda n: settings(),
    "SETTINGS that change all windows": lambda n: settings({4: n % 2}),
    "PING": lambda n: ping(),
    "PING with ACK": lambda n: ping(flags=1),
    "PRIORITY": lambda n: priority(stream(n % 64)),
    "WINDOW_UPDATE": lambda n: window(0, 1),
    "GOAWAY": lambda n: goaway(),
    "frames of unknown types": lambda n: frame(0xFE, 0, 0, b"abc"),
}

CASES = [
    *[Case("10.5", what, flood(piece), CALM) for what, piece in FLOODS.items()],
    Case("10.5", "empty DATA", flood(lambda n: data(1), begin=headers(1)), CALM),
    Case("10.5", "DATA of nothing but padding", flood(lambda n: data(1, b"\x01\0", flags=8), begin=headers(1)), CALM),
    Case("10.5", "empty CONTINUATION", field_block(frame(CONTINUATION, 0, 1)), CALM),
    Case("10.5", "CONTINUATION with fields", field_block(frame(CONTINUATION, 0, 1, b"\x82" * 100)), CALM),
]
