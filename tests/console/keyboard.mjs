// All of it by the keyboard alone, with the focus in sight.

import assert from "node:assert/strict";
import { cells, given, run, until } from "./browser.mjs";

await run(async (browser) => {
  const { page } = browser;
  const { keyboard } = page;
  const focused = () => page.evaluate(() => document.activeElement.textContent.trim() || document.activeElement.id || document.activeElement.getAttribute("aria-label"));
  // Tabs on to what has this text, at most once around.
  const tabTo = async (text) => {
    const passed = [];
    for (let step = 0; step < 60; step += 1) {
      await keyboard.press("Tab");
      const now = await focused();
      if (now === text) {
        const isSeen = await page.evaluate(() => {
          const { outlineStyle, outlineWidth } = getComputedStyle(document.activeElement);
          return outlineStyle !== "none" && outlineWidth !== "0px";
        });
        assert.ok(isSeen, `the focus on ${text} is not seen`);
        return;
      }
      passed.push(now);
    }
    assert.fail(`${text} is not reached; passed ${JSON.stringify(passed)}`);
  };
  await browser.go("/overview");
  await until("the overview", async () => (await page.locator("[data-figure=decisions]").count()) === 1);
  await keyboard.press("Tab");
  assert.equal(await focused(), "Skip to the page");
  await keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "main");
  assert.ok(page.url().endsWith("#/overview"), "the page stays");

  await page.reload();
  await tabTo("Rules");
  await keyboard.press("Enter");
  await page.getByRole("heading", { name: "Rules", level: 1 }).waitFor();
  await page.locator("summary").first().waitFor();
  assert.equal(await page.locator("#nav [aria-current]").textContent(), "Rules");
  // A branch is closed, and stays so over answers.
  // An answer replaces it, so each look finds it and asks in one step.
  const isBranchFocused = () => page.evaluate(() => document.querySelector("summary") === document.activeElement);
  await until("the focus on the branch", () =>
    page.evaluate(() => {
      const branch = document.querySelector("summary");
      branch.focus();
      return branch === document.activeElement;
    }),
  );
  await keyboard.press("Enter");
  const shownRules = () => page.locator(".leaf:visible").count();
  await until("the branch to be closed", async () => (await shownRules()) === 0);
  const before = browser.requests.length;
  // The page asks again after the answer before is shown.
  await until("an answer to be shown", async () => browser.requests.length >= before + 2);
  assert.equal(await shownRules(), 0, "it was opened by an answer");
  assert.ok(await isBranchFocused(), "the focus stays over answers");

  // From the list of names to a key, and its counter erased.
  await page.goto(`${given.base}/#/top?order=hits`);
  await until("a name", async () => (await cells(page, "Descriptors")).some((row) => row[0].includes("client=eve")));
  await tabTo("Key");
  // Regression: each answer took the focus away.
  const asked = browser.requests.length;
  await until("an answer to be shown", async () => browser.requests.length >= asked + 2);
  assert.equal(await focused(), "Key", "the focus stays over answers");
  await keyboard.press("Enter");
  await page.getByRole("heading", { name: "Key", level: 1 }).waitFor();
  // The link that was followed has gone with its page.
  await until("the limit", async () => (await cells(page, "Limits of the key"))[0]?.[1] === "0");
  await tabTo("Erase the counters…");
  await keyboard.press("Enter");
  assert.equal(await focused(), "Cancel", "what changes nothing comes first");
  await keyboard.press("Tab");
  assert.equal(await focused(), "Erase");
  await keyboard.press("Enter");
  await page.locator("#ask-token").waitFor();
  await keyboard.type(given.token);
  await keyboard.press("Enter");
  await page.getByText("Erased.", { exact: true }).waitFor();
  await until("all to be left", async () => (await cells(page, "Limits of the key"))[0]?.[1] === "100");
  // Escape closes a dialog.
  await tabTo("Token: set");
  await keyboard.press("Enter");
  await page.locator("#ask-token").waitFor();
  await keyboard.press("Escape");
  await page.locator("#ask-token").waitFor({ state: "hidden" });

  // Every control has a name.
  for (const hash of ["/overview", "/rules", "/key", "/top", "/statistics", "/limits"]) {
    await browser.go(hash);
    await page.locator("h1").waitFor();
    const nameless = await page.evaluate(() => [...document.querySelectorAll("a, button, input, select, textarea")].filter((control) => !(control.textContent.trim() || control.getAttribute("aria-label") || control.labels?.length)).map((control) => control.outerHTML));
    assert.deepEqual(nameless, [], hash);
  }
});
