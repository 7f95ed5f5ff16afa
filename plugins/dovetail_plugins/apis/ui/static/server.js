// What this page asks its own server: requests with the key, errors in words, streams of events.

const BASE = new URL("..", import.meta.url);
const KEY = "dovetail.key";

let keyAsker = async () => null;
let asking = null;

/** What went wrong, in the server's words. */
export class ServerError extends Error {
  constructor(message, status = 0, code = null) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** Set the function that asks the reader for a key; it gets whether one was refused. */
export function setKeyAsker(asker) {
  keyAsker = asker;
}

/** Return the address of a path of the server, wherever a proxy has put it. */
export function address(path) {
  return new URL(path.replace(/^\//, ""), BASE).href;
}

/** Return the answer to a request; a body is a form, or is sent as JSON. Throws ServerError. */
export async function ask(path, { body, signal } = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const response = await sent(path, body, signal, key);
    if (response.ok) return response;
    if (response.status !== 401) throw await errorOf(response);
    await newKey(key);
  }
}

/** Return the JSON that the server answers. Throws ServerError. */
export async function askJson(path, options) {
  return (await ask(path, options)).json();
}

async function sent(path, body, signal, key) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const init = { headers, signal, cache: "no-store", credentials: "same-origin" };
  if (body !== undefined) {
    init.method = "POST";
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
    return new ServerError(error.message, response.status, error.code);
  } catch {
    return new ServerError(`The server answered ${response.status}.`, response.status);
  }
}

/** Ask for a key, once for everybody who waits for it. Throws ServerError if none is given. */
async function newKey(refused) {
  if (sessionStorage.getItem(KEY) !== refused) return;
  asking ??= keyAsker(refused !== null).finally(() => (asking = null));
  const given = await asking;
  if (given === null) throw new ServerError("This server needs an API key.", 401, "no_key");
  sessionStorage.setItem(KEY, given);
}

/** Give the events of a stream as they come, decoded. Throws ServerError for one that is an error. */
export async function* events(response) {
  for await (const data of eventData(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new ServerError(event.error.message, 500, event.error.code);
    yield event;
  }
  throw new ServerError("The answer broke off: the connection to the server ended.");
}

/** Give the data of server-sent events, however they were cut on their way. */
async function* eventData(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split(/\r?\n\r?\n/);
      rest = parts.pop();
      for (const part of parts) {
        const lines = part.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } finally {
    // Who reads no further lets the server stop. A stream that failed has told so already.
    reader.cancel().catch(() => undefined);
  }
}
