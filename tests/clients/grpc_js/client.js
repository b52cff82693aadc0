"use strict";
// Asks a rate limit service with gRPC's JavaScript implementation, @grpc/grpc-js, which has the HTTP/2 of Node.
//
// Usage: client.js SOCKET, the path of the Unix socket of a sidecar that serves ../rls_client.yaml.
//
// Each check is a function of a channel; most run through a relay (relay.js) that counts connections. Prints a
// line for each, and exits with 1 if one fails. When it prints RESTART, the sidecar is to be killed and started
// again; when it prints TAKEOVER, another is to take over from it. A line on standard input says that it is done.

const assert = require("node:assert/strict");
const path = require("node:path");
const readline = require("node:readline");
const { randomUUID } = require("node:crypto");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");
const { Relay } = require("./relay.js");

const { INTERNAL, UNIMPLEMENTED, RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED, CANCELLED, UNAVAILABLE } = grpc.status;
const WAIT = 30_000; // milliseconds, for what is to be answered at once, on a busy machine
const MESSAGE_MAX = 4 * 1024 * 1024;
const SERVICE = "envoy.service.ratelimit.v3.RateLimitService";

// Known defects: a check that holds again fails until it is taken out.
const PENDING = {};

const files = ["rls.proto", "health.proto", "reflection.proto"].map((file) => path.join(__dirname, file));
const protos = grpc.loadPackageDefinition(
  loader.loadSync(files, { keepCase: true, enums: String, defaults: true, oneofs: true }),
);
const { RateLimitService } = protos.envoy.service.ratelimit.v3;
const { Health } = protos.grpc.health.v1;
const { ServerReflection } = protos.grpc.reflection.v1;
const METHOD = RateLimitService.service.ShouldRateLimit;

const fresh = () => randomUUID();
const deadline = (milliseconds = WAIT) => ({ deadline: Date.now() + milliseconds });

function question(key, value, hits = 0) {
  return { domain: "outside", descriptors: [{ entries: [{ key, value }] }], hits_addend: hits };
}

// The answer to one question, or the error.
function ask(rls, request, metadata = new grpc.Metadata(), options = deadline()) {
  return new Promise((resolve, reject) => {
    rls.ShouldRateLimit(request, metadata, options, (error, answer) => (error ? reject(error) : resolve(answer)));
  });
}

// What came of a call, in words.
const outcome = (call) => call.then((answer) => answer.overall_code, (error) => error.message);

async function refused(codes, call) {
  const error = await call.then(
    (answer) => assert.fail(`answered: ${JSON.stringify(answer)}`),
    (error) => error,
  );
  assert.ok(codes.includes(error.code), `${error.message}, not ${codes.map((code) => grpc.status[code])}`);
  return error;
}

// The next message of a stream, or its error.
function next(stream) {
  return new Promise((resolve, reject) => {
    const settle = (done) => (value) => {
      stream.off("data", onData).off("error", onError);
      done(value);
    };
    const [onData, onError] = [settle(resolve), settle(reject)];
    stream.once("data", onData).once("error", onError);
  });
}

// A stream of health, once its first message is here. An error that nobody waits for is none.
async function watch(health, service = "", options = {}, expected = "SERVING") {
  const stream = health.Watch({ service }, options).on("error", () => {});
  assert.equal((await next(stream)).status, expected);
  return stream;
}

async function cancel(stream) {
  const ended = next(stream);
  stream.cancel();
  await refused([CANCELLED], ended);
}

// Looks again at each turn of the event loop, until a condition holds.
async function until(what, condition) {
  const end = Date.now() + WAIT;
  while (!condition()) {
    assert.ok(Date.now() < end, `${what}: not in ${WAIT} ms`);
    await new Promise((again) => setImmediate(again));
  }
}

async function a_limit_is_counted_down({ rls }) {
  const value = fresh();
  for (const left of [2, 1, 0]) {
    const { overall_code, statuses } = await ask(rls, question("client", value));
    assert.deepEqual([overall_code, statuses.length, statuses[0].limit_remaining], ["OK", 1, left]);
  }
  const { overall_code, statuses } = await ask(rls, question("client", value));
  assert.deepEqual([overall_code, statuses[0].code], ["OVER_LIMIT", "OVER_LIMIT"]);
}

async function metadata_of_12_kb_is_taken({ rls }) {
  const metadata = new grpc.Metadata();
  for (let number = 0; number < 12; number += 1) metadata.set(`x-${number}`, "v".repeat(1_000));
  metadata.set("x-a-bin", Buffer.from([0, 1, 255]));
  for (let turn = 0; turn < 3; turn += 1) {
    assert.equal((await ask(rls, question("free", "a"), metadata)).overall_code, "OK");
  }
}

async function oversized_metadata({ rls, health, relay }, bytes) {
  const watching = await watch(health);
  const [connections, metadata] = [relay.connections, new grpc.Metadata()];
  for (let number = 0; number < bytes / 1_000; number += 1) metadata.set(`x-${number}`, "v".repeat(1_000));
  const beside = [];
  for (let turn = 0; turn < 20; turn += 1) {
    beside.push(outcome(ask(rls, question("free", "a"))));
    await refused([RESOURCE_EXHAUSTED, INTERNAL], ask(rls, question("free", "a"), metadata));
  }
  for (const came of await Promise.all(beside)) assert.equal(came, "OK");
  assert.equal((await ask(rls, question("free", "a"))).overall_code, "OK");
  assert.equal(relay.connections, connections, "the connection was kept");
  await cancel(watching);
}

const metadata_of_20_kb_ends_one_call_at_most = (peer) => oversized_metadata(peer, 20_000);
const metadata_of_64_kb_ends_one_call_at_most = (peer) => oversized_metadata(peer, 64_000);

async function a_client_streaming_stub_gets_an_error_at_once({ rls }) {
  const call = new Promise((resolve, reject) => {
    const { path, requestSerialize, responseDeserialize } = METHOD;
    const done = (error, answer) => (error ? reject(error) : resolve(answer));
    const stream = rls.makeClientStreamRequest(
      path, requestSerialize, responseDeserialize, new grpc.Metadata(), deadline(), done,
    );
    // Never ended.
    for (let turn = 0; turn < 3; turn += 1) stream.write(question("free", "a"));
  });
  await refused([INTERNAL, UNIMPLEMENTED], call);
}

async function a_client_streaming_stub_of_one_message_is_answered({ rls }) {
  const answer = await new Promise((resolve, reject) => {
    const { path, requestSerialize, responseDeserialize } = METHOD;
    const done = (error, answer) => (error ? reject(error) : resolve(answer));
    const stream = rls.makeClientStreamRequest(
      path, requestSerialize, responseDeserialize, new grpc.Metadata(), deadline(), done,
    );
    stream.end(question("free", "a"));
  });
  assert.equal(answer.overall_code, "OK");
}

async function unknown_methods_are_unimplemented({ rls }) {
  for (const name of [`/${SERVICE}/Other`, "/other.Service/Method"]) {
    const call = new Promise((resolve, reject) => {
      const same = (bytes) => bytes;
      rls.makeUnaryRequest(name, same, same, Buffer.alloc(0), deadline(), (error, answer) => {
        if (error) reject(error);
        else resolve(answer);
      });
    });
    await refused([UNIMPLEMENTED], call);
  }
}

// A watch with a short deadline. A busy machine may need longer than the first of these for the first message.
async function watch_until_deadline(health) {
  for (const milliseconds of [200, 2_000]) {
    try {
      return await watch(health, "", deadline(milliseconds));
    } catch (error) {
      if (error.code !== DEADLINE_EXCEEDED) throw error;
    }
  }
  return watch(health, "", deadline());
}

async function deadlines_end_calls_and_nothing_else({ rls, health, relay }) {
  const connections = relay.connections;
  await refused([DEADLINE_EXCEEDED], ask(rls, question("free", "a"), undefined, { deadline: Date.now() - 1 }));
  await refused([DEADLINE_EXCEEDED], next(await watch_until_deadline(health)));
  assert.equal((await ask(rls, question("free", "a"))).overall_code, "OK");
  assert.equal(relay.connections, connections);
}

async function cancelled_calls_leave_the_connection_whole({ rls, relay }) {
  const connections = relay.connections;
  const ended = [];
  for (let turn = 0; turn < 3_000; turn += 1) {
    ended.push(
      new Promise((resolve) => {
        const call = rls.ShouldRateLimit(question("free", "a"), deadline(), (error) => resolve(error?.code ?? 0));
        if (turn % 2) call.cancel();
        else setImmediate(() => call.cancel());
      }),
    );
  }
  for (const code of await Promise.all(ended)) assert.ok([0, CANCELLED].includes(code), grpc.status[code]);
  assert.equal((await ask(rls, question("client", fresh()))).overall_code, "OK");
  assert.equal(relay.connections, connections);
}

async function health_is_told_and_watched({ health }) {
  for (const service of ["", "ratelimit", SERVICE]) {
    const { status } = await new Promise((resolve, reject) => {
      health.Check({ service }, deadline(), (error, answer) => (error ? reject(error) : resolve(answer)));
    });
    assert.equal(status, "SERVING");
  }
  for (const [service, expected] of [["", "SERVING"], ["other", "SERVICE_UNKNOWN"]]) {
    await cancel(await watch(health, service, {}, expected));
  }
}

async function reflection_tells_services_and_files({ reflection }) {
  const stream = reflection.ServerReflectionInfo(deadline());
  stream.write({ list_services: "*" });
  const { list_services_response } = await next(stream);
  const names = list_services_response.service.map(({ name }) => name);
  assert.ok(names.includes(SERVICE) && names.includes("grpc.health.v1.Health"), names.join());
  stream.write({ file_containing_symbol: SERVICE });
  const { file_descriptor_response } = await next(stream);
  const files = file_descriptor_response.file_descriptor_proto;
  assert.ok(files.some((file) => file.includes("envoy/service/ratelimit/v3/rls.proto")));
  const ended = new Promise((resolve, reject) => stream.on("end", resolve).on("error", reject));
  stream.end();
  stream.resume();
  await ended;
}

async function messages_up_to_4_mb_are_taken({ rls, relay }) {
  const connections = relay.connections;
  const value = fresh() + "a".repeat(MESSAGE_MAX - 200);
  for (const left of [2, 1, 0]) {
    const { statuses } = await ask(rls, question("client", value));
    assert.deepEqual([statuses[0].code, statuses[0].limit_remaining], ["OK", left]);
  }
  // One beside calls of the usual size.
  const large = outcome(ask(rls, question("client", value)));
  const small = Array.from({ length: 100 }, () => outcome(ask(rls, question("free", "a"))));
  assert.equal(await large, "OVER_LIMIT");
  assert.deepEqual(new Set(await Promise.all(small)), new Set(["OK"]));
  for (let turn = 0; turn < 3; turn += 1) {
    await refused([RESOURCE_EXHAUSTED], ask(rls, question("client", value + "a".repeat(200))));
  }
  assert.equal((await ask(rls, question("client", value))).overall_code, "OVER_LIMIT");
  assert.equal(relay.connections, connections, "the connection was kept");
}

async function thousands_of_calls_at_once_are_answered_and_counted({ rls, relay }) {
  const [connections, value] = [relay.connections, fresh()];
  const calls = Array.from({ length: 8_000 }, () => ask(rls, question("many", value), undefined, deadline(60_000)));
  const codes = (await Promise.all(calls)).map((answer) => answer.overall_code);
  assert.equal(codes.filter((code) => code === "OK").length, 300);
  assert.equal(codes.filter((code) => code === "OVER_LIMIT").length, 7_700);
  assert.equal(relay.connections, connections);
}

async function keepalive_pings_are_answered({ relay }, open) {
  const peer = open({ "grpc.keepalive_time_ms": 5, "grpc.keepalive_timeout_ms": WAIT,
                      "grpc.keepalive_permit_without_calls": 1 }); // prettier-ignore
  const watching = await watch(peer.health);
  const [connections, pings] = [relay.connections, relay.client.pings];
  await until("100 pings are sent", () => relay.client.pings >= pings + 100);
  await until("each is answered", () => relay.server.pongs >= pings + 100);
  assert.equal((await ask(peer.rls, question("free", "a"))).overall_code, "OK");
  assert.equal(relay.connections, connections, "the connection was kept");
  await cancel(watching);
  peer.close();
}

async function a_new_connection_is_made_after_a_restart({ rls, health, relay }, _, command) {
  const watching = await watch(health);
  const [value, connections, lost] = [fresh(), relay.connections, refused([UNAVAILABLE], next(watching))];
  await ask(rls, question("client", value));
  await command("RESTART");
  await lost;
  const metadata = new grpc.Metadata({ waitForReady: true });
  const { statuses } = await ask(rls, question("client", value), metadata);
  assert.equal(statuses[0].limit_remaining, 1, "the counts live on");
  assert.ok(relay.connections > connections);
}

async function no_call_fails_in_a_takeover({ rls, relay }, _, command) {
  const [connections, goaways] = [relay.connections, relay.server.goaways];
  let over = false;
  const asking = (async () => {
    let asked = 0;
    while (!over || asked < 1_000) {
      const answers = await Promise.all(Array.from({ length: 20 }, () => ask(rls, question("free", "a"))));
      asked += answers.filter((answer) => answer.overall_code === "OK").length;
    }
    return asked;
  })();
  await command("TAKEOVER");
  await until("the old process says so", () => relay.server.goaways > goaways);
  over = true;
  assert.ok((await asking) >= 1_000);
  assert.ok(relay.connections > connections, "a new connection was made");
}

const CHECKS = [
  a_limit_is_counted_down,
  metadata_of_12_kb_is_taken,
  metadata_of_20_kb_ends_one_call_at_most,
  metadata_of_64_kb_ends_one_call_at_most,
  a_client_streaming_stub_gets_an_error_at_once,
  a_client_streaming_stub_of_one_message_is_answered,
  unknown_methods_are_unimplemented,
  deadlines_end_calls_and_nothing_else,
  cancelled_calls_leave_the_connection_whole,
  health_is_told_and_watched,
  reflection_tells_services_and_files,
  messages_up_to_4_mb_are_taken,
  thousands_of_calls_at_once_are_answered_and_counted,
  keepalive_pings_are_answered,
  a_new_connection_is_made_after_a_restart,
  no_call_fails_in_a_takeover,
];

// Settings of HTTP/2 that clients have: what holds with one set is to hold with all.
const OPTIONS = { "usual options": {}, "a small window": { "grpc-node.flow_control_window": 70_000 } };

async function main() {
  const relay = new Relay(process.argv[2]);
  const address = await relay.start();
  const open = (options) => {
    const all = { "grpc.max_send_message_length": -1, "grpc.initial_reconnect_backoff_ms": 100, ...options,
                  "grpc.use_local_subchannel_pool": 1 }; // prettier-ignore
    const insecure = grpc.credentials.createInsecure();
    const rls = new RateLimitService(address, insecure, all);
    const shared = { ...all, channelOverride: rls.getChannel() };
    const [health, reflection] = [Health, ServerReflection].map((Client) => new Client(address, insecure, shared));
    return { rls, health, reflection, relay, close: () => rls.close() };
  };
  const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  const command = async (line) => {
    console.log(line);
    await lines.next();
  };
  let failed = 0;
  for (const [what, options] of Object.entries(OPTIONS)) {
    const peer = open(options);
    for (const check of CHECKS) {
      const name = `${check.name}, ${what}`;
      const error = await check(peer, open, command).then(() => null, (error) => error);
      const reason = PENDING[check.name];
      if (reason && error) {
        console.log(`pending ${name}: ${reason}`);
      } else if (reason || error) {
        failed += 1;
        console.log(`FAILED ${name}\n${error?.stack ?? "it holds now: take it out of PENDING"}`);
      } else {
        console.log(`ok ${name}`);
      }
    }
    peer.close();
  }
  relay.stop();
  process.exit(failed ? 1 : 0);
}

main();
