// Questions to the sidecar, and the token. The token is in a header that only these pages set; there are no cookies.

const KEPT = "tidegate-token";
let token = read();

function read() {
  try {
    return sessionStorage.getItem(KEPT) ?? "";
  } catch {
    return "";
  }
}

export function hasToken() {
  return token !== "";
}

export function setToken(text) {
  token = text.trim();
  try {
    if (token) sessionStorage.setItem(KEPT, token);
    else sessionStorage.removeItem(KEPT);
  } catch {
    // It is kept in this page alone.
  }
}

// What the sidecar answers instead. `status` is 0 if nothing did.
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function send(path, options, signal) {
  const headers = { ...options.headers };
  if (token) headers.authorization = `Bearer ${token}`;
  let reply;
  let text;
  try {
    reply = await fetch(path, { ...options, headers, signal, cache: "no-store", credentials: "omit", redirect: "error" });
    text = await reply.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "the sidecar does not answer");
  }
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    // Refusals of access are plain text.
  }
  if (!reply.ok) throw new Refused(reply.status, body?.error ?? (text.trim().slice(0, 300) || `status ${reply.status}`));
  return body ?? text;
}

// The answer to a question, as JSON.
export function ask(path, parameters = {}, signal = undefined) {
  const query = new URLSearchParams(parameters).toString();
  return send(query ? `${path}?${query}` : path, {}, signal);
}

// Makes a change.
export function change(path, body) {
  return send(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
}

// Single decisions after the one with this number: [{id, decision}].
export async function decisions(parameters, signal) {
  const text = await send(`/v1/decisions?${new URLSearchParams(parameters)}`, {}, signal);
  return String(text)
    .split("\n\n")
    .map((event) => Object.fromEntries(event.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)])))
    .filter((event) => event.data)
    .map((event) => ({ id: event.id, decision: JSON.parse(event.data) }));
}
