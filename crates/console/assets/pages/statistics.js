// Statistics over time, from an hour to years.

import { ask } from "../ask.js";
import { Chart } from "../charts.js";
import { choice, el, field, replace, section, table, value } from "../dom.js";
import { count, moment } from "../text.js";

export const title = "Statistics";

const RANGES = [["1h", "an hour"], ["6h", "6 hours"], ["1d", "a day"], ["7d", "a week"], ["31d", "a month"], ["92d", "3 months"], ["366d", "a year"], ["1830d", "5 years"], ["3660d", "10 years"]];
const STEPS = [["auto", "by the range"], ["1m", "a minute"], ["5m", "5 minutes"], ["1h", "an hour"], ["1d", "a day"], ["1w", "a week"]];
const ORDERS = [["requests", "requests"], ["allowed", "allowed"], ["denied", "denied"]];
const TOPS = [["10", "10"], ["20", "20"], ["50", "50"], ["100", "100"]];
const SECONDS = { m: 60, h: 3600, d: 86400, w: 604800 };
const POLL_MS = 10000;

function stepSeconds(step) {
  return Number.parseInt(step, 10) * SECONDS[step.at(-1)];
}

// The points of a series for a chart, with zeros where nothing was counted.
export function points(answer, series) {
  const step = stepSeconds(answer.step);
  const [times, allowed, denied] = [[], [], []];
  const add = (at, of) => {
    times.push(at);
    allowed.push(of?.allowed ?? 0);
    denied.push(of?.denied ?? 0);
  };
  let next = answer.from;
  for (const point of series?.points ?? []) {
    // One zero before and one after a gap draw it.
    if (point.start - next >= step) {
      add(next, null);
      if (point.start - next > step) add(point.start - step, null);
    }
    add(point.start, point);
    next = point.start + step;
  }
  if (next < answer.to) {
    add(next, null);
    if (answer.to - next > step) add(answer.to - step, null);
  }
  return [times, allowed, denied];
}

function name(series) {
  if (series.other) return el("span", { class: "note" }, "all others, for which there was no room");
  const pairs = Object.entries(series.values);
  return pairs.length ? el("span", { class: "entries" }, pairs.map(([key, own]) => el("span", { class: "entry" }, value(key, "b"), "=", value(own)))) : "all";
}

export function show(main, view) {
  const get = (of, or) => view.parameters.get(of) ?? or;
  const state = { name: get("name", ""), last: get("last", "1d"), step: get("step", "auto"), by: get("by", ""), order: get("order", "requests"), top: get("top", "20"), where: get("where", "") };
  const bar = el("div", { class: "bar" });
  const holder = el("div", {});
  const message = el("p", { role: "status" });
  const chart = view.chart(new Chart("Hits", [{ label: "allowed", colour: "--chart-allowed", fill: true }, { label: "denied", colour: "--chart-denied" }], { height: 260 }));
  const caption = chart.element.querySelector("figcaption");
  let statistics = null;
  let shownSeries = 0;
  let again = () => {};

  const changed = (change) => {
    Object.assign(state, change);
    shownSeries = 0;
    view.replace(state);
    again();
  };
  const controls = () => {
    const statistic = statistics.find((of) => of.name === state.name);
    const series = [["", "one of all"], ...statistic.by.map((key) => [key, `one for each ${key}`])];
    if (statistic.by.length > 1) series.push([statistic.by.join(","), `one for each ${statistic.by.join(" and ")}`]);
    if (!series.some(([by]) => by === state.by)) state.by = "";
    const where = field("Only with, key=value and more with &", { value: state.where, maxlength: 2000, placeholder: statistic.by.map((key) => `${key}=…`).join("&") });
    where.input.addEventListener("change", () => changed({ where: where.input.value }));
    where.label.classList.add("wide");
    bar.replaceChildren(
      choice("Statistic", statistics.map((of) => [of.name, `${of.name} (${of.domain})`]), state.name, (next) => (changed({ name: next, by: "", where: "" }), controls())),
      choice("Range", RANGES, state.last, (last) => changed({ last })),
      choice("Points of", STEPS, state.step, (step) => changed({ step })),
      choice("Series", series, state.by, (by) => changed({ by })),
      choice("Largest by", ORDERS, state.order, (order) => changed({ order })),
      choice("Rows", TOPS, state.top, (top) => changed({ top })),
      where.label,
    );
  };
  const draw = (answer) => {
    const hasDistinct = answer.series.some((of) => of.total.distinct !== undefined);
    const shown = answer.series[shownSeries] ?? answer.series[0];
    chart.set(points(answer, shown));
    caption.replaceChildren("Hits of ", shown ? name(shown) : "nothing");
    const columns = [["Series", ""], ["Allowed", "number"], ["Denied", "number"], ["Hits", "number"], ...(hasDistinct ? [["Distinct", "number"]] : []), ["", ""]];
    const rows = answer.series.map((of, at) => [
      name(of),
      el("span", { "data-figure": "allowed" }, count(of.total.allowed)),
      el("span", { "data-figure": "denied" }, count(of.total.denied)),
      count(of.total.hits),
      ...(hasDistinct ? [count(of.total.distinct)] : []),
      el("button", { type: "button", class: "plain", "data-focus": `series ${at}`, "aria-pressed": of === shown, onclick: () => ((shownSeries = at), draw(answer)) }, of === shown ? "shown" : "show"),
    ]);
    replace(
      holder,
      table("Series", columns, rows, "Nothing was counted in this time."),
      el("p", { class: "note" }, `${moment(answer.from * 1000)} to ${moment(answer.to * 1000)}, each point covers ${answer.step}.`, answer.more ? " There are more series." : ""),
    );
  };
  main.append(bar, message, chart.element, section("Series", holder), el("p", { class: "note" }, "Counts are written every 15 seconds."));
  again = view.poll(async () => {
    try {
      if (!statistics) {
        const found = (await ask("/v1/statistics", {}, view.signal)).statistics;
        if (found.length === 0) {
          message.replaceChildren("The limits declare no statistics. ", el("code", {}, "statistics: [{ name: calls, by: [app] }]"), " beside the descriptors of a limits file counts the calls of each app.");
          return;
        }
        statistics = found;
        if (!found.some((of) => of.name === state.name)) state.name = found[0].name;
        controls();
      }
      const parameters = new URLSearchParams(state.where);
      parameters.set("last", state.last);
      parameters.set("step", state.step);
      parameters.set("order", state.order);
      if (state.by) {
        parameters.set("by", state.by);
        parameters.set("top", state.top);
      }
      draw(await ask(`/v1/statistics/${encodeURIComponent(state.name)}`, parameters, view.signal));
      message.replaceChildren();
      message.className = "";
    } catch (error) {
      if (error.status === 404 && !statistics) {
        message.replaceChildren("No statistics are kept. Start the sidecar with ", el("code", {}, "--statistics"), " or with a data directory.");
      } else if (error.status === 400 || error.status >= 500) {
        // A mistake in what was asked for, or a database that is away.
        message.className = "bad";
        message.textContent = error.message;
      } else {
        throw error;
      }
    }
  }, POLL_MS);
}
