// Text and numbers as they are shown. Values of clients are only ever text: what would not be seen, or would move what is beside it,
// is spelt out.

// Control characters, marks that turn or join text, and invisible ones.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202f\u205f-\u206f\u3164\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

// A value with every unseen character as an escape.
export function plain(value) {
  return String(value).replace(UNSEEN, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

// Entries of a descriptor as commands write them.
export function descriptor(entries) {
  return entries.map(({ key, value }) => `${plain(key)}=${plain(value)}`).join(" ");
}

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

export function count(number) {
  return number == null ? "–" : whole.format(number);
}

// A number with its noun.
export function counted(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

// A number for an axis.
export function compact(number) {
  return number == null ? "–" : short.format(number);
}

// Hits a second.
export function rate(number) {
  if (number == null || !Number.isFinite(number)) return "–";
  if (number === 0) return "0";
  if (number < 0.1) return "<0.1";
  return number < 10 ? number.toFixed(1) : whole.format(number);
}

export function share(part, all) {
  if (!all) return "–";
  const percent = (100 * part) / all;
  if (percent === 0) return "0%";
  if (percent > 0 && percent < 0.1) return "<0.1%";
  return percent < 10 || (percent > 99 && percent < 100) ? `${percent.toFixed(1)}%` : `${Math.round(percent)}%`;
}

// A span of time in its two largest units.
export function span(ms) {
  if (ms == null) return "–";
  if (ms < 1000) return `${Math.ceil(ms)} ms`;
  const seconds = Math.ceil(ms / 1000);
  const units = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];
  const at = units.findIndex(([length]) => seconds >= length);
  const [length, name] = units[at];
  const rest = units[at + 1] ? Math.floor((seconds % length) / units[at + 1][0]) : 0;
  return rest ? `${Math.floor(seconds / length)}${name} ${rest}${units[at + 1][1]}` : `${Math.floor(seconds / length)}${name}`;
}

export function ago(ms, now) {
  return ms == null ? "never" : `${span(Math.max(0, now - ms))} ago`;
}

const pad = (number) => String(number).padStart(2, "0");

// A moment in the time zone of the reader.
export function moment(ms) {
  const d = new Date(ms);
  return `${d.getFullYear()}-${pad(d.getMonth() + 1)}-${pad(d.getDate())} ${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}`;
}
