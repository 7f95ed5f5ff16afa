// What this page asks its own server: requests with the key, errors in words, streams of events.

const BASE = new URL("..", import.meta.url);
const KEY = "dovetail.key";
const MANAGER_KEY = "dovetail.manager_key";

let keyAsker = async () => null;
const asking = new Map();

/** What went wrong, in the server's words. */
export class ServerError extends Error {
  constructor(message, status = 0, code = null) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** Set the function that asks the reader for a key; it gets whether one was refused, and whether the
 * key is one for managing models. */
export function setKeyAsker(asker) {
  keyAsker = asker;
}

/** Return the address of a path of the server, wherever a proxy has put it. */
export function address(path) {
  return new URL(path.replace(/^\//, ""), BASE).href;
}

/** Return the answer to a request; a body is a form, or is sent as JSON. Without a method, a request
 * with a body is a POST. One that manages models may have a key of its own. Throws ServerError. */
export async function ask(path, { body, signal, method, isManaging = false } = {}) {
  const name = isManaging ? MANAGER_KEY : KEY;
  for (;;) {
    const key = sessionStorage.getItem(name) ?? sessionStorage.getItem(KEY);
    const response = await sent(path, { body, signal, method }, key);
    if (response.ok) return response;
    if (response.status !== 401) throw await errorOf(response);
    await newKey(name, key);
  }
}

/** Return the JSON that the server answers. Throws ServerError. */
export async function askJson(path, options) {
  return (await ask(path, options)).json();
}

async function sent(path, { body, signal, method }, key) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const init = { headers, signal, method, cache: "no-store", credentials: "same-origin" };
  if (body !== undefined) {
    init.method ??= "POST";
    const isForm = body instanceof FormData;
    init.body = isForm ? body : JSON.stringify(body);
    if (!isForm) headers["Content-Type"] = "application/json";
  }
  try {
    return await fetch(address(path), init);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server cannot be reached. Is it still running?");
  }
}

async function errorOf(response) {
  try {
    const { error } = await response.json();
    const fault = typeof error === "string" ? { message: error } : error; // Ollama's shape is a text
    return new ServerError(fault.message, response.status, fault.code);
  } catch {
    return new ServerError(`The server answered ${response.status}.`, response.status);
  }
}

/** Ask for a key, once for everybody who waits for it. Throws ServerError if none is given. */
async function newKey(name, refused) {
  const known = sessionStorage.getItem(name);
  if (known !== null && known !== refused) return;
  if (!asking.has(name)) {
    const answer = keyAsker(known !== null, name === MANAGER_KEY);
    asking.set(name, answer.finally(() => asking.delete(name)));
  }
  const given = await asking.get(name);
  if (given === null) throw new ServerError("This server needs an API key.", 401, "no_key");
  sessionStorage.setItem(name, given);
}

/** Give the events of a stream as they come, decoded; `commented` gets its comments. Throws
 * ServerError for an event that is an error. */
export async function* events(response, commented = () => undefined) {
  for await (const block of pieces(response.body, /\r?\n\r?\n/)) {
    const lines = block.split(/\r?\n/);
    for (const line of lines) if (line.startsWith(":")) commented(line.slice(1).trim());
    const data = lines.filter((line) => line.startsWith("data:"));
    if (!data.length) continue;
    const text = data.map((line) => line.slice(5).trimStart()).join("\n");
    if (text === "[DONE]") return;
    const event = JSON.parse(text);
    if (event.error) throw new ServerError(event.error.message, 500, event.error.code);
    yield event;
  }
  throw new ServerError("The answer broke off: the connection to the server ended.");
}

/** Give the JSON values of a stream that has one on each line. Throws ServerError for an error. */
export async function* values(response) {
  for await (const line of pieces(response.body, /\r?\n/, true)) {
    const value = line.trim() ? JSON.parse(line) : {};
    if (value.error) throw new ServerError(value.error.message ?? value.error, 500);
    yield value;
  }
}

/** Give the parts of a stream's text between separators, however they were cut on their way. What
 * follows the last separator is a part only with `takesRest`. */
async function* pieces(stream, separator, takesRest = false) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const parts = (rest + value).split(separator);
      rest = parts.pop();
      yield* parts;
    }
    if (takesRest && rest) yield rest;
  } finally {
    // Who reads no further lets the server stop. A stream that failed has told so already.
    reader.cancel().catch(() => undefined);
  }
}
