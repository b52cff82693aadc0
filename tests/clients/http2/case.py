"""A case: the section it tests, what it sends, and what the section requires."""

from dataclasses import dataclass, field

import wire
from expect import is_answered
from peer import Failed, Peer


@dataclass
class Case:
    section: str
    title: str
    # Bytes, or functions of the connection; sent after the greeting, if there is one.
    sends: list
    expects: object
    # The client's first settings.
    settings: dict = field(default_factory=dict)
    greet: bool = True
    # Whether a further call is made, which must be answered, unless the connection must end.
    probe: bool = True

    @property
    def name(self):
        return f"{self.section} {self.title}"

    def run(self, address):
        """None if it holds, or what came instead."""
        peer = Peer(address)
        try:
            if self.greet:
                peer.greet(self.settings)
            peer.send(*self.sends)
            peer.settle()
            if not self.expects.check(peer):
                return str(peer)
            if peer.faults:
                return "; ".join(peer.faults)
            return None if self.expects.ends and peer.closed else self.probed(peer)
        except Failed as failed:
            return str(failed)
        finally:
            peer.close()

    def probed(self, peer):
        """Whether the connection is whole: a further call is answered, by the same table of fields."""
        if not self.probe:
            return None
        stream = (peer.streams_begun + 1) | 1
        peer.send(wire.call(stream))
        peer.settle()
        if peer.closed or not is_answered(peer.streams[stream]):
            return f"as required, but a further call is not answered: {peer}"
        return "; ".join(peer.faults) or None


def barrier(peer):
    """A step that waits until the server has taken all before it."""
    peer.settle()


def pieces(sent, size):
    """A step that sends bytes in segments of this size."""

    def step(peer):
        whole = b"".join(part(peer) if callable(part) else part for part in sent)
        peer.note(whole)
        for at in range(0, len(whole), size):
            peer.socket.sendall(whole[at : at + size])

    return step


def until_answered(stream):
    """A step that waits for the end of an answer."""

    def step(peer):
        peer.until(lambda: peer.streams[stream].ended, f"the end of stream {stream}")

    return step


def until_bytes(stream, count):
    """A step that waits until exactly this many bytes of an answer's body have come, and no more are on their way."""

    def step(peer):
        peer.settle()
        came = len(peer.streams[stream].data)
        if came != count:
            raise Failed(f"{came} bytes of a body came where the window allows {count}")

    return step
