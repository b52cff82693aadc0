"""RFC 9113, section 3.4: clients that stop before their greeting is whole. The server's time limits end them.

These connections are made before all other cases, and looked at after them: most of the time is over then.
"""

import time

from case import Case
from expect import closed
from peer import PATIENCE, Failed, Peer
from wire import PREFACE, settings


class Silent(Case):
    def before(self, address):
        self.end = time.monotonic() + PATIENCE
        self.peer = Peer(address)
        self.peer.send(*self.sends)

    def run(self, address):
        self.peer.socket.settimeout(max(self.end - time.monotonic(), 0.01))
        try:
            while self.peer.receive():
                pass
            return None
        except Failed as failed:
            return str(failed)
        finally:
            self.peer.close()


CASES = [
    Silent("3.4", "no byte: the end after some seconds", [], closed()),
    Silent("3.4", "half a preface: the end after some seconds", [PREFACE[:12]], closed()),
    Silent("3.4", "a preface, and no settings: the end after some seconds", [PREFACE], closed()),
    Silent("3.4", "half of the first settings: the end after some seconds",
           [PREFACE + settings({1: 1, 2: 0})[:12]], closed()),
]  # fmt: skip
