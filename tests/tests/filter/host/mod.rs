//! A strict stand-in for Envoy's proxy-wasm host: runs the built `.wasm` inside a plain test.
//!
//! It imitates one worker of Envoy as the filter sees it: the callbacks and their order, header
//! maps that exist only in their phase, callouts that outlive their stream, shared data with
//! Envoy's compare-and-swap rules, metric ids, memory given through the guest's own allocator,
//! and a virtual machine that is dead after the first trap. What a callback asks for (local replies,
//! requests that go on) happens inside of its end, callback within callback, as in Envoy, and
//! too deep a nesting kills the machine. Hosts loaded with one `SharedData` are the workers of
//! one Envoy.
//!
//! Little happens by itself: time stands still until the test moves it, ticks and answers come
//! when the test drives them, random bytes are the same in every run. Only entries of queues reach
//! their plugin at once, when the drive that added them is over.
//!
//! It refuses, by killing the guest with a message that names the call:
//! - every call that `Host::allow` does not list, beyond the log and what Rust's standard library
//!   asks of WASI by itself; after `Host::load` that is every call;
//! - every call that it does not implement (HTTP callouts, gRPC streams, bodies, trailers,
//!   changes to requests, removal of headers, foreign functions, files);
//! - a pointer that is not the guest's memory, a malformed list of headers, a header that could
//!   split a response;
//! - a resume or a local reply where Envoy would ignore it or break: on the root context, or on a
//!   request that is already decided;
//! - any call while the guest is asked for memory;
//! - a callback that runs for more instructions than `engine::INSTRUCTIONS_PER_DRIVE`.
//!
//! It does not imitate routing, bodies, timeouts, Envoy's folding of repeated headers, or V8. A fault of the guest surfaces as a panic of the test with
//! the guest's log, or as a `Trap` from the `try_` form of the same drive; a mistake of the test,
//! such as an answer to a call that nobody made, is always a panic.

// Each test binary that includes this module drives only a part of it.
#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use wasmi::{Global, Instance, Store};

pub(crate) use headers::Headers;
pub(crate) use shared_data::SharedData;
pub(crate) use types::{
    ContextId, GrpcCall, LocalReply, LogLevel, LogLine, Outcome, Status, Token, Trap,
};

use drive::Health;
use state::State;

mod calls;
mod counted;
mod drive;
mod engine;
mod guest;
mod headers;
mod shared_data;
mod state;
mod types;

/// One worker of Envoy with the filter loaded.
pub(crate) struct Host {
    store: Store<State>,
    instance: Instance,
    /// `counted::LEFT`.
    instructions_left: Global,
    known_calls: Arc<BTreeSet<String>>,
    health: Health,
    context_next: u32,
}

/// Life of the plugin and its streams. Each of these panics when the guest traps.
impl Host {
    /// Loads the module as the first worker of an Envoy, and runs its `_initialize`.
    #[track_caller]
    pub(crate) fn load(wasm: &Path) -> Self {
        Self::load_sharing(wasm, &SharedData::new())
    }

    /// Loads the module as one more worker of the Envoy that has this shared data.
    #[track_caller]
    pub(crate) fn load_sharing(wasm: &Path, shared_data: &SharedData) -> Self {
        match Self::instantiate(wasm, shared_data) {
            Ok(mut host) => {
                or_panic(host.initialize());
                host
            }
            Err(error) => panic!("cannot load {}: {error:#}", wasm.display()),
        }
    }

    /// Creates the root context and configures the plugin; false when the plugin refuses.
    #[track_caller]
    pub(crate) fn start(&mut self, configuration: &[u8]) -> bool {
        or_panic(self.try_start(configuration))
    }

    /// Configures one more plugin in the same machine, as Envoy does with plugins of the same code;
    /// `None` when it refuses.
    #[track_caller]
    pub(crate) fn start_another(&mut self, configuration: &[u8]) -> Option<ContextId> {
        or_panic(self.try_start_another(configuration))
    }

    /// Ends a plugin, as Envoy does when its configuration has changed.
    #[track_caller]
    pub(crate) fn end_plugin(&mut self, root: ContextId) {
        or_panic(self.try_end_plugin(root));
    }

    /// Sends a request without a body; `Host::outcome` tells what became of it.
    #[track_caller]
    pub(crate) fn request(&mut self, headers: &[(&str, &[u8])]) -> ContextId {
        self.request_to(ContextId::ROOT, headers)
    }

    /// Sends a request to another plugin than the first.
    #[track_caller]
    pub(crate) fn request_to(&mut self, root: ContextId, headers: &[(&str, &[u8])]) -> ContextId {
        or_panic(self.try_request(root, headers))
    }

    /// Answers a gRPC call with a message.
    #[track_caller]
    pub(crate) fn answer(&mut self, token: Token, message: &[u8]) {
        or_panic(self.try_answer(token, message));
    }

    /// Ends a gRPC call with a status other than OK, for instance 14 when nobody listens.
    #[track_caller]
    pub(crate) fn close(&mut self, token: Token, grpc_status: u32) {
        self.close_with(token, grpc_status, "");
    }

    /// As `close`, with the status' message.
    #[track_caller]
    pub(crate) fn close_with(&mut self, token: Token, grpc_status: u32, message: &str) {
        or_panic(self.try_close(token, grpc_status, message));
    }

    /// Passes response headers through the filter and returns them as they are after it.
    #[track_caller]
    pub(crate) fn response_headers(
        &mut self,
        context: ContextId,
        headers: &[(&str, &[u8])],
    ) -> Headers {
        or_panic(self.try_response_headers(context, Headers::new(headers)))
    }

    /// The headers that the client gets with the filter's own local reply, which Envoy has passed through
    /// the filter.
    #[track_caller]
    pub(crate) fn local_reply_headers(&self, context: ContextId) -> Headers {
        self.local_reply(context);
        match self.state().streams.get(&context) {
            Some(stream) => stream.response.headers.clone(),
            None => panic!("{context} is over"),
        }
    }

    /// Ends a stream, answered or given up, in Envoy's order: access log, done, delete.
    #[track_caller]
    pub(crate) fn finish(&mut self, context: ContextId) {
        or_panic(self.try_finish(context));
    }

    /// Fires the timers that the guest has set.
    #[track_caller]
    pub(crate) fn tick(&mut self) {
        or_panic(self.try_tick());
    }
}

/// What the guest is allowed and what it finds.
impl Host {
    /// Replaces the set of calls that the guest may make from now on, by their ABI names without
    /// the module; `clock_time_get` is the one of WASI that has to be listed.
    #[track_caller]
    pub(crate) fn allow(&mut self, calls: &[&'static str]) {
        for call in calls {
            assert!(self.known_calls.contains(*call), "the host does not implement {call}");
        }
        self.state_mut().allowed = calls.iter().copied().collect();
    }

    /// Sets a property for the requests to come, for instance `["source", "address"]`.
    pub(crate) fn set_property(&mut self, path: &[&str], value: &[u8]) {
        self.state_mut().properties.insert(path.join("\0").into_bytes(), value.to_vec());
    }

    /// Makes a property absent for the requests to come.
    pub(crate) fn remove_property(&mut self, path: &[&str]) {
        self.state_mut().properties.remove(path.join("\0").as_bytes());
    }

    /// Steps the wall clock to a time since the Unix epoch, in either direction; the monotonic
    /// clock does not notice.
    pub(crate) fn set_wall_clock(&mut self, since_epoch: Duration) {
        self.state_mut().clock.wall_ns = nanoseconds(since_epoch);
    }

    /// Lets time pass, on both clocks.
    pub(crate) fn advance(&mut self, time: Duration) {
        let clock = &mut self.state_mut().clock;
        clock.wall_ns += nanoseconds(time);
        clock.monotonic_ns += nanoseconds(time);
    }

    /// The wall clock, as time since the Unix epoch.
    pub(crate) fn wall_clock(&self) -> Duration {
        Duration::from_nanos(self.state().clock.wall_ns)
    }

    /// Sets what `proxy_get_log_level` tells; lines below it are recorded all the same.
    pub(crate) fn set_log_level(&mut self, level: LogLevel) {
        self.state_mut().log_level = level;
    }

    /// Sets the configuration of the virtual machine, which is empty otherwise.
    pub(crate) fn set_vm_configuration(&mut self, configuration: &[u8]) {
        self.state_mut().buffers.vm_configuration = configuration.to_vec();
    }

    /// Has what the filter lets go on answered at once, as on a route with a direct response.
    pub(crate) fn answer_directly(&mut self) {
        self.state_mut().answers_directly = true;
    }

    /// Makes `proxy_grpc_call` fail with this status and start nothing, until it is `Ok` again.
    /// Envoy's are `ParseFailure` for an unknown cluster and `InternalFailure`.
    pub(crate) fn set_grpc_call_status(&mut self, status: Status) {
        self.state_mut().grpc.status = status;
    }

    /// The gRPC status and message of calls that fail at once, with `InternalFailure`.
    pub(crate) fn fail_calls_with(&mut self, grpc_status: u32, message: &str) {
        self.set_grpc_call_status(Status::InternalFailure);
        self.state_mut().grpc.fails_with = (grpc_status, message.to_owned());
    }
}

/// What the guest did.
impl Host {
    /// What became of a request, also after its end.
    #[track_caller]
    pub(crate) fn outcome(&self, context: ContextId) -> &Outcome {
        let state = self.state();
        let live = state.streams.get(&context).and_then(|stream| stream.outcome.as_ref());
        match live.or_else(|| state.ended.get(&context)?.as_ref()) {
            Some(outcome) => outcome,
            None => panic!("{context} is no request with an outcome"),
        }
    }

    /// The filter state that the guest has set, by its name in Envoy.
    #[track_caller]
    pub(crate) fn filter_state(&self, context: ContextId) -> Vec<(&str, &str)> {
        let Some(stream) = self.state().streams.get(&context) else { panic!("{context} is over") };
        stream.filter_state.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }

    /// The headers of a request, as they are after the filter.
    #[track_caller]
    pub(crate) fn request_headers(&self, context: ContextId) -> &Headers {
        match self.state().streams.get(&context) {
            Some(stream) => &stream.request.headers,
            None => panic!("{context} is over"),
        }
    }

    /// The local reply to a request; panics when there is none.
    #[track_caller]
    pub(crate) fn local_reply(&self, context: ContextId) -> &LocalReply {
        match self.outcome(context) {
            Outcome::LocalReply(reply) => reply,
            other => panic!("no local reply to {context}, but: {other:?}"),
        }
    }

    /// Takes the gRPC calls started since they were last taken; they stay in flight.
    pub(crate) fn take_grpc_calls(&mut self) -> Vec<GrpcCall> {
        std::mem::take(&mut self.state_mut().grpc.started)
    }

    /// Number of gRPC calls that are neither answered nor closed.
    pub(crate) fn grpc_calls_in_flight(&self) -> usize {
        self.state().grpc.in_flight.len()
    }

    /// How deep callbacks were nested at most since the host was loaded.
    pub(crate) fn depth_max(&self) -> usize {
        self.state().depth_max
    }

    /// How often each host call was made since `clear_calls`, WASI included.
    pub(crate) fn calls(&self) -> &BTreeMap<&'static str, u32> {
        &self.state().calls
    }

    /// How many instructions each export ran since `clear_calls`.
    pub(crate) fn instructions(&self) -> &BTreeMap<&'static str, u64> {
        &self.state().instructions
    }

    /// Starts the counts of host calls and instructions anew.
    pub(crate) fn clear_calls(&mut self) {
        self.state_mut().calls.clear();
        self.state_mut().instructions.clear();
    }

    /// Everything the guest logged since it was loaded.
    pub(crate) fn logs(&self) -> &[LogLine] {
        &self.state().logs
    }

    /// The period of the first plugin's timer; `None` when the guest has set none.
    pub(crate) fn tick_period(&self) -> Option<Duration> {
        let period_ms = *self.state().tick_periods_ms.get(&ContextId::ROOT)?;
        (period_ms > 0).then(|| Duration::from_millis(u64::from(period_ms)))
    }

    /// The value of a counter or gauge; `None` when the guest has not defined it.
    pub(crate) fn metric(&self, name: &str) -> Option<u64> {
        self.state().metrics.values.get(name).copied()
    }

    /// The samples of a histogram; `None` when the guest has not defined it.
    pub(crate) fn histogram(&self, name: &str) -> Option<&[u64]> {
        self.state().metrics.samples.get(name).map(Vec::as_slice)
    }

    /// The shared data of this worker's Envoy.
    pub(crate) fn shared_data(&self) -> &SharedData {
        &self.state().shared_data
    }

    /// Bytes of memory that the guest has reserved.
    pub(crate) fn memory_bytes(&self) -> usize {
        let exports = self.state().exports.as_ref();
        exports.map_or(0, |exports| exports.memory.data_size(&self.store))
    }

    fn state(&self) -> &State {
        self.store.data()
    }

    fn state_mut(&mut self) -> &mut State {
        self.store.data_mut()
    }
}

#[track_caller]
fn or_panic<T>(result: Result<T, Trap>) -> T {
    match result {
        Ok(value) => value,
        Err(trap) => panic!("the guest is dead: {trap}"),
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("a test's time fits 584 years")
}
