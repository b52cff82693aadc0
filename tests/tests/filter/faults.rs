//! Faults of a guest: each fails the test, with a message that names the fault and the callback.

use crate::host::Host;
use wasm_encoder::{
    BlockType, CodeSection, ConstExpr, DataSection, EntityType, ExportKind, ExportSection,
    Function, FunctionSection, GlobalSection, GlobalType, ImportSection, Instruction,
    MemorySection, MemoryType, Module, TypeSection, ValType,
};

/// What a guest has in its memory, from the eighth byte.
const PANIC: &str = "tidegate: panicked at src/a.rs:7: no room";

/// Loads a guest whose `_initialize` runs these operators. Its first function is an import of this name.
#[track_caller]
fn load(import: &str, operators: &[Instruction<'_>]) {
    let mut types = TypeSection::new();
    types.ty().function([], []);
    types.ty().function([ValType::I32], [ValType::I32]);
    types.ty().function([ValType::I32; 3], [ValType::I32]);
    let mut imports = ImportSection::new();
    imports.import("env", import, EntityType::Function(2));
    let mut functions = FunctionSection::new();
    functions.function(0).function(0).function(1);
    let mut memories = MemorySection::new();
    let pages = MemoryType {
        minimum: 2,
        maximum: None,
        memory64: false,
        shared: false,
        page_size_log2: None,
    };
    memories.memory(pages);
    let mut globals = GlobalSection::new();
    let global = GlobalType { val_type: ValType::I32, mutable: true, shared: false };
    globals.global(global, &ConstExpr::i32_const(0));
    let mut exports = ExportSection::new();
    exports.export("memory", ExportKind::Memory, 0);
    exports.export("proxy_abi_version_0_2_1", ExportKind::Func, 1);
    exports.export("_initialize", ExportKind::Func, 2);
    exports.export("proxy_on_memory_allocate", ExportKind::Func, 3);
    let mut code = CodeSection::new();
    for operators in [&[][..], operators, &[Instruction::LocalGet(0)]] {
        let mut function = Function::new([]);
        for operator in operators {
            function.instruction(operator);
        }
        code.function(function.instruction(&Instruction::End));
    }
    let mut data = DataSection::new();
    data.active(0, &ConstExpr::i32_const(8), PANIC.bytes());
    let mut module = Module::new();
    module.section(&types).section(&imports).section(&functions).section(&memories);
    module.section(&globals).section(&exports).section(&code).section(&data);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("guest.wasm");
    std::fs::write(&path, module.finish()).expect("written");
    Host::load(&path);
}

/// A call of the import, with a level, a pointer and a size.
fn call(arguments: [i32; 3]) -> Vec<Instruction<'static>> {
    let arguments = arguments.into_iter().map(Instruction::I32Const);
    arguments.chain([Instruction::Call(0), Instruction::Drop]).collect()
}

#[test]
fn a_guest_without_a_fault_is_loaded() {
    load("proxy_log", &call([2, 8, 8]));
}

#[test]
#[should_panic(
    expected = "the guest is dead: wasm `unreachable` instruction executed (in _initialize)"
)]
fn a_trap_is_named() {
    load("proxy_log", &[Instruction::Unreachable]);
}

#[test]
#[should_panic(
    expected = "the guest is dead: the guest panicked at src/a.rs:7: no room (in _initialize)"
)]
fn a_panic_is_named_by_its_message() {
    let log = call([5, 8, PANIC.len().try_into().expect("short")]);
    load("proxy_log", &[log.as_slice(), &[Instruction::Unreachable]].concat());
}

#[test]
#[should_panic(expected = "the guest is dead: out of bounds memory access (in _initialize)")]
fn a_bad_access_is_named() {
    let bytes =
        [Instruction::I32Const(0), Instruction::I32Const(0), Instruction::I32Const(131_073)];
    load("proxy_log", &[bytes.as_slice(), &[Instruction::MemoryFill(0)]].concat());
}

#[test]
#[should_panic(expected = "_initialize ran for 1000000000 instructions without returning")]
fn an_endless_callback_is_ended() {
    // Bytes that are filled count, so the end comes soon.
    let fill = [Instruction::I32Const(0), Instruction::I32Const(0), Instruction::I32Const(131_072)];
    let again = [Instruction::MemoryFill(0), Instruction::Br(0), Instruction::End];
    let endless = [&[Instruction::Loop(BlockType::Empty)], fill.as_slice(), &again].concat();
    load("proxy_log", &endless);
}

#[test]
#[should_panic(expected = "the guest is dead: unexpected host call: env.proxy_close_stream")]
fn a_call_that_the_host_does_not_know_is_named() {
    load("proxy_close_stream", &call([0, 0, 0]));
}

#[test]
#[should_panic(expected = "unexpected host call: proxy_get_header_map_pairs")]
fn a_call_that_the_test_does_not_allow_is_named() {
    load("proxy_get_header_map_pairs", &call([0, 0, 0]));
}

#[test]
#[should_panic(expected = "proxy_log (in _initialize of root): bad pointer: 9 bytes at 0x1fff8")]
fn a_bad_pointer_is_named() {
    load("proxy_log", &call([2, 0x1_fff8, 9]));
}
