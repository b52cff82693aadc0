//! The Huffman code of header compression (RFC 7541, section 5.2 and appendix B).
//!
//! The code is canonical: the lengths define it. A state machine that takes four bits per transition is
//! computed from them at compile time. No code is shorter than five bits, so a transition ends at most one
//! symbol.

/// The code length of each symbol. The last symbol is the end of the string, which must not occur.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28,
    28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6,
    6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6,
    6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22,
    20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23,
    22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22,
    23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22,
    25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

const BITS_MAX: u8 = 30;
const END: u16 = 256;
const LEAF: u16 = 0x8000;

#[derive(Clone, Copy)]
enum Emit {
    Nothing,
    Symbol(u8),
    Failure,
}

#[derive(Clone, Copy)]
struct Transition {
    next: u8,
    emit: Emit,
}

/// The 256 inner nodes of the code's tree; the root is 0.
const TREE: [[u16; 2]; 256] = tree();
/// The transition of each node for four bits.
static TRANSITIONS: [[Transition; 16]; 256] = transitions();
/// The nodes that padding may end in: fewer than eight bits, all ones.
static ENDINGS: [bool; 256] = endings();

/// Appends the decoded string. None if the code or its padding is invalid.
pub(crate) fn decode(input: &[u8], output: &mut Vec<u8>) -> Option<()> {
    // No symbol is shorter than five bits.
    output.reserve(input.len() / 5 * 8 + 8);
    let mut node = 0_u8;
    for byte in input {
        for nibble in [byte >> 4, byte & 0xf] {
            let transition = TRANSITIONS.get(usize::from(node))?.get(usize::from(nibble))?;
            node = transition.next;
            match transition.emit {
                Emit::Nothing => {}
                Emit::Symbol(symbol) => output.push(symbol),
                Emit::Failure => return None,
            }
        }
    }
    ENDINGS.get(usize::from(node)).copied()?.then_some(())
}

#[expect(clippy::indexing_slicing, reason = "evaluated when compiled")]
const fn tree() -> [[u16; 2]; 256] {
    let mut tree = [[0_u16; 2]; 256];
    let mut nodes = 1_u16;
    let mut code = 0_u32;
    let mut length = 1_u8;
    while length <= BITS_MAX {
        code <<= 1;
        let mut symbol = 0_u16;
        while symbol <= END {
            if LENGTHS[symbol as usize] == length {
                let mut node = 0;
                let mut bit = length - 1;
                while bit > 0 {
                    let side = ((code >> bit) & 1) as usize;
                    if tree[node][side] == 0 {
                        tree[node][side] = nodes;
                        nodes += 1;
                    }
                    node = tree[node][side] as usize;
                    bit -= 1;
                }
                tree[node][(code & 1) as usize] = LEAF | symbol;
                code += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    assert!(nodes == 256, "a full binary tree of 257 leaves has 256 inner nodes");
    tree
}

#[expect(clippy::indexing_slicing, reason = "evaluated when compiled")]
const fn transitions() -> [[Transition; 16]; 256] {
    let mut transitions = [[Transition { next: 0, emit: Emit::Nothing }; 16]; 256];
    let mut start = 0;
    while start < 256 {
        let mut nibble = 0;
        while nibble < 16 {
            let mut node = start;
            let mut emit = Emit::Nothing;
            let mut bit = 4;
            while bit > 0 {
                bit -= 1;
                let reached = TREE[node][(nibble >> bit) & 1];
                if reached & LEAF == 0 {
                    node = reached as usize;
                } else {
                    let symbol = reached & !LEAF;
                    emit = if symbol == END { Emit::Failure } else { Emit::Symbol(symbol as u8) };
                    node = 0;
                }
            }
            transitions[start][nibble] = Transition { next: node as u8, emit };
            nibble += 1;
        }
        start += 1;
    }
    transitions
}

#[expect(clippy::indexing_slicing, reason = "evaluated when compiled")]
const fn endings() -> [bool; 256] {
    let mut endings = [false; 256];
    let mut node = 0;
    let mut bits = 0;
    while bits < 8 {
        endings[node] = true;
        node = TREE[node][1] as usize;
        bits += 1;
    }
    endings
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The slow twin: codes as strings of bits, in the order of appendix B.
    fn codes() -> Vec<String> {
        let mut codes = vec![String::new(); 257];
        let mut order: Vec<usize> = (0..257).collect();
        order.sort_by_key(|&symbol| (LENGTHS[symbol], symbol));
        let (mut code, mut length) = (0_u32, LENGTHS[order[0]]);
        for symbol in order {
            code <<= LENGTHS[symbol] - length;
            length = LENGTHS[symbol];
            codes[symbol] = format!("{code:0width$b}", width = usize::from(length));
            code += 1;
        }
        codes
    }

    pub(crate) fn encode(text: &[u8]) -> Vec<u8> {
        let codes = codes();
        let mut bits: String = text.iter().map(|&byte| codes[usize::from(byte)].as_str()).collect();
        while !bits.len().is_multiple_of(8) {
            bits.push('1');
        }
        bits.as_bytes()
            .chunks(8)
            .map(|bits| bits.iter().fold(0, |byte, bit| byte << 1 | (bit - b'0')))
            .collect()
    }

    fn check(text: &str, code: &[u8]) {
        assert_eq!(encode(text.as_bytes()), code);
        let mut output = Vec::new();
        assert_eq!(decode(code, &mut output), Some(()));
        assert_eq!(output, text.as_bytes());
    }

    /// RFC 7541, appendix C.4 and C.6.
    #[test]
    fn the_examples_of_the_rfc_hold() {
        check(
            "www.example.com",
            &[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff],
        );
        check("no-cache", &[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]);
        check("custom-value", &[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf]);
        check("private", &[0xae, 0xc3, 0x77, 0x1a, 0x4b]);
        check("", &[]);
    }

    #[test]
    fn broken_codes_are_refused() {
        let refused = |code: &[u8]| decode(code, &mut Vec::new()).is_none();
        assert!(refused(&[0xff]), "eight bits of padding");
        assert!(refused(&[0xff, 0xff, 0xff, 0xff]), "the end of the string");
        assert!(refused(&[0x00]), "padding of zeros");
        assert!(!refused(&[0b0000_0111]), "a zero and three bits of padding");
    }

    /// Zero bits: every five are the symbol `0`, the most that a code can expand to.
    #[test]
    fn the_buffer_is_as_large_as_the_longest_string() {
        for bytes in [5_usize, 1000, 16_000] {
            let mut output = Vec::new();
            assert_eq!(decode(&vec![0; bytes], &mut output), Some(()));
            assert_eq!((output.len(), output.capacity()), (bytes / 5 * 8, bytes / 5 * 8 + 8));
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut output = Vec::new();
            prop_assert_eq!(decode(&encode(&text), &mut output), Some(()));
            prop_assert_eq!(output, text);
        }

        #[test]
        fn any_bytes_end_and_expand_little(code in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut output = Vec::new();
            if decode(&code, &mut output).is_some() {
                prop_assert_eq!(encode(&output), code.clone());
            }
            prop_assert!(output.len() * 5 <= code.len() * 8);
        }
    }
}
