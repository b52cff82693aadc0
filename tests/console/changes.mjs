// Counters are erased and set with the token and a confirmation, and by nothing else.

import assert from "node:assert/strict";
import http from "node:http";
import { cells, given, run, until } from "./browser.mjs";

const KEY = `/key?domain=test&entry=${encodeURIComponent("client=eve")}`;

await run(async (browser) => {
  const { page } = browser;
  const left = async () => (await cells(page, "Limits of the key"))[0]?.[1];
  const shows = (number) => until(`${number} left`, async () => ((await left()) === number ? true : left()));
  const posts = () => browser.requests.filter((request) => request.startsWith("POST"));
  await browser.go(KEY);
  await shows("0");

  // Not without the token: whoever does not give it sends nothing.
  await page.getByRole("button", { name: "Erase the counters…" }).click();
  const confirm = page.locator("#confirm");
  await confirm.getByText("All limits of test client=eve start anew.").waitFor();
  await confirm.getByRole("button", { name: "Cancel" }).click();
  await page.getByRole("button", { name: "Erase the counters…" }).click();
  await confirm.getByRole("button", { name: "Erase" }).click();
  const token = page.locator("#ask-token");
  await token.getByRole("button", { name: "Cancel" }).click();
  assert.deepEqual(posts(), []);
  await shows("0");

  // A wrong one is refused, and asked for again.
  browser.expects(/the server responded with a status of 401/);
  await page.getByRole("button", { name: "Erase the counters…" }).click();
  await confirm.getByRole("button", { name: "Erase" }).click();
  await token.getByLabel("Token").fill("x".repeat(32));
  await token.getByRole("button", { name: "Use it" }).click();
  await page.getByText("Nothing was changed: show the token of --http-token-file").waitFor();
  await token.getByText("The sidecar has another token.").waitFor();
  assert.equal(posts().length, 1);
  await token.getByLabel("Token").fill(given.token);
  await page.keyboard.press("Enter");
  await shows("0");

  await page.getByRole("button", { name: "Erase the counters…" }).click();
  await confirm.getByRole("button", { name: "Erase" }).click();
  await page.getByText("Erased.", { exact: true }).waitFor();
  await shows("100");

  // Set: what is asked for is confirmed, and then left.
  // Regression: a press during which an answer came was no click.
  await page.getByRole("button", { name: "Set…" }).hover();
  await page.mouse.down();
  const asked = () => browser.requests.filter((request) => request.includes("/v1/key?")).length;
  const before = asked();
  // The page asks again after the answer before is shown.
  await until("an answer", async () => asked() >= before + 2);
  await page.mouse.up();
  await page.getByLabel("Left under the limit, up to 100").fill("7");
  await page.keyboard.press("Enter");
  await confirm.getByText("7 of 100 hits are left for test client=eve.").waitFor();
  await confirm.getByRole("button", { name: "Set", exact: true }).click();
  await page.getByText("Set: 7 left, before 100.").waitFor();
  await shows("7");
  // The field refuses more than the limit before anything is asked.
  await page.getByRole("button", { name: "Set…" }).click();
  await page.getByLabel("Left under the limit, up to 100").fill("101");
  await page.keyboard.press("Enter");
  assert.ok(await page.getByLabel("Left under the limit, up to 100").evaluate((input) => !input.checkValidity()));
  assert.ok(!(await confirm.isVisible()));
  assert.deepEqual(posts().length, 3);
  // The token goes in a header of own requests alone.
  const kept = await page.evaluate(() => [document.cookie, Object.keys(localStorage)]);
  assert.deepEqual(kept, ["", ["tidegate-theme"]]);
  assert.ok(browser.requests.every((request) => !request.includes(given.token)));
  browser.check();

  // A page of another origin, opened in the same browser, changes nothing and reads nothing.
  const body = JSON.stringify({ domain: "test", entries: [{ key: "client", value: "eve" }] });
  const evil = http.createServer((_, reply) => {
    reply.setHeader("content-type", "text/html");
    reply.end(`<!doctype html><title>evil</title><form method="post" enctype="text/plain" action="${given.base}/v1/key/erase" target="frame"><input name='${body.slice(0, -1)},"x":"' value='"}'></form><iframe name="frame"></iframe>`);
  });
  await new Promise((listening) => evil.listen(0, "127.0.0.1", listening));
  const context = await browser.browser.newContext();
  const other = await context.newPage();
  await other.goto(`http://127.0.0.1:${evil.address().port}/`);
  const tried = await other.evaluate(
    async ([base, token, body]) => {
      const url = `${base}/v1/key/erase`;
      const attempt = (target, options) => fetch(target, options).then((reply) => `${reply.type} ${reply.status}`, () => "refused");
      return [
        await attempt(url, { method: "POST", headers: { "content-type": "application/json", authorization: `Bearer ${token}` }, body }),
        await attempt(url, { method: "POST", mode: "no-cors", body }),
        await attempt(`${base}/v1/top`, {}),
        await attempt(`${base}/v1/top`, { mode: "no-cors" }),
      ];
    },
    [given.base, given.token, body],
  );
  assert.deepEqual(tried, ["refused", "refused", "refused", "refused"]);
  await other.evaluate(() => document.forms[0].submit());
  await other.waitForLoadState("networkidle");
  // Nor does it show the console in a frame.
  await other.evaluate((base) => {
    document.querySelector("iframe").src = `${base}/`;
  }, given.base);
  await until("the frame to be refused", async () => other.frames().some((frame) => frame.url().startsWith("chrome-error:")));
  await context.close();
  evil.close();
  await page.reload();
  await shows("7");
});
