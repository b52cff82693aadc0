// Charts over time, drawn by uPlot in the colours of the theme.

import { el } from "./dom.js";
import { compact, moment } from "./text.js";

const probe = document.createElement("span");

// The colour of a variable, as a canvas reads it.
function colour(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.hidden = true;
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

// The same, nearly transparent.
const faint = (name) => colour(name).replace("rgb(", "rgba(").replace(")", ", 0.15)");

const pad = (number) => String(number).padStart(2, "0");

const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
// Between two times along an axis, in seconds: counts have no finer ones.
const STEPS = [1, 5, 10, 30, MINUTE, 5 * MINUTE, 10 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY, 91 * DAY, 365 * DAY];

// Times along an axis: of day, with the date where a new one begins, or dates.
function times(_, ticks, __, ___, step) {
  let day = null;
  return ticks.map((tick) => {
    const at = new Date(tick * 1000);
    const date = `${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
    if (step >= 28 * DAY) return `${at.getFullYear()}-${pad(at.getMonth() + 1)}`;
    if (step >= DAY) return date;
    const clock = `${pad(at.getHours())}:${pad(at.getMinutes())}${step < MINUTE ? `:${pad(at.getSeconds())}` : ""}`;
    const isNew = day !== null && day !== date;
    day = date;
    return isNew ? `${clock}\n${date}` : clock;
  });
}

// The range of times, a minute at least: of one moment alone an axis would be years long.
function minute(_, low, high) {
  const last = high ?? Date.now() / 1000;
  return [Math.min(low ?? last, last - MINUTE), last];
}

const drawn = new Set();

// Draws all charts anew, as after a change of the theme.
export function redraw() {
  for (const chart of drawn) chart.rebuild();
}

// A chart with a title and a legend below it. Series are {label, colour (the name of a variable), fill}; `data` is that of
// uPlot: seconds, then the values of each series.
export class Chart {
  constructor(title, series, { height = 180, format = compact } = {}) {
    this.series = series;
    this.height = height;
    this.format = format;
    this.data = [[], ...series.map(() => [])];
    this.holder = el("div", { class: "chart" });
    this.summary = el("p", { class: "hidden" });
    this.element = el("figure", { class: "panel" }, el("figcaption", {}, title), this.holder, this.summary);
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.holder);
    drawn.add(this);
  }

  set(data) {
    this.data = data;
    if (this.plot) this.plot.setData(data);
    else this.rebuild();
    // What the picture says, for those who do not see it.
    const last = this.series.map(({ label }, at) => `${label} ${this.format(data[at + 1].at(-1))}`);
    this.summary.textContent = data[0].length ? `Last: ${last.join(", ")}.` : "No data yet.";
  }

  resize() {
    const width = Math.floor(this.holder.clientWidth);
    if (!width) return;
    if (!this.plot) this.rebuild();
    else if (width !== this.plot.width) this.plot.setSize({ width, height: this.height });
  }

  rebuild() {
    const width = Math.floor(this.holder.clientWidth);
    this.plot?.destroy();
    this.plot = null;
    if (!width) return;
    const grid = { stroke: colour("--grid"), width: 1 };
    const axis = { stroke: colour("--dim"), grid, ticks: { ...grid, size: 4 }, font: "11px system-ui, sans-serif" };
    const series = this.series.map(({ label, colour: of, fill }) => ({
      label,
      stroke: colour(of),
      width: 1.5,
      fill: fill ? faint(of) : undefined,
      // A line needs two.
      points: { show: (plot) => plot.data[0].length === 1 },
      value: (_, number) => this.format(number),
      spanGaps: false,
    }));
    this.plot = new uPlot(
      {
        width,
        height: this.height,
        series: [{ label: "at", value: (_, at) => (at == null ? "–" : moment(at * 1000)) }, ...series],
        scales: { x: { range: minute }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.08 : 1] } },
        axes: [{ ...axis, space: 70, size: 38, incrs: STEPS, values: times }, { ...axis, size: 46, values: (_, ticks) => ticks.map(this.format) }],
        legend: { live: true },
        cursor: { points: { size: 6 }, drag: { x: false, y: false } },
      },
      this.data,
      this.holder,
    );
  }

  destroy() {
    this.observer.disconnect();
    this.plot?.destroy();
    drawn.delete(this);
  }
}
