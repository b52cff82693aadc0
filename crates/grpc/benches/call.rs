//! The CPU time of a unary call on the server, by hand: `cargo bench -p tidegate-grpc`. Reports the minimum of
//! many short rounds, which other load on the machine affects little.

use std::hint::black_box;
use std::time::Instant;

use tidegate_grpc::server::{Call, Connection, Limits, Outcome, Service};
use tidegate_grpc::{Code, Status, client};

const LIMITS: Limits = Limits {
    streams_max: 1000,
    message_bytes_max: 1 << 20,
    header_bytes_max: 16_384,
    buffered_bytes_max: 4 << 20,
};
const CALLS: usize = 16_000;

struct Constant;

impl Service for Constant {
    fn answer(&mut self, call: &Call<'_>, answer: &mut Vec<u8>) -> Outcome {
        black_box((call.path, call.metadata.get("x-forwarded-for"), call.message));
        answer.extend_from_slice(&[8; 40]);
        Outcome::Answered
    }
}

struct Refusing;

impl Service for Refusing {
    fn answer(&mut self, _: &Call<'_>, _: &mut Vec<u8>) -> Outcome {
        Outcome::Refused(Status::new(Code::ResourceExhausted, "overloaded"))
    }
}

/// A client that sends the same frames as Envoy. Its preface is written already.
fn envoy() -> (client::Connection, Vec<u8>) {
    let mut client = client::Connection::new(
        "ratelimit",
        "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        &[("grpc-timeout", "20m"), ("x-envoy-internal", "true"), ("x-forwarded-for", "10.0.0.1")],
    );
    client.receive(&[0, 0, 0, 4, 0, 0, 0, 0, 0], &mut |_, _| {}).unwrap();
    let greeting = client.output().to_vec();
    client.written(greeting.len());
    (client, greeting)
}

/// The frames of the calls, after the preface. `extra` is appended to each header block.
fn conversation(extra: &[u8]) -> (Vec<u8>, Vec<Vec<u8>>) {
    let (mut client, greeting) = envoy();
    let mut calls = Vec::new();
    for _ in 0..CALLS {
        let id = client.call(&[7; 80]).unwrap();
        let mut call = client.output().to_vec();
        client.written(call.len());
        let block_bytes = usize::from(u16::from_be_bytes([call[1], call[2]]));
        call.splice(9 + block_bytes..9 + block_bytes, extra.iter().copied());
        let length = ((block_bytes + extra.len()) as u16).to_be_bytes();
        call[1..3].copy_from_slice(&length);
        calls.push(call);
        let window = [&[0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0, 85][..]].concat();
        let reset = [&[0, 0, 4, 3, 0][..], &id.to_be_bytes(), &[0; 4]].concat();
        client.receive(&[window, reset].concat(), &mut |_, _| {}).unwrap();
        client.written(usize::MAX);
    }
    (greeting, calls)
}

fn measure(what: &str, extra: &[u8], calls_per_read: usize, service: &mut impl Service) {
    let (greeting, calls) = conversation(extra);
    let reads: Vec<Vec<u8>> = calls.chunks(calls_per_read).map(<[Vec<u8>]>::concat).collect();
    let mut least = f64::MAX;
    for _ in 0..20 {
        let mut connection = Connection::new(LIMITS);
        connection.receive(&greeting, service).unwrap();
        // Windows for the whole round.
        let windows = [0, 0, 4, 8, 0, 0, 0, 0, 0, 0x70, 0, 0, 0];
        connection.receive(&windows, service).unwrap();
        for reads in reads.chunks(1600 / calls_per_read) {
            let begin = Instant::now();
            let mut answered = 0;
            for read in reads {
                answered += connection.receive(read, service).unwrap();
                black_box(connection.output());
                connection.written(usize::MAX);
            }
            assert_eq!(answered, 1600);
            least = least.min(begin.elapsed().as_nanos() as f64 / answered as f64);
        }
    }
    println!("{what}, {calls_per_read} calls a read: {least:.0} ns per call");
}

fn main() {
    let mut traced = vec![0x00, 11];
    traced.extend_from_slice(b"traceparent");
    traced.push(55);
    traced.extend_from_slice(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    for calls_per_read in [1, 16] {
        measure("indexed fields", &[], calls_per_read, &mut Constant);
        measure("and a literal", &traced, calls_per_read, &mut Constant);
        measure("refused", &[], calls_per_read, &mut Refusing);
    }
}
