//! What a sidecar has when machines share its counters: the engine, and what is under way in it.
//!
//! Owns the executor: calls and background tasks go on when something wakes them, in the order of the wakes. Knows
//! neither network nor server; the world carries commands and answers.

use crate::state::Call;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use tidegate_authority::{Task, Undecided};
use tidegate_core::Answer;
use tidegate_remote::simulation::{Command, Engine};

pub(crate) type Answering = Pin<Box<dyn Future<Output = Result<Answer, Undecided>>>>;

/// A call that was answered.
pub(crate) type Answered = (Rc<Call>, Result<Answer, Undecided>);

pub(crate) struct Machine {
    pub(crate) engine: Arc<Engine>,
    spawned: Arc<Mutex<Vec<Task>>>,
    running: BTreeMap<u64, Running>,
    /// The numbers of those to go on with.
    woken: Arc<Mutex<VecDeque<u64>>>,
    next: u64,
    /// Commands without an answer.
    flying: BTreeMap<u64, Rc<Command>>,
    pub(crate) is_connected: bool,
}

enum Running {
    Call(Rc<Call>, Answering),
    Task(Task),
}

struct Wakes {
    number: u64,
    woken: Arc<Mutex<VecDeque<u64>>>,
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        lock(&self.woken).push_back(self.number);
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Machine {
    pub(crate) fn new(engine: Engine) -> Machine {
        Machine {
            engine: Arc::new(engine),
            spawned: Arc::default(),
            running: BTreeMap::new(),
            woken: Arc::default(),
            next: 0,
            flying: BTreeMap::new(),
            is_connected: false,
        }
    }

    /// Where the authority leaves tasks.
    pub(crate) fn spawn(&self) -> Arc<dyn Fn(Task) + Send + Sync> {
        let spawned = self.spawned.clone();
        Arc::new(move |task| lock(&spawned).push(task))
    }

    /// Begins with a call.
    pub(crate) fn answer(&mut self, call: &Rc<Call>, answering: Answering) {
        self.begin(Running::Call(Rc::clone(call), answering));
    }

    fn begin(&mut self, running: Running) {
        self.running.insert(self.next, running);
        lock(&self.woken).push_back(self.next);
        self.next += 1;
    }

    /// Goes on with what was woken. Returns the calls that are answered.
    pub(crate) fn work(&mut self) -> Vec<Answered> {
        let mut answered = Vec::new();
        loop {
            let spawned = std::mem::take(&mut *lock(&self.spawned));
            for task in spawned {
                self.begin(Running::Task(task));
            }
            let Some(number) = lock(&self.woken).pop_front() else { return answered };
            let Some(running) = self.running.remove(&number) else { continue };
            let waker = Waker::from(Arc::new(Wakes { number, woken: self.woken.clone() }));
            let mut context = Context::from_waker(&waker);
            match running {
                Running::Call(call, mut answering) => match answering.as_mut().poll(&mut context) {
                    Poll::Ready(answer) => answered.push((call, answer)),
                    Poll::Pending => {
                        self.running.insert(number, Running::Call(call, answering));
                    }
                },
                Running::Task(mut task) => {
                    if task.as_mut().poll(&mut context).is_pending() {
                        self.running.insert(number, Running::Task(task));
                    }
                }
            }
        }
    }

    /// The commands that are ready to be sent.
    pub(crate) fn depart(&mut self) -> Vec<Rc<Command>> {
        let commands: Vec<Rc<Command>> = self.engine.depart().into_iter().map(Rc::new).collect();
        let flying = commands.iter().map(|command| (command.number(), Rc::clone(command)));
        self.flying.extend(flying);
        commands
    }

    /// Whether a command waits for its answer.
    pub(crate) fn awaits(&self, command: &Command) -> bool {
        self.flying.contains_key(&command.number())
    }

    pub(crate) fn landed(&mut self, command: &Command) {
        self.flying.remove(&command.number());
    }

    /// Closes the connection. Nobody knows what became of the commands in it.
    pub(crate) fn disconnect(&mut self, cause: &str) {
        if !self.is_connected {
            return;
        }
        self.is_connected = false;
        self.engine.disconnect(cause);
        for command in std::mem::take(&mut self.flying).into_values() {
            self.engine.failed(&command, cause);
        }
    }

    pub(crate) fn connect(&mut self) {
        if !self.is_connected {
            self.is_connected = true;
            self.engine.connect();
        }
    }
}
