//! The client against the server, both of this crate.

use crate::common::{Echo, End, LIMITS, converse};
use tidegate_grpc::{client, server};

fn pair(path: &str) -> (client::Connection, server::Connection, Echo) {
    let client = client::Connection::new("localhost", path, &[("x-test", "value")]);
    (client, server::Connection::new(LIMITS), Echo::default())
}

#[test]
fn calls_are_answered() {
    for piece_bytes in [1, 7, 100_000] {
        let (mut client, mut server, mut service) = pair("/test.Echo/Echo");
        converse(&mut client, &mut server, &mut service, piece_bytes);
        for round in 0_u8..10 {
            let first = client.call(&[round; 10]).unwrap();
            let second = client.call(&[]).unwrap();
            let ends = converse(&mut client, &mut server, &mut service, piece_bytes);
            let expected =
                [(first, End::Answer(vec![round; 10])), (second, End::Answer(Vec::new()))];
            assert_eq!(ends, expected);
            assert_eq!((client.calls(), server.calls()), (0, 0));
        }
        assert_eq!(service.metadata.as_deref(), Some(&b"value"[..]));
    }
}

#[test]
fn refusals_come_with_their_message() {
    let (mut client, mut server, mut service) = pair("/test.Echo/Refuse");
    let id = client.call(b"x").unwrap();
    let ends = converse(&mut client, &mut server, &mut service, 1000);
    assert_eq!(ends, [(id, End::Refused(8, "too much, 100 %".to_owned()))]);
}

#[test]
fn large_messages_go_both_ways() {
    let (mut client, mut server, mut service) = pair("/test.Echo/Echo");
    let message: Vec<u8> = (0..900_000_u32).map(|at| at as u8).collect();
    let id = client.call(&message).unwrap();
    assert!(!client.may_call(), "it waits for the window");
    let ends = converse(&mut client, &mut server, &mut service, 5000);
    assert_eq!(ends, [(id, End::Answer(message))]);
}
