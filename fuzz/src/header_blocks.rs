//! Header blocks built from the choices of an input: every representation of RFC 7541, valid and invalid, and
//! any number of copies.

use crate::input::Input;

/// The most bytes of one block: a full frame.
pub(crate) const BLOCK_BYTES_MAX: usize = 16_384;

const LENGTHS: [usize; 16] =
    [0, 1, 2, 5, 31, 32, 100, 126, 127, 128, 500, 1_000, 2_000, 4_000, 4_060, 4_064];

/// The fields of a normal call.
const CALL: [(&str, &str); 5] = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/test.Echo/Echo"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
];
const ANSWER: [(&str, &str); 2] = [(":status", "200"), ("content-type", "application/grpc")];
const NAMES: [&str; 16] = [
    ":method",
    ":path",
    ":scheme",
    ":status",
    ":authority",
    "content-type",
    "te",
    "content-length",
    "grpc-status",
    "grpc-message",
    "grpc-encoding",
    "connection",
    "x-a",
    "x-b",
    "X-A",
    "",
];
const VALUES: [&str; 16] = [
    "POST",
    "GET",
    "/test.Echo/Echo",
    "/test.Echo/Watch",
    "/test.Echo/Keep",
    "/test.Echo/Refuse",
    "http",
    "200",
    "404",
    "application/grpc+proto",
    "trailers",
    "0",
    "5",
    "13",
    "identity",
    "a\nb",
];

/// Appends a block.
pub(crate) fn build(input: &mut Input<'_>, block: &mut Vec<u8>) {
    let representations = input.byte() % 24;
    for _ in 0..representations {
        let begin = block.len();
        representation(input, block);
        if block.len() > BLOCK_BYTES_MAX {
            block.truncate(begin);
            return;
        }
    }
}

fn representation(input: &mut Input<'_>, block: &mut Vec<u8>) {
    match input.byte() % 12 {
        0 | 1 => integer(7, 0x80, input.byte().into(), block),
        2 => CALL.iter().for_each(|field| plain(0x00, field, block)),
        3 => ANSWER.iter().for_each(|field| plain(0x00, field, block)),
        4 => CALL.iter().for_each(|field| plain(0x40, field, block)),
        5 => plain(input.one_of(&KINDS).1, &(input.one_of(&NAMES), input.one_of(&VALUES)), block),
        6 | 7 => {
            let (prefix_bits, first) = input.one_of(&KINDS);
            let index = usize::from(input.byte());
            integer(prefix_bits, first, index, block);
            if index == 0 {
                string(input, block);
            }
            string(input, block);
        }
        8 => integer(5, 0x20, input.one_of(&[0, 31, 64, 4_096, 4_097, 100_000]), block),
        9 | 10 => repeat(input, block),
        _ => block.extend_from_slice(input.short()),
    }
}

/// The prefix size and the first byte of literals: with indexing, without, never indexed.
const KINDS: [(u32, u8); 3] = [(6, 0x40), (4, 0x00), (4, 0x10)];

/// Repeats one more representation until the block is full.
fn repeat(input: &mut Input<'_>, block: &mut Vec<u8>) {
    let times = usize::from(input.byte()) * usize::from(input.byte());
    let begin = block.len();
    match input.byte() % 3 {
        0 => integer(7, 0x80, input.byte().into(), block),
        1 => {
            let (prefix_bits, first) = input.one_of(&KINDS);
            integer(prefix_bits, first, input.byte().max(1).into(), block);
            string(input, block);
        }
        _ => block.extend_from_slice(input.short()),
    }
    let once = block[begin..].to_vec();
    for _ in 1..times {
        if block.len() + once.len() > BLOCK_BYTES_MAX {
            break;
        }
        block.extend_from_slice(&once);
    }
}

fn plain(first: u8, (name, value): &(&str, &str), block: &mut Vec<u8>) {
    block.push(first);
    for text in [name, value] {
        integer(7, 0x00, text.len(), block);
        block.extend_from_slice(text.as_bytes());
    }
}

fn string(input: &mut Input<'_>, block: &mut Vec<u8>) {
    match input.byte() % 4 {
        0 => {
            let text = input.short();
            integer(7, 0x00, text.len(), block);
            block.extend_from_slice(text);
        }
        1 => {
            let length = input.one_of(&LENGTHS);
            integer(7, 0x00, length, block);
            block.resize(block.len() + length, input.one_of(b"av0:"));
        }
        // The code of `0` repeated, and random bytes as code.
        2 => {
            let length = input.one_of(&LENGTHS);
            integer(7, 0x80, length, block);
            block.resize(block.len() + length, 0x00);
        }
        _ => {
            let code = input.short();
            integer(7, 0x80, code.len(), block);
            block.extend_from_slice(code);
        }
    }
}

/// RFC 7541, section 5.1.
fn integer(prefix_bits: u32, first: u8, value: usize, block: &mut Vec<u8>) {
    let mask = (1_usize << prefix_bits) - 1;
    if value < mask {
        block.push(first | value as u8);
        return;
    }
    block.push(first | mask as u8);
    let mut rest = value - mask;
    while rest >= 0x80 {
        block.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    block.push(rest as u8);
}
