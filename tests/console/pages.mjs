// Each page shows what was sent, to the hit; light, dark, and in a window of 360 pixels.

import assert from "node:assert/strict";
import { cells, given, isNarrowEnough, run, shot, until } from "./browser.mjs";

const { sent, denied } = given;
const number = new Intl.NumberFormat("en-US").format;
const passed = sent - denied;

const KEY = `/key?domain=test&entry=${encodeURIComponent(`client=${given.client}`)}`;
const PAGES = { top: "/top?order=denied", overview: "/overview", rules: "/rules", key: KEY, statistics: "/statistics?by=client&last=1h", limits: "/limits" };

// Whether the page of names was seen with all of them.
let wasTopWhole = false;

// What shows that a page has its answer.
const shows = {
  overview: async (page) => {
    const rows = await cells(page, "Domains");
    const figure = (name) => page.locator(`[data-figure="${name}"]`).textContent();
    if ((await figure("decisions")) !== number(sent) || (await figure("denied")) !== number(denied)) return rows;
    // Otherwise the sidecar decided all, and the page is about nothing.
    if (!(Number.parseFloat(await figure("in-envoy")) > 50)) return figure("in-envoy");
    assert.deepEqual([rows.length, rows[0][0], rows[0][3], rows[0][4]], [1, "test", number(passed), number(denied)]);
    // The line of a chart takes two answers.
    return (await page.locator("canvas").count()) === 1 && (await page.getByText(/^Last: passed\/s/).count()) === 1;
  },
  rules: async (page) => {
    const rule = page.locator(".rule", { hasText: "client" }).first();
    const text = await rule.textContent();
    if (!text.includes(`${number(sent)} hits`) || !text.includes(`${number(denied)} over`)) return text;
    // Of a rate, too, which takes two answers.
    return /\d a second/.test(text) && (await page.getByText("100 per day").count()) === 1;
  },
  key: async (page) => {
    const [row] = await cells(page, "Limits of the key");
    if (row?.[1] !== "0" || row?.[2] !== "100" || !row?.[5].startsWith("denied for")) return row;
    return (await page.getByText("the next hit is denied").count()) === 1 && (await page.locator("canvas").count()) === 1;
  },
  top: async (page) => {
    const rows = await cells(page, "Descriptors");
    const sum = rows.reduce((sum, row) => sum + Number(row[3].replaceAll(",", "")), 0);
    // Who has sent nothing for two minutes is left out.
    const isWhole = sum === denied || (wasTopWhole && sum < denied);
    wasTopWhole ||= isWhole;
    return isWhole && rows.every((row) => row[0].startsWith("test client=")) ? true : rows;
  },
  statistics: async (page) => {
    const rows = await cells(page, "Series");
    const sum = (at) => rows.reduce((sum, row) => sum + Number(row[at].replaceAll(",", "")), 0);
    return sum(1) === passed && sum(2) === denied && (await page.locator("canvas").count()) === 1 ? true : rows;
  },
  limits: async (page) => {
    const changes = await cells(page, "Changes");
    const added = changes.some(([path, kind]) => path === "test/extra" && kind === "added");
    const mistakes = await page.getByText(/limits\.yaml:\d+:\d+: /).count();
    return added && mistakes > 0 && (await page.getByText("old ones in force").count()) === 1 ? true : [changes, mistakes];
  },
};

await run(async (browser) => {
  for (const [name, hash] of Object.entries(PAGES)) {
    await browser.go(hash);
    await until(`the page ${name}`, () => shows[name](browser.page));
  }
  for (const [look, options] of Object.entries({
    light: { colorScheme: "light" },
    dark: { colorScheme: "dark" },
    narrow: { colorScheme: "light", viewport: { width: 360, height: 740 } },
  })) {
    const context = await browser.newContext(options);
    const page = await browser.open(context);
    for (const [name, hash] of Object.entries(PAGES)) {
      await browser.go(hash, page);
      await until(`the page ${name}, ${look}`, () => shows[name](page));
      await isNarrowEnough(page, `the page ${name}, ${look}`);
      await shot(page, `${name}-${look}`);
    }
    const colours = await page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor.match(/\d+/g).map(Number));
    assert.equal(Math.max(...colours) < 100, look === "dark", `the page is ${look}: ${colours}`);
    await context.close();
  }
  // A switch, for those whose system is of the other mind; it is remembered.
  const theme = browser.page.locator("#theme");
  while ((await theme.textContent()) !== "Theme: dark") await theme.click();
  await browser.page.reload();
  assert.equal(await theme.textContent(), "Theme: dark");
  assert.equal(await browser.page.evaluate(() => getComputedStyle(document.documentElement).colorScheme), "dark");

  // A sidecar that does not answer for a moment.
  await browser.go("/overview");
  await until("the overview", () => shows.overview(browser.page));
  browser.expects(/ERR_INTERNET_DISCONNECTED/);
  await browser.context.setOffline(true);
  await browser.page.getByText("The sidecar does not answer. Trying again.").waitFor();
  await browser.context.setOffline(false);
  await browser.page.getByText("The sidecar does not answer.").waitFor({ state: "detached" });
  await until("the overview again", () => shows.overview(browser.page));

  // Nothing is stored but the theme.
  const stored = await browser.page.evaluate(() => [Object.keys(localStorage), Object.keys(sessionStorage), document.cookie]);
  assert.deepEqual(stored, [["tidegate-theme"], [], ""]);
});
