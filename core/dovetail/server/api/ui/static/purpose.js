// What a model is for that does not chat: shown in the chat's place.

import { el } from "./dom.js";

const USES = {
  embed: ["POST /v1/embeddings", "vectors of texts, to search and compare by"],
  classify: ["POST /classify", "classes of texts, with their probabilities"],
  score: ["POST /score and /rerank", "how well texts go together, and documents sorted by it"],
  token_embed: ["POST /pooling", "a vector for each token of a text"],
  token_classify: ["POST /pooling", "classes for each token of a text"],
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
  return el("section", { class: "purpose" },
    el("h1", {}, "This model does not chat"),
    el("p", {}, `${name} reads texts and writes none. Programs ask it for:`),
    el("ul", {}, rows));
}
