"""Calls by the h2 package, a whole implementation of HTTP/2 that refuses whatever a server may not do: many at
once, large ones, with settings of all kinds.
"""

import socket

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

from peer import PATIENCE
from expect import Expected
from wire import MESSAGE, call_fields, envelope

REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
FILE = envelope(b"\x22\x2b" + b"envoy.service.ratelimit.v3.RateLimitService")
Code = h2.settings.SettingCodes


class Client:
    """A connection that keeps windows open and collects answers."""

    def __init__(self, address, settings):
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(address)
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self.h2 = h2.connection.H2Connection(config)
        self.answers, self.statuses, self.ended = {}, {}, set()
        self.said, self.acknowledged = 1, 0
        self.h2.initiate_connection()
        self.change(settings)

    def change(self, settings):
        """Sends settings, and waits until they are acknowledged."""
        self.h2.update_settings(settings)
        self.flush()
        self.said += 1
        self.until(lambda: self.acknowledged == self.said)

    def flush(self):
        self.socket.sendall(self.h2.data_to_send())

    def until(self, condition):
        while not condition():
            read = self.socket.recv(65_536)
            if not read:
                raise ConnectionError("the server has closed the connection")
            for event in self.h2.receive_data(read):
                self.take(event)
            self.flush()

    def take(self, event):
        match event:
            case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                fields = dict(event.headers)
                if "grpc-status" in fields:
                    self.statuses[event.stream_id] = int(fields["grpc-status"])
            case h2.events.DataReceived():
                self.answers[event.stream_id] = self.answers.get(event.stream_id, b"") + event.data
                if event.flow_controlled_length:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.SettingsAcknowledged():
                self.acknowledged += 1
            case h2.events.StreamEnded():
                self.ended.add(event.stream_id)
            case h2.events.StreamReset() | h2.events.ConnectionTerminated():
                raise ConnectionError(f"{event}")

    def begin(self, path=None):
        stream = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, call_fields(path) if path else call_fields())
        return stream

    def send(self, stream, body, end=True):
        """Sends as the server's windows allow, and reads while they do not."""
        while body:
            self.until(lambda: self.h2.local_flow_control_window(stream) > 0)
            size = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size, len(body))
            self.h2.send_data(stream, body[:size], end_stream=end and size == len(body))
            self.flush()
            body = body[size:]

    def call(self, body=MESSAGE, path=None):
        stream = self.begin(path)
        self.send(stream, body)
        return stream

    def wait(self, streams):
        self.until(lambda: self.ended.issuperset(streams))


def one_after_the_other(client):
    for _ in range(300):
        client.wait([client.call()])


def as_many_at_once_as_allowed(client):
    allowed = client.h2.remote_settings.max_concurrent_streams
    for _ in range(20):
        client.wait([client.call() for _ in range(allowed)])


def messages_of_the_largest_size(client):
    """Three, each beyond its stream's window if padding or prefixes were left out of the account."""
    size = 4 * 1024 * 1024
    for _ in range(3):
        stream = client.call(envelope(b"\xff" * size))
        client.wait([stream])
        assert client.statuses.pop(stream) == 3, "INVALID_ARGUMENT is right for bytes that are no protobuf"


def messages_that_arrive_in_turns(client):
    """Twenty, of 200 KB each, frame by frame across streams."""
    streams = [client.begin() for _ in range(20)]
    body = envelope(b"\xff" * 200_000)
    for at in range(0, len(body), 10_000):
        for stream in streams:
            client.send(stream, body[at : at + 10_000], end=at + 10_000 >= len(body))
    client.wait(streams)
    assert {client.statuses.pop(stream) for stream in streams} == {3}


def large_answers(client):
    streams = [client.call(FILE, REFLECTION) for _ in range(100)]
    client.wait(streams)
    lengths = {len(client.answers[stream]) for stream in streams}
    assert len(lengths) == 1 and lengths.pop() > 2_000, lengths


def calls_with_trailers(client):
    stream = client.begin()
    client.send(stream, MESSAGE, end=False)
    client.h2.send_headers(stream, [("x-sum", "1")], end_stream=True)
    client.flush()
    client.wait([stream])


def settings_that_change_between_calls(client):
    for size in (0, 4_096, 100, 65_536, 0):
        client.change({Code.HEADER_TABLE_SIZE: size, Code.INITIAL_WINDOW_SIZE: 100 + size})
        client.wait([client.call(FILE, REFLECTION), client.call()])


class WholeCalls:
    """A case whose steps are calls."""

    def __init__(self, steps, settings, what):
        self.section, self.title = "calls", f"{steps.__name__.replace('_', ' ')}, {what}"
        self.name = f"{self.section} {self.title}"
        self.steps, self.settings = steps, settings
        self.expects = Expected("each call is answered, and h2 finds nothing to refuse", None)

    def run(self, address):
        client = None
        try:
            client = Client(address, self.settings)
            self.steps(client)
            wrong = {stream: status for stream, status in client.statuses.items() if status}
            return f"grpc-status by stream: {wrong}" if wrong else None
        except (h2.exceptions.H2Error, OSError, AssertionError) as error:
            return f"{error!r}"
        finally:
            if client:
                client.socket.close()


SETTINGS = {
    "usual settings": {},
    "no header table": {Code.HEADER_TABLE_SIZE: 0},
    "windows of 100 bytes": {Code.INITIAL_WINDOW_SIZE: 100},
    "large windows and frames": {Code.INITIAL_WINDOW_SIZE: 2**31 - 1, Code.MAX_FRAME_SIZE: 2**24 - 1},
}
STEPS = [
    one_after_the_other,
    as_many_at_once_as_allowed,
    messages_of_the_largest_size,
    messages_that_arrive_in_turns,
    large_answers,
    calls_with_trailers,
    settings_that_change_between_calls,
]

CASES = [WholeCalls(steps, settings, what) for steps in STEPS for what, settings in SETTINGS.items()]
