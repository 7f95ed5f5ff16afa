// One answer as it comes: asked for, and each of its pieces added to a message.

import { addChunk } from "./answer.js";
import { ask, events } from "./server.js";

const LOADING = /^(".*") is being loaded, (\d+) s$/;

/** Ask for an answer and add what comes to a message. `changed` is called after each piece, `noted`
 * with a sentence while the model is being loaded. Throws ServerError. Mutates: answer */
export async function fill(answer, body, { signal, changed, noted }) {
  const response = await ask("v1/chat/completions", { body, signal });
  const commented = (comment) => {
    const found = LOADING.exec(comment);
    if (found) noted(loadNote(JSON.parse(found[1]), Number(found[2])));
  };
  for await (const chunk of events(response, commented)) {
    addChunk(answer, chunk, performance.now());
    changed();
  }
}

/** Return what is said while a model is being loaded. */
export function loadNote(model, seconds = 0) {
  const time = seconds ? `, ${seconds} s so far` : "";
  return `${model} is being loaded${time}. The answer begins when it is there.`;
}
