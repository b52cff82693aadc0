// The frame: which page is shown, the theme, the token, and whether the sidecar answers.

import { hasToken } from "./ask.js";
import { redraw } from "./charts.js";
import { askToken, tokenState } from "./dialogs.js";
import { el } from "./dom.js";
import * as overview from "./pages/overview.js";
import * as rules from "./pages/rules.js";
import * as key from "./pages/key.js";
import * as top from "./pages/top.js";
import * as statistics from "./pages/statistics.js";
import * as limits from "./pages/limits.js";

const PAGES = { overview, rules, key, top, statistics, limits };
const POLL_MS = 2000;
const byId = (id) => document.getElementById(id);

let current = null;

// What a page may use: its parameters, a signal that ends with it, and times to ask again.
class View {
  constructor(name, parameters) {
    this.name = name;
    this.parameters = parameters;
    this.ended = new AbortController();
    this.signal = this.ended.signal;
    this.charts = [];
  }

  // Does `work` now and every so often, while the page is shown and seen. Says whether the sidecar answers.
  poll(work, ms = POLL_MS) {
    let timer = null;
    let running = false;
    const turn = async () => {
      clearTimeout(timer);
      if (this.signal.aborted || running) return;
      running = true;
      await this.attempt(work);
      running = false;
      if (!this.signal.aborted) timer = setTimeout(turn, document.hidden ? ms * 5 : ms);
    };
    document.addEventListener("visibilitychange", () => !document.hidden && turn(), { signal: this.signal });
    document.addEventListener("tidegate-token", turn, { signal: this.signal });
    turn();
    return turn;
  }

  // Does `work` once. False if it failed, which is said.
  async attempt(work) {
    try {
      await work();
      say("");
      return true;
    } catch (error) {
      if (error.name === "AbortError") return false;
      if (error.status === undefined) throw error;
      if (error.status === 401) {
        say("A token is needed.", true);
        askToken("This address shows values of requests to those with the token.", true);
      } else if (error.status === 0) {
        say("The sidecar does not answer. Trying again.", true);
      } else {
        say(error.message, true);
      }
      return false;
    }
  }

  // Shows the same page with other parameters, without a new entry of history.
  replace(parameters) {
    const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value != null));
    history.replaceState(null, "", `#/${this.name}${query.size ? `?${query}` : ""}`);
  }

  chart(chart) {
    this.charts.push(chart);
    return chart;
  }

  end() {
    this.ended.abort();
    this.charts.forEach((chart) => chart.destroy());
  }
}

function say(text, isBad = false) {
  const state = byId("state");
  if (state.textContent !== text) state.textContent = text;
  state.className = isBad ? "bad" : "";
}

function show() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  // The link past the navigation.
  if (path === "main" && current) return;
  const name = Object.hasOwn(PAGES, path) ? path : "overview";
  const page = PAGES[name];
  current?.end();
  current = new View(name, new URLSearchParams(query));
  document.title = `${page.title} – Tidegate`;
  for (const link of byId("nav").querySelectorAll("a")) {
    if (link.dataset.page === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const main = byId("main");
  main.replaceChildren(el("h1", {}, page.title));
  page.show(main, current);
}

function nav() {
  const items = Object.entries(PAGES).map(([name, page]) => el("li", {}, el("a", { href: `#/${name}`, "data-page": name }, page.title)));
  byId("nav").replaceChildren(...items);
}

// Light, dark, or as the system has it.
const THEMES = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };

function theme(next) {
  const root = document.documentElement;
  if (next === "auto") root.removeAttribute("data-theme");
  else root.setAttribute("data-theme", next);
  byId("theme").textContent = THEMES[next];
  byId("theme").dataset.theme = next;
  try {
    localStorage.setItem("tidegate-theme", next);
  } catch {
    // It holds for this page.
  }
  redraw();
}

function savedTheme() {
  try {
    const saved = localStorage.getItem("tidegate-theme");
    return Object.hasOwn(THEMES, saved) ? saved : "auto";
  } catch {
    return "auto";
  }
}

nav();
theme(savedTheme());
tokenState();
byId("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  theme(names[(names.indexOf(byId("theme").dataset.theme) + 1) % names.length]);
});
byId("token").addEventListener("click", () => askToken(hasToken() ? "An empty one forgets the token." : "Changes of counters take it, and so does reading beyond this machine."));
// Enter in the field means the last button of the form, not the first.
byId("ask-token-input").addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  byId("ask-token").close("ok");
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("main").focus();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
window.addEventListener("hashchange", show);
show();
