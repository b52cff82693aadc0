// One key: what it meets, what is left, its history; and its counters, erased or set.

import { Refused, ask, change, decisions, hasToken } from "../ask.js";
import { Chart } from "../charts.js";
import { askToken, confirmed } from "../dialogs.js";
import { choice, el, entries, field, replace, section, table, value } from "../dom.js";
import { count, descriptor, plain, span } from "../text.js";
import { points } from "./statistics.js";

export const title = "Key";

const DECISIONS_MAX = 100;
const MATCHES_MAX = 8;

// `key=value` of each line.
function parse(text) {
  const lines = text.split("\n").filter((line) => line !== "");
  return lines.map((line) => {
    const at = line.indexOf("=");
    return at > 0 ? { key: line.slice(0, at), value: line.slice(at + 1) } : null;
  });
}

function form(view, state, go) {
  const domain = field("Domain", { value: state.domain, required: true, maxlength: 1000 });
  const text = el("textarea", { rows: Math.min(6, Math.max(2, state.entries.length)), spellcheck: "false", autocomplete: "off", required: true });
  text.value = state.entries.map(({ key, value: own }) => `${key}=${own}`).join("\n");
  const message = el("span", { class: "bad", role: "alert" });
  return el(
    "form",
    {
      class: "bar",
      onsubmit: (event) => {
        event.preventDefault();
        const of = parse(text.value);
        const wrong = of.length === 0 || of.includes(null);
        message.textContent = wrong ? "Each line is key=value." : "";
        if (!wrong) go(domain.input.value, of);
      },
    },
    domain.label,
    el("label", { class: "field wide" }, el("span", {}, "Entries of the descriptor, key=value, one a line, in their order"), text),
    el("button", { class: "primary" }, "Look"),
    message,
  );
}

function verdict(answer) {
  if (answer.rule == null) return el("span", { class: "mark" }, "passes: meets no rule");
  if (answer.unlimited) return el("span", { class: "mark good" }, "passes: unlimited");
  return answer.verdict === "allow" ? el("span", { class: "mark good" }, "the next hit passes") : el("span", { class: "mark bad" }, "the next hit is denied");
}

function meets(answer) {
  const rows = answer.levels.map((level) => [
    entries([level]),
    level.matched == null ? el("span", { class: "bad" }, "nothing matches") : value(level.matched),
    level.rule ? el("span", { class: "path" }, plain(level.rule)) : "",
    level.shared == null ? "" : ["as ", value(level.shared)],
  ]);
  return section(
    "What it meets",
    el("p", {}, verdict(answer), " ", answer.rule && el("span", { class: "path" }, plain(answer.rule))),
    table("How each entry matches", [["Entry", ""], ["Matched by", ""], ["Rule here", ""], ["Counter shared", ""]], rows, "The domain is unknown."),
    answer.hints.map((hint) => el("p", { class: "note" }, value(hint))),
  );
}

function meter(left, capacity) {
  const used = capacity - left;
  const bar = el("meter", { min: 0, max: Math.max(1, capacity), value: Math.min(used, capacity), high: capacity * 0.8, "aria-label": "used" });
  return bar;
}

function limitsOf(answer, setOne) {
  const isShared = answer.limits.some((limit) => limit.held != null);
  const rows = answer.limits.map((limit) => [
    el("span", {}, limit.name ? [value(limit.name), ": "] : "", limit.words, el("br"), el("span", { class: "note" }, limit.algorithm.replaceAll("_", " "), limit.enforcement === "enforce" ? "" : `, ${limit.enforcement}`)),
    el("span", { "data-figure": "left" }, count(limit.left)),
    count(limit.capacity),
    meter(limit.left, limit.capacity),
    limit.more_in_ms == null ? "all there" : `in ${span(limit.more_in_ms)}`,
    limit.verdict === "deny" ? el("span", { class: "bad" }, limit.retry_ms == null ? "denied" : `denied for ${span(limit.retry_ms)}`) : "passes",
    ...(isShared ? [count(limit.held)] : []),
    el("button", { type: "button", "data-focus": `set ${limit.path}`, onclick: () => setOne(limit) }, "Set…"),
  ]);
  const columns = [["Limit", ""], ["Left", "number"], ["Of", "number"], ["Used", ""], ["More", "time"], ["Next hit", ""], ...(isShared ? [["Held here", "number"]] : []), ["", ""]];
  return table("Limits of the key", columns, rows, "It has no counter.");
}

function event({ decision }) {
  const { verdict: of, decided_in: where, rule, hits, remaining, capacity } = decision;
  const left = remaining == null ? "" : `, left ${count(remaining)} of ${count(capacity)}`;
  return el("li", {}, el("span", { class: of === "denied" ? "bad" : null }, of.replaceAll("_", " ")), ` in ${where === "envoy" ? "Envoy" : "the sidecar"}: ${hits === 1 ? "1 hit" : `${count(hits)} hits`}${left} `, rule && el("span", { class: "path" }, plain(rule)));
}

const RANGES = [["1h", "an hour"], ["1d", "a day"], ["7d", "a week"], ["31d", "a month"], ["366d", "a year"]];

// Charts of the statistics that have the keys of the descriptor.
function history(view, holder) {
  let shown = "";
  let last = "1d";
  let found = [];
  const chart = view.chart(new Chart("Hits", [{ label: "allowed", colour: "--chart-allowed", fill: true }, { label: "denied", colour: "--chart-denied" }]));
  const name = el("p", { class: "note" });
  const draw = async () => {
    const statistic = found.find((of) => of.name === shown);
    if (!statistic) return;
    const parameters = new URLSearchParams({ last });
    for (const { key, value: own } of statistic.by) parameters.append(`key.${key}`, own);
    name.replaceChildren(`Statistic ${statistic.name}: `, entries(statistic.by));
    const answer = await ask(`/v1/statistics/${encodeURIComponent(shown)}`, parameters, view.signal);
    chart.set(points(answer, answer.series[0]));
  };
  return async (statistics) => {
    const names = statistics.map((of) => of.name).join("\n");
    const isNew = names !== found.map((of) => of.name).join("\n") || !holder.hasChildNodes();
    found = statistics;
    if (isNew) {
      if (!statistics.some((of) => of.name === shown)) shown = [...statistics].sort((a, b) => b.by.length - a.by.length)[0]?.name ?? "";
      if (!shown) {
        holder.replaceChildren(el("p", { class: "empty" }, "No statistic of the limits has the keys of this descriptor; ", el("code", {}, "statistics"), " in a limits file declares one."));
        return;
      }
      const one = choice("Statistic", statistics.map((of) => [of.name, of.name]), shown, (next) => ((shown = next), view.attempt(draw)));
      const range = choice("Range", RANGES, last, (next) => ((last = next), view.attempt(draw)));
      holder.replaceChildren(el("div", { class: "bar" }, one, range), chart.element, name);
    }
    try {
      await draw();
    } catch (error) {
      if (!(error instanceof Refused) || error.status === 401 || error.status === 0) throw error;
      name.textContent = error.message;
    }
  };
}

export function show(main, view) {
  const state = { domain: view.parameters.get("domain") ?? "", entries: parse(view.parameters.getAll("entry").join("\n")).filter(Boolean) };
  // Entries may have line ends, which the form cannot have.
  if (view.parameters.has("entry")) {
    state.entries = view.parameters.getAll("entry").map((text) => ({ key: text.slice(0, Math.max(0, text.indexOf("="))), value: text.slice(text.indexOf("=") + 1) }));
  }
  const go = (domain, of) => {
    const query = new URLSearchParams({ domain });
    for (const { key, value: own } of of) query.append("entry", `${key}=${own}`);
    const next = `#/key?${query}`;
    if (location.hash === next) again();
    else location.hash = next;
  };
  let again = () => {};
  main.append(form(view, state, go));
  if (!state.domain || state.entries.length === 0) {
    main.append(el("p", { class: "note" }, "A key is one descriptor as the filter sends it: all of its entries, in their order. ", el("a", { href: "#/top" }, "Top"), " has links to those in use."));
    return;
  }
  const found = el("div", {});
  const limits = el("div", {});
  const done = el("p", { role: "status" });
  const past = el("div", {});
  const seen = el("ol", { class: "log", tabindex: 0, "aria-label": "Decisions" });
  const body = { domain: state.domain, entries: state.entries };
  const what = `${plain(state.domain)} ${descriptor(state.entries)}`;

  const make = async (path, more, say) => {
    if (!hasToken() && !(await askToken("Changes of counters take the token, on this machine, too."))) return;
    try {
      say(await change(path, { ...body, ...more }));
      done.className = "";
    } catch (error) {
      if (error.status === undefined) throw error;
      done.className = "bad";
      done.textContent = `Nothing was changed: ${error.message}`;
      if (error.status === 401) askToken("The sidecar has another token.");
    }
    again();
  };
  const note = "A filter in Envoy may go by tokens or a denial that it holds for a moment longer.";
  const erase = async () => {
    if (await confirmed("Erase the counters?", `All limits of ${what} start anew.`, note, "Erase")) {
      await make("/v1/key/erase", {}, ({ erased }) => (done.textContent = erased ? "Erased." : "There was nothing to erase."));
    }
  };
  const left = field("Left", { type: "number", min: 0, step: 1, inputmode: "numeric" });
  let chosen = null;
  const setForm = el(
    "form",
    {
      class: "bar",
      hidden: true,
      onsubmit: async (event) => {
        event.preventDefault();
        const number = Number(left.input.value);
        const isSure = await confirmed("Set what is left?", `${plain(chosen.path)}: ${count(number)} of ${count(chosen.capacity)} hits are left for ${what}.`, note, "Set");
        if (!isSure) return;
        setForm.hidden = true;
        await make("/v1/key/set", { limit: chosen.path, left: number }, (made) => (done.textContent = `Set: ${count(made.left)} left, before ${count(made.before)}.`));
      },
    },
    left.label,
    el("button", { class: "danger" }, "Set"),
    el("button", { type: "button", onclick: () => (setForm.hidden = true) }, "Cancel"),
  );
  const setOne = (limit) => {
    chosen = limit;
    setForm.hidden = false;
    left.label.firstChild.textContent = `Left under ${limit.name ? plain(limit.name) : "the limit"}, up to ${count(limit.capacity)}`;
    left.input.max = limit.capacity;
    left.input.value = limit.left;
    left.input.focus();
  };
  const eraseButton = el("button", { type: "button", class: "danger", onclick: erase }, "Erase the counters…");
  const statistics = history(view, past);
  main.append(found, section("What is left", limits, el("div", { class: "bar" }, eraseButton), setForm, done), section("History", past), section("Decisions now", seen, el("p", { class: "note" }, "A sample of the decisions since this page was opened.")));
  seen.append(el("li", { class: "empty" }, "None yet."));

  let latest = null;
  let pastAgain = null;
  again = view.poll(async () => {
    const parameters = new URLSearchParams({ domain: state.domain });
    for (const { key, value: own } of state.entries) parameters.append("entry", `${key}=${own}`);
    const answer = await ask("/v1/key", parameters, view.signal);
    replace(found, meets(answer));
    replace(limits, limitsOf(answer, setOne));
    eraseButton.disabled = answer.limits.length === 0;
    latest = answer;
    // Which statistics there are is known now.
    pastAgain ??= view.poll(() => statistics(latest.statistics), 5000);
  });
  let after = null;
  view.poll(async () => {
    const parameters = new URLSearchParams();
    for (const { key, value: own } of state.entries.slice(0, MATCHES_MAX)) parameters.append("match", `${key}=${own}`);
    if (after) parameters.set("after", after);
    let events;
    try {
      events = await decisions(parameters, view.signal);
    } catch (error) {
      // Without what knows them the rest of the page is as good.
      if (error.status === 404) return;
      throw error;
    }
    if (events.length === 0) return;
    if (!after) seen.replaceChildren();
    after = events.at(-1).id;
    const own = events.filter(({ decision }) => decision.domain === state.domain);
    seen.prepend(...own.reverse().map(event));
    while (seen.children.length > DECISIONS_MAX) seen.lastChild.remove();
  });
}
