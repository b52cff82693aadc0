//! Endpoints over counters that answer later, on real sockets: thousands of answers are pending while clients leave
//! and the endpoint drains. Every exchange that was begun is charged and reported once; the clients that stayed get
//! their answers.

use crate::frs::{self, Frs};
use crate::http::{Http, MetricsPage, PageForm};
use crate::rls::{self, Rls};
use crate::{Address, Health, Listener, Overload, Shared};
use prost::Message;
use rustix::net::sockopt::set_socket_linger;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tidegate_authority::testing::LaterCounters;
use tidegate_authority::{
    Answers, Authority, Counters, LimitObserver, Modes, Observer, Undecided, Update, Updating,
};
use tidegate_core::{Entry, StateSize, Timestamp, Verdict};
use tidegate_data_dir::StoreHealth;
use tidegate_grpc::client::{Connection, Ended};
use tidegate_limits::{Rules, SameDomain};
use tidegate_store::Hashed;
use tidegate_wire::rls::{
    Code, DescriptorEntry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// One hit for each key.
const LIMITS: &str = "domain: frs\ndescriptors:\n- key: business\n  value: b\n  descriptors: \
                      [{key: key, rate_limit: {unit: year, requests_per_unit: 1}}]\n";

/// Reports, by kind.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) allowed: usize,
    pub(crate) denied: usize,
    /// Answers that were errors.
    pub(crate) errors: usize,
    pub(crate) undecided: usize,
    pub(crate) refused_connections: usize,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Recorder(Arc<watch::Sender<Counts>>);

impl Recorder {
    fn count(&self, count: impl FnOnce(&mut Counts)) {
        self.0.send_modify(count);
    }

    pub(crate) fn counts(&self) -> Counts {
        *self.0.borrow()
    }

    async fn until(&self, is_reached: impl Fn(&Counts) -> bool) -> Counts {
        *self.0.subscribe().wait_for(is_reached).await.unwrap()
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
    fn refused(&self) {
        self.count(|counts| counts.errors += 1);
    }
    fn undecided(&self, _error: &Undecided) {
        self.count(|counts| counts.undecided += 1);
    }
    fn connection_refused(&self, _endpoint: &'static str) {
        self.count(|counts| counts.refused_connections += 1);
    }
}

/// What endpoints over `counters` share.
pub(crate) fn shared(
    counters: Arc<dyn Counters>,
    recorder: Recorder,
    stopped: watch::Receiver<bool>,
) -> Shared {
    let dir = tempfile::TempDir::new().unwrap();
    let limits = dir.path().join("limits.yaml");
    std::fs::write(&limits, LIMITS).unwrap();
    let rules = tidegate_limits::load(&limits, SameDomain::Refuse).unwrap().rules;
    let observer: Arc<dyn Observer> = Arc::new(recorder);
    let authority = Authority::new(counters, rules, Modes::default(), observer.clone()).unwrap();
    let (_, store) = watch::channel(StoreHealth::default());
    Shared {
        authority: Arc::new(authority),
        observer,
        replies: Arc::default(),
        health: Health { draining: stopped, store, workers: None, shared: None, cold: None },
        overload: Overload::start(),
        tracer: None,
    }
}

/// Clients and their connections take two descriptors each.
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

/// Leaves by a reset, which ends the connection at once: after FIN its answer would still be awaited.
fn reset(stream: TcpStream) {
    set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
}

struct NoPage;

impl MetricsPage for NoPage {
    async fn page(&self, _: PageForm) -> anyhow::Result<String> {
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
        let counters = Arc::new(LaterCounters::default());
        counters.hold();
        Scene::over(counters.clone(), counters, serve)
    }

    fn over<F: Future<Output = ()> + Send + 'static>(
        used: Arc<dyn Counters>,
        counters: Arc<LaterCounters>,
        serve: impl FnOnce(Shared, Listener, watch::Receiver<bool>) -> F,
    ) -> Scene {
        allow_descriptors();
        let (stop, stopped) = watch::channel(false);
        let recorder = Recorder::default();
        let shared = shared(used, recorder.clone(), stopped.clone());
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let listener =
            Listener::from_socket(socket.into(), &Address::Tcp(address.to_string())).unwrap();
        let serving = tokio::spawn(serve(shared, listener, stopped));
        Scene { counters, recorder, address, stop, serving }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends each request on a connection of its own, many at once but not so many that calls are shed, and waits until
    /// the counters have all updates.
    async fn send(&self, requests: impl Iterator<Item = String>) -> Vec<TcpStream> {
        let requests: Vec<String> = requests.collect();
        let mut streams = Vec::new();
        for requests in requests.chunks(64) {
            let mut sending = JoinSet::new();
            for (number, request) in requests.iter().cloned().enumerate() {
                let address = self.address;
                sending.spawn(async move {
                    let mut stream = TcpStream::connect(address).await.unwrap();
                    stream.write_all(request.as_bytes()).await.unwrap();
                    (number, stream)
                });
            }
            let mut sent = sending.join_all().await;
            sent.sort_by_key(|(number, _)| *number);
            streams.extend(sent.into_iter().map(|(_, stream)| stream));
            self.until_waiting(streams.len()).await;
        }
        streams
    }

    /// Waits until this many updates wait for an answer. A paused clock stands still meanwhile.
    async fn until_waiting(&self, updates: usize) {
        while self.counters.waiting() < updates {
            tokio::task::yield_now().await;
        }
    }

    /// All exchanges were charged and reported once: of the two for each key, one was allowed.
    async fn check_reports(&self, exchanges: usize) {
        let is_reached = |counts: &Counts| counts.allowed + counts.denied >= exchanges;
        let counts = self.recorder.until(is_reached).await;
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
    // Both clients of every fifth key leave.
    let mut staying = Vec::new();
    let streams = scene.send((0..clients).map(|client| request(client / 2))).await;
    for (client, stream) in streams.into_iter().enumerate() {
        match client / 2 % 5 {
            0 => reset(stream),
            _ => staying.push(stream),
        }
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
    scene.check_reports(clients).await;
    scene.serving.await.unwrap();
}

/// Symptom: an operation that was decided late was reported as refused and as answered. Cause: its client and the
/// operation reported.
async fn check_http1_late(scene: Scene, clients: usize, request: impl Fn(usize) -> String) {
    let streams = scene.send((0..clients).map(|client| request(client / 2))).await;
    for mut stream in streams {
        let mut answer = String::new();
        // To its end: the server closes the connection.
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("connection: close"));
    }
    let late = Counts { undecided: clients, ..Counts::default() };
    assert_eq!(scene.recorder.counts(), late);
    scene.stop.send_replace(true);
    scene.serving.await.unwrap();
    // The operations go on after the last connection.
    scene.counters.release();
    let decided = Counts { allowed: clients / 2, denied: clients / 2, ..late };
    let is_decided = |counts: &Counts| counts.allowed + counts.denied >= clients;
    assert_eq!(scene.recorder.until(is_decided).await, decided);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 32)]
async fn json_exchanges_stay_open_until_their_answers_come() {
    let is_allowed = |answer: &str| answer.starts_with("HTTP/1.1 200 OK");
    check_http1(json_scene(), JSON_PENDING_MAX, json_request, is_allowed).await;
}

#[tokio::test(start_paused = true)]
async fn late_answers_of_json_are_reported_once() {
    check_http1_late(json_scene(), 2, json_request).await;
}

/// As many as half of the slots.
const JSON_PENDING_MAX: usize = 512;

fn json_scene() -> Scene {
    Scene::new(|shared, listener, stop| Http::new(shared, NoPage).serve(listener, stop))
}

fn json_request(key: usize) -> String {
    let entries =
        format!("{{\"key\":\"business\",\"value\":\"b\"}},{{\"key\":\"key\",\"value\":\"{key}\"}}");
    let body = format!("{{\"domain\":\"frs\",\"descriptors\":[{{\"entries\":[{entries}]}}]}}");
    format!("POST /json HTTP/1.1\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// Symptom: clients of `/json` kept out liveness probes while counters did not answer, and after clients had left, the
/// endpoint accepted nobody. Cause: each operation under way held the slot of its connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 32)]
async fn slow_counters_leave_room_for_probes() {
    let scene = json_scene();
    let mut staying =
        scene.send((0..JSON_PENDING_MAX).map(|client| json_request(client / 2))).await;
    staying.drain(JSON_PENDING_MAX / 2..).for_each(reset);
    // Clients that have left make no room for operations, but for connections.
    for _ in 0..2 * JSON_PENDING_MAX {
        let mut stream = scene.connect().await;
        stream.write_all(json_request(0).as_bytes()).await.unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.unwrap();
        assert_eq!(&status, b"HTTP/1.1 503");
    }
    let mut probe = scene.connect().await;
    probe.write_all(b"GET /healthcheck HTTP/1.1\r\n\r\n").await.unwrap();
    let mut status = [0; 12];
    probe.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
    scene.counters.release();
    drop(staying);
    scene.check_reports(JSON_PENDING_MAX).await;
}

const FRS_CLIENTS: usize = 2_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 32)]
async fn frs_exchanges_stay_open_until_their_answers_come() {
    let is_allowed = |answer: &str| answer.contains("verdict=\"allow\"");
    check_http1(frs_scene(), FRS_CLIENTS, frs_request, is_allowed).await;
}

#[tokio::test(start_paused = true)]
async fn late_answers_of_the_frs_are_reported_once() {
    check_http1_late(frs_scene(), 2, frs_request).await;
}

fn frs_scene() -> Scene {
    let settings = frs::Settings {
        // Half of them may wait for counters.
        connections_max: 2 * FRS_CLIENTS,
        request_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(60),
    };
    Scene::new(move |shared, listener, stop| async move {
        Frs::new(shared, &settings).serve(listener, stop).await;
    })
}

fn frs_request(key: usize) -> String {
    let body = format!("<frs><item business=\"b\" key=\"{key}\"/></frs>");
    let length = body.len();
    format!(
        "POST /frs HTTP/1.1\r\nx-frs-command: Acquire\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

/// A gRPC client, and the outcomes of its calls in the order of the calls: verdicts, or statuses of calls without one.
struct Client {
    stream: TcpStream,
    http2: Connection,
    outcomes: Vec<Option<Result<i32, u32>>>,
}

const CALLS: usize = 128;

impl Client {
    /// Begins as many calls as a connection may have, two for each key.
    async fn with_calls(scene: &Scene, number: usize) -> Client {
        let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        let http2 = Connection::new("test", path, &[]);
        let stream = scene.connect().await;
        let mut client = Client { stream, http2, outcomes: vec![None; CALLS] };
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
        let outcomes = &mut self.outcomes;
        let mut ended = |stream: u32, ended: Ended<'_>| {
            outcomes[stream as usize / 2] = Some(match ended {
                Ended::Answer(answer) => {
                    Ok(RateLimitResponse::decode(answer).unwrap().overall_code)
                }
                Ended::Refused { code, .. } => Err(code),
                ended => panic!("{ended:?}"),
            });
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
        scene.until_waiting((number + 1) * CALLS).await;
    }
    // Clients that have left keep their slots until their calls are decided.
    clients.truncate(CLIENTS - 10);
    let mut refused = scene.connect().await;
    assert_eq!(refused.read(&mut [0; 1]).await.unwrap_or(0), 0);
    let refused = scene.recorder.until(|counts| counts.refused_connections > 0).await;
    assert_eq!(refused.refused_connections, 1);
    scene.stop.send_replace(true);
    for client in &mut clients {
        while !client.http2.is_leaving() {
            assert!(client.read().await, "closed although calls are pending");
            client.write().await;
        }
        // Regression: clients were told to leave while the listener was still open, and nothing accepted them.
        let again = std::net::TcpStream::connect(scene.address);
        assert!(again.is_err(), "told to leave while the endpoint was open");
        assert_eq!(client.http2.calls(), CALLS);
    }
    scene.counters.release();
    for client in &mut clients {
        while client.read().await {
            client.write().await;
        }
        let (ok, over) = (Some(Ok(Code::Ok.into())), Some(Ok(Code::OverLimit.into())));
        for outcomes in client.outcomes.chunks_exact(2) {
            assert!(outcomes == [ok, over] || outcomes == [over, ok], "{outcomes:?}");
        }
    }
    scene.check_reports(CLIENTS * CALLS).await;
    scene.serving.await.unwrap();
}

/// Counters that fail in a way that nobody foresaw.
struct Panicking;

impl Counters for Panicking {
    fn seed(&self) -> u64 {
        17
    }
    fn state_words(&self) -> usize {
        StateSize::Wide.words()
    }
    fn capacity(&self) -> u64 {
        4_096
    }
    fn answers(&self) -> Answers {
        Answers::Later
    }
    fn update<'u>(
        &'u self,
        _keys: &'u [Hashed],
        _now: Timestamp,
        _update: &'u mut Update<'u>,
    ) -> Updating<'u> {
        Updating::Later(Box::pin(async { panic!("the engine has a mistake") }))
    }
}

/// Symptom: a call whose task had panicked was answered after 20 s, and never if its connection closed before.
#[tokio::test]
async fn a_call_that_panics_is_answered() {
    let scene = Scene::over(Arc::new(Panicking), Arc::default(), rls_with_one_connection);
    let mut client = Client::with_calls(&scene, 0).await;
    while client.outcomes.contains(&None) {
        assert!(client.read().await, "closed early");
        client.write().await;
    }
    assert_eq!(client.outcomes, [Some(Err(tidegate_grpc::Code::Internal as u32)); CALLS]);
    assert_eq!(scene.recorder.until(|counts| counts.errors >= CALLS).await.errors, CALLS);
}

/// Symptom: calls that waited for counters ended with DEADLINE_EXCEEDED, which blames the client.
#[tokio::test(start_paused = true)]
async fn calls_whose_counters_do_not_answer_are_unavailable() {
    let scene = Scene::new(rls_with_one_connection);
    let mut client = Client::with_calls(&scene, 0).await;
    scene.until_waiting(CALLS).await;
    while client.outcomes.contains(&None) {
        assert!(client.read().await, "closed early");
        client.write().await;
    }
    assert_eq!(client.outcomes, [Some(Err(tidegate_grpc::Code::Unavailable as u32)); CALLS]);
    let late = Counts { undecided: CALLS, ..Counts::default() };
    assert_eq!(scene.recorder.counts(), late);
    scene.counters.release();
    let decided = Counts { allowed: CALLS / 2, denied: CALLS / 2, ..late };
    let is_decided = |counts: &Counts| counts.allowed + counts.denied >= CALLS;
    assert_eq!(scene.recorder.until(is_decided).await, decided);
}

async fn rls_with_one_connection(shared: Shared, listener: Listener, stop: watch::Receiver<bool>) {
    let settings = rls::Settings {
        tls: None,
        connection_age: None,
        connection_age_grace: Duration::ZERO,
        connections_max: 1,
    };
    Rls::new(shared, &settings).unwrap().serve(listener, stop).await;
}
