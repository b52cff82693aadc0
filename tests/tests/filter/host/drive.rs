//! Calling into the guest: the callbacks of Envoy, in Envoy's order, and what follows from them.
//!
//! Owns the health of the virtual machine: after the first trap every drive fails, as in Envoy.
//! The `try_` drives return the guest's faults; they panic only on a test that asks nonsense.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use wasmi::{Error, TrapCode, Val};

use super::Host;
use super::counted::LEFT;
use super::engine::{self, INSTRUCTIONS_PER_DRIVE};
use super::headers::Headers;
use super::shared_data::SharedData;
use super::state::{Deferred, Exports, HeaderMap, Sight, Stream};
use super::types::{ContextId, LogLine, Outcome, Token, Trap};

/// How deep callbacks may nest. In a real Envoy with one filter the stack overflows at 300 to 450; other filters
/// of a chain have frames too.
const DEPTH_MAX: usize = 40;

const ACTION_CONTINUE: u32 = 0;
const ACTION_PAUSE: u32 = 1;

/// What may be asked of the virtual machine.
pub(super) enum Health {
    /// Instantiated; the plugin has no root context yet.
    Loaded,
    /// Configured, and open for requests.
    Serving,
    /// The plugin refused its configuration; Envoy would not send it requests.
    Refused,
    /// Dead, with the message of the first trap.
    Poisoned(String),
}

impl Host {
    /// As `Host::start`, with a trap as a value.
    #[track_caller]
    pub(crate) fn try_start(&mut self, configuration: &[u8]) -> Result<bool, Trap> {
        assert!(
            matches!(self.health, Health::Loaded | Health::Poisoned(_)),
            "a host is started once; load another one"
        );
        let accepted = self.try_start_root(ContextId::ROOT, configuration)?;
        self.health = if accepted { Health::Serving } else { Health::Refused };
        Ok(accepted)
    }

    /// As `Host::start_another`, with a trap as a value.
    #[track_caller]
    pub(crate) fn try_start_another(
        &mut self,
        configuration: &[u8],
    ) -> Result<Option<ContextId>, Trap> {
        self.assert_serving();
        let root = self.context_id();
        self.state_mut().roots.insert(root);
        let accepted = self.try_start_root(root, configuration)?;
        Ok(accepted.then_some(root))
    }

    fn try_start_root(&mut self, root: ContextId, configuration: &[u8]) -> Result<bool, Trap> {
        self.state_mut().buffers.plugin_configuration = Some(configuration.to_vec());
        self.drive(root, "proxy_on_context_create", &[root.0, 0])?;
        // Envoy shows the plugin's configuration in the other two callbacks only.
        self.state_mut().buffers.plugin_configuration = None;
        let vm_size = size(&self.state().buffers.vm_configuration);
        if self.drive(root, "proxy_on_vm_start", &[root.0, vm_size])? == Some(0) {
            return Ok(false);
        }
        self.state_mut().buffers.plugin_configuration = Some(configuration.to_vec());
        let plugin_size = size(configuration);
        let configured = self.drive(root, "proxy_on_configure", &[root.0, plugin_size])?;
        self.state_mut().buffers.plugin_configuration = None;
        self.run_event_loop()?;
        Ok(configured != Some(0))
    }

    /// As `Host::end_plugin`, with a trap as a value. Envoy cancels the plugin's calls.
    #[track_caller]
    pub(crate) fn try_end_plugin(&mut self, root: ContextId) -> Result<(), Trap> {
        self.assert_serving();
        let state = self.state_mut();
        assert!(state.roots.contains(&root), "{root} is no plugin");
        let open = state.streams.values().any(|stream| stream.root == root);
        assert!(!open, "Envoy ends a plugin after its streams");
        state.grpc.in_flight.retain(|_, owner| *owner != root);
        state.tick_periods_ms.remove(&root);
        self.drive(root, "proxy_on_done", &[root.0])?;
        self.drive(root, "proxy_on_delete", &[root.0])?;
        self.state_mut().roots.remove(&root);
        Ok(())
    }

    fn context_id(&mut self) -> ContextId {
        let context = ContextId(self.context_next);
        self.context_next += 1;
        context
    }

    /// As `Host::request`, with a trap as a value.
    #[track_caller]
    pub(crate) fn try_request(
        &mut self,
        root: ContextId,
        headers: &[(&str, &[u8])],
    ) -> Result<ContextId, Trap> {
        self.assert_serving();
        assert!(self.state().roots.contains(&root), "{root} is no plugin");
        let context = self.context_id();
        let headers = Headers::new(headers);
        let count = count(&headers);
        let stream = Stream {
            root,
            properties: self.state().properties.clone(),
            request: HeaderMap { headers, sight: Sight::Hidden },
            response: HeaderMap::default(),
            filter_state: BTreeMap::new(),
            outcome: None,
        };
        self.state_mut().streams.insert(context, stream);

        self.drive(context, "proxy_on_context_create", &[context.0, root.0])?;
        self.stream_mut(context).request.sight = Sight::Readable;
        let end_of_stream = 1;
        let action =
            self.drive(context, "proxy_on_request_headers", &[context.0, count, end_of_stream])?;

        let stream = self.stream_mut(context);
        match action.unwrap_or(ACTION_CONTINUE) {
            // A reply stops the request, whatever the callback returns after it.
            _ if stream.outcome.is_some() => {}
            ACTION_CONTINUE => {
                stream.request.sight = Sight::Hidden;
                stream.outcome = Some(Outcome::Continued);
            }
            ACTION_PAUSE => stream.outcome = Some(Outcome::Paused),
            other => {
                let message = format!("proxy_on_request_headers returned action {other}");
                return Err(self.poison(message));
            }
        }
        self.run_event_loop()?;
        Ok(context)
    }

    /// As `Host::answer`, with a trap as a value.
    #[track_caller]
    pub(crate) fn try_answer(&mut self, token: Token, message: &[u8]) -> Result<(), Trap> {
        let root = self.land(token);
        self.state_mut().buffers.grpc_receive = Some(message.to_vec());
        let args = [root.0, token.0, size(message)];
        let result = self.drive(root, "proxy_on_grpc_receive", &args);
        self.state_mut().buffers.grpc_receive = None;
        result?;
        self.run_event_loop()
    }

    /// As `Host::close_with`, with a trap as a value.
    #[track_caller]
    pub(crate) fn try_close(
        &mut self,
        token: Token,
        grpc_status: u32,
        message: &str,
    ) -> Result<(), Trap> {
        assert_ne!(grpc_status, 0, "Envoy closes a call only to fail it");
        let root = self.land(token);
        self.state_mut().grpc.closed_with = Some((grpc_status, message.to_owned()));
        let result = self.drive(root, "proxy_on_grpc_close", &[root.0, token.0, grpc_status]);
        self.state_mut().grpc.closed_with = None;
        result?;
        self.run_event_loop()
    }

    /// As `Host::response_headers`, with a trap as a value.
    #[track_caller]
    pub(crate) fn try_response_headers(
        &mut self,
        context: ContextId,
        headers: Headers,
    ) -> Result<Headers, Trap> {
        self.assert_serving();
        let count = count(&headers);
        let response = &mut self.stream_mut(context).response;
        response.headers = headers;
        response.sight = Sight::Writable;
        let end_of_stream = 1;
        let action =
            self.drive(context, "proxy_on_response_headers", &[context.0, count, end_of_stream])?;

        let response = &mut self.stream_mut(context).response;
        response.sight = Sight::Hidden;
        match action.unwrap_or(ACTION_CONTINUE) {
            ACTION_CONTINUE => Ok(response.headers.clone()),
            other => {
                let message = format!("proxy_on_response_headers returned action {other}");
                Err(self.poison(message))
            }
        }
    }

    /// As `Host::finish`, with a trap as a value.
    #[track_caller]
    pub(crate) fn try_finish(&mut self, context: ContextId) -> Result<(), Trap> {
        self.assert_serving();
        let stream = self.stream_mut(context);
        let was = (stream.request.sight, stream.response.sight);
        // The access log sees all headers, and changes none; no response, no headers.
        stream.request.sight = Sight::Readable;
        if stream.response.headers.len() > 0 {
            stream.response.sight = Sight::Readable;
        }
        self.drive(context, "proxy_on_log", &[context.0])?;

        let stream = self.stream_mut(context);
        (stream.request.sight, stream.response.sight) = was;
        self.drive(context, "proxy_on_done", &[context.0])?;
        self.drive(context, "proxy_on_delete", &[context.0])?;
        let state = self.state_mut();
        if let Some(stream) = state.streams.remove(&context) {
            state.ended.insert(context, stream.outcome);
        }
        Ok(())
    }

    /// As `Host::tick`, with a trap as a value.
    #[track_caller]
    pub(crate) fn try_tick(&mut self) -> Result<(), Trap> {
        self.assert_serving();
        let periods = &self.state().tick_periods_ms;
        let roots: Vec<ContextId> =
            periods.iter().filter(|(_, period)| **period > 0).map(|(root, _)| *root).collect();
        assert!(!roots.is_empty(), "the guest has set no timer");
        for root in roots {
            self.drive(root, "proxy_on_tick", &[root.0])?;
        }
        self.run_event_loop()
    }

    /// Translates, links and instantiates; runs nothing of the guest but its start function.
    pub(super) fn instantiate(wasm: &Path, shared_data: &SharedData) -> anyhow::Result<Self> {
        let prepared = engine::prepare(wasm)?;
        let (mut store, instance) = prepared.instantiate(shared_data.clone())?;
        let memory = instance.get_memory(&store, "memory").context("no memory is exported")?;
        // The two names, in the order in which Envoy looks for them.
        let allocate = match instance.get_func(&store, "malloc") {
            Some(malloc) => malloc.typed(&store)?,
            None => instance.get_typed_func(&store, "proxy_on_memory_allocate")?,
        };
        let instructions_left = instance.get_global(&store, LEFT).context("nothing is counted")?;
        store.data_mut().exports = Some(Exports { memory, allocate });
        Ok(Self {
            store,
            instance,
            instructions_left,
            known_calls: prepared.known,
            health: Health::Loaded,
            context_next: ContextId::ROOT.0 + 1,
        })
    }

    /// Runs the module's own initialization, with no call allowed.
    pub(super) fn initialize(&mut self) -> Result<(), Trap> {
        self.drive(ContextId::ROOT, "_initialize", &[])?;
        Ok(())
    }

    /// Calls an export, and does what it asked for, inside of the callback's end.
    fn drive(
        &mut self,
        context: ContextId,
        export: &'static str,
        args: &[u32],
    ) -> Result<Option<u32>, Trap> {
        let depth = self.state().depth + 1;
        if depth > DEPTH_MAX {
            let message = format!("{export} is nested {depth} deep: the stack of Envoy overflows");
            return Err(self.poison(message));
        }
        let state = self.state_mut();
        (state.depth, state.depth_max) = (depth, state.depth_max.max(depth));
        let result = self.call_export(context, export, args);
        let followed = result.and_then(|result| {
            while let Some(deferred) = self.state_mut().deferred.pop_front() {
                match deferred {
                    Deferred::Respond(stream) => self.respond_inside(stream)?,
                    Deferred::Close(root) => self.close_unbegun(root)?,
                }
            }
            Ok(result)
        });
        self.state_mut().depth = depth - 1;
        followed
    }

    /// Has a stream that goes on, or is answered, get its response headers.
    fn respond_inside(&mut self, context: ContextId) -> Result<(), Trap> {
        let Some(stream) = self.state_mut().streams.get(&context) else {
            return Ok(());
        };
        let headers = match &stream.outcome {
            Some(Outcome::LocalReply(reply)) => reply.response_headers(),
            _ => Headers::new(&[(":status", b"200")]),
        };
        self.try_response_headers(context, headers).map(|_| ())
    }

    /// Envoy reports the number of a call that it never returned.
    fn close_unbegun(&mut self, root: ContextId) -> Result<(), Trap> {
        let (status, message) = self.state().grpc.fails_with.clone();
        let token = self.state().grpc.token_next;
        self.state_mut().grpc.token_next += 2;
        self.state_mut().grpc.closed_with = Some((status, message));
        let result = self.drive(root, "proxy_on_grpc_close", &[root.0, token, status]);
        self.state_mut().grpc.closed_with = None;
        result.map(|_| ())
    }

    /// Tells plugins of the entries of their queues, once Envoy has done with what the last callback was for.
    fn run_event_loop(&mut self) -> Result<(), Trap> {
        if self.state().depth > 0 {
            return Ok(());
        }
        while let Some((root, queue)) = self.state_mut().posted.pop_front() {
            if self.state().roots.contains(&root) {
                self.drive(root, "proxy_on_queue_ready", &[root.0, queue])?;
            }
        }
        Ok(())
    }

    /// Calls an export; `None` when the guest has none of that name, which Envoy takes for a
    /// guest that does not care. A trap kills the machine.
    fn call_export(
        &mut self,
        context: ContextId,
        export: &'static str,
        args: &[u32],
    ) -> Result<Option<u32>, Trap> {
        if let Health::Poisoned(first) = &self.health {
            let message = format!("the virtual machine is dead since an earlier trap: {first}");
            return Err(self.trap(message));
        }
        let Some(function) = self.instance.get_func(&self.store, export) else {
            return Ok(None);
        };
        let state = self.state_mut();
        state.callback = export;
        state.current = context;
        state.effective = None;
        let logged = state.logs.len();

        let args: Vec<Val> = args.iter().map(|arg| Val::I32(arg.cast_signed())).collect();
        let mut results = vec![Val::I32(0); function.ty(&self.store).results().len()];
        let counter = self.instructions_left;
        counter.set(&mut self.store, Val::I64(INSTRUCTIONS_PER_DRIVE)).expect("a mutable i64");
        let outcome = function.call(&mut self.store, &args, &mut results);
        let left = counter.get(&self.store).i64().expect("an i64");
        if let Err(error) = outcome {
            let message = explain(&error, export, left, &self.state().logs[logged..]);
            return Err(self.poison(message));
        }
        let ran = (INSTRUCTIONS_PER_DRIVE - left).unsigned_abs();
        *self.state_mut().instructions.entry(export).or_default() += ran;
        let result = results.first().and_then(Val::i32);
        Ok(Some(result.unwrap_or_default().cast_unsigned()))
    }

    fn poison(&mut self, message: String) -> Trap {
        self.health = Health::Poisoned(message.clone());
        self.trap(message)
    }

    fn trap(&self, message: String) -> Trap {
        Trap { message, logs: self.state().logs.clone() }
    }

    #[track_caller]
    fn assert_serving(&self) {
        match self.health {
            Health::Loaded => panic!("start the host first"),
            Health::Refused => panic!("the plugin refused its configuration"),
            // A dead machine answers a drive by itself, with a trap.
            Health::Serving | Health::Poisoned(_) => {}
        }
    }

    #[track_caller]
    fn stream_mut(&mut self, context: ContextId) -> &mut Stream {
        match self.state_mut().streams.get_mut(&context) {
            Some(stream) => stream,
            None => panic!("{context} is no open stream"),
        }
    }

    /// Takes a call out of flight, and returns the root context that gets its end.
    #[track_caller]
    fn land(&mut self, token: Token) -> ContextId {
        self.assert_serving();
        match self.state_mut().grpc.in_flight.remove(&token.0) {
            Some(root) => root,
            None => panic!("{token:?} is not in flight"),
        }
    }
}

/// The reason of a failed call. A panic reaches the host as an `unreachable` instruction, right after its message
/// went to the log.
fn explain(error: &Error, export: &str, left: i64, logs: &[LogLine]) -> String {
    let panic = logs.last().and_then(|line| line.text.strip_prefix("tidegate: "));
    let panic = panic.filter(|text| text.starts_with("panicked at "));
    match (error.as_trap_code(), panic) {
        (None, _) => error.to_string(),
        (Some(TrapCode::UnreachableCodeReached), _) if left <= 0 => {
            format!("{export} ran for {INSTRUCTIONS_PER_DRIVE} instructions without returning")
        }
        (Some(_), Some(panic)) => format!("the guest {panic} (in {export})"),
        (Some(trap), None) => format!("{trap} (in {export})"),
    }
}

fn size(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("a test's buffer fits 32 bits")
}

fn count(headers: &Headers) -> u32 {
    u32::try_from(headers.len()).expect("a test's headers fit 32 bits")
}
