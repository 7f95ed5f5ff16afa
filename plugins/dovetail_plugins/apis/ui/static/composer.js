// Where one writes: the text, pictures where the model takes them, speech where a model hears it,
// send and stop.

import { el, icon, iconButton } from "./dom.js";
import { makeSpeech } from "./speech.js";

const MAX_IMAGE_BYTES = 8 * 2 ** 20;

/** Return the composer: its node, and what the chat tells it. */
export function makeComposer({ send, stop, toggleOptions, failed }) {
  let isRunning = false;
  let images = [];
  const text = el("textarea", { id: "composer-text", rows: 1, "aria-label": "Message",
    placeholder: "Write a message", oninput: fit, onkeydown: onKey });
  const previews = el("div", { class: "previews" });
  const file = el("input", { type: "file", accept: "image/*", multiple: true, hidden: true,
    onchange: () => addImages(file.files) });
  const attach = iconButton("image", "Add pictures", () => file.click(), { hidden: true });
  const optionsButton = iconButton("sliders", "Options of this chat", toggleOptions,
    { "aria-expanded": "false" });
  const speech = makeSpeech({ heard: add, failed });
  const button = el("button", { type: "submit", class: "send" });
  const form = el("form", { class: "composer", onsubmit: submit }, previews, text,
    el("div", { class: "composer-row" }, optionsButton, attach, file, speech.nodes,
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
    if ((!written && !images.length) || !send(written, images)) return;
    text.value = "";
    images = [];
    previews.replaceChildren();
    fit();
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

  async function addImages(files) {
    for (const one of files) {
      if (one.type.startsWith("image/") && one.size <= MAX_IMAGE_BYTES) addImage(await dataUrl(one));
    }
    file.value = "";
  }

  function addImage(url) {
    images.push(url);
    const preview = el("span", { class: "preview" }, el("img", { src: url, alt: "Added picture" }),
      iconButton("close", "Leave this picture out", () => {
        images = images.filter((other) => other !== url);
        preview.remove();
      }));
    previews.append(preview);
  }

  return {
    node: form,
    optionsButton,
    setRunning,
    focus: () => text.focus({ preventScroll: true }),
    setTakesImages: (takes) => (attach.hidden = !takes),
    setSpeechModel: speech.setModel,
  };
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
