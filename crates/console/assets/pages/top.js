// Who is limited now: the hottest and the most denied descriptors.

import { ask } from "../ask.js";
import { choice, el, entries, field, keyLink, replace, table, value } from "../dom.js";
import { count, plain, rate, share, span } from "../text.js";

export const title = "Top";

const ORDERS = [["denied", "most denied"], ["hits", "hottest"]];
const ROWS = [["20", "20"], ["50", "50"], ["100", "100"]];
const MET = { no_rule: "no rule", unknown_domain: "unknown domain", override: "its own limit", replaced: "replaced by another rule" };
const COLUMNS = [["Descriptor", ""], ["Denied/s", "number"], ["Passed/s", "number"], ["Denied", "number"], ["Passed", "number"], ["In Envoy", "number"], ["Left", "number"], ["Retry", "number"], ["Rule", ""], ["", ""]];

function row(of) {
  const rule = of.rule == null ? el("span", { class: "note" }, MET[of.met] ?? of.met) : el("a", { class: "path", href: `#/rules?${new URLSearchParams({ find: of.rule })}` }, plain(of.rule));
  const more = of.rate.error > 0.1 * (of.rate.allowed + of.rate.denied) ? "+" : "";
  return [
    el("span", {}, value(of.domain), " ", entries(of.entries)),
    el("span", { class: of.rate.denied > 0 ? "bad" : null }, `${rate(of.rate.denied + of.rate.denied_elsewhere)}${more}`),
    `${rate(of.rate.allowed)}${more}`,
    el("span", { "data-figure": "denied" }, count(of.hits.denied)),
    el("span", { "data-figure": "allowed" }, count(of.hits.allowed)),
    share(of.in_envoy, 1),
    of.remaining == null ? "–" : `${count(of.remaining)}/${count(of.capacity)}`,
    of.retry_ms ? span(of.retry_ms) : "–",
    rule,
    // A name that was cut leads to another counter.
    of.cut ? el("span", { class: "note" }, "cut") : keyLink(of.domain, of.entries, "Key"),
  ];
}

export function show(main, view) {
  const get = (name, or) => view.parameters.get(name) ?? or;
  const state = { order: get("order", "denied"), n: get("n", "20"), domain: get("domain", ""), rule: get("rule", "") };
  if (!ORDERS.some(([order]) => order === state.order)) state.order = "denied";
  const holder = el("div", {});
  const more = el("p", { class: "note" });
  let again = () => {};
  const changed = (change) => {
    Object.assign(state, change);
    view.replace(state);
    again();
  };
  const text = (name, label) => {
    const { input, label: labelled } = field(label, { value: state[name], maxlength: 1000 });
    input.addEventListener("change", () => changed({ [name]: input.value }));
    return labelled;
  };
  main.append(
    el("div", { class: "bar" }, choice("Order", ORDERS, state.order, (order) => changed({ order })), choice("Rows", ROWS, state.n, (n) => changed({ n })), text("domain", "Domain"), text("rule", "Rule; none: met no rule")),
    holder,
    more,
    el("p", { class: "note" }, "Rates decay over ten seconds. A + after a rate: it may be higher by a tenth or more."),
  );
  again = view.poll(async () => {
    const parameters = Object.fromEntries(Object.entries(state).filter(([, own]) => own !== ""));
    try {
      const answer = await ask("/v1/top", parameters, view.signal);
      replace(holder, table("Descriptors", COLUMNS, answer.descriptors.map(row), "Nobody now."));
      more.textContent = answer.more ? `and ${count(answer.more)} more are known` : "";
    } catch (error) {
      if (error.status !== 404) throw error;
      replace(holder, el("p", { class: "empty" }, "Nothing is known: the sidecar runs with ", el("code", {}, "--top off"), "."));
    }
  });
}
