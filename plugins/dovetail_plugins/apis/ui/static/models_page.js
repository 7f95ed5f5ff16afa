// The models of the server: their state and memory; load and unload them, fetch and delete them.

import { announce, el, iconButton, size } from "./dom.js";
import { ask, values } from "./server.js";

const PERIOD_MS = 2000;
const IN_MEMORY = new Set(["loaded", "loading", "waking", "asleep"]);
const SEARCHED = 8; // with more models than these there is a search
const FIXED = "This server has the model that it was started with. One that is started with "
  + "dovetail serve --models any loads and fetches others here.";

/** What can be done with models: the request, and what stands before the reason where it cannot. */
const DEEDS = {
  load: { path: "models/load", no: "Models are loaded by requests alone" },
  unload: { path: "models/unload", no: "Models cannot be unloaded here" },
  remove: { path: "api/delete", method: "DELETE", no: "Models cannot be deleted here" },
  pull: { path: "api/pull", no: "Models cannot be fetched here" },
};

/** Return the view in an element: show and hide. */
export function makeModelsPage(root, models) {
  return new ModelsPage(root, models);
}

class ModelsPage {
  constructor(root, models) {
    this.models = models;
    this.rows = new Map();
    this.refused = new Map();
    this.timer = null;
    this.isShown = false;
    this.pulling = null;
    this.#build(root);
    document.addEventListener("visibilitychange", () => this.#schedule());
  }

  #build(root) {
    this.status = el("p", { class: "quiet", role: "status" });
    this.reasons = el("ul", { class: "reasons quiet", "aria-label": "What is not offered here",
      hidden: true });
    this.list = el("ul", { class: "model-list", "aria-label": "Models" });
    this.name = el("input", { id: "pull-name", required: true, autocomplete: "off",
      spellcheck: "false", maxlength: 512, placeholder: "Qwen/Qwen3-0.6B" });
    this.pullButton = el("button", { type: "submit", class: "primary" }, "Pull");
    this.bar = el("progress", { "aria-label": "Fetched", max: 1 });
    this.pullText = el("p", { class: "quiet" });
    this.pullFault = el("p", { class: "notice fault", role: "alert", hidden: true });
    this.progress = el("div", { class: "pull-progress", hidden: true }, this.bar, this.pullText,
      el("button", { type: "button", onclick: () => this.pulling?.abort() }, "Cancel"));
    this.form = el("form", { class: "card pull", onsubmit: (event) => this.#pull(event) },
      el("h2", {}, "Fetch a model"),
      el("label", { for: "pull-name" }, "Its name on the hub"),
      el("div", { class: "row" }, this.name, this.pullButton), this.progress, this.pullFault);
    this.search = el("input", { type: "search", "aria-label": "Search the models",
      placeholder: "Name or state", oninput: () => this.#filter() });
    this.filters = el("div", { class: "row filters", hidden: true }, this.search);
    root.append(el("div", { class: "page" },
      el("div", { class: "page-head" }, el("div", {}, el("h1", {}, "Models"), this.status),
        this.filters),
      this.list, this.form, this.reasons));
  }

  show() {
    this.isShown = true;
    this.#schedule();
  }

  hide() {
    this.isShown = false;
    this.#schedule();
  }

  /** Look again and again while somebody can see it. */
  #schedule() {
    clearTimeout(this.timer);
    if (this.isShown && !document.hidden) this.#look();
  }

  async #look() {
    clearTimeout(this.timer);
    const goesOn = await this.#refresh();
    clearTimeout(this.timer);
    if (goesOn && this.isShown && !document.hidden) this.timer = setTimeout(() => this.#look(), PERIOD_MS);
  }

  /** Draw what the server tells; return whether to look again: nobody is asked for a key twice. */
  async #refresh() {
    try {
      this.#draw(await this.models.refresh());
    } catch (error) {
      this.#say(error.message, "fault");
      return error.status !== 401;
    }
    return true;
  }

  /** Say something new: what is the same is not read out again. */
  #say(text, name = "quiet") {
    this.status.className = name;
    if (this.status.textContent !== text) this.status.textContent = text;
  }

  #filter() {
    const words = this.search.value.trim().toLowerCase().split(/\s+/);
    for (const { node, about } of this.rows.values()) {
      const text = about.textContent.toLowerCase();
      node.hidden = !this.filters.hidden && !words.every((word) => text.includes(word));
    }
  }

  #draw(cards) {
    const isFixed = this.models.isFixed();
    const num = cards.filter(({ state }) => isFixed || state === "loaded").length;
    this.#say(isFixed ? FIXED
      : `${cards.length} ${cards.length === 1 ? "model" : "models"}, ${num} loaded.`);
    this.filters.hidden = cards.length <= SEARCHED;
    this.form.hidden = isFixed || this.refused.has("pull");
    const ids = new Set(cards.map(({ id }) => id));
    for (const [id, row] of this.rows) if (!ids.has(id)) this.#drop(id, row);
    const current = this.models.current()?.id;
    for (const card of cards) {
      if (!this.rows.has(card.id)) this.rows.set(card.id, this.#row(card.id));
      const row = this.rows.get(card.id);
      row.draw(card, card.id === current);
      if (!row.node.isConnected) this.list.append(row.node);
    }
    this.#filter();
    this.reasons.hidden = isFixed || !this.refused.size;
    const lines = [...this.refused].map(([deed, why]) => `${DEEDS[deed].no}: ${why}`);
    this.reasons.replaceChildren(...lines.map((text) => el("li", {}, text)));
  }

  #drop(id, row) {
    const hadFocus = row.node.contains(document.activeElement);
    row.node.remove();
    this.rows.delete(id);
    if (hadFocus) document.getElementById("main").focus();
  }

  #row(id) {
    return modelRow(id, {
      offers: (deed) => !this.models.isFixed() && !this.refused.has(deed),
      talk: () => {
        this.models.choose(id);
        location.hash = "#chat";
      },
      ask: (deed) => this.#do(deed, id),
    });
  }

  /** Do something to a model. Throws ServerError, unless this server does not offer that. */
  async #do(deed, id) {
    const { path, method } = DEEDS[deed];
    const looking = setTimeout(() => this.#look(), 200); // the state changes before it is over
    try {
      await ask(path, { method, body: { model: id }, isManaging: true });
    } catch (error) {
      this.#note(deed, id, error);
    } finally {
      clearTimeout(looking);
      await this.#look();
    }
  }

  /** Remember that something is not offered. Throws any other error. */
  #note(deed, name, error) {
    if (!isNotOffered(error, name)) throw error;
    this.refused.set(deed, error.message);
    announce(error.message);
  }

  async #pull(event) {
    event.preventDefault();
    const name = this.name.value.trim();
    if (!name || this.pulling) return;
    this.pulling = new AbortController();
    this.#showPull(name);
    let fault = "";
    try {
      await this.#follow(name, this.pulling.signal);
      announce(`${name} has been fetched`);
      this.name.value = "";
    } catch (error) {
      fault = await this.#pullFault(name, error);
    }
    this.pulling = null;
    this.#showPull(null, fault);
    await this.#look();
  }

  async #pullFault(name, error) {
    if (error.name === "AbortError") {
      announce("Cancelled");
      return `${name} was not fetched: it was cancelled.`;
    }
    try {
      this.#note("pull", name, error);
      return "";
    } catch {
      return `${name} was not fetched: ${error.message}`;
    }
  }

  async #follow(name, signal) {
    const body = { model: name, stream: true };
    const response = await ask(DEEDS.pull.path, { body, signal, isManaging: true });
    const parts = new Map();
    let last = "";
    for await (const { status, digest, total, completed } of values(response)) {
      if (total) parts.set(digest ?? "", { total, completed: completed ?? 0 });
      last = status ?? last;
      this.#drawPull(name, last, parts);
    }
    if (last !== "success") throw new Error("the connection ended before everything was there.");
  }

  #drawPull(name, status, parts) {
    const sum = (of) => [...parts.values()].reduce((all, part) => all + part[of], 0);
    const total = sum("total");
    if (total) {
      this.bar.value = Math.min(1, sum("completed") / total);
      this.pullText.textContent = `${name}: ${size(sum("completed"))} of ${size(total)}. ${status}`;
    } else {
      this.pullText.textContent = `${name}: ${status}`;
    }
  }

  #showPull(name, fault = "") {
    const isRunning = name !== null;
    const hadFocus = this.progress.contains(document.activeElement);
    this.progress.hidden = !isRunning;
    this.pullButton.disabled = this.name.disabled = isRunning;
    if (hadFocus) this.name.focus();
    this.bar.removeAttribute("value");
    this.pullText.textContent = isRunning ? `${name}: asking for it` : "";
    this.pullFault.textContent = fault;
    this.pullFault.hidden = !fault;
  }
}

/** Return whether an error says that the server does not do such a thing, for whatever model: such an
 * error does not name the model. */
function isNotOffered({ status, code, message }, name) {
  const isNamed = [`"${name}"`, `'${name}'`].some((one) => message.includes(one))
    || (name.includes("/") && message.includes(name));
  if (code === "model_not_found" || isNamed) return false;
  return [403, 404, 405, 501].includes(status) || code === "not_supported";
}

/** Return a model's row: its node, the part about the model, and draw(card, whether it is chosen). */
function modelRow(id, { offers, talk, ask: request }) {
  const state = el("span", { class: "state" });
  const facts = el("p", { class: "quiet facts-line" });
  const fault = el("p", { class: "fault", role: "alert", hidden: true });
  const button = (text, onclick, props = {}) => el("button", { type: "button",
    "aria-label": `${text} ${id}`, onclick, ...props }, text);
  const chat = button("Chat", talk);
  const load = button("Load", () => perform("load"));
  const unload = button("Unload", () => perform("unload"));
  const remove = iconButton("trash", `Delete ${id}`, () => confirm(true));
  const yes = el("button", { type: "button", class: "danger", onclick: () => {
    confirm(false);
    perform("remove");
  } }, "Delete");
  const usual = el("div", { class: "row deeds" }, chat, load, unload, remove);
  const sure = el("div", { class: "row deeds", hidden: true, role: "group",
    "aria-label": `Delete ${id}?`, onkeydown: (event) => event.key === "Escape" && confirm(false) },
  el("span", {}, "Delete its files?"), yes,
  el("button", { type: "button", onclick: () => confirm(false) }, "Keep"));
  const about = el("div", { class: "about" },
    el("p", {}, el("strong", {}, id), " ", state), facts, fault);
  const node = el("li", { class: "card model-row" }, about, usual, sure);
  let isBusy = false;
  let last = null;

  /** Deleting takes a second click: nothing brings the files back. */
  function confirm(isAsked) {
    sure.hidden = !isAsked;
    usual.hidden = isAsked;
    (isAsked ? yes : remove).focus();
  }

  async function perform(deed) {
    isBusy = true;
    tell("");
    draw(...last);
    try {
      await request(deed);
    } catch (error) {
      tell(error.message);
    }
    isBusy = false;
    draw(...last);
  }

  function tell(text) {
    fault.textContent = text;
    fault.hidden = !text;
  }

  function draw(card, isChosen) {
    last = [card, isChosen];
    const where = card.state ?? "loaded";
    const isIn = IN_MEMORY.has(where);
    state.textContent = where;
    state.className = `state is-${where}`;
    node.classList.toggle("is-here", isChosen);
    facts.textContent = factsOf(card, isChosen).join(" · ");
    toggle(load, !offers("load") || (isIn && where !== "asleep"), isBusy || Boolean(card.fault));
    toggle(unload, !offers("unload") || !isIn, isBusy && where !== "loading");
    toggle(remove, !offers("remove"), isBusy);
    chat.disabled = Boolean(card.fault);
    if (where === "leaving") load.disabled = true;
  }

  return { node, about, draw };
}

function toggle(button, isHidden, isDisabled) {
  const hadFocus = document.activeElement === button;
  button.hidden = isHidden;
  button.disabled = isDisabled;
  if (hadFocus && isHidden) {
    button.parentElement.querySelector("button:not([hidden], :disabled)")?.focus();
  }
}

function factsOf(card, isChosen) {
  const facts = isChosen ? ["chosen in the chat"] : [];
  if (card.size_bytes) facts.push(`files ${size(card.size_bytes)}`);
  if (card.needed_bytes) {
    facts.push(`${IN_MEMORY.has(card.state) ? "memory" : "needs memory of"} ${size(card.needed_bytes)}`);
  }
  if (card.max_model_len) facts.push(`${card.max_model_len.toLocaleString("en")} tokens`);
  const until = Date.parse(card.expires_at ?? "");
  if (until - Date.now() < 24 * 3600e3) {
    const time = new Date(until).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
    facts.push(`stays until ${time} if unused`);
  }
  if (card.fault) facts.push(card.fault);
  return facts;
}
