//! Endpoints over counters that answer later, on real sockets: thousands of answers are pending while clients leave
//! and the endpoint drains. Every exchange that was begun is charged and reported once; the clients that stayed get
//! their answers.

use crate::frs::{self, Frs};
use crate::http::{Http, MetricsPage};
use crate::rls::{self, Rls};
use crate::{Address, Health, Listener, Overload, Shared};
use prost::Message;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tidegate_authority::testing::LaterCounters;
use tidegate_authority::{Authority, LimitObserver, Modes, Observer};
use tidegate_core::{Entry, Verdict};
use tidegate_data_dir::StoreHealth;
use tidegate_grpc::client::{Connection, Ended};
use tidegate_limits::{Rules, SameDomain};
use tidegate_wire::rls::{
    Code, DescriptorEntry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// One hit for each key.
const LIMITS: &str = "domain: frs\ndescriptors:\n- key: business\n  value: b\n  descriptors: \
                      [{key: key, rate_limit: {unit: day, requests_per_unit: 1}}]\n";

/// The verdicts that were reported, and the connections that were refused.
#[derive(Debug, Default)]
struct Reports {
    counts: Mutex<Counts>,
    changed: Condvar,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counts {
    allowed: usize,
    denied: usize,
    refused: usize,
}

#[derive(Debug, Clone, Default)]
struct Recorder(Arc<Reports>);

impl Recorder {
    fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.0.counts.lock().unwrap());
        self.0.changed.notify_all();
    }

    fn until(&self, is_reached: impl Fn(&Counts) -> bool) -> Counts {
        let counts = self.0.counts.lock().unwrap();
        *self.0.changed.wait_while(counts, |counts| !is_reached(counts)).unwrap()
    }
}

impl Observer for Recorder {
    fn limits_replaced(&self, rules: &Rules) -> Box<dyn LimitObserver> {
        ().limits_replaced(rules)
    }
    fn answered(&self, verdict: Verdict) {
        self.count(|counts| match verdict {
            Verdict::Allow => counts.allowed += 1,
            Verdict::Deny => counts.denied += 1,
        });
    }
    fn connection_refused(&self, _endpoint: &'static str) {
        self.count(|counts| counts.refused += 1);
    }
}

struct NoPage;

impl MetricsPage for NoPage {
    async fn page(&self) -> anyhow::Result<String> {
        Ok(String::new())
    }
}

/// An endpoint that serves over counters that answer nothing until they are released.
struct Scene {
    counters: Arc<LaterCounters>,
    recorder: Recorder,
    address: SocketAddr,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl Scene {
    fn new<F: Future<Output = ()> + Send + 'static>(
        serve: impl FnOnce(Shared, Listener, watch::Receiver<bool>) -> F,
    ) -> Scene {
        let dir = tempfile::TempDir::new().unwrap();
        let limits = dir.path().join("limits.yaml");
        std::fs::write(&limits, LIMITS).unwrap();
        let rules = tidegate_limits::load(&limits, SameDomain::Refuse).unwrap().rules;
        let (counters, recorder) = (Arc::new(LaterCounters::default()), Recorder::default());
        counters.hold();
        let observer: Arc<dyn Observer> = Arc::new(recorder.clone());
        let modes = Modes::default();
        let authority = Authority::new(counters.clone(), rules, modes, observer.clone()).unwrap();
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let listener =
            Listener::from_socket(socket.into(), &Address::Tcp(address.to_string())).unwrap();
        let (stop, stopped) = watch::channel(false);
        let (_, store) = watch::channel(StoreHealth::default());
        let shared = Shared {
            authority: Arc::new(authority),
            observer,
            replies: Arc::default(),
            health: Health { draining: stopped.clone(), store, workers: None },
            overload: Overload::start(),
        };
        let serving = tokio::spawn(serve(shared, listener, stopped));
        Scene { counters, recorder, address, stop, serving }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// All exchanges were charged and reported once: of the two for each key, one was allowed.
    fn check_reports(&self, exchanges: usize) {
        let counts = self.recorder.until(|counts| counts.allowed + counts.denied >= exchanges);
        assert_eq!((counts.allowed, counts.denied), (exchanges / 2, exchanges / 2));
    }
}

/// Sends one request on each connection, and has some clients leave and the endpoint drain while all answers are
/// pending. Two requests are for each key.
async fn check_http1(
    scene: Scene,
    clients: usize,
    request: impl Fn(usize) -> String,
    is_allowed: impl Fn(&str) -> bool,
) {
    let mut pending = Vec::new();
    for client in 0..clients {
        let mut stream = scene.connect().await;
        stream.write_all(request(client / 2).as_bytes()).await.unwrap();
        scene.counters.until_waiting(client + 1);
        pending.push(stream);
    }
    // Both clients of every fifth key.
    let (mut staying, mut client) = (Vec::new(), 0);
    for stream in pending {
        if client / 2 % 5 > 0 {
            staying.push(stream);
        }
        client += 1;
    }
    scene.stop.send_replace(true);
    scene.counters.release();
    for pair in staying.chunks_exact_mut(2) {
        let mut allowed = 0;
        for stream in pair {
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 OK") || answer.contains(" 429 "), "{answer}");
            allowed += usize::from(is_allowed(&answer));
        }
        assert_eq!(allowed, 1);
    }
    scene.check_reports(clients);
    scene.serving.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 32)]
async fn json_exchanges_stay_open_until_their_answers_come() {
    let scene =
        Scene::new(|shared, listener, stop| Http::new(shared, NoPage).serve(listener, stop));
    let request = |key| {
        let entries = format!(
            "{{\"key\":\"business\",\"value\":\"b\"}},{{\"key\":\"key\",\"value\":\"{key}\"}}"
        );
        let body = format!("{{\"domain\":\"frs\",\"descriptors\":[{{\"entries\":[{entries}]}}]}}");
        format!("POST /json HTTP/1.1\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    };
    check_http1(scene, 1_000, request, |answer| answer.starts_with("HTTP/1.1 200 OK")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 32)]
async fn frs_exchanges_stay_open_until_their_answers_come() {
    const CLIENTS: usize = 2_000;
    let settings = frs::Settings {
        connections_max: CLIENTS,
        request_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(60),
    };
    let scene =
        Scene::new(|shared, listener, stop| Frs::new(shared, &settings).serve(listener, stop));
    let request = |key| {
        let body = format!("<frs><item business=\"b\" key=\"{key}\"/></frs>");
        let length = body.len();
        format!(
            "POST /frs HTTP/1.1\r\nx-frs-command: Acquire\r\ncontent-length: {length}\r\n\r\n{body}"
        )
    };
    check_http1(scene, CLIENTS, request, |answer| answer.contains("verdict=\"allow\"")).await;
}

/// A gRPC client, and the verdicts of its calls in the order of the calls.
struct Client {
    stream: TcpStream,
    http2: Connection,
    codes: Vec<i32>,
}

const CALLS: usize = 128;

impl Client {
    /// Begins as many calls as a connection may have, two for each key.
    async fn with_calls(scene: &Scene, number: usize) -> Client {
        let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        let http2 = Connection::new("test", path, &[]);
        let stream = scene.connect().await;
        let mut client = Client { stream, http2, codes: vec![-1; CALLS] };
        let mut begun = 0;
        loop {
            while begun < CALLS && client.http2.may_call() {
                let message = request((number * CALLS + begun) / 2).encode_to_vec();
                client.http2.call(&message).unwrap();
                begun += 1;
            }
            client.write().await;
            if begun == CALLS {
                return client;
            }
            assert!(client.read().await, "closed early");
        }
    }

    async fn write(&mut self) {
        self.stream.write_all(self.http2.output()).await.unwrap();
        self.http2.written(self.http2.output().len());
    }

    /// Reads once, unless the server has closed the connection.
    async fn read(&mut self) -> bool {
        let mut input = [0; 16 * 1024];
        let bytes = self.stream.read(&mut input).await.unwrap();
        let codes = &mut self.codes;
        let mut ended = |stream: u32, ended: Ended<'_>| {
            let Ended::Answer(answer) = ended else { panic!("{ended:?}") };
            let answer = RateLimitResponse::decode(answer).unwrap();
            codes[stream as usize / 2] = answer.overall_code;
        };
        self.http2.receive(&input[..bytes], &mut ended).unwrap();
        bytes > 0
    }
}

fn request(key: usize) -> RateLimitRequest {
    let entry = |entry: Entry| DescriptorEntry { key: entry.key, value: entry.value };
    let entries = [Entry::new("business", "b"), Entry::new("key", key.to_string())];
    let entries = entries.into_iter().map(entry).collect();
    let descriptor = RateLimitDescriptor { entries, ..RateLimitDescriptor::default() };
    RateLimitRequest { domain: "frs".into(), descriptors: vec![descriptor], hits_addend: 1 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 32)]
async fn rate_limit_calls_stay_open_until_their_answers_come() {
    const CLIENTS: usize = 40;
    let settings = rls::Settings {
        tls: None,
        connection_age: None,
        connection_age_grace: Duration::ZERO,
        connections_max: CLIENTS,
    };
    let scene = Scene::new(|shared, listener, stop| {
        Rls::new(shared, &settings).unwrap().serve(listener, stop)
    });
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        clients.push(Client::with_calls(&scene, number).await);
        scene.counters.until_waiting((number + 1) * CALLS);
    }
    // Clients that have left keep their slots until their calls are decided.
    clients.truncate(CLIENTS - 10);
    let mut refused = scene.connect().await;
    assert_eq!(refused.read(&mut [0; 1]).await.unwrap_or(0), 0);
    assert_eq!(scene.recorder.until(|counts| counts.refused > 0).refused, 1);
    scene.stop.send_replace(true);
    for client in &mut clients {
        while !client.http2.is_leaving() {
            assert!(client.read().await, "closed although calls are pending");
            client.write().await;
        }
        assert_eq!(client.http2.calls(), CALLS);
    }
    scene.counters.release();
    for client in &mut clients {
        while client.read().await {
            client.write().await;
        }
        for codes in client.codes.chunks_exact(2) {
            let (ok, over) = (i32::from(Code::Ok), i32::from(Code::OverLimit));
            assert!(codes == [ok, over] || codes == [over, ok], "{codes:?}");
        }
    }
    scene.check_reports(CLIENTS * CALLS);
    scene.serving.await.unwrap();
}
