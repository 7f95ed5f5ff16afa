// Where one writes: the text, files that go with it, speech where a model hears it, send and stop.

import { makeAttachments } from "./attachments.js";
import { el, icon, iconButton } from "./dom.js";
import { makeSpeech } from "./speech.js";

/** Return the composer: its node, and what the chat tells it. */
export function makeComposer({ send, stop, toggleOptions, failed }) {
  let isRunning = false;
  const text = el("textarea", { id: "composer-text", rows: 1, "aria-label": "Message",
    placeholder: "Write a message", oninput: fit, onkeydown: onKey, onpaste: onPaste });
  const attachments = makeAttachments({ failed, changed: () => text.focus() });
  const optionsButton = iconButton("sliders", "Options of this chat", toggleOptions,
    { "aria-expanded": "false" });
  const speech = makeSpeech({ heard: add, failed });
  const button = el("button", { type: "submit", class: "send" });
  const form = el("form", { class: "composer", onsubmit: submit }, attachments.previews, text,
    el("div", { class: "composer-row" }, optionsButton, attachments.nodes, speech.nodes,
      el("p", { class: "hint quiet" }, "Enter sends, Shift + Enter begins a line"), button));
  setRunning(false);
  form.addEventListener("click", (event) => {
    if (event.target === form) text.focus();
  });

  function onKey(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      if (!isRunning) submit(event);
    }
  }

  function submit(event) {
    event.preventDefault();
    if (isRunning) {
      stop();
      return;
    }
    const written = text.value.trim();
    if ((!written && attachments.isEmpty()) || !send(written, attachments.values())) return;
    text.value = "";
    attachments.clear();
    fit();
  }

  /** Take files from the clipboard; where there is text as well, that is what was meant. */
  function onPaste(event) {
    const { files, types } = event.clipboardData;
    if (!files.length || types.includes("text/plain")) return;
    event.preventDefault();
    attachments.add(files);
  }

  /** Add to what is written. */
  function add(words) {
    text.value = [text.value.trimEnd(), words].filter(Boolean).join(" ");
    fit();
    text.focus();
  }

  function fit() {
    text.style.height = "auto";
    text.style.height = `${text.scrollHeight}px`;
  }

  function setRunning(value) {
    isRunning = value;
    const label = value ? "Stop" : "Send";
    button.setAttribute("aria-label", label);
    button.title = value ? "Stop (Escape)" : "Send (Enter)";
    button.replaceChildren(icon(value ? "stop" : "send"));
    button.classList.toggle("is-stop", value);
  }

  return {
    node: form,
    optionsButton,
    setRunning,
    focus: () => text.focus({ preventScroll: true }),
    attach: attachments.add,
    setTakes: attachments.setTakes,
    setSpeechModel: speech.setModel,
  };
}
