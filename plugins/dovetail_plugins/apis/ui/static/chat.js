// The chat: one conversation at a time, and what happens to it. Messages, the list, the composer and
// the options draw themselves; here is what they have in common.

import { emptyAnswer, requestBody } from "./answer.js";
import { dropFiles } from "./attachments.js";
import { makeComposer } from "./composer.js";
import { makeConversationList } from "./conversation_list.js";
import { announce, el, iconButton } from "./dom.js";
import { messageView } from "./message_view.js";
import { makeOptions } from "./options.js";
import { showPurpose } from "./purpose.js";
import { listed, load, newConversation, save, watch } from "./store.js";
import { fill, loadNote } from "./stream.js";

const CURRENT = "dovetail.current";
const NEAR_END = 80;
const SAVE_MS = 1000;

/** Return the view in an element: show, hide, setModel, and the conversation that is open. */
export function makeChat(root, models) {
  return new Chat(root, models);
}

class Chat {
  constructor(root, models) {
    this.root = root;
    this.models = models;
    this.running = null;
    this.views = [];
    this.conversation = load(sessionStorage.getItem(CURRENT)) ?? listed()[0] ?? newConversation();
    this.#build();
    this.open(this.conversation);
    watch(() => this.list.draw(this.conversation.id));
  }

  #build() {
    this.list = makeConversationList({
      open: (id) => this.open(load(id) ?? newConversation()),
      begin: () => this.begin(),
      renamed: (id, name) => this.#renamed(id, name),
      removed: (ids) => this.#removed(ids),
    });
    this.options = makeOptions({ changed: () => this.#keep() });
    this.composer = makeComposer({
      send: (text, attached) => this.send(text, attached),
      stop: () => this.stop(),
      toggleOptions: () => this.options.toggle(),
      failed: (told) => this.#tell(told),
    });
    this.log = el("div", { class: "log", role: "log", "aria-label": "Conversation" });
    this.scroller = el("div", { class: "scroller", tabindex: "-1" }, this.log);
    this.toEnd = iconButton("down", "Go to the latest message", () => this.#scroll(true),
      { class: "icon-button to-end", hidden: true });
    this.fault = el("p", { class: "notice fault", role: "alert", hidden: true });
    this.scroller.addEventListener("scroll", () => (this.toEnd.hidden = this.#isAtEnd()));
    const menu = iconButton("menu", "Conversations", () => this.list.toggle(), {
      class: "icon-button menu-button", "aria-expanded": "false" });
    this.list.setButton(menu);
    this.options.setButton(this.composer.optionsButton);
    this.root.append(this.list.node,
      el("section", { class: "talk", "aria-labelledby": "chat-title" },
        el("h1", { class: "unseen", id: "chat-title" }, "Chat"), menu, this.scroller,
        el("div", { class: "foot" }, this.toEnd, this.fault, this.composer.node)),
      this.options.node);
    this.scroller.addEventListener("click", () => this.list.close());
    dropFiles(this.root, (files) => this.composer.attach(files));
    this.root.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.running) this.stop();
    });
  }

  show() {
    this.composer.focus();
  }

  hide() {}

  setModel(model) {
    const can = new Set(model?.capabilities ?? []);
    const isUnknown = !model?.capabilities; // until it is loaded
    this.composer.setTakes({ images: isUnknown || can.has("vision"),
      sounds: isUnknown || can.has("audio"), records: can.has("audio") });
    this.composer.setSpeechModel(this.models.speech());
    this.options.setCapabilities(can);
    showPurpose(this.root, model);
  }

  /** Show a conversation; an answer that is being written is stopped. */
  open(conversation) {
    this.stop();
    this.conversation = conversation;
    this.models.choose(conversation.model);
    sessionStorage.setItem(CURRENT, conversation.id);
    this.options.show(conversation.options);
    this.draw();
    this.list.draw(conversation.id);
    this.list.close();
    this.#scroll(true);
  }

  begin() {
    this.open(newConversation(this.conversation.options));
    this.composer.focus();
  }

  draw() {
    const { messages } = this.conversation;
    this.views = messages.map((message, index) => messageView(message, this.#actions(index)));
    this.log.replaceChildren(...this.views.map((view) => view.node));
    if (!messages.length) this.log.append(welcome((text) => this.send(text)));
  }

  #actions(index) {
    return {
      isLast: index === this.conversation.messages.length - 1,
      answerOf: (callId) =>
        this.conversation.messages.some((message) => message.callId === callId),
      again: () => this.regenerate(index),
      edit: (text) => this.edit(index, text),
      giveResults: (results) => this.giveResults(index, results),
      speaker: () => this.models.speaker(),
      failed: (told) => this.#tell(told),
    };
  }

  /** Send a message with what is attached to it: images, sounds, files. */
  send(text, attached = {}) {
    if (!this.#isReady()) return false;
    this.conversation.messages.push({ role: "user", content: text, ...attached });
    this.#answer();
    return true;
  }

  /** Ask again for the answer at a place; what came after it is dropped. */
  regenerate(index) {
    if (!this.#isReady()) return;
    this.stop();
    this.conversation.messages.length = index;
    this.#answer();
  }

  /** Ask with another text of a user's; what came after it is dropped. */
  edit(index, text) {
    if (!this.#isReady()) return;
    this.stop();
    const message = { ...this.conversation.messages[index], content: text };
    this.conversation.messages.splice(index, Infinity, message);
    this.#answer();
  }

  /** Go on with what the called tools have returned. */
  giveResults(index, results) {
    if (!this.#isReady()) return;
    const { toolCalls } = this.conversation.messages[index];
    const told = toolCalls.map((call, at) => ({
      role: "tool", callId: call.id, name: call.name, content: results[at] }));
    this.conversation.messages.splice(index + 1, Infinity, ...told);
    this.#answer();
  }

  stop() {
    this.running?.abort();
    this.running = null;
    this.composer.setRunning(false);
    this.log.removeAttribute("aria-busy");
  }

  #isReady() {
    return this.options.check();
  }

  async #answer() {
    this.stop();
    const { conversation } = this;
    const controller = new AbortController();
    const model = this.models.current()?.id;
    const body = requestBody(conversation, model);
    const answer = emptyAnswer(performance.now());
    if (this.models.isOfSeveral()) conversation.model = answer.model = model;
    conversation.messages.push(answer);
    this.running = controller;
    this.#keep();
    this.draw();
    this.composer.setRunning(true);
    const view = this.views.at(-1);
    view.setRunning(true);
    this.log.setAttribute("aria-busy", "true");
    this.#scroll(true);
    announce("Answering");
    this.#tellLoad(model, view);
    try {
      await this.#read(body, answer, view, controller.signal);
      announce("The answer is complete.");
    } catch (error) {
      if (error.name === "AbortError") answer.finish = "stopped";
      else answer.error = error.message;
    }
    view.setRunning(false);
    this.models.refresh().catch(() => undefined); // only a list that may be out of date
    this.#finish(conversation, controller, answer);
  }

  /** Say that the answer waits for its model, where that is to be loaded first. */
  async #tellLoad(model, view) {
    const cards = await this.models.refresh().catch(() => []); // the answer tells what is wrong
    const card = cards.find((one) => one.id === model);
    if (!card?.state || card.state === "loaded") return;
    if (card.state !== "leaving") view.setNote(loadNote(model));
  }

  async #read(body, answer, view, signal) {
    let savedMs = performance.now();
    let isDue = false;
    const update = () => {
      isDue = false;
      const isAtEnd = this.#isAtEnd();
      view.update();
      if (isAtEnd) this.#scroll(false);
    };
    const changed = () => {
      const nowMs = performance.now();
      if (!isDue) {
        isDue = true;
        requestAnimationFrame(update);
      }
      if (nowMs - savedMs > SAVE_MS) {
        savedMs = nowMs;
        this.#keep();
      }
    };
    await fill(answer, body, { signal, changed, noted: (text) => view.setNote(text) });
  }

  /** Draw and keep the whole answer; another conversation may be shown meanwhile. */
  #finish(conversation, controller, answer) {
    conversation.changed = Date.now();
    this.#keepOne(conversation);
    this.list.draw(this.conversation.id);
    if (this.running === controller) this.stop();
    if (this.conversation !== conversation) return;
    const isAtEnd = this.#isAtEnd();
    this.views[conversation.messages.indexOf(answer)]?.update();
    if (isAtEnd) this.#scroll(false);
  }

  #keep() {
    this.conversation.options = this.options.values();
    if (this.conversation.messages.length) this.#keepOne(this.conversation);
    this.list.draw(this.conversation.id);
  }

  #keepOne(conversation) {
    this.#tell(save(conversation));
  }

  #renamed(id, name) {
    const found = id === this.conversation.id ? this.conversation : load(id);
    found.name = name;
    this.#keepOne(found);
    this.list.draw(this.conversation.id);
  }

  #removed(ids) {
    if (ids.includes(this.conversation.id)) this.open(listed()[0] ?? newConversation());
    else this.list.draw(this.conversation.id);
  }

  /** Say what went wrong; nothing, where nothing did. */
  #tell(fault) {
    this.fault.textContent = fault ?? "";
    this.fault.hidden = !fault;
  }

  #isAtEnd() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    return scrollHeight - scrollTop - clientHeight < NEAR_END;
  }

  #scroll(isFar) {
    this.scroller.scrollTo({ top: this.scroller.scrollHeight, behavior: "instant" });
    if (isFar) this.toEnd.hidden = true;
  }
}

const FIRST = ["What is the capital of France?", "What can you do?", "Count from one to ten."];

function welcome(send) {
  const suggestions = FIRST.map((text) =>
    el("button", { type: "button", onclick: () => send(text) }, text));
  return el("div", { class: "welcome" },
    el("h2", {}, "Ask the model something"),
    el("p", { class: "quiet" }, "Conversations stay in this browser."),
    el("div", { class: "suggestions" }, suggestions));
}
