// At an address beyond this machine: the pages ask for the token, keep it for the tab, and send it to the sidecar alone.

import assert from "node:assert/strict";
import { given, run, until } from "./browser.mjs";

await run(
  async (browser) => {
    const { page } = browser;
    browser.expects(/the server responded with a status of 401/);
    await browser.go("/overview");
    const dialog = page.locator("#ask-token");
    await dialog.waitFor();
    await page.locator("#state", { hasText: "A token is needed." }).waitFor();
    // Whoever says no is not asked again and again.
    await dialog.getByRole("button", { name: "Cancel" }).click();
    const before = browser.requests.length;
    await until("two more questions", async () => browser.requests.length >= before + 2);
    assert.ok(!(await dialog.isVisible()));
    assert.equal(await page.locator("[data-figure]").count(), 0, "nothing is shown without it");

    await page.getByRole("button", { name: "Token", exact: true }).click();
    await dialog.getByLabel("Token").fill(given.token);
    await dialog.getByRole("button", { name: "Use it" }).click();
    await page.locator("[data-figure=decisions]").waitFor();
    await page.reload();
    await page.locator("[data-figure=decisions]").waitFor();
    await page.getByRole("button", { name: "Token: set" }).waitFor();
    // Another tab has none.
    const other = await browser.open(await browser.newContext({ ignoreHTTPSErrors: true }));
    await browser.go("/top", other);
    await other.locator("#ask-token").waitFor();
    // An empty one forgets it.
    await page.getByRole("button", { name: "Token: set" }).click();
    await dialog.getByRole("button", { name: "Use it" }).click();
    await dialog.waitFor();
    assert.ok(browser.requests.every((request) => !request.includes(given.token)));
  },
  // The certificate is signed by an authority of the test.
  { ignoreHTTPSErrors: true },
);
