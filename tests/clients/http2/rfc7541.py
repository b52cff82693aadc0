"""RFC 7541: indexes, the dynamic table and its size, eviction, integers, strings, and the server's own encoder.

Blocks are written byte by byte here. A call is made of literals without indexing, so that a case knows what
the table holds; 62 is the dynamic table's newest entry.
"""

from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from case import Case, barrier, until_answered
from expect import answered, connection_error, stream_error
from wire import (
    HEADER_TABLE_SIZE, MESSAGE, call, call_fields, data, headers, integer, plain, settings, text_literal, without,
)  # fmt: skip

UNDECODABLE = connection_error("COMPRESSION_ERROR")
NEWEST = b"\xbe"  # the index 62
SECOND = b"\xbf"  # 63, as 127 is the first that needs a second byte
TABLE = 4_096
OVERHEAD = 32

CALL = plain(*call_fields())
# All of a call but its content type.
REST = plain(*without("content-type"))


def request(block, stream=1):
    return [call(stream, block)]


def adding(name, value):
    """A literal that the table keeps (6.2.1)."""
    name, value = (text.encode() if isinstance(text, str) else text for text in (name, value))
    return b"\x40" + text_literal(name) + text_literal(value)


def size_update(size):
    return b"\x3f" + integer(size - 31) if size >= 31 else bytes([0x20 | size])


def huffman(text):
    return HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode(text)


def huffman_value(coded):
    """A field whose value is these bytes, said to be of the Huffman code."""
    return b"\x00\x01x" + bytes([0x80 | len(coded)]) + coded


def of_size(name, size):
    """A field whose entry has this size."""
    return name, b"v" * (size - OVERHEAD - len(name))


def refer(index):
    return b"\xff" + integer(index - 127) if index >= 127 else bytes([0x80 | index])


# Puts the content type into the table: a call that refers to it is answered, one whose reference means
# something else is not.
KEPT = adding("content-type", "application/grpc")
LARGE = adding(*of_size("x-large", TABLE))

CASES = [
    # Indexes.
    Case("2.3.3", "index 0", request(CALL + b"\x80"), UNDECODABLE),
    Case("2.3.3", "index 62 while the table is empty", request(CALL + NEWEST), UNDECODABLE),
    Case("2.3.3", "an index beyond the newest entries", request(CALL + KEPT + SECOND), UNDECODABLE),
    Case("2.3.3", "an index of 2^27", request(CALL + b"\xff" + integer(2**27)), UNDECODABLE),
    Case("2.3.3", "a name of an index beyond the table", request(CALL + b"\x7f\x40\x01a"), UNDECODABLE),
    Case("2.3.3", "entries are numbered from the newest",
         [call(1, CALL + adding("x-a", "a") + adding("content-type", "text/html") + KEPT), call(3, REST + NEWEST),
          headers(5, REST + SECOND, end=True), call(7, REST + NEWEST)], answered(3, 7)),
    Case("2.3.2", "an entry may occur twice",
         [call(1, REST + KEPT + KEPT), call(3, REST + NEWEST), call(5, REST + SECOND)], answered(1, 3, 5)),
    Case("2.2", "the table belongs to the connection, not to a stream",
         [call(1, REST + KEPT), until_answered(1), call(3, REST + NEWEST)], answered(1, 3)),
    # The table's size.
    Case("4.2", "an update to 0, then to 4096, at the beginning", request(size_update(0) + size_update(TABLE) + CALL),
         answered()),
    Case("4.2", "an update to 4096", request(size_update(TABLE) + CALL), answered()),
    Case("4.2", "an update to 4097, beyond SETTINGS", request(size_update(TABLE + 1) + CALL), UNDECODABLE),
    Case("4.2", "an update to 2^27", request(size_update(2**27) + CALL), UNDECODABLE),
    Case("4.2", "an update after a field", request(CALL + size_update(0)), UNDECODABLE),
    Case("4.2", "an update between fields", request(CALL[:5] + size_update(0) + CALL[5:]), UNDECODABLE),
    Case("4.2", "an update at the beginning of trailers",
         [headers(1, CALL), data(1, MESSAGE), headers(1, size_update(0) + plain(("x", "y")), end=True)], answered()),
    Case("4.3", "an update to 0 evicts all", [call(1, REST + KEPT), call(3, size_update(0) + REST + NEWEST)], UNDECODABLE),
    Case("4.3", "entries come back after an update to 0 only when they are added again",
         [call(1, REST + KEPT), call(3, size_update(0) + size_update(TABLE) + REST + KEPT), call(5, REST + NEWEST)],
         answered(1, 3, 5)),
    Case("4.3", "an update to less evicts the oldest",
         [call(1, CALL + adding("x-old", "a")), call(3, REST + KEPT), call(5, size_update(80) + REST + NEWEST),
          call(7, REST + SECOND)], UNDECODABLE),
    # Eviction. The content type's entry has 12 + 16 + 32 bytes.
    Case("4.4", "an entry that fills the table with the one before it evicts nothing",
         [call(1, REST + KEPT), call(3, CALL + adding(*of_size("x-a", TABLE - 60))), call(5, REST + SECOND)],
         answered(1, 3, 5)),
    Case("4.4", "one byte more evicts the one before it",
         [call(1, REST + KEPT), call(3, CALL + adding(*of_size("x-a", TABLE - 59))), call(5, REST + SECOND)], UNDECODABLE),
    Case("4.4", "an entry as large as the table evicts all others",
         [call(1, REST + KEPT), call(3, CALL + LARGE), call(5, CALL + NEWEST)], answered(1, 3, 5)),
    Case("4.4", "an entry larger than the table empties it, and is no error",
         [call(1, REST + KEPT + adding(*of_size("x-larger", TABLE + 1))), call(3, REST + KEPT), call(5, REST + NEWEST)],
         answered(1, 3, 5)),
    Case("4.4", "an entry larger than the table is not in it",
         [call(1, CALL + adding(*of_size("x-larger", TABLE + 1))), call(3, CALL + NEWEST)], UNDECODABLE),
    Case("4.4", "a name that refers to the entry which its own field evicts",
         [call(1, CALL + adding(*of_size("content-type", TABLE))),
          call(3, REST + b"\x7e" + text_literal(b"application/grpc")), call(5, REST + NEWEST)], answered(3, 5)),
    Case("4.4", "a thousand entries turn the table over, and the last ones are right",
         [*[call(stream, CALL + adding("x-turn", str(stream))) for stream in range(1, 2_001, 2)],
          call(2_001, REST + KEPT), call(2_003, REST + NEWEST)], answered(2_001, 2_003)),
    # Integers.
    Case("5.1", "a length of more bytes than it needs",
         request(CALL + b"\x00\x01x\x7f\x81\x80\x00" + b"v" * 128), answered()),
    Case("5.1", "an index of 2^32 + 62", request(CALL + b"\xff" + integer(2**32 + 62 - 127)), UNDECODABLE),
    Case("5.1", "an index of 2^64 + 62", request(CALL + b"\xff" + integer(2**64 + 62 - 127)), UNDECODABLE),
    Case("5.1", "an integer of fifty bytes that adds nothing",
         request(CALL + b"\xff" + b"\x80" * 50 + b"\x00"), UNDECODABLE),
    Case("5.1", "an integer that does not end", request(CALL + b"\xff\xff\xff"), UNDECODABLE),
    Case("5.1", "a length of 2^32 + 1", request(CALL + b"\x00\x01x\x7f" + integer(2**32 + 1 - 127) + b"v"), UNDECODABLE),
    Case("5.1", "an update to 2^32", request(size_update(2**32) + CALL), UNDECODABLE),
    # Strings.
    Case("5.2", "a value longer than the block", request(CALL + b"\x00\x01x\x05ab"), UNDECODABLE),
    Case("5.2", "a name longer than the block", request(CALL + b"\x00\x09ab"), UNDECODABLE),
    Case("5.2", "a name without a value", request(CALL + b"\x00\x01x"), UNDECODABLE),
    Case("5.2", "the Huffman code", request(REST + b"\x0f\x10" + bytes([0x80 | len(huffman(b"application/grpc"))])
                                            + huffman(b"application/grpc")), answered()),
    Case("5.2", "every byte by the Huffman code, but those that fields may not have",
         request(CALL + b"\x00\x01x\xff" + integer(len(huffman(bytes(range(1, 10)) + bytes(range(14, 256)))) - 127)
                 + huffman(bytes(range(1, 10)) + bytes(range(14, 256)))), answered()),
    Case("5.2", "an empty string of the Huffman code", request(CALL + huffman_value(b"")), answered()),
    Case("5.2", "padding of 3 ones", request(CALL + huffman_value(b"\x1f")), answered()),
    Case("5.2", "padding of zeros", request(CALL + huffman_value(b"\x18")), UNDECODABLE),
    Case("5.2", "padding of 8 ones", request(CALL + huffman_value(b"\xff")), UNDECODABLE),
    Case("5.2", "padding of a symbol and 11 ones", request(CALL + huffman_value(b"\x1f\xff")), UNDECODABLE),
    Case("5.2", "the end of the string as a symbol", request(CALL + huffman_value(b"\xff\xff\xff\xfc")), UNDECODABLE),
    Case("5.2", "a symbol, the end of the string, a symbol",
         request(CALL + huffman_value(b"\x1f\xff\xff\xff\xe0\xff")), UNDECODABLE),
    Case("5.2", "a symbol that is cut off", request(CALL + huffman_value(b"\xff\xea")), UNDECODABLE),
    # Representations.
    Case("6.1", "fields of the static table", [call(1, b"\x83\x86" + plain(*without(":method", ":scheme")))], answered()),
    Case("6.2.1", "a literal that is kept, its name in the static table",
         [call(1, REST + b"\x5f" + text_literal(b"application/grpc")), call(3, REST + NEWEST)], answered(1, 3)),
    Case("6.2.1", "a literal that is kept, with its name", [call(1, REST + KEPT), call(3, REST + NEWEST)], answered(1, 3)),
    Case("6.2.2", "a literal that is not kept, its name in the static table",
         request(REST + b"\x0f\x10" + text_literal(b"application/grpc")), answered()),
    Case("6.2.2", "a literal that is not kept is not in the table", request(CALL) + request(CALL + NEWEST, 3), UNDECODABLE),
    Case("6.2.2", "a literal that is not kept, its name in the dynamic table",
         [call(1, REST + KEPT), call(3, REST + b"\x0f\x2f" + text_literal(b"application/grpc"))], answered(1, 3)),
    Case("6.2.3", "a literal that is never indexed",
         request(REST + b"\x1f\x10" + text_literal(b"application/grpc")), answered()),
    Case("6.2.3", "a literal that is never indexed, with its name",
         request(REST + b"\x10" + text_literal(b"content-type") + text_literal(b"application/grpc")), answered()),
    Case("6.3", "updates and no field", [headers(1, size_update(0), end=True)], stream_error("PROTOCOL_ERROR")),
    # The server's own encoder: a table that the client wants smaller is made smaller by an update at the
    # beginning of the next block (4.2; RFC 9113, 4.3.1). `peer.Peer.watch_block` holds it to that.
    Case("4.2", "the client's table: 0 from the first settings", [call(1), call(3)], answered(1, 3),
         settings={HEADER_TABLE_SIZE: 0}),
    Case("4.2", "the client's table: 100 from the first settings", [call(1), call(3)], answered(1, 3),
         settings={HEADER_TABLE_SIZE: 100}),
    Case("4.2", "the client's table: 0 between two calls",
         [call(1), until_answered(1), settings({HEADER_TABLE_SIZE: 0}), barrier, call(3)], answered(1, 3)),
    Case("4.2", "the client's table: smaller, then larger, between two calls",
         [call(1), until_answered(1), settings({HEADER_TABLE_SIZE: 0}), settings({HEADER_TABLE_SIZE: TABLE}), barrier,
          call(3)], answered(1, 3)),
    Case("4.2", "the client's table: larger", [settings({HEADER_TABLE_SIZE: 1 << 20}), barrier, call(1)], answered()),
]  # fmt: skip
