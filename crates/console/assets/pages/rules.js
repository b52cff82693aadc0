// The rules as a tree, with their limits in words and their use.

import { ask } from "../ask.js";
import { choice, el, field, replace, value } from "../dom.js";
import { count, plain, rate, share } from "../text.js";

export const title = "Rules";

const ORDERS = [["path", "by path"], ["hits", "busiest first"], ["denied", "most denied first"]];
const FIND_WAIT_MS = 250;

// A tree of the rules: a node for each domain and level, in the order of the list.
function tree(rules) {
  const root = { children: new Map() };
  for (const rule of rules) {
    let node = root;
    const steps = [{ name: rule.domain, level: null }, ...rule.levels.map((level) => ({ name: JSON.stringify(level), level }))];
    for (const { name, level } of steps) {
      if (!node.children.has(name)) node.children.set(name, { name, level, domain: rule.domain, children: new Map() });
      node = node.children.get(name);
    }
    node.rule = rule;
  }
  return root;
}

const WORDS = { is: "=", prefix: "begins with", regex: "matches", cidr: "in" };

function levelText({ key, by, value: own }) {
  if (!by) return el("span", { class: "entry" }, value(key, "b"));
  return el("span", { class: "entry" }, value(key, "b"), ` ${WORDS[by] ?? by} `, value(own));
}

function use(counts, before, seconds) {
  const per = before ? Math.max(0, (counts.hits - before.hits) / seconds) : null;
  return el(
    "span",
    { class: "use" },
    el("span", {}, el("b", {}, rate(per)), " a second"),
    el("span", {}, el("b", {}, count(counts.hits)), " hits"),
    el("span", { class: counts.over ? "bad" : null }, el("b", {}, count(counts.over)), " over"),
    counts.denied_elsewhere > 0 && el("span", {}, el("b", {}, count(counts.denied_elsewhere)), " denied by others"),
    el("span", {}, el("b", {}, share(counts.in_envoy, counts.hits)), " in Envoy"),
  );
}

function ruleParts(rule, last, seconds) {
  const marks = [
    rule.unlimited && el("span", { class: "mark" }, "unlimited"),
    rule.enforcement === "shadow" && el("span", { class: "mark" }, "shadow: only reports"),
    rule.enforcement === "quota" && el("span", { class: "mark" }, "quota"),
  ];
  const limits = rule.limits.map((limit) => {
    const name = limit.name ? [value(limit.name), ": "] : [];
    const algorithm = limit.algorithm === "fixed_window" ? "" : ` (${limit.algorithm.replaceAll("_", " ")})`;
    const over = rule.limits.length > 1 ? `, ${count(limit.counts.over)} over this one` : "";
    return el("div", { class: "limit" }, ...name, `${limit.words}${algorithm}${limit.count_denied ? ", denied hits count" : ""}${over}`);
  });
  return { marks, use: use(rule.counts, last.get(rule.path), seconds), limits };
}

// How a node was opened or closed by hand, over answers.
const opened = new Map();

function node(of, path, depth, context) {
  const head = of.level ? levelText(of.level) : value(of.domain, "b");
  const parts = of.rule ? ruleParts(of.rule, context.last, context.seconds) : { marks: [], use: null, limits: [] };
  const line = el("span", { class: "rule" }, head, parts.marks, parts.use);
  if (of.children.size === 0) return el("li", { class: "leaf" }, line, parts.limits);
  const isOpen = opened.get(path) ?? (depth < 3 || context.isFound);
  const children = [...of.children.values()].map((child) => node(child, `${path}/${child.name}`, depth + 1, context));
  // The event of a toggle comes later, and an answer may have replaced the element by then. That of a click comes before it.
  const click = () => opened.set(path, !details.open);
  const details = el("details", { open: isOpen }, el("summary", { "data-focus": path, onclick: click }, line, parts.limits), el("ul", {}, children));
  // A search in the page opens it without a click.
  details.addEventListener("toggle", () => details.open !== isOpen && opened.set(path, details.open));
  return el("li", {}, details);
}

export function show(main, view) {
  const state = { domain: view.parameters.get("domain") ?? "", find: view.parameters.get("find") ?? "", order: view.parameters.get("order") ?? "path" };
  if (!ORDERS.some(([order]) => order === state.order)) state.order = "path";
  const holder = el("ul", { class: "tree panel" });
  const summary = el("p", { class: "note", role: "status" });
  const domains = el("div", {});
  let last = new Map();
  let at = 0;
  let known = "";

  const answer = async () => {
    const parameters = { order: state.order };
    if (state.domain) parameters.domain = state.domain;
    if (state.find) parameters.find = state.find;
    const found = await ask("/v1/rules", parameters, view.signal);
    const now = performance.now();
    const context = { last, seconds: (now - at) / 1000, isFound: state.find !== "" };
    const root = tree(found.rules);
    replace(holder, [...root.children.values()].map((child) => node(child, child.name, 1, context)));
    if (found.rules.length === 0) holder.append(el("li", { class: "empty" }, "No rule is like this."));
    const shown = count(found.rules.length);
    const text = found.more ? `${shown} rules of ${count(found.total)}; ${count(found.more)} more are like this: narrow it down.` : `${shown} of ${count(found.total)} rules.`;
    if (summary.textContent !== text) summary.textContent = text;
    last = new Map(found.rules.map((rule) => [rule.path, rule.counts]));
    at = now;
    if (known !== found.domains.join("\n")) {
      known = found.domains.join("\n");
      const options = [["", "all"], ...found.domains.map((domain) => [domain, plain(domain)])];
      domains.replaceChildren(choice("Domain", options, state.domain, (domain) => changed({ domain })));
    }
  };
  let ask_again = () => {};
  const changed = (change) => {
    Object.assign(state, change);
    view.replace(state);
    ask_again();
  };
  const find = field("Find in the path", { type: "search", value: state.find, maxlength: 200 });
  let timer = null;
  find.input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => changed({ find: find.input.value }), FIND_WAIT_MS);
  });
  find.label.classList.add("wide");
  main.append(
    el("div", { class: "bar" }, domains, find.label, choice("Order", ORDERS, state.order, (order) => changed({ order }))),
    summary,
    holder,
    el("p", { class: "note" }, "Over: hits that had no room. Denied by others: hits that had room here, and another limit of their request denied them. Counts are since the start of the sidecar."),
  );
  ask_again = view.poll(answer);
}
