//! The examples of RFC 7541, appendix C, and hostile blocks.

use proptest::prelude::*;

use super::encode::{Indexing, indexed, literal, size_update, string};
use super::*;

type Pairs = Vec<(String, String)>;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn decoded(decoder: &mut Decoder, block: &[u8]) -> Option<Pairs> {
    let mut pairs = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    decoder
        .decode(block, usize::MAX, |field| pairs.push((text(field.name), text(field.value))))
        .ok()?;
    Some(pairs)
}

fn pairs(fields: &[(&str, &str)]) -> Pairs {
    fields.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

/// A block in hexadecimal, its fields, and the table size after it.
type Example<'a> = (&'a str, &'a [(&'a str, &'a str)], usize);

/// Blocks of one connection.
fn check(table_size: usize, blocks: &[Example<'_>]) {
    let mut decoder = Decoder::new(table_size);
    for (block, fields, size) in blocks {
        assert_eq!(decoded(&mut decoder, &bytes(block)), Some(pairs(fields)));
        assert_eq!(decoder.table().size(), *size);
    }
}

/// Appendix C.2.
#[test]
fn single_fields() {
    check(
        4096,
        &[(
            "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
            &[("custom-key", "custom-header")],
            55,
        )],
    );
    check(4096, &[("040c 2f73 616d 706c 652f 7061 7468", &[(":path", "/sample/path")], 0)]);
    check(4096, &[("1008 7061 7373 776f 7264 0673 6563 7265 74", &[("password", "secret")], 0)]);
    check(4096, &[("82", &[(":method", "GET")], 0)]);
}

const REQUESTS: [&[(&str, &str)]; 3] = [
    &[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")],
    &[
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "www.example.com"),
        ("cache-control", "no-cache"),
    ],
    &[
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/index.html"),
        (":authority", "www.example.com"),
        ("custom-key", "custom-value"),
    ],
];

/// Appendix C.3 and C.4.
#[test]
fn requests_with_and_without_huffman() {
    check(
        4096,
        &[
            ("8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d", REQUESTS[0], 57),
            ("8286 84be 5808 6e6f 2d63 6163 6865", REQUESTS[1], 110),
            (
                "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
                REQUESTS[2],
                164,
            ),
        ],
    );
    check(
        4096,
        &[
            ("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", REQUESTS[0], 57),
            ("8286 84be 5886 a8eb 1064 9cbf", REQUESTS[1], 110),
            ("8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf", REQUESTS[2], 164),
        ],
    );
}

/// Appendix C.5 and C.6: a table of 256 bytes, so that entries are evicted.
#[test]
fn responses_with_and_without_huffman() {
    let common = [
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ("location", "https://www.example.com"),
    ];
    let with = |status| [&[(":status", status)][..], &common].concat();
    let third = [
        (":status", "200"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:22 GMT"),
        ("location", "https://www.example.com"),
        ("content-encoding", "gzip"),
        ("set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
    ];
    check(
        256,
        &[
            (
                "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133
                 2032 303a 3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70
                 6c65 2e63 6f6d",
                &with("302"),
                222,
            ),
            ("4803 3330 37c1 c0bf", &with("307"), 222),
            (
                "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d
                 54c0 5a04 677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049
                 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e
                 3d31",
                &third,
                215,
            ),
        ],
    );
    check(
        256,
        &[
            (
                "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6
                 2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
                &with("302"),
                222,
            ),
            ("4883 640e ffc1 c0bf", &with("307"), 222),
            (
                "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab
                 77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f
                 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
                &third,
                215,
            ),
        ],
    );
}

#[test]
fn broken_blocks_are_refused() {
    let refused = |block: &[u8]| decoded(&mut Decoder::new(4096), block).is_none();
    assert!(refused(&[0x80]), "index 0");
    assert!(refused(&[0xbe]), "an entry that is not there");
    assert!(refused(&[0x7f, 0x00, 0x00]), "a name that is not there");
    assert!(refused(&[0x82, 0x20]), "a size update after a field");
    assert!(refused(&[0x82, 0x20, 0x01, b'a', 0x01, b'b']), "one that might be a literal");
    assert!(refused(&[0x3f, 0xe2, 0x1f]), "a table of 4097 bytes");
    assert!(!refused(&[0x3f, 0xe1, 0x1f]), "a table of 4096 bytes");
    assert!(refused(&[0x40, 0x01, b'a']), "a value that is cut off");
    assert!(refused(&[0x40, 0x7f]), "a length that is cut off");
    assert!(refused(&[0x00, 0x82, 0xff, 0xff, 0x00]), "a broken Huffman string");
}

/// Many references to one large entry copy nothing and grow nothing.
#[test]
fn a_bomb_is_only_looked_at() {
    let mut block = Vec::new();
    literal(Indexing::Add, b"x", &[b'y'; 4000], &mut block);
    block.resize(block.len() + 16_000, 0xbe);
    let mut decoder = Decoder::new(4096);
    let mut fields = 0;
    let listed = decoder
        .decode(&block, usize::MAX, |field| fields += usize::from(field.value.len() == 4000));
    assert_eq!(listed, Ok(Listed::All));
    assert_eq!(fields, 16_001);
    assert!(decoder.table().buffer_bytes() < 8192);
}

/// Regression: a block of 32 KB took 38 ms. Every two bytes of it copied and checked a name of 4,060 bytes,
/// even after the fields exceeded the limit. Now such a block only updates the table.
#[test]
fn a_block_that_is_too_large_costs_what_its_bytes_cost() {
    let mut block = Vec::new();
    literal(Indexing::Add, &[b'n'; 4060], b"", &mut block);
    for index in [0x7e, 0x0f] {
        // The newest name with an empty value, with and without indexing.
        let named: &[u8] = if index == 0x7e { &[0x7e, 0] } else { &[0x0f, 62 - 15, 0] };
        let mut block = block.clone();
        block.extend(named.repeat(100_000));
        let mut decoder = Decoder::new(4096);
        let (mut fields, mut handed_on) = (0, 0);
        let listed = decoder.decode(&block, 16_384, |field| {
            fields += 1;
            handed_on += field.size();
        });
        assert_eq!(listed, Ok(Listed::TooLarge));
        assert_eq!((fields, handed_on), (4, 4 * 4092));
        assert_eq!(decoder.table().copied_bytes(), 4060);
        // The table is the same as without a limit.
        assert_eq!(decoded(&mut decoder, &[0xbe]), Some(pairs(&[(&"n".repeat(4060), "")])));
    }
}

#[test]
fn what_is_beyond_the_list_is_still_decoded() {
    for (rest, is_decodable) in [
        (&[0xbe][..], false),
        (&[0x82], true),
        (&[0x00, 0x01, b'a'], false),
        (&[0x00, 0x82, 0xff, 0xff, 0x00], false),
        (&[0x7f, 0x00, 0x00], false),
    ] {
        let mut block = Vec::new();
        literal(Indexing::Without, b"a", b"b", &mut block);
        block.extend(rest);
        let listed = Decoder::new(4096).decode(&block, 0, |_| panic!("handed on"));
        assert_eq!(listed, if is_decodable { Ok(Listed::TooLarge) } else { Err(Undecodable) });
    }
}

/// Fields beyond the limit are not passed on, but those that are indexed are in the table afterwards, by a
/// name of their own and by the name of an entry.
#[test]
fn what_is_beyond_the_list_is_still_indexed() {
    let mut block = Vec::new();
    literal(Indexing::Without, b"a", b"b", &mut block);
    literal(Indexing::Add, b"first", b"1", &mut block);
    block.extend([0x7e, 1, b'2']);
    literal(Indexing::Without, b"c", b"d", &mut block);
    let mut decoder = Decoder::new(4096);
    let listed = decoder.decode(&block, 33, |_| panic!("handed on"));
    assert_eq!(listed, Ok(Listed::TooLarge));
    let expected = pairs(&[("first", "2"), ("first", "1")]);
    assert_eq!(decoded(&mut decoder, &[0xbe, 0xbf]), Some(expected));
    assert_eq!(decoded(&mut decoder, &[0xc0]), None);
    // Exactly the limit is within it.
    let mut fields = 0;
    assert_eq!(decoder.decode(&block[..5], 34, |_| fields += 1), Ok(Listed::All));
    assert_eq!(fields, 1);
}

/// The memory of a decoder: its table, and strings of Huffman code up to 2 KiB each.
#[test]
fn the_memory_of_a_decoder_is_counted() {
    let mut decoder = Decoder::new(4096);
    assert_eq!(decoder.capacity_bytes(), 0);
    let code = huffman::tests::encode(&[b'0'; 1200]);
    let mut block = vec![0x00];
    for _ in 0..2 {
        integer::encode(7, 0x80, code.len(), &mut block);
        block.extend_from_slice(&code);
    }
    decoder.decode(&block, usize::MAX, |_| {}).unwrap();
    let strings = decoder.capacity_bytes();
    assert!((2400..4096).contains(&strings), "{strings}");
    let mut block = Vec::new();
    literal(Indexing::Add, b"x", &[b'y'; 2000], &mut block);
    decoder.decode(&block, usize::MAX, |_| {}).unwrap();
    assert_eq!(decoder.capacity_bytes(), strings + decoder.table().capacity_bytes());
    assert!(decoder.table().capacity_bytes() >= 2001);
    decoder.shrink(0);
    assert_eq!(decoder.capacity_bytes(), decoder.table().capacity_bytes());
}

/// Regression: the buffer of one long Huffman string stayed with the connection.
#[test]
fn long_strings_leave_no_memory_behind() {
    let code = huffman::tests::encode(&[b'0'; 100_000]);
    let mut block = vec![0x00];
    for _ in 0..2 {
        integer::encode(7, 0x80, code.len(), &mut block);
        block.extend_from_slice(&code);
    }
    let mut decoder = Decoder::new(4096);
    let listed = decoder.decode(&block, usize::MAX, |field| assert_eq!(field.size(), 200_032));
    assert_eq!(listed, Ok(Listed::All));
    assert!(decoder.capacity_bytes() < 8 * 1024, "{}", decoder.capacity_bytes());
}

#[derive(Debug, Clone)]
enum Representation {
    Literal(Indexing, String, String, bool),
    NamedBy(usize, String),
    Indexed(usize),
}

fn representation() -> impl Strategy<Value = Representation> {
    let indexing = prop_oneof![Just(Indexing::Add), Just(Indexing::Without)];
    prop_oneof![
        (indexing, "[a-z-]{1,12}", "[ -~]{0,80}", any::<bool>()).prop_map(
            |(indexing, name, value, plain)| Representation::Literal(indexing, name, value, plain)
        ),
        (1_usize..70, "[ -~]{0,40}")
            .prop_map(|(index, value)| Representation::NamedBy(index, value)),
        (1_usize..80).prop_map(Representation::Indexed),
    ]
}

proptest! {
    #[test]
    fn any_block_ends(
        blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..10),
    ) {
        let mut decoder = Decoder::new(4096);
        for block in blocks {
            let mut fields = 0;
            if decoder.decode(&block, usize::MAX, |_| fields += 1).is_err() {
                break;
            }
            prop_assert!(fields <= block.len());
            prop_assert!(decoder.table().size() <= 4096);
        }
    }

    /// Tests of conversations use the encoder of the h2 crate; this test uses a list of pairs.
    #[test]
    fn what_is_encoded_is_decoded(
        representations in prop::collection::vec(representation(), 0..40),
        size in 0_usize..4096,
    ) {
        let mut block = Vec::new();
        size_update(size, &mut block);
        let mut twin: Pairs = Vec::new();
        let mut expected: Pairs = Vec::new();
        let lookup = |twin: &Pairs, index: usize| -> Option<(String, String)> {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            match index {
                ..=61 => table::Table::new(0).get(index).map(|f| (text(f.name), text(f.value))),
                _ => twin.get(index - 62).cloned(),
            }
        };
        for representation in representations {
            let (pair, indexing) = match representation {
                Representation::Literal(indexing, name, value, plain) => {
                    if plain {
                        literal(indexing, name.as_bytes(), value.as_bytes(), &mut block);
                    } else {
                        block.push(if indexing == Indexing::Add { 0x40 } else { 0x10 });
                        string(name.as_bytes(), &mut block);
                        let code = huffman::tests::encode(value.as_bytes());
                        integer::encode(7, 0x80, code.len(), &mut block);
                        block.extend_from_slice(&code);
                    }
                    ((name, value), indexing)
                }
                Representation::NamedBy(index, value) => {
                    let Some((name, _)) = lookup(&twin, index) else { continue };
                    integer::encode(6, 0x40, index, &mut block);
                    string(value.as_bytes(), &mut block);
                    ((name, value), Indexing::Add)
                }
                Representation::Indexed(index) => {
                    let Some(pair) = lookup(&twin, index) else { continue };
                    indexed(index, &mut block);
                    (pair, Indexing::Without)
                }
            };
            if indexing == Indexing::Add {
                twin.insert(0, pair.clone());
                while twin.iter().map(|(n, v)| n.len() + v.len() + 32).sum::<usize>() > size {
                    twin.pop();
                }
            }
            expected.push(pair);
        }
        prop_assert_eq!(decoded(&mut Decoder::new(4096), &block), Some(expected));
    }
}
