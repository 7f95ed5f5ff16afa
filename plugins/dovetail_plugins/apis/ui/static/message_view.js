// One message: text, thinking and tool calls folded, what it cost, what can be done with it.

import { speed } from "./answer.js";
import { attachedNodes } from "./attachments.js";
import { announce, copy, el, iconButton } from "./dom.js";
import { showMarkdown } from "./markdown.js";
import { readButton } from "./voice.js";

const ENDS = {
  length: "cut off at the token limit",
  stopped: "stopped",
  content_filter: "ended by a filter",
  abort: "ended by the server",
  repetition: "ended because it repeated itself",
};

/** Return a view of a message: its node, and update() after the message has changed. */
export function messageView(message, actions) {
  if (message.role === "user") return userView(message, actions);
  if (message.role === "tool") return toolView(message);
  return answerView(message, actions);
}

function userView(message, actions) {
  const node = el("article", { class: "message user", "aria-label": "You" });
  const draw = () => {
    node.replaceChildren(
      el("div", { class: "bubble" }, attachedNodes(message),
        message.content ? el("p", { class: "plain" }, message.content) : null),
      el("div", { class: "actions" }, copyButton(() => message.content),
        iconButton("edit", "Edit this message", edit)));
  };
  const edit = () => {
    const text = el("textarea", { rows: 3, "aria-label": "Edited message", value: message.content });
    const isEnough = () => text.value.trim() || attachedNodes(message).length;
    const submit = () => isEnough() && actions.edit(text.value.trim());
    const leave = () => {
      draw();
      node.querySelector(".actions button:last-child").focus();
    };
    text.addEventListener("keydown", (event) => {
      if (event.key === "Escape") leave();
      if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        submit();
      }
    });
    node.replaceChildren(el("div", { class: "editor" }, text,
      el("p", { class: "quiet" }, "Sending drops what came after it."),
      el("div", { class: "row end" },
        el("button", { type: "button", onclick: leave }, "Cancel"),
        el("button", { type: "button", class: "primary", onclick: submit }, "Send again"))));
    text.focus();
    text.setSelectionRange(text.value.length, text.value.length);
  };
  draw();
  return { node, update: draw, setRunning: () => {}, setNote: () => {} };
}

function toolView(message) {
  const node = el("article", { class: "message tool", "aria-label": "Tool result" },
    el("details", { class: "fold" },
      el("summary", {}, "Result of ", el("code", {}, message.name || "the tool")),
      el("pre", { tabindex: "0" }, message.content)));
  return { node, update: () => {}, setRunning: () => {}, setNote: () => {} };
}

function answerView(message, actions) {
  const thinking = foldedThinking();
  const body = el("div", { class: "markdown" });
  const calls = el("div", { class: "calls" });
  const foot = el("div", { class: "answer-foot" });
  const node = el("article", { class: "message assistant", "aria-label": "Model" },
    thinking.node, body, calls, foot);
  let isRunning = false;
  let note = "";
  const update = () => {
    thinking.update(message, isRunning);
    showMarkdown(body, message.content);
    body.hidden = !message.content;
    drawCalls(calls, message);
    node.classList.toggle("is-waiting", isRunning && !message.content && !message.reasoning
      && !message.toolCalls?.length);
    const waiting = isRunning && note && !message.firstMs;
    foot.replaceChildren(...(waiting ? [el("p", { class: "cost quiet" }, note)]
      : isRunning ? [cost(message)] : footOf(message, actions)));
  };
  const setRunning = (value) => {
    isRunning = value;
    node.classList.toggle("is-running", value);
    update();
  };
  const setNote = (text) => {
    if (!note) announce(text); // what follows only counts the seconds
    note = text;
    update();
  };
  update();
  return { node, update, setRunning, setNote };
}

function foldedThinking() {
  const title = el("span", {}, "Thinking");
  const text = el("div", { class: "markdown thought" });
  const node = el("details", { class: "fold", hidden: true }, el("summary", {}, title), text);
  return {
    node,
    update(message, isRunning) {
      node.hidden = !message.reasoning;
      const isThinking = isRunning && !message.content && !message.toolCalls?.length;
      title.textContent = isThinking ? "Thinking…" : "Thoughts";
      node.classList.toggle("is-thinking", isThinking);
      showMarkdown(text, message.reasoning ?? "");
    },
  };
}

/** Draw the calls anew; a fold that is open stays so. */
function drawCalls(node, message) {
  const open = [...node.querySelectorAll("details")].map((fold) => fold.open);
  const folds = (message.toolCalls ?? []).map((call, at) =>
    el("details", { class: "fold", open: open[at] ?? false },
      el("summary", {}, "Call of ", el("code", {}, call.name || "a tool")),
      el("pre", { tabindex: "0" }, readable(call.arguments))));
  node.replaceChildren(...folds);
}

function readable(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function footOf(message, actions) {
  const parts = [];
  if (message.error) parts.push(el("p", { class: "notice fault", role: "alert" }, message.error));
  if (needsResults(message, actions)) parts.push(resultForm(message, actions));
  parts.push(el("div", { class: "row" },
    el("div", { class: "actions" },
      message.content ? copyButton(() => message.content) : null,
      message.content ? voiceButton(message, actions) : null,
      iconButton("again", message.error ? "Try again" : "Answer again", actions.again)),
    cost(message)));
  return parts;
}

function needsResults(message, actions) {
  const calls = message.toolCalls ?? [];
  return actions.isLast && calls.length > 0 && !calls.some((call) => actions.answerOf(call.id));
}

/** Return a form for what the called tools return: this page runs none. */
function resultForm(message, actions) {
  const fields = message.toolCalls.map((call) =>
    el("label", { class: "field" }, el("span", {}, "Result of ", el("code", {}, call.name)),
      el("textarea", { rows: 2, placeholder: "What the tool returns" })));
  const submit = (event) => {
    event.preventDefault();
    actions.giveResults(fields.map((field) => field.querySelector("textarea").value));
  };
  return el("form", { class: "results", onsubmit: submit }, fields,
    el("div", { class: "row end" },
      el("button", { type: "submit", class: "primary" }, "Send results")));
}

/** Return what an answer cost: tokens, tokens per second, time to the first one. */
function cost(message) {
  const { usage, firstMs, startMs } = message;
  const facts = message.model ? [message.model] : [];
  if (usage) {
    facts.push(`${count(usage.prompt_tokens)} in`, `${count(usage.completion_tokens)} out`);
    const thought = usage.completion_tokens_details?.reasoning_tokens;
    if (thought) facts.push(`${count(thought)} of them thinking`);
  }
  const rate = speed(message);
  if (rate !== null) facts.push(`${count(Math.round(rate))} tokens/s`);
  if (firstMs) facts.push(`first after ${seconds(firstMs - startMs)}`);
  if (ENDS[message.finish]) facts.push(ENDS[message.finish]);
  return el("p", { class: "cost quiet" }, facts.join(" · "));
}

function count(number) {
  return number.toLocaleString("en");
}

function seconds(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

/** Return a button that reads a message aloud, null if no model speaks. */
function voiceButton(message, { speaker, failed }) {
  const model = speaker?.();
  return model ? readButton({ model, failed, text: () => message.content }) : null;
}

function copyButton(text) {
  const button = iconButton("copy", "Copy the text", () => copy(text(), button));
  return button;
}
