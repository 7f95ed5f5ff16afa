// What a model is for that does not chat: shown in the chat's place.

import { el } from "./dom.js";
import { makeSpeech } from "./speech.js";
import { makeVoiceTrial } from "./voice.js";

const USES = {
  embed: ["POST /v1/embeddings", "vectors of texts, to search and compare by"],
  classify: ["POST /classify", "classes of texts, with their probabilities"],
  score: ["POST /score and /rerank", "how well texts go together, and documents sorted by it"],
  token_embed: ["POST /pooling", "a vector for each token of a text"],
  token_classify: ["POST /pooling", "classes for each token of a text"],
  transcription: ["POST /v1/audio/transcriptions", "what is said in a sound, as text or subtitles"],
  speak: ["POST /v1/audio/speech", "the sound of a text"],
};

/** Show what a model is for in a view's element; of a model that chats, the view itself. */
export function showPurpose(root, model) {
  const can = model?.capabilities ?? ["completion"];
  const chats = can.includes("completion");
  root.querySelector(":scope > .purpose")?.remove();
  root.classList.toggle("without-chat", !chats);
  if (!chats) root.append(purpose(model.id, can));
}

function purpose(name, can) {
  const rows = can
    .filter((task) => Object.hasOwn(USES, task))
    .map((task) => USES[task])
    .map(([path, what]) => el("li", {}, el("code", {}, path), `: ${what}`));
  const hears = can.includes("transcription");
  const speaks = can.includes("speak");
  const does = hears ? "writes down what is said"
    : speaks ? "speaks texts" : "reads texts and writes none";
  return el("section", { class: "purpose" },
    el("h1", {}, "This model does not chat"),
    el("p", {}, `${name} ${does}. Programs ask it for:`),
    el("ul", {}, rows),
    hears ? trial(name) : speaks ? makeVoiceTrial(name) : null);
}

/** Return where a model of speech is tried out. */
function trial(name) {
  const said = el("textarea", { "aria-label": "What was said", readonly: true, rows: 6 });
  const fault = el("p", { class: "notice fault", role: "alert", hidden: true });
  const speech = makeSpeech({
    heard: (text) => (said.value = text),
    failed: (told) => {
      fault.hidden = told === null;
      fault.textContent = told ?? "";
    },
  });
  speech.setModel(name);
  return [el("p", {}, speech.nodes), fault, said];
}
