//! What the host knows while the guest runs: contexts, settings, allowed calls, records.
//!
//! Owns the rule that decides whether a call is admitted, and which context a call acts on.
//! Reads and writes no guest memory: that is `guest`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use wasmi::{Memory, TypedFunc};

use super::headers::Headers;
use super::shared_data::SharedData;
use super::types::{ContextId, GrpcCall, LogLevel, LogLine, Outcome, Status};

/// Always admitted: the log, and what Rust's standard library asks of WASI by itself (the
/// environment when it panics, random bytes for its hash maps, standard error, the exit).
const ALWAYS_ALLOWED: [&str; 8] = [
    "proxy_log",
    "args_get",
    "args_sizes_get",
    "environ_get",
    "environ_sizes_get",
    "fd_write",
    "proc_exit",
    "random_get",
];

/// First parts of the properties that Envoy answers outside a stream as well.
const ROOT_PROPERTIES: [&[u8]; 6] = [
    b"listener_direction",
    b"listener_metadata",
    b"node",
    b"plugin_name",
    b"plugin_root_id",
    b"plugin_vm_id",
];

/// Property values by path, its parts separated by NUL.
pub(super) type Properties = BTreeMap<Vec<u8>, Vec<u8>>;

/// Everything behind the host calls of one virtual machine.
pub(super) struct State {
    /// Set once the module is instantiated.
    pub(super) exports: Option<Exports>,
    /// The plugins' root contexts.
    pub(super) roots: BTreeSet<ContextId>,
    pub(super) streams: BTreeMap<ContextId, Stream>,
    /// The outcomes of streams that have ended.
    pub(super) ended: BTreeMap<ContextId, Option<Outcome>>,
    /// The export that runs now, for messages.
    pub(super) callback: &'static str,
    pub(super) current: ContextId,
    /// What the guest chose with `proxy_set_effective_context` in this callback.
    pub(super) effective: Option<ContextId>,
    pub(super) allowed: BTreeSet<&'static str>,
    pub(super) calls: BTreeMap<&'static str, u32>,
    /// By export.
    pub(super) instructions: BTreeMap<&'static str, u64>,
    pub(super) logs: Vec<LogLine>,
    pub(super) log_level: LogLevel,
    pub(super) properties: Properties,
    pub(super) shared_data: SharedData,
    pub(super) metrics: Metrics,
    pub(super) grpc: Grpc,
    /// What Envoy does when the callback has returned.
    pub(super) deferred: VecDeque<Deferred>,
    /// How many callbacks have begun and not ended.
    pub(super) depth: usize,
    /// The most of them since the host was loaded.
    pub(super) depth_max: usize,
    /// Whether what goes on is answered at once, as on a route with a direct response.
    pub(super) answers_directly: bool,
    pub(super) queues: Vec<Queue>,
    /// Entries of queues that Envoy's event loop has to tell of, with the plugin to call.
    pub(super) posted: VecDeque<(ContextId, u32)>,
    pub(super) buffers: Buffers,
    pub(super) clock: Clock,
    /// The timers that run, by root context.
    pub(super) tick_periods_ms: BTreeMap<ContextId, u32>,
    pub(super) random: SplitMix64,
    /// The guest is being asked for memory, and Envoy lets it call nothing meanwhile.
    pub(super) allocating: bool,
}

/// The parts of the guest that host calls reach back into.
#[derive(Clone)]
pub(super) struct Exports {
    pub(super) memory: Memory,
    pub(super) allocate: TypedFunc<u32, u32>,
}

/// One HTTP request and its response.
pub(super) struct Stream {
    /// The plugin that it belongs to.
    pub(super) root: ContextId,
    /// The host's properties as they were when the request came.
    pub(super) properties: Properties,
    pub(super) request: HeaderMap,
    pub(super) response: HeaderMap,
    /// What the guest set, by its name in Envoy.
    pub(super) filter_state: BTreeMap<String, String>,
    /// `None` until `proxy_on_request_headers` has returned or replied.
    pub(super) outcome: Option<Outcome>,
}

/// Headers, and whether the guest may see them now.
#[derive(Default)]
pub(super) struct HeaderMap {
    pub(super) headers: Headers,
    pub(super) sight: Sight,
}

/// Envoy hands out a header map only for as long as the phase lasts that it belongs to.
#[derive(Clone, Copy, Default, Eq, PartialEq)]
pub(super) enum Sight {
    #[default]
    Hidden,
    Readable,
    Writable,
}

/// Metrics by name, and the ids that the guest knows them by.
#[derive(Default)]
pub(super) struct Metrics {
    pub(super) names: BTreeMap<u32, String>,
    pub(super) values: BTreeMap<String, u64>,
    pub(super) samples: BTreeMap<String, Vec<u64>>,
}

/// gRPC calls: those a test has yet to look at, and those yet to be answered.
pub(super) struct Grpc {
    pub(super) started: Vec<GrpcCall>,
    /// Each with the root context that gets its end.
    pub(super) in_flight: BTreeMap<u32, ContextId>,
    pub(super) token_next: u32,
    /// The message of the status that a call has just ended with.
    pub(super) closed_with: Option<(u32, String)>,
    /// Why calls fail that fail at once (`InternalFailure`): a status and its message.
    pub(super) fails_with: (u32, String),
    /// What `proxy_grpc_call` returns; anything but `Ok` starts no call.
    pub(super) status: Status,
}

/// What a host call has Envoy do once the callback has returned.
pub(super) enum Deferred {
    /// A stream goes on, or is answered.
    Respond(ContextId),
    /// The plugin gets the cause of a call that was never begun.
    Close(ContextId),
}

/// A queue that plugins share.
pub(super) struct Queue {
    pub(super) name: String,
    /// The plugin that is called for its entries.
    pub(super) root: ContextId,
    pub(super) entries: Vec<Vec<u8>>,
}

/// The byte buffers a guest may read; `None` while the buffer does not exist.
#[derive(Default)]
pub(super) struct Buffers {
    pub(super) vm_configuration: Vec<u8>,
    pub(super) plugin_configuration: Option<Vec<u8>>,
    pub(super) grpc_receive: Option<Vec<u8>>,
}

/// Time as the guest sees it.
pub(super) struct Clock {
    pub(super) wall_ns: u64,
    pub(super) monotonic_ns: u64,
}

impl State {
    pub(super) fn new(shared_data: SharedData) -> Self {
        let worker = shared_data.join();
        Self {
            exports: None,
            roots: BTreeSet::from([ContextId::ROOT]),
            streams: BTreeMap::new(),
            ended: BTreeMap::new(),
            callback: "_initialize",
            current: ContextId::ROOT,
            effective: None,
            allowed: BTreeSet::new(),
            calls: BTreeMap::new(),
            instructions: BTreeMap::new(),
            logs: Vec::new(),
            log_level: LogLevel::Info,
            properties: Properties::new(),
            shared_data,
            metrics: Metrics::default(),
            grpc: Grpc {
                started: Vec::new(),
                in_flight: BTreeMap::new(),
                token_next: 1,
                closed_with: None,
                fails_with: (14, String::new()),
                status: Status::Ok,
            },
            deferred: VecDeque::new(),
            depth: 0,
            depth_max: 0,
            answers_directly: false,
            queues: Vec::new(),
            posted: VecDeque::new(),
            buffers: Buffers::default(),
            // Any start will do, if it is later than the epoch by more than a year's window.
            clock: Clock { wall_ns: 1_700_000_000_000_000_000, monotonic_ns: 1_000_000_000_000 },
            tick_periods_ms: BTreeMap::new(),
            random: SplitMix64::seed_from_u64(worker),
            allocating: false,
        }
    }

    /// Counts a call in, or says why it is not admitted.
    pub(super) fn admit(&mut self, name: &'static str) -> Result<(), String> {
        if !ALWAYS_ALLOWED.contains(&name) && !self.allowed.contains(name) {
            return Err(format!(
                "unexpected host call: {name} (in {} of {}; the test allows {:?})",
                self.callback,
                self.active(),
                self.allowed,
            ));
        }
        if self.allocating {
            return Err(format!("{name}: a host call while Envoy asks for memory"));
        }
        *self.calls.entry(name).or_default() += 1;
        Ok(())
    }

    /// The context that a call acts on.
    pub(super) fn active(&self) -> ContextId {
        self.effective.unwrap_or(self.current)
    }

    /// The stream that a call acts on; `None` on the root context.
    pub(super) fn stream(&mut self) -> Option<&mut Stream> {
        let active = self.active();
        self.streams.get_mut(&active)
    }

    /// The root of the context that a call acts on: a stream's plugin, or the root itself.
    pub(super) fn active_root(&self) -> ContextId {
        let active = self.active();
        self.streams.get(&active).map_or(active, |stream| stream.root)
    }

    /// Whether the guest may name this context.
    pub(super) fn is_context(&self, context: ContextId) -> bool {
        self.roots.contains(&context) || self.streams.contains_key(&context)
    }

    /// A property as the active context sees it.
    pub(super) fn property(&self, path: &[u8]) -> Option<&Vec<u8>> {
        if let Some(stream) = self.streams.get(&self.active()) {
            return stream.properties.get(path);
        }
        let first = path.split(|byte| *byte == 0).next().unwrap_or_default();
        let everywhere = ROOT_PROPERTIES.contains(&first);
        if everywhere { self.properties.get(path) } else { None }
    }

    pub(super) fn log(&mut self, level: LogLevel, text: &[u8]) {
        let text = String::from_utf8_lossy(text).into_owned();
        self.logs.push(LogLine { level, text });
    }

    /// A random byte, the same in every run: the worker's number is the seed.
    pub(super) fn random_byte(&mut self) -> u8 {
        self.random.next_u64().to_le_bytes()[0]
    }
}
