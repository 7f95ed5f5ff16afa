// A text becomes sound: the server's model that speaks reads it aloud.

import { announce, el, icon, iconButton } from "./dom.js";
import { ask, askJson } from "./server.js";

const MAX_CHARS = 4096;
/** Ends what is being read: one text at a time. */
let hush = () => {};

/** Return a button that reads a text aloud, and ends that when it is pressed again.
 *
 * `text` and `voice` return what is read and by whom (null: the model's usual voice), `failed` gets a
 * sentence or null. */
export function readButton({ model, text, failed, voice = () => null }) {
  let reading = null;
  const button = iconButton("play", "Read aloud", toggle, { "aria-pressed": "false" });

  async function toggle() {
    if (reading) {
      reading.abort();
      return;
    }
    hush();
    const own = (reading = new AbortController());
    hush = () => own.abort();
    show();
    failed(null);
    try {
      for (const part of parts(text())) await read({ model, voice: voice() }, part, own.signal);
    } catch (error) {
      if (!own.signal.aborted) failed(error.message);
    }
    reading = null;
    show();
  }

  function show() {
    button.replaceChildren(icon(reading ? "stop" : "play"));
    button.setAttribute("aria-pressed", String(reading !== null));
    if (reading) announce("Reading aloud");
  }

  return button;
}

/** Ask for the sound of a text and play it to its end. */
async function read(how, input, signal) {
  const body = { ...how, input, response_format: "mp3" };
  const url = URL.createObjectURL(await (await ask("v1/audio/speech", { body, signal })).blob());
  const sound = new Audio(url);
  try {
    await new Promise((done, failed) => {
      sound.addEventListener("ended", done);
      sound.addEventListener("error", () => failed(new Error("The sound cannot be played.")));
      signal.addEventListener("abort", failed);
      sound.play().catch(failed);
    });
  } finally {
    sound.pause();
    URL.revokeObjectURL(url);
  }
}

/** Return a text in parts that a request may have, cut between words. */
function parts(text) {
  return text.match(new RegExp(`[^]{1,${MAX_CHARS}}(?=\\s|$)|[^]{1,${MAX_CHARS}}`, "g")) ?? [];
}

/** Return where a model that speaks is tried out. */
export function makeVoiceTrial(model) {
  const text = el("textarea", { "aria-label": "Text to speak", rows: 4 });
  const voices = el("select", { "aria-label": "Voice" });
  const fault = el("p", { class: "notice fault", role: "alert", hidden: true });
  const failed = (told) => {
    fault.hidden = told === null;
    fault.textContent = told ?? "";
  };
  askJson(`v1/audio/voices?model=${encodeURIComponent(model)}`)
    .then((found) => voices.append(...found.voices.map((name) => el("option", {}, name))))
    .catch((error) => failed(error.message));
  const button = readButton({ model, failed, text: () => text.value,
    voice: () => voices.value || null });
  return [text, el("p", {}, button, voices), fault];
}
