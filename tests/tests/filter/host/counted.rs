//! Modules that count their own instructions, and stop when a callback runs too many.
//!
//! Owns what counts as an instruction: entering a function is one, and each operator is one, except those that cost
//! a compiled module nothing (`block`, `end` and the like). A bulk operation is one more for each byte or element.
//! Fuel of the interpreter would be another count: it is charged for a whole block at its start, also for the part
//! behind a branch that is taken.
//!
//! Writes a new module and runs nothing. What the module computes stays the same.

use anyhow::{Context, Result};
use wasm_encoder::{
    BlockType, CodeSection, ConstExpr, Encode, ExportKind, GlobalType, Instruction, Module,
    RawSection, SectionId, ValType,
};
use wasmparser::{FunctionBody, Operator, Parser, Payload, SectionLimited, TypeRef};

/// The exported global that holds how many instructions may still run. Once none may, the module traps where it
/// enters a function or a turn of a loop.
pub(super) const LEFT: &str = "tidegate_test_instructions_left";

/// The module, made to count `LEFT` down from `most`, or from what the host sets it to before a callback.
pub(super) fn counted(wasm: &[u8], most: i64) -> Result<Vec<u8>> {
    let mut module = Module::new();
    let mut code = CodeSection::new();
    let mut functions = 0;
    let mut imported = 0;
    let mut counters = None;
    for payload in Parser::new(0).parse_all(wasm) {
        let payload = payload?;
        match &payload {
            Payload::ImportSection(imports) => {
                for import in imports.clone() {
                    imported += u32::from(matches!(import?.ty, TypeRef::Global(_)));
                }
                copy(&mut module, wasm, &payload);
            }
            Payload::GlobalSection(globals) => {
                let left = imported + globals.count();
                counters = Some(Counters { left, size: left + 1 });
                let data = longer(wasm, globals, 2, &Counters::definitions(most));
                module.section(&RawSection { id: SectionId::Global.into(), data: &data });
            }
            Payload::ExportSection(exports) => {
                let counters = counters.context(NO_GLOBALS)?;
                let data = longer(wasm, exports, 1, &counters.export());
                module.section(&RawSection { id: SectionId::Export.into(), data: &data });
            }
            Payload::CodeSectionStart { count, .. } => functions = *count,
            Payload::CodeSectionEntry(body) => {
                code.raw(&counters.context(NO_GLOBALS)?.count_in(wasm, body)?);
                if code.len() == functions {
                    module.section(&code);
                }
            }
            _ => copy(&mut module, wasm, &payload),
        }
    }
    Ok(module.finish())
}

const NO_GLOBALS: &str = "the module has no globals that counters could be added to";

/// Copies a section as it is.
fn copy(module: &mut Module, wasm: &[u8], payload: &Payload<'_>) {
    if let Some((id, range)) = payload.as_section() {
        module.section(&RawSection { id, data: &wasm[range] });
    }
}

/// The content of a section with more entries at its end.
fn longer<T>(wasm: &[u8], section: &SectionLimited<'_, T>, more: u32, entries: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    (section.count() + more).encode(&mut content);
    content.extend(&wasm[section.original_position()..section.range().end]);
    content.extend(entries);
    content
}

/// The globals that are added to a module, by index.
#[derive(Clone, Copy)]
struct Counters {
    /// An `i64`, exported as `LEFT`.
    left: u32,
    /// An `i32`: the size of a bulk operation, while that is charged.
    size: u32,
}

impl Counters {
    /// As entries of the section of globals.
    fn definitions(most: i64) -> Vec<u8> {
        let mut entries = Vec::new();
        for (val_type, first) in
            [(ValType::I64, ConstExpr::i64_const(most)), (ValType::I32, ConstExpr::i32_const(0))]
        {
            GlobalType { val_type, mutable: true, shared: false }.encode(&mut entries);
            first.encode(&mut entries);
        }
        entries
    }

    /// As an entry of the section of exports.
    fn export(self) -> Vec<u8> {
        let mut entry = Vec::new();
        LEFT.encode(&mut entry);
        ExportKind::Global.encode(&mut entry);
        self.left.encode(&mut entry);
        entry
    }

    /// A function that counts. A run of operators without a branch is charged at its end, in one step.
    fn count_in(self, wasm: &[u8], body: &FunctionBody<'_>) -> Result<Vec<u8>> {
        let mut operators = body.get_operators_reader()?;
        let mut start = operators.original_position();
        let mut code = wasm[body.range().start..start].to_vec();
        self.stop_if_none_left(&mut code);
        let mut due = 1;
        while !operators.eof() {
            let operator = operators.read()?;
            let end = operators.original_position();
            due += cost(&operator);
            if is_bulk(&operator) {
                self.charge_size(&mut code);
            }
            if ends_run(&operator) {
                self.charge(&mut code, std::mem::take(&mut due));
            }
            code.extend(&wasm[start..end]);
            if matches!(operator, Operator::Loop { .. }) {
                self.stop_if_none_left(&mut code);
            }
            start = end;
        }
        Ok(code)
    }

    fn charge(self, code: &mut Vec<u8>, due: i64) {
        if due > 0 {
            Instruction::GlobalGet(self.left).encode(code);
            Instruction::I64Const(due).encode(code);
            Instruction::I64Sub.encode(code);
            Instruction::GlobalSet(self.left).encode(code);
        }
    }

    /// Charges what is on top of the stack, and leaves it there.
    fn charge_size(self, code: &mut Vec<u8>) {
        Instruction::GlobalSet(self.size).encode(code);
        Instruction::GlobalGet(self.left).encode(code);
        Instruction::GlobalGet(self.size).encode(code);
        Instruction::I64ExtendI32U.encode(code);
        Instruction::I64Sub.encode(code);
        Instruction::GlobalSet(self.left).encode(code);
        Instruction::GlobalGet(self.size).encode(code);
    }

    fn stop_if_none_left(self, code: &mut Vec<u8>) {
        Instruction::GlobalGet(self.left).encode(code);
        Instruction::I64Const(0).encode(code);
        Instruction::I64LeS.encode(code);
        Instruction::If(BlockType::Empty).encode(code);
        Instruction::Unreachable.encode(code);
        Instruction::End.encode(code);
    }
}

fn cost(operator: &Operator<'_>) -> i64 {
    match operator {
        Operator::Nop
        | Operator::Drop
        | Operator::Block { .. }
        | Operator::Loop { .. }
        | Operator::Else
        | Operator::End
        | Operator::Return
        | Operator::Unreachable => 0,
        _ => 1,
    }
}

/// Whether the operator works on as many bytes or elements as the top of the stack says.
fn is_bulk(operator: &Operator<'_>) -> bool {
    matches!(
        operator,
        Operator::MemoryCopy { .. }
            | Operator::MemoryFill { .. }
            | Operator::MemoryInit { .. }
            | Operator::TableCopy { .. }
            | Operator::TableFill { .. }
            | Operator::TableGrow { .. }
            | Operator::TableInit { .. }
    )
}

/// Whether something else than the next operator may follow, or the next may follow something else.
fn ends_run(operator: &Operator<'_>) -> bool {
    matches!(
        operator,
        Operator::Loop { .. }
            | Operator::If { .. }
            | Operator::Else
            | Operator::End
            | Operator::Br { .. }
            | Operator::BrIf { .. }
            | Operator::BrTable { .. }
            | Operator::Return
            | Operator::ReturnCall { .. }
            | Operator::ReturnCallIndirect { .. }
            | Operator::Unreachable
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use wasm_encoder::{
        CodeSection, ExportSection, Function, FunctionSection, GlobalSection, MemorySection,
        MemoryType, TypeSection,
    };
    use wasmi::{Engine, Linker, Store, Val};

    const MOST: i64 = 1_000;

    /// A module whose only function `run` has these operators and a local of each kind: 0 is its argument.
    fn module(operators: &[Instruction<'_>]) -> Vec<u8> {
        let mut types = TypeSection::new();
        types.ty().function([ValType::I32], []);
        let mut functions = FunctionSection::new();
        functions.function(0);
        let mut memories = MemorySection::new();
        memories.memory(MemoryType {
            minimum: 1,
            maximum: None,
            memory64: false,
            shared: false,
            page_size_log2: None,
        });
        let mut globals = GlobalSection::new();
        let own = GlobalType { val_type: ValType::I32, mutable: true, shared: false };
        globals.global(own, &ConstExpr::i32_const(7));
        let mut exports = ExportSection::new();
        exports.export("run", ExportKind::Func, 0).export("own", ExportKind::Global, 0);
        let mut code = CodeSection::new();
        let mut function = Function::new([]);
        for operator in operators {
            function.instruction(operator);
        }
        code.function(function.instruction(&Instruction::End));
        let mut module = Module::new();
        let module = module.section(&types).section(&functions).section(&memories);
        module.section(&globals).section(&exports).section(&code).clone().finish()
    }

    /// Runs the function, and returns whether it came back and how many instructions it ran.
    fn run(operators: &[Instruction<'_>], argument: i32) -> (bool, i64) {
        let wasm = counted(&module(operators), MOST).expect("a module that can be counted");
        let engine = Engine::default();
        let module = wasmi::Module::new(&engine, wasm).expect("a valid module");
        let mut store = Store::new(&engine, ());
        let instance = Linker::new(&engine).instantiate_and_start(&mut store, &module);
        let instance = instance.expect("no imports");
        let function = instance.get_typed_func::<i32, ()>(&store, "run").expect("a function");
        let result = function.call(&mut store, argument);
        let global = |name| instance.get_global(&store, name).map(|global| global.get(&store));
        assert!(matches!(global("own"), Some(Val::I32(7))), "the module's own is as it was");
        let left = global(LEFT).and_then(|left| left.i64()).expect("a counter");
        (result.is_ok(), MOST - left)
    }

    /// Counts the argument down to zero.
    fn countdown() -> Vec<Instruction<'static>> {
        use Instruction::*;
        vec![Loop(BlockType::Empty), LocalGet(0), I32Const(1), I32Sub, LocalTee(0), BrIf(0), End]
    }

    #[test]
    fn a_function_costs_one_and_each_operator_one() {
        use Instruction::*;
        assert_eq!(run(&[], 0), (true, 1));
        assert_eq!(run(&[I32Const(1), Drop, Nop], 0), (true, 2));
        assert_eq!(run(&[Block(BlockType::Empty), LocalGet(0), Drop, End], 0), (true, 2));
    }

    #[test]
    fn what_a_branch_leaves_out_costs_nothing() {
        use Instruction::*;
        let leave = |condition| {
            [Block(BlockType::Empty), I32Const(condition), BrIf(0), Nop, I32Const(1), Drop, End]
        };
        assert_eq!(run(&leave(1), 0), (true, 3));
        assert_eq!(run(&leave(0), 0), (true, 4));
        let either = [
            LocalGet(0),
            If(BlockType::Empty),
            I32Const(1),
            Drop,
            Else,
            I32Const(1),
            I32Const(1),
            Drop,
            Drop,
            End,
        ];
        assert_eq!(run(&either, 1), (true, 4));
        assert_eq!(run(&either, 0), (true, 5));
        assert_eq!(run(&[Return, I32Const(1), Drop], 0), (true, 1));
    }

    #[test]
    fn each_turn_of_a_loop_costs_its_operators() {
        for turns in [1, 2, 100] {
            assert_eq!(run(&countdown(), turns), (true, 1 + 5 * i64::from(turns)));
        }
    }

    #[test]
    fn a_copy_costs_one_and_its_bytes() {
        use Instruction::*;
        let copy = [
            I32Const(0),
            I32Const(100),
            LocalGet(0),
            MemoryCopy { src_mem: 0, dst_mem: 0 },
            I32Const(0),
            I32Const(0),
            LocalGet(0),
            MemoryFill(0),
        ];
        assert_eq!(run(&copy, 0), (true, 9));
        assert_eq!(run(&copy, 300), (true, 9 + 600));
    }

    #[test]
    fn a_loop_and_a_recursion_stop_when_no_instructions_are_left() {
        use Instruction::*;
        assert!(run(&countdown(), 199).0);
        let (came_back, ran) = run(&countdown(), 300);
        assert!(!came_back && (MOST..MOST + 5).contains(&ran), "{ran}");
        // Two calls in each of twelve levels are thousands, on a short stack.
        let twice = [LocalGet(0), I32Eqz, If(BlockType::Empty), Return, End];
        let half = [LocalGet(0), I32Const(1), I32Sub, Call(0)];
        let twice = [twice.as_slice(), &half, &half].concat();
        let (came_back, ran) = run(&twice, 12);
        // What a function ran before its call is charged when it goes on after it.
        assert!(!came_back && (MOST..MOST + 12 * 8).contains(&ran), "{ran}");
    }
}
