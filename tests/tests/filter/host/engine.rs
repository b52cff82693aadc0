//! Compiled modules: one engine per process, and each module compiled once per path.
//!
//! Owns the link between imports and host calls: an import that the host does not implement is
//! still linked, to a function that kills the guest and names itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use wasmtime::{
    Config, Engine, ExternType, InstancePre, Linker, Module, OptLevel, Result, Store, bail,
};

use super::calls;
use super::shared_data::SharedData;
use super::state::State;

/// Instructions that the guest may run in one callback before it counts as hung: about a second
/// of compiled code, and a thousand times what the largest callback of a filter should take.
pub(super) const FUEL_PER_DRIVE: u64 = 1_000_000_000;

/// A module that is compiled and linked, ready to be instantiated.
#[derive(Clone)]
pub(super) struct Prepared {
    pub(super) instance: InstancePre<State>,
    /// Names of the calls that the host implements.
    pub(super) known: Arc<BTreeSet<String>>,
}

/// The module at `path`, compiled on first use. Tests that start together wait for one compiler.
pub(super) fn prepare(path: &Path) -> Result<Prepared> {
    static CACHE: Mutex<BTreeMap<PathBuf, Prepared>> = Mutex::new(BTreeMap::new());

    let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(prepared) = cache.get(path) {
        return Ok(prepared.clone());
    }
    let prepared = compile(path)?;
    cache.insert(path.to_owned(), prepared.clone());
    Ok(prepared)
}

/// A store for one virtual machine.
pub(super) fn store(prepared: &Prepared, shared_data: SharedData) -> Result<Store<State>> {
    let engine = prepared.instance.module().engine();
    let mut store = Store::new(engine, State::new(shared_data));
    store.set_fuel(FUEL_PER_DRIVE)?;
    Ok(store)
}

fn compile(path: &Path) -> Result<Prepared> {
    let engine = engine()?;
    let module = Module::new(engine, fs::read(path)?)?;
    let known_abi = |name| matches!(name, "proxy_abi_version_0_2_0" | "proxy_abi_version_0_2_1");
    if !module.exports().any(|export| known_abi(export.name())) {
        bail!("the module exports no proxy_abi_version_0_2_*, so Envoy would not load it");
    }

    let mut linker = Linker::new(engine);
    calls::link(&mut linker)?;
    let mut scratch = Store::new(engine, State::new(SharedData::new()));
    let known = linker.iter(&mut scratch).map(|(_, name, _)| name.to_owned()).collect();
    link_refusals(&mut linker, &mut scratch, &module)?;
    Ok(Prepared { instance: linker.instantiate_pre(&module)?, known: Arc::new(known) })
}

/// Links the imports that no host call answers to functions that refuse.
fn link_refusals(
    linker: &mut Linker<State>,
    scratch: &mut Store<State>,
    module: &Module,
) -> Result<()> {
    for import in module.imports() {
        let (from, name) = (import.module(), import.name());
        let ExternType::Func(signature) = import.ty() else {
            bail!("the module imports {from}.{name}, which is not a function");
        };
        if linker.get(&mut *scratch, from, name).is_err() {
            let message = format!("unexpected host call: {from}.{name}");
            linker.func_new(from, name, signature, move |_, _, _| bail!("{message}"))?;
        }
    }
    Ok(())
}

fn engine() -> Result<&'static Engine> {
    static ENGINE: OnceLock<Engine> = OnceLock::new();

    if let Some(engine) = ENGINE.get() {
        return Ok(engine);
    }
    let mut config = Config::new();
    // A test runs a callback a few times, so time spent optimizing would never be won back.
    config.cranelift_opt_level(OptLevel::None).consume_fuel(true);
    let engine = Engine::new(&config)?;
    Ok(ENGINE.get_or_init(|| engine))
}
