// Names that clients chose are text, whatever they are: on each page that shows them, and in each place they come back from.

import assert from "node:assert/strict";
import { cells, given, isNarrowEnough, run, until } from "./browser.mjs";

const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069\u200b-\u200f\ufeff]/;

// What must hold whatever is shown.
async function isText(page, where) {
  const found = await page.evaluate(() => ({
    // No page has them by itself.
    made: document.querySelectorAll("main img, main script, main iframe, main svg, main object, main style").length,
    handlers: [...document.querySelectorAll("main *")].filter((element) => [...element.attributes].some(({ name }) => name.startsWith("on") || name === "style")).filter((element) => !element.closest(".chart")).length,
    links: [...document.links].map((link) => link.protocol).filter((protocol) => !["http:", "https:"].includes(protocol)),
    owned: window.owned,
    text: document.querySelector("main").textContent,
  }));
  assert.deepEqual([found.made, found.handlers, found.links, found.owned], [0, 0, [], undefined], where);
  assert.ok(!UNSEEN.test(found.text), `${where} shows a character that is not seen`);
}

await run(async (browser) => {
  const { page } = browser;
  // What a page was asked for may be a mistake.
  browser.expects(/the server responded with a status of 400/);
  await browser.go("/top?n=100&order=hits");
  await until("all names", async () => {
    const rows = await cells(page, "Descriptors");
    return rows.length >= given.names.length ? true : rows.length;
  });
  await isText(page, "top");
  const main = await page.locator("main").textContent();
  for (const shown of ["<img src=x onerror=owned=1>", "\\u{202e}", "\\u{0}", "\\u{1b}[2J", "javascript:owned=1"]) {
    assert.ok(main.includes(shown), `${shown} is not shown`);
  }
  await isNarrowEnough(page, "top");

  // The key of each name, reached by its address, whole and 10 KB long.
  for (const name of given.names) {
    const query = new URLSearchParams({ domain: "test", entry: `client=${name}` });
    await browser.go(`/key?${query}`);
    await until("the key", async () => {
      const rows = await cells(page, "Limits of the key");
      // The counter is that of exactly this name.
      return rows.length === 1 && rows[0][1] === String(100 - given.each) && rows[0][2] === "100" ? true : rows;
    });
    await isText(page, `the key ${JSON.stringify(name.slice(0, 40))}`);
    await page.setViewportSize({ width: 360, height: 740 });
    await isNarrowEnough(page, "the key");
    await page.setViewportSize({ width: 1280, height: 900 });
  }
  // A long value is cut, and whole with the focus.
  // An answer may replace it, so it is found, focused and measured in one step.
  const opens = await page.evaluate(() => {
    const long = document.querySelector(".value.long");
    const height = long.getBoundingClientRect().height;
    long.focus();
    return long.getBoundingClientRect().height > height;
  });
  assert.ok(opens, "a long value opens with the focus");

  await browser.go("/statistics?by=client&last=1h");
  await until("a series for each name", async () => (await cells(page, "Series")).length >= given.names.length);
  await isText(page, "statistics");
  for (const [at, query] of ["<img src=x onerror=owned=1>", '"><script>owned=1</script>', "{{constructor}}"].entries()) {
    for (const hash of [`/rules?find=${encodeURIComponent(query)}`, `/rules?domain=${encodeURIComponent(query)}`, `/top?rule=${encodeURIComponent(query)}`, `/statistics?where=${encodeURIComponent(`client=${query}`)}`, `/key?domain=${encodeURIComponent(query)}&entry=${encodeURIComponent(`${query}=${query}`)}`, `/${encodeURIComponent(query)}`]) {
      await browser.go(`${hash}`);
      await page.locator("h1").waitFor();
      await page.waitForLoadState("networkidle").catch(() => {});
      await isText(page, `${hash} (${at})`);
    }
  }
  // A page's own policy forbids what would run in spite of all that.
  browser.check();
  browser.expects(/Content Security Policy|a request elsewhere: http:\/\/127\.0\.0\.2:9\//);
  const ran = await page.evaluate(async () => {
    const script = document.createElement("script");
    script.textContent = "window.owned = 1";
    document.body.append(script);
    const image = document.createElement("img");
    const loaded = new Promise((done) => {
      image.onload = () => done("loaded");
      image.onerror = () => done("refused");
    });
    image.src = "http://127.0.0.2:9/x.png";
    const fetched = await fetch("http://127.0.0.2:9/").then(() => "fetched", () => "refused");
    return [window.owned ?? "none", await loaded, fetched];
  });
  assert.deepEqual(ran, ["none", "refused", "refused"]);
});
