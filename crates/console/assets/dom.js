// Elements, made of names and text. Nothing here reads markup.

import { plain } from "./text.js";

// An element with attributes and children. A child is an element or text; null is left out.
export function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value == null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "class") element.className = value;
    else if (value === true) element.setAttribute(key, "");
    else element.setAttribute(key, String(value));
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

// A value of a client. A long one is cut by the style, and shown whole while it has the focus.
export function value(text, name = "span") {
  const shown = plain(text);
  const long = shown.length > 60;
  return el(name, { class: long ? "value long" : "value", tabindex: long ? 0 : null, dir: "ltr" }, shown);
}

// Entries of a descriptor, each a key and a value.
export function entries(of) {
  return el(
    "span",
    { class: "entries" },
    of.map(({ key, value: text }) => el("span", { class: "entry" }, value(key, "b"), "=", value(text))),
  );
}

// A table with a caption for screen readers. Columns are [title, class]; cells are elements or text.
export function table(caption, columns, rows, empty = "Nothing yet.") {
  if (rows.length === 0) return el("p", { class: "empty" }, empty);
  return el(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el(
      "table",
      {},
      el("caption", { class: "hidden" }, caption),
      el("thead", {}, el("tr", {}, columns.map(([title, of]) => el("th", { scope: "col", class: of }, title)))),
      el(
        "tbody",
        {},
        rows.map((cells) => el("tr", {}, cells.map((cell, at) => el(at === 0 ? "th" : "td", { scope: at === 0 ? "row" : null, class: columns[at][1] }, cell)))),
      ),
    ),
  );
}

// A labelled choice. Options are [value, text].
export function choice(label, options, chosen, change) {
  const select = el("select", { onchange: () => change(select.value) }, options.map(([of, text]) => el("option", { value: of, selected: of === chosen }, text)));
  return el("label", { class: "field" }, el("span", {}, label), select);
}

// A labelled input.
export function field(label, attributes) {
  const input = el("input", { autocomplete: "off", spellcheck: "false", ...attributes });
  return { input, label: el("label", { class: "field" }, el("span", {}, label), input) };
}

// A part of a page with a title.
export function section(title, ...children) {
  return el("section", {}, el("h2", {}, title), ...children);
}

// What an element is to a reader, over answers.
function identity(of) {
  return of.dataset.focus ?? of.getAttribute("href") ?? of.getAttribute("aria-label") ?? of.textContent;
}

// The elements that may have the focus and are alike.
function alike(parent, name) {
  return [...parent.querySelectorAll("[data-focus], [tabindex], a, button")].filter((of) => identity(of) === name);
}

// The press of a pointer that is not released yet. An element that is replaced meanwhile would get no click.
let press = null;
// Children for elements with a press.
const waiting = new Map();

function released() {
  const ended = press;
  // A click follows the release at once.
  setTimeout(() => {
    if (press === ended) press = null;
    const due = [...waiting];
    waiting.clear();
    due.forEach(([parent, children]) => replace(parent, ...children));
  });
}

document.addEventListener("pointerdown", (event) => (press = event.button === 0 ? event : null), true);
for (const end of ["pointerup", "pointercancel", "contextmenu"]) document.addEventListener(end, released, true);
window.addEventListener("blur", released);

// Replaces the children of an element, and keeps the focus on the one that is what the focused one was. Waits until a
// press in the element has ended.
export function replace(parent, ...children) {
  if (press && parent.contains(press.target)) {
    waiting.set(parent, children);
    return;
  }
  waiting.delete(parent);
  const active = parent.contains(document.activeElement) ? identity(document.activeElement) : null;
  const at = active == null ? -1 : alike(parent, active).indexOf(document.activeElement);
  const scrolled = [...parent.querySelectorAll(".scroll")].map((part) => part.scrollLeft);
  parent.replaceChildren(...children.flat().filter((child) => child != null && child !== false));
  parent.querySelectorAll(".scroll").forEach((part, at) => (part.scrollLeft = scrolled[at] ?? 0));
  if (at < 0) return;
  const now = alike(parent, active);
  (now[at] ?? now[0])?.focus({ preventScroll: true });
}

// A link to the page of a key.
export function keyLink(domain, of, text) {
  const query = new URLSearchParams({ domain });
  for (const { key, value: own } of of) query.append("entry", `${key}=${own}`);
  return el("a", { href: `#/key?${query}` }, text);
}
