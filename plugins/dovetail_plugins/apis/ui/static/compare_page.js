// Two models answer one prompt side by side. Nothing of it is kept.

import { NUMBERS, emptyAnswer, requestBody } from "./answer.js";
import { announce, el } from "./dom.js";
import { messageView } from "./message_view.js";
import { fill } from "./stream.js";

const CHOSEN = "dovetail.compared";
const SHARED_OPTIONS = ["system", "stop", ...Object.keys(NUMBERS)];
const SIDES = ["First model", "Second model"];
const NOTE = "Both get the system prompt and the sampling of the chat that is open.";
const TOO_FEW = "Comparing takes two models that chat; this server has fewer.";

/** Return the view in an element: show and hide. `optionsOf` returns the options of the open chat. */
export function makeComparePage(root, models, optionsOf) {
  const sides = SIDES.map((label, at) => makeSide(label, `compare-${at}`, {
    chosen: () => localStorage.setItem(CHOSEN, JSON.stringify(sides.map((one) => one.model()))),
    again: () => run([sides[at]]),
  }));
  const text = el("textarea", { id: "compare-text", rows: 3, required: true, onkeydown: onKey });
  const note = el("p", { class: "quiet" }, NOTE);
  const button = el("button", { type: "submit", class: "primary" }, "Ask both");
  const fault = el("p", { class: "notice fault", role: "alert", hidden: true });
  const form = el("form", { class: "card compare-form", onsubmit: submit },
    el("label", { for: text.id }, "Prompt"), text,
    el("div", { class: "row" }, note, button));
  const both = el("div", { class: "compare-sides" }, sides.map((side) => side.node));
  const few = el("p", { class: "notice", hidden: true }, TOO_FEW);
  root.append(el("div", { class: "page" },
    el("div", { class: "page-head" }, el("h1", {}, "Compare")), fault, few, form, both));
  root.addEventListener("keydown", (event) => event.key === "Escape" && stop());
  let prompt = "";

  function onKey(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      if (!isRunning()) submit(event);
    }
  }

  const isRunning = () => sides.some((side) => side.isRunning());

  function submit(event) {
    event.preventDefault();
    if (isRunning()) {
      stop();
      return;
    }
    if (!text.value.trim()) return;
    prompt = text.value.trim();
    run(sides);
  }

  function stop() {
    for (const side of sides) side.stop();
  }

  async function run(chosenSides) {
    const options = Object.fromEntries(SHARED_OPTIONS.map((name) => [name, optionsOf()[name]]));
    announce("Answering");
    const runs = chosenSides.map((side) => side.run({ options, messages: [{ role: "user", content: prompt }] }));
    drawButton();
    await Promise.all(runs.map((one) => one.finally(drawButton)));
    announce(chosenSides.length > 1 ? "Both answers have ended." : "The answer has ended.");
    models.refresh().catch(() => undefined); // only a list that may be out of date
  }

  function drawButton() {
    button.textContent = isRunning() ? "Stop both" : "Ask both";
    button.classList.toggle("primary", !isRunning());
  }

  async function show() {
    fault.hidden = true;
    try {
      const able = (await models.refresh()).filter(chats);
      few.hidden = able.length > 1;
      form.hidden = both.hidden = able.length < 2;
      if (able.length > 1) choose(able.map(({ id }) => id));
    } catch (error) {
      fault.textContent = error.message;
      fault.hidden = false;
    }
  }

  /** Offer models on both sides: those of the last time, else the chat's and another one. */
  function choose(ids) {
    const known = remembered().map((id) => (ids.includes(id) ? id : null));
    const first = known[0] ?? (ids.includes(models.current()?.id) ? models.current().id : ids[0]);
    const second = known[1] ?? ids.find((id) => id !== first);
    sides.forEach((side, at) => side.offer(ids, [first, second][at]));
  }

  return { show, hide: () => undefined };
}

/** Return the names of the last time; none where there was none. */
function remembered() {
  try {
    const names = JSON.parse(localStorage.getItem(CHOSEN));
    return Array.isArray(names) ? names : [];
  } catch {
    return []; // what this browser holds is not of this page
  }
}

const chats = ({ capabilities, fault }) => !fault && (capabilities?.includes("completion") ?? true);

/** Return one side: its node, offer(names, chosen), model(), run(conversation), stop(), isRunning(). */
function makeSide(label, id, { chosen, again }) {
  const list = el("select", { id, onchange: chosen });
  const place = el("div", { class: "compare-answer" }, el("p", { class: "quiet" }, "No answer yet."));
  const node = el("section", { class: "card", "aria-label": label },
    el("label", { for: id }, label), list, place);
  let controller = null;

  /** Ask the chosen model, and show its answer as it comes. */
  async function run(conversation) {
    controller = new AbortController();
    const { signal } = controller;
    const answer = Object.assign(emptyAnswer(performance.now()), { model: list.value });
    const view = messageView(answer, { isLast: false, answerOf: () => true, again });
    place.replaceChildren(view.node);
    node.setAttribute("aria-busy", "true");
    list.disabled = true;
    view.setRunning(true);
    let isDue = false;
    const changed = () => {
      if (isDue) return;
      isDue = true;
      requestAnimationFrame(() => {
        isDue = false;
        view.update();
      });
    };
    try {
      const body = requestBody(conversation, list.value);
      await fill(answer, body, { signal, changed, noted: (text) => view.setNote(text) });
    } catch (error) {
      if (error.name === "AbortError") answer.finish = "stopped";
      else answer.error = error.message;
    }
    controller = null;
    list.disabled = false;
    node.removeAttribute("aria-busy");
    view.setRunning(false);
  }

  return {
    node,
    run,
    model: () => list.value,
    isRunning: () => controller !== null,
    stop: () => controller?.abort(),
    offer: (names, name) => {
      if (controller) return;
      list.replaceChildren(...names.map((one) => el("option", { value: one }, one)));
      list.value = name;
    },
  };
}
