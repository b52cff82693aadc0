// The dialogs: one asks for the token, one whether a change is meant.

import { hasToken, setToken } from "./ask.js";

const byId = (id) => document.getElementById(id);

let refusals = false;

// Asks for the token. Unasked only until somebody says no.
export function askToken(why, isUnasked = false) {
  const dialog = byId("ask-token");
  if (dialog.open || (isUnasked && refusals)) return Promise.resolve(false);
  // Somebody who closes it has said no, until the token is there: the event of the close comes later.
  if (isUnasked) refusals = true;
  byId("ask-token-why").textContent = why;
  const input = byId("ask-token-input");
  input.value = "";
  dialog.returnValue = "";
  dialog.showModal();
  input.focus();
  return new Promise((done) => {
    dialog.addEventListener(
      "close",
      () => {
        const isGiven = dialog.returnValue === "ok";
        if (isGiven) {
          setToken(input.value);
          refusals = false;
          document.dispatchEvent(new Event("tidegate-token"));
        }
        input.value = "";
        tokenState();
        done(isGiven && hasToken());
      },
      { once: true },
    );
  });
}

export function tokenState() {
  byId("token").textContent = hasToken() ? "Token: set" : "Token";
}

// Whether somebody confirms a change.
export function confirmed(title, what, note, verb) {
  const dialog = byId("confirm");
  byId("confirm-title").textContent = title;
  byId("confirm-what").textContent = what;
  byId("confirm-note").textContent = note;
  byId("confirm-ok").textContent = verb;
  dialog.returnValue = "";
  dialog.showModal();
  // What changes nothing comes first.
  byId("confirm-cancel").focus();
  return new Promise((done) => {
    dialog.addEventListener("close", () => done(dialog.returnValue === "ok"), { once: true });
  });
}
