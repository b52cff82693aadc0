"""One connection to the server under test: sends what a case says, reads frames, and watches the server.

Frames are parsed by hyperframe and field blocks by hpack. `watch` notes what a server must never do, whatever
it is sent: exceed a window or a frame size, send frames on streams that are closed or were never begun, push.
"""

import socket

import hpack
import hyperframe.frame as hf
from hyperframe.exceptions import HyperframeError

import wire

# Seconds after which the server is taken to have failed. Nothing waits for this long when all is well.
PATIENCE = 30

BARRIER = b"barrier!"


class Failed(Exception):
    """The server did not do what a step of a case waits for."""


class Stream:
    """What came on a stream."""

    def __init__(self, window):
        self.blocks = []
        self.data = b""
        self.ended = False
        self.reset = None
        self.window = window

    @property
    def fields(self):
        return dict(field for block in self.blocks for field in block)

    def __str__(self):
        parts = []
        if self.blocks:
            shown = ("status", "grpc-status", "grpc-message")
            fields = [f"{name}={value}" for name, value in self.fields.items() if name.lstrip(":") in shown]
            parts.append("answer " + " ".join(fields))
        if self.data:
            parts.append(f"{len(self.data)} bytes")
        if self.ended:
            parts.append("END_STREAM")
        if self.reset is not None:
            parts.append("RST_STREAM " + wire.ERRORS[self.reset])
        return ", ".join(parts) or "nothing"


class Peer:
    def __init__(self, address):
        if isinstance(address, str):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(PATIENCE)
            self.socket.connect(address)
        else:
            self.socket = socket.create_connection(address, PATIENCE)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.encoder, self.decoder = hpack.Encoder(), hpack.Decoder()
        self.unread = bytearray()
        self.streams = {}
        self.frames = []  # all that came
        self.faults = []  # what a server must never do
        self.goaway = None
        self.closed = False
        self.settings_acks = 0
        self.pongs = []  # but for those of `settle`
        self.pings = []  # the server's own, not answered yet
        self.is_settled = False
        self.server_settings = None
        # What this side has said, which bounds the server.
        self.sent_settings = []  # not acknowledged yet
        self.initial_window, self.window, self.streams_begun = 65_535, 65_535, 0
        self.open_block = None

    def close(self):
        self.socket.close()

    # Sending.

    def greet(self, pairs=()):
        """The preface, settings, and the acknowledgement of the server's."""
        self.send(wire.PREFACE, wire.settings(pairs))
        self.until(lambda: self.server_settings is not None and self.settings_acks == 1, "the server's settings")
        self.send(wire.settings(flags=wire.ACK))

    def send(self, *steps):
        """Sends bytes, or does what a function of the connection does, and sends the bytes it returns."""
        for step in steps:
            sent = step(self) if callable(step) else step
            if sent:
                self.note(sent)
                try:
                    self.socket.sendall(sent)
                except OSError:
                    return  # the server has closed; what it said is read next

    def note(self, sent):
        """Remembers what this side allows the server from now on."""
        sent = sent.removeprefix(wire.PREFACE)
        while len(sent) >= 9:
            length, kind, flags = int.from_bytes(sent[:3]), sent[3], sent[4]
            stream, payload = int.from_bytes(sent[5:9]) & wire.WINDOW_MAX, sent[9 : 9 + length]
            sent = sent[9 + length :]
            if kind == wire.SETTINGS and not flags & wire.ACK and length % 6 == 0:
                pairs = [payload[at : at + 6] for at in range(0, length, 6)]
                pairs = [(int.from_bytes(pair[:2]), int.from_bytes(pair[2:])) for pair in pairs]
                self.sent_settings.append(pairs)
            elif kind == wire.WINDOW_UPDATE and length == 4:
                increment = int.from_bytes(payload) & wire.WINDOW_MAX
                if stream == 0:
                    self.window += increment
                elif stream in self.streams:
                    self.streams[stream].window += increment
            elif kind == wire.HEADERS and stream > self.streams_begun:
                self.streams_begun = stream
                self.streams[stream] = Stream(self.initial_window)

    # Receiving.

    def receive(self):
        """Takes the next frame; False at the end of the connection."""
        while (frame := self.cut()) is None:
            try:
                read = self.socket.recv(65_536)
            except ConnectionError:
                read = b""
            except TimeoutError:
                raise Failed(f"nothing came in {PATIENCE} s; before that: {self}") from None
            if not read:
                self.closed = True
                return False
            self.unread += read
        self.frames.append(frame)
        self.watch(frame)
        return True

    def cut(self):
        if len(self.unread) < 9:
            return None
        frame, length = hf.Frame.parse_frame_header(memoryview(bytes(self.unread[:9])))
        if length > wire.FRAME_MAX:
            self.faults.append(f"a frame of {length} bytes")
        if len(self.unread) < 9 + length:
            return None
        try:
            frame.parse_body(memoryview(bytes(self.unread[9 : 9 + length])))
        except HyperframeError as error:
            self.faults.append(f"a frame that cannot be parsed: {error!r}")
        frame.length = length
        del self.unread[: 9 + length]
        return frame

    def until(self, condition, what):
        while not condition():
            if not self.receive():
                raise Failed(f"the connection ended before {what}: {self}")

    def settle(self):
        """Reads all that the server has to say: up to the answer to a ping, or to the end."""
        self.is_settled = False
        self.send(wire.ping(BARRIER))
        while not self.is_settled and self.receive():
            pass

    # What a server must never do.

    def watch(self, frame):
        if len(self.frames) == 1 and not isinstance(frame, hf.SettingsFrame):
            self.faults.append(f"the first frame is not SETTINGS but {frame}")
        if self.open_block is not None and not isinstance(frame, hf.ContinuationFrame):
            self.faults.append("a field block is interrupted")
        match frame:
            case hf.SettingsFrame():
                self.watch_settings(frame)
            case hf.PingFrame():
                if "ACK" in frame.flags and frame.opaque_data == BARRIER:
                    self.is_settled = True
                elif "ACK" in frame.flags:
                    self.pongs.append(frame.opaque_data)
                else:
                    self.pings.append(frame.opaque_data)
            case hf.GoAwayFrame():
                self.goaway = frame
                if frame.last_stream_id > self.streams_begun and frame.last_stream_id != wire.WINDOW_MAX:
                    self.faults.append(f"GOAWAY names stream {frame.last_stream_id}, which was never begun")
            case hf.WindowUpdateFrame():
                if frame.window_increment == 0:
                    self.faults.append("WINDOW_UPDATE by 0")
            case hf.PushPromiseFrame():
                self.faults.append("PUSH_PROMISE")
            case hf.HeadersFrame() | hf.DataFrame() | hf.ContinuationFrame() | hf.RstStreamFrame():
                self.watch_stream(frame)

    def watch_settings(self, frame):
        if "ACK" not in frame.flags:
            self.server_settings = dict(frame.settings)
            if self.server_settings.get(wire.ENABLE_PUSH):
                self.faults.append("a server's SETTINGS allow push")
            return
        self.settings_acks += 1
        if not self.sent_settings:
            self.faults.append("SETTINGS are acknowledged that were never sent")
            return
        for identifier, value in self.sent_settings.pop(0):
            if identifier == wire.HEADER_TABLE_SIZE:
                self.decoder.max_allowed_table_size = value
            if identifier == wire.INITIAL_WINDOW_SIZE:
                for stream in self.streams.values():
                    stream.window += value - self.initial_window
                self.initial_window = value

    def watch_stream(self, frame):
        stream = self.streams.get(frame.stream_id)
        if stream is None:
            if not isinstance(frame, hf.RstStreamFrame):
                self.faults.append(f"{frame} on a stream that was never begun")
            return
        if stream.reset is not None or (stream.ended and not isinstance(frame, hf.RstStreamFrame)):
            self.faults.append(f"{frame} on stream {frame.stream_id}, which has ended")
        if isinstance(frame, hf.RstStreamFrame):
            stream.reset = frame.error_code
            return
        if isinstance(frame, hf.DataFrame):
            stream.data += frame.data
            stream.window -= frame.length
            self.window -= frame.length
            if stream.window < 0 and frame.length or self.window < 0:
                self.faults.append(f"a window of stream {frame.stream_id} is exceeded")
            if not stream.blocks:
                self.faults.append("DATA before HEADERS")
        else:
            self.watch_block(frame, stream)
        stream.ended = stream.ended or "END_STREAM" in frame.flags

    def watch_block(self, frame, stream):
        self.open_block = (self.open_block or b"") + frame.data
        if "END_HEADERS" not in frame.flags:
            return
        encoded, self.open_block = self.open_block, None
        try:
            fields = self.decoder.decode(encoded)
        except hpack.HPACKError as error:
            self.faults.append(f"a field block cannot be decoded: {error!r}")
            return
        names = [name for name, _ in fields]
        pseudo = [name for name in names if name.startswith(":")]
        if pseudo != ([] if stream.blocks else [":status"]) or names[: len(pseudo)] != pseudo:
            self.faults.append(f"the pseudo-header fields of an answer are {pseudo}")
        if any(name != name.lower() for name in names):
            self.faults.append(f"upper-case field names: {names}")
        if wrong := [field for field in fields if field[1] != field[1].strip() or set("\0\r\n") & set(field[1])]:
            self.faults.append(f"values that no field may have: {wrong}")
        stream.blocks.append(fields)

    def __str__(self):
        parts = [f"stream {number}: {stream}" for number, stream in self.streams.items()]
        parts = parts[:4] + ["…"] * (len(parts) > 4)
        if self.goaway:
            parts.append(f"GOAWAY {wire.ERRORS[self.goaway.error_code]} ({self.goaway.additional_data.decode()})")
        if self.closed:
            parts.append("closed")
        return "; ".join(parts) or "nothing"
