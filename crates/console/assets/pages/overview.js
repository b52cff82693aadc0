// What the sidecar decides now. Rates are differences of counts between two answers; nothing is kept of them but in this page.

import { ask } from "../ask.js";
import { Chart } from "../charts.js";
import { el, section, replace, table, value } from "../dom.js";
import { ago, count, counted, moment, rate, share, span } from "../text.js";

export const title = "Overview";

// Half an hour of answers.
const POINTS_MAX = 900;
// Charts of single domains, beside the one of all.
const CHARTS_MAX = 6;

const sum = (of) => of.allowed + of.denied + of.denied_elsewhere + of.shadowed + of.unmatched;
const denied = (of) => of.denied + of.denied_elsewhere;
const passed = (of) => of.allowed + of.shadowed + of.unmatched;

// Answers of this page stay while others are looked at.
const history = { times: [], domains: new Map(), last: null, started: null };

function total(domains) {
  const all = { allowed: 0, denied: 0, denied_elsewhere: 0, shadowed: 0, unmatched: 0, in_envoy: 0 };
  for (const domain of domains) for (const key of Object.keys(all)) all[key] += domain[key];
  return all;
}

// Adds an answer to the history, as rates since the one before.
function note(answer) {
  const counts = new Map([["", total(answer.domains)], ...answer.domains.map((of) => [of.domain, of])]);
  const { last, started } = history;
  // A sidecar that was started again counts anew.
  if (last && started === answer.started_ms && answer.now_ms > last.now) {
    const seconds = (answer.now_ms - last.now) / 1000;
    history.times.push(answer.now_ms / 1000);
    for (const [name, now] of counts) {
      const before = last.counts.get(name);
      const of = history.domains.get(name) ?? { passed: [], denied: [], envoy: [] };
      while (of.passed.length < history.times.length - 1) for (const each of Object.values(of)) each.push(null);
      const per = (pick) => (before ? Math.max(0, (pick(now) - pick(before)) / seconds) : null);
      of.passed.push(per(passed));
      of.denied.push(per(denied));
      of.envoy.push(per((counts) => counts.in_envoy));
      history.domains.set(name, of);
    }
    for (const [name, of] of history.domains) {
      if (!counts.has(name)) history.domains.delete(name);
      else if (history.times.length > POINTS_MAX) for (const each of Object.values(of)) each.shift();
    }
    if (history.times.length > POINTS_MAX) history.times.shift();
  } else if (started !== answer.started_ms) {
    history.times = [];
    history.domains.clear();
  }
  history.last = { now: answer.now_ms, counts };
  history.started = answer.started_ms;
}

function series(name) {
  const of = history.domains.get(name);
  return of ? [history.times, of.passed, of.denied, of.envoy] : [[], [], [], []];
}

const LINES = [
  { label: "passed/s", colour: "--chart-allowed", fill: true },
  { label: "denied/s", colour: "--chart-denied" },
  { label: "decided in Envoy/s", colour: "--chart-envoy" },
];

function tile(name, figure, ...more) {
  return el("dl", { class: "tile" }, el("dt", {}, name), el("dd", { class: "figure" }, figure), more.filter(Boolean).map((line) => el("dd", { class: "more" }, line)));
}

function tiles(answer) {
  const all = total(answer.domains);
  const lines = history.domains.get("");
  const last = (name) => lines?.[name].at(-1) ?? null;
  const { limits, store } = answer;
  const fill = store.classes.map((of) => `${of.class} ${share(of.occupied, of.nodes)}`);
  const narrow = store.classes.find((of) => of.class === "narrow") ?? store.classes[0];
  const ruled = sum(all) - all.unmatched;
  return [
    tile("Decisions", el("span", { "data-figure": "decisions" }, count(sum(all))), `${rate((last("passed") ?? 0) + (last("denied") ?? 0))} a second`, "since the start"),
    tile("Denied", el("span", { "data-figure": "denied" }, count(denied(all))), `${rate(last("denied"))} a second`, `${share(denied(all), sum(all))} of all`),
    tile("Decided in Envoy", el("span", { "data-figure": "in-envoy" }, share(all.in_envoy, ruled)), `${count(all.in_envoy)} without a call`),
    tile(
      "Counters",
      narrow ? share(narrow.occupied, narrow.nodes) : "–",
      narrow && `${count(narrow.occupied)} of ${count(narrow.nodes)} nodes`,
      fill.length > 1 && fill.join(", "),
      store.refused > 0 && el("span", { class: "bad" }, `${count(store.refused)} refused for lack of room`),
      store.evicted_live > 0 && el("span", { class: "bad" }, `${count(store.evicted_live)} live ones evicted`),
    ),
    tile(
      "Sidecar",
      answer.workers ? `${answer.workers.serving} of ${answer.workers.of}` : "1",
      answer.workers ? "worker processes serve" : "process serves",
      `version ${answer.version}`,
      `started ${ago(answer.started_ms, answer.now_ms)}`,
    ),
    tile(
      "Limits",
      el("a", { href: "#/limits" }, count(limits.limits)),
      `in ${counted(limits.domains, "domain")}`,
      limits.current ? `read ${ago(limits.loaded_ms, answer.now_ms)}` : el("span", { class: "bad" }, limits.mistakes ? `the last ones have ${counted(limits.mistakes, "mistake")}; old ones are in force` : "not the last ones of their source"),
    ),
    answer.shared && tile("Shared counters", answer.shared.up ? "answer" : el("span", { class: "bad" }, "do not answer"), `${count(answer.shared.commands)} commands`, answer.shared.failed > 0 && `${count(answer.shared.failed)} failed`),
    answer.cold &&
      tile(
        "Cold counters",
        answer.cold.up ? el("span", { "data-figure": "cold" }, count(answer.cold.moved)) : el("span", { class: "bad" }, "do not answer"),
        answer.cold.up && "moved to databases since the start",
        `${count(answer.cold.fetched)} came back`,
        `${share(answer.cold.spared, answer.cold.spared + answer.cold.fetched_in_vain)} of new ones without a look-up`,
        answer.cold.without_state > 0 && el("span", { class: "bad" }, `${count(answer.cold.without_state)} decided without their state`),
      ),
    answer.statistics && !answer.statistics.up && tile("Statistics", el("span", { class: "bad" }, "not written"), "the database does not take them"),
  ];
}

function warnings(answer) {
  const lines = [
    answer.failing && `Nothing is decided: ${answer.failing}.`,
    answer.degraded && `Degraded: ${answer.degraded}.`,
    answer.shadow && "Nothing is denied: the sidecar runs with --shadow-mode.",
    answer.unknown_domain > 0 && `${count(answer.unknown_domain)} descriptors were of a domain that no limits file has.`,
  ];
  return lines.filter(Boolean).map((line) => el("p", { class: answer.failing ? "bad" : "warn" }, line));
}

const COLUMNS = [
  ["Domain", ""],
  ["Passed/s", "number"],
  ["Denied/s", "number"],
  ["Allowed", "number"],
  ["Denied", "number"],
  ["By another limit", "number"],
  ["Only reported", "number"],
  ["No rule", "number"],
  ["In Envoy", "number"],
];

function row(of) {
  const lines = history.domains.get(of.domain);
  return [
    el("a", { href: `#/rules?${new URLSearchParams({ domain: of.domain })}` }, value(of.domain)),
    rate(lines?.passed.at(-1)),
    rate(lines?.denied.at(-1)),
    count(of.allowed),
    count(of.denied),
    count(of.denied_elsewhere),
    count(of.shadowed),
    of.unmatched ? el("a", { href: "#/top?rule=none" }, count(of.unmatched)) : "0",
    share(of.in_envoy, sum(of) - of.unmatched),
  ];
}

export function show(main, view) {
  const warn = el("div", { role: "status" });
  const figures = el("div", { class: "tiles" });
  const all = view.chart(new Chart("All domains", LINES, { height: 220, format: rate }));
  const charts = el("div", { class: "charts" }, all.element);
  const domains = el("div", {});
  const per = new Map();
  main.append(
    warn,
    figures,
    charts,
    section("Domains", domains),
    el("p", { class: "note" }, "A request with several descriptors counts once for each. What the filter decides in Envoy comes with its reports, after five seconds at most. Charts begin when this page is opened."),
  );
  const draw = (answer) => {
    replace(warn, warnings(answer));
    replace(figures, tiles(answer));
    all.set(series(""));
    // A chart of the only domain would be the same again.
    const shown = answer.domains.length > 1 ? answer.domains.slice(0, CHARTS_MAX) : [];
    for (const { domain } of shown) {
      if (!per.has(domain)) {
        const chart = view.chart(new Chart(value(domain), LINES, { height: 150, format: rate }));
        per.set(domain, chart);
        charts.append(chart.element);
      }
      per.get(domain).set(series(domain));
    }
    replace(domains, table("Domains", COLUMNS, answer.domains.map(row), "There are no domains."), answer.more_domains > 0 && el("p", { class: "note" }, `and ${count(answer.more_domains)} more with fewer hits`));
    domains.title = `as of ${moment(answer.now_ms)}, since ${span(answer.now_ms - answer.started_ms)}`;
  };
  view.poll(async () => {
    const answer = await ask("/v1/overview", {}, view.signal);
    note(answer);
    draw(answer);
  });
}
