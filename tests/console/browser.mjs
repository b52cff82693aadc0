// A Chromium for the cases, and what none of them may see: a request elsewhere, an error or a warning, a dialog of a script, a
// page wider than the window.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import path from "node:path";

const { chromium } = createRequire(path.join(process.env.NODE_PATH, "x.js"))("playwright-core");

// What a test program passes.
export const given = JSON.parse(process.argv[2]);
// The longest wait for anything, in milliseconds. A sidecar answers a page every two seconds, and statistics come after 22.
export const WAIT_MS = 60_000;

export class Browser {
  static async start(options = {}) {
    const own = new Browser();
    // The sandbox of Chromium refuses to run for root, as in containers.
    const isRoot = process.getuid?.() === 0;
    const args = [...(isRoot ? ["--no-sandbox"] : []), "--disable-dev-shm-usage"];
    own.browser = await chromium.launch({ executablePath: given.chromium, args, headless: true });
    own.problems = [];
    own.requests = [];
    own.expected = [];
    own.context = await own.newContext(options);
    own.page = await own.open();
    return own;
  }

  async newContext(options = {}) {
    const context = await this.browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
    context.setDefaultTimeout(WAIT_MS);
    context.on("request", (request) => {
      this.requests.push(`${request.method()} ${request.url()}`);
      if (!request.url().startsWith(given.base)) this.problems.push(`a request elsewhere: ${request.url()}`);
    });
    return context;
  }

  async open(context = this.context) {
    const page = await context.newPage();
    page.on("pageerror", (error) => this.problems.push(`an error of a script: ${error.stack ?? error}`));
    page.on("dialog", (dialog) => {
      this.problems.push(`a dialog: ${dialog.message()}`);
      dialog.dismiss().catch(() => {});
    });
    page.on("console", (message) => {
      if (["error", "warning"].includes(message.type())) this.problems.push(`${message.type()}: ${message.text()} (${message.location().url})`);
    });
    return page;
  }

  // Opens a page of the console, by the part after #.
  async go(hash, page = this.page) {
    await page.goto(`${given.base}/#${hash}`);
  }

  // Errors that a case provokes, such as a refusal, are told apart by their text.
  expects(pattern) {
    this.expected.push(pattern);
  }

  check() {
    const found = this.problems.filter((problem) => !this.expected.some((pattern) => pattern.test(problem)));
    assert.deepEqual(found, []);
  }

  async end() {
    this.check();
    await this.browser.close();
  }
}

// Waits until `look` finds what is expected. A page is looked at between its answers, so the last look is what is shown if
// it is in vain.
export async function until(what, look) {
  const end = performance.now() + WAIT_MS;
  let last;
  while (performance.now() < end) {
    try {
      last = await look();
      if (last === true) return;
    } catch (error) {
      last = error.message;
    }
    await new Promise((done) => setTimeout(done, 50));
  }
  assert.fail(`waited for ${what} in vain; last: ${JSON.stringify(last)}`);
}

// The texts of the cells of a table, row by row.
export async function cells(page, label) {
  return page
    .getByRole("region", { name: label, exact: true })
    .locator("tbody tr")
    .evaluateAll((rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
}

// Charts follow the width of the window a moment later.
export async function isNarrowEnough(page, where) {
  await until(`${where} to fit`, () =>
    page.evaluate(() => {
      const width = document.documentElement.scrollWidth;
      return width <= innerWidth || `${width} of ${innerWidth}`;
    }),
  );
}

export async function shot(page, name) {
  await page.screenshot({ path: path.join(given.shots, `${name}.png`), fullPage: true });
}

// Runs a case, and ends the browser in any event.
export async function run(work, options) {
  const browser = await Browser.start(options);
  try {
    await work(browser);
    await browser.end();
  } catch (error) {
    // What else was wrong may be the cause.
    console.error(browser.problems.join("\n"));
    await shot(browser.page, `failed-${path.basename(process.argv[1], ".mjs")}`).catch(() => {});
    await browser.browser.close();
    console.error(error);
    process.exit(1);
  }
}
