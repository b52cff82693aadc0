// The limits in force: where they are from, what the last reloads changed, and mistakes.

import { ask } from "../ask.js";
import { el, replace, section, table, value } from "../dom.js";
import { ago, count, counted, moment, plain } from "../text.js";

export const title = "Limits";

const when = (ms) => el("time", { datetime: new Date(ms).toISOString() }, `${moment(ms)}, ${ago(ms, Date.now())}`);

function source(of) {
  const state = of.current ? el("span", { class: "mark good" }, of.arrived ? "in force" : "awaited") : el("span", { class: "mark bad" }, "old ones in force");
  return [value(of.name), state, of.refused ? `refused ${ago(of.refused.at_ms, Date.now())}` : ""];
}

function mistakes(of) {
  if (!of.refused) return null;
  const { at_ms: at, mistakes: all, more } = of.refused;
  return section(
    "Mistakes",
    el("p", { class: "bad" }, value(of.name), " was refused ", when(at), ". The limits before stay in force."),
    el("ul", { class: "log" }, all.map((mistake) => el("li", {}, plain(mistake)))),
    more > 0 && el("p", { class: "note" }, `and ${count(more)} more`),
  );
}

function reload(of) {
  const rows = of.changes.map((change) => [el("span", { class: "path" }, plain(change.path)), change.kind, plain(change.what), plain(change.means)]);
  return el(
    "div",
    {},
    el("h3", {}, when(of.at_ms), `: ${counted(of.changes.length + of.more, "change")}, ${counted(of.limits, "limit")} since`),
    table("Changes", [["Path", ""], ["", ""], ["What", ""], ["For callers", ""]], rows),
    of.more > 0 && el("p", { class: "note" }, `and ${count(of.more)} more`),
  );
}

export function show(main, view) {
  const holder = el("div", {});
  main.append(holder);
  view.poll(async () => {
    const answer = await ask("/v1/limits", {}, view.signal);
    replace(
      holder,
      el("p", {}, `In force: ${counted(answer.limits, "limit")} in ${counted(answer.domains, "domain")}. Last read: `, answer.loaded_ms ? when(answer.loaded_ms) : "never", "."),
      section("Sources", table("Sources", [["Source", ""], ["State", ""], ["", ""]], answer.sources.map(source))),
      answer.sources.map(mistakes),
      section("What changed", answer.reloads.length ? answer.reloads.map(reload) : el("p", { class: "empty" }, "Nothing since the start.")),
      el("p", { class: "note" }, "Limits are read again when their files change. ", el("code", {}, "tidegate check --diff"), " says before what a change means."),
    );
  });
}
