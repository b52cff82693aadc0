"""RFC 9113, section 6.8, from the other side: how the server leaves. It says GOAWAY twice, as the section advises:
first with the highest number, and, when a ping has shown that the client has heard, with the last stream it takes.

Usage: drain.py TARGET, as run.py. Prints READY when all connections are made; a line on standard input says
that the sidecar was told to stop (SIGTERM). A case is a generator: what it does before that, and after. The second parts
run at once: the sidecar waits a second for a client to say that it has heard.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

from expect import is_answered, status
from peer import Failed, Peer
from run import address_of
from wire import ACK, MESSAGE, WATCH, WINDOW_MAX, call, call_fields, data, envelope, headers, ping

# What the health service says of a server that stops.
NOT_SERVING = envelope(b"\x08\x02")


def told(peer):
    """Waits until the client is asked to begin nothing, and whether it has heard."""
    peer.until(lambda: peer.goaway and peer.pings, "GOAWAY and PING")
    check(peer, peer.goaway.last_stream_id == WINDOW_MAX and peer.goaway.error_code == 0, "GOAWAY of 2^31 - 1")


def heard(peer, last_stream):
    """Says that it has heard, and waits for the last stream that is taken."""
    peer.goaway = None
    peer.send(*[ping(payload, flags=ACK) for payload in peer.pings])
    peer.until(lambda: peer.goaway, "the second GOAWAY")
    check(peer, (peer.goaway.last_stream_id, peer.goaway.error_code) == (last_stream, 0), f"GOAWAY of {last_stream}")


def ended(peer):
    while peer.receive():
        pass


def check(peer, holds, what):
    if not holds:
        raise Failed(f"required: {what}; came: {peer}")


def an_idle_connection_ends(peer):
    yield
    told(peer)
    heard(peer, 0)
    ended(peer)


def a_call_under_way_is_answered(peer):
    peer.send(headers(1))
    peer.settle()
    yield
    told(peer)
    heard(peer, 1)
    peer.send(data(1, MESSAGE, end=True))
    ended(peer)
    check(peer, is_answered(peer.streams[1]), "an answer")


def a_call_that_was_begun_before_the_client_heard_is_answered(peer):
    yield
    told(peer)
    peer.send(call(1))
    heard(peer, 1)
    ended(peer)
    check(peer, is_answered(peer.streams[1]), "an answer")


def a_call_after_the_last_stream_is_not_taken(peer):
    peer.send(headers(1))
    peer.settle()
    yield
    told(peer)
    heard(peer, 1)
    peer.send(call(3), data(1, MESSAGE, end=True))
    ended(peer)
    check(peer, is_answered(peer.streams[1]), "an answer on 1")
    check(peer, not peer.streams[3].blocks and peer.streams[3].reset in (None, 7), "nothing, or REFUSED_STREAM, on 3")


def a_watch_is_told_and_ends(peer):
    peer.send(headers(1, call_fields(WATCH)), data(1, envelope(), end=True))
    peer.settle()
    peer.streams[1].data = b""
    yield
    told(peer)
    heard(peer, 1)
    ended(peer)
    peer.closed = False  # rightly so, once all streams have ended
    told_of = peer.streams[1].data
    check(peer, told_of and not told_of.replace(NOT_SERVING, b""), "NOT_SERVING")
    check(peer, status("UNAVAILABLE").check(peer), "UNAVAILABLE")


def a_client_that_never_says_that_it_has_heard_is_left(peer):
    yield
    told(peer)
    ended(peer)


CASES = [
    an_idle_connection_ends,
    a_call_under_way_is_answered,
    a_call_that_was_begun_before_the_client_heard_is_answered,
    a_call_after_the_last_stream_is_not_taken,
    a_watch_is_told_and_ends,
    a_client_that_never_says_that_it_has_heard_is_left,
]


def end(begun):
    """Does the second part of a case. Returns what was wrong, if something was."""
    _, peer, steps = begun
    try:
        next(steps, None)
        return "; ".join(peer.faults)
    except Failed as failure:
        return str(failure)


def main():
    address = address_of(sys.argv[1])
    begun = []
    for case in CASES:
        peer = Peer(address)
        peer.greet()
        steps = case(peer)
        next(steps)
        begun.append((case, peer, steps))
    print("READY", flush=True)
    sys.stdin.readline()
    with ThreadPoolExecutor(len(begun)) as threads:
        outcomes = list(threads.map(end, begun))
    for (case, _, _), came in zip(begun, outcomes):
        name = f"RFC 9113 6.8 {case.__name__.replace('_', ' ')}"
        print(f"FAILED {name}\n    {came}" if came else f"ok {name}", flush=True)
    return 1 if any(outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
