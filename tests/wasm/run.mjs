// Runs a test program that was built for wasm32-wasip1: node run.mjs program.wasm [arguments of the program]
import { readFile } from "node:fs/promises";
import { WASI } from "node:wasi";

const [program, ...args] = process.argv.slice(2);
const { PROPTEST_CASES } = process.env;
const env = PROPTEST_CASES ? { PROPTEST_CASES } : {};
const wasi = new WASI({ version: "preview1", args: [program, ...args], env });
const module = await WebAssembly.compile(await readFile(program));
process.exitCode = wasi.start(await WebAssembly.instantiate(module, wasi.getImportObject()));
