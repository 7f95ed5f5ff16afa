// Which model the page talks to: its name in the header, or a list to choose from where the server
// has several.

import { el } from "./dom.js";
import { askJson } from "./server.js";

const CHOSEN = "dovetail.model";

/** Return the choice in an element: find, refresh, choose, current, speech, speaker, isOfSeveral, isFixed.
 *
 * `changed` gets the chosen model's card of /v1/models, `listed` all cards; `wanted` returns the name
 * to begin with. */
export function makeModels(root, { changed, listed, wanted }) {
  let models = [];
  let chosen = null;
  const list = el("select", { id: "model-choice", onchange: () => choose(list.value) });

  /** Ask the server for its models; where it does not tell, say why. */
  async function find() {
    try {
      take((await askJson("v1/models")).data);
    } catch (error) {
      root.replaceChildren(
        el("span", { class: "fault" }, error.message),
        el("button", { type: "button", class: "link-button", onclick: find }, "Try again"),
      );
      return;
    }
    chosen = pick();
    draw();
    changed(chosen);
  }

  /** Learn anew which models there are and which are loaded; return the cards. A fault leaves what
   * was known. */
  async function refresh() {
    if (isFixed()) return models;
    take((await askJson("v1/models")).data);
    const before = chosen;
    chosen = pick();
    if (document.activeElement !== list) draw();
    if (!isSame(before, chosen)) changed(chosen);
    return models;
  }

  /** Return the chosen model's card; of a model that is gone, that of the next best. */
  function pick() {
    const names = [chosen?.id, wanted(), localStorage.getItem(CHOSEN)];
    const loaded = models.find(({ state }) => state === "loaded");
    return names.map(card).find(Boolean) ?? loaded ?? models[0] ?? null;
  }

  function take(cards) {
    models = cards;
    listed(models);
  }

  /** Take another model, unless the server has none of that name. */
  function choose(id) {
    const found = card(id);
    if (!found || found.id === chosen?.id) return;
    chosen = found;
    localStorage.setItem(CHOSEN, id);
    list.value = id;
    changed(chosen);
  }

  const card = (id) => models.find((one) => one.id === id);
  /** Return the name of the model that writes down speech: the chosen one before others, or null. */
  const speech = () => [chosen, ...models].find(hears)?.id ?? null;
  /** Return the name of the model that speaks, or null. */
  const speaker = () => models.find(speaks)?.id ?? null;
  const isOfSeveral = () => models.length > 1;
  /** Return whether the server has one model for ever: its card has no state. */
  const isFixed = () => models.length === 1 && !models[0].state;

  function draw() {
    if (!isOfSeveral()) {
      root.textContent = chosen?.id ?? "";
      return;
    }
    list.replaceChildren(...models.map((one) => el("option", { value: one.id }, named(one))));
    list.value = chosen.id;
    if (!list.isConnected) {
      root.replaceChildren(el("label", { class: "unseen", for: list.id }, "Model"), list);
    }
  }

  return { find, refresh, choose, current: () => chosen, speech, speaker, isOfSeveral, isFixed };
}

/** Return whether two cards say the same of what a model can do. */
function isSame(one, other) {
  return one?.id === other?.id
    && one?.capabilities?.join() === other?.capabilities?.join();
}

const hears = (model) => model?.capabilities?.includes("transcription");

const speaks = (model) => model?.capabilities?.includes("speak");

/** Return a model's name, with its state where it would have to be loaded first. */
function named({ id, state }) {
  return state && state !== "loaded" ? `${id} (${state})` : id;
}
