// The options of one chat: system prompt, sampling, thinking, the shape of the answer, tools.

import { JSON_FIELDS, NUMBERS, jsonFault } from "./answer.js";
import { el, iconButton } from "./dom.js";

const MORE = ["top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"];
const SCHEMA_EXAMPLE = '{"type": "object", "properties": {"city": {"type": "string"}}}';
const TOOLS_EXAMPLE = '[{"type": "function", "function": {"name": "get_weather", …}}]';

/** Return the panel: its node, show(options), values(), check(). */
export function makeOptions({ changed }) {
  const fields = {};
  let button = null;

  const field = (name, label, control, note = null) => {
    fields[name] = control;
    control.id = `option-${name}`;
    control.addEventListener("input", () => onInput(name));
    const fault = el("p", { class: "fault", id: `fault-${name}`, hidden: true });
    return el("div", { class: "field", id: `field-${name}` },
      el("label", { for: control.id }, label), control, fault,
      note ? el("p", { class: "quiet" }, note) : null);
  };
  const area = (rows, placeholder = "", isCode = false) =>
    el("textarea", { rows, placeholder, class: isCode ? "mono" : null, spellcheck: !isCode });
  const number = (name) => {
    const { label, ...limits } = NUMBERS[name];
    return field(name, label, el("input", { type: "number", inputmode: "decimal", ...limits,
      placeholder: "default" }));
  };
  const rest = Object.keys(NUMBERS).filter((name) => !MORE.includes(name));
  const thinking = el("select", {}, [["", "As the server does"], ["on", "On"], ["off", "Off"]].map(
    ([value, text]) => el("option", { value }, text)));

  const node = el("aside", { class: "options", id: "options", "aria-label": "Options of this chat",
    hidden: true, onkeydown: (event) => event.key === "Escape" && close() },
    el("div", { class: "row" }, el("h2", {}, "Options"),
      iconButton("close", "Close the options", close)),
    field("system", "System prompt", area(4, "You are a helpful assistant.")),
    el("div", { class: "pairs" }, rest.map(number)),
    el("details", { class: "fold" }, el("summary", {}, "More sampling"),
      el("div", { class: "pairs" }, MORE.map(number)),
      field("stop", "Stop texts", area(2), "One on each line.")),
    field("thinking", "Thinking", thinking),
    field("schema", "Answer as JSON by a schema", area(4, SCHEMA_EXAMPLE, true),
      "The answer keeps to this JSON schema."),
    field("tools", "Tools", area(4, TOOLS_EXAMPLE, true),
      "A list as OpenAI's API takes it. Calls are shown; you give their results."),
    field("extra", "Further fields of the request", area(2, '{"ignore_eos": true}', true)),
    el("div", { class: "row end" },
      el("button", { type: "button", onclick: () => { show({}); changed(); } }, "Back to defaults")));

  function onInput(name) {
    if (name in JSON_FIELDS) tellFault(name);
    changed();
  }

  function tellFault(name) {
    const fault = jsonFault(name, fields[name].value);
    const line = node.querySelector(`#fault-${name}`);
    line.textContent = fault;
    line.hidden = !fault;
    if (fault) {
      fields[name].setAttribute("aria-invalid", "true");
      fields[name].setAttribute("aria-describedby", line.id);
    } else {
      fields[name].removeAttribute("aria-invalid");
      fields[name].removeAttribute("aria-describedby");
    }
    return fault;
  }

  function show(options) {
    for (const [name, control] of Object.entries(fields)) control.value = options[name] ?? "";
    for (const name of Object.keys(JSON_FIELDS)) tellFault(name);
  }

  function values() {
    const given = Object.entries(fields).filter(([, control]) => control.value !== "");
    return Object.fromEntries(given.map(([name, control]) => [name, control.value]));
  }

  /** Return whether a request can be made of this; show what is wrong if not. */
  function check() {
    const wrong = Object.entries(fields).find(([name, control]) =>
      (name in JSON_FIELDS && tellFault(name)) || !control.checkValidity());
    if (!wrong) return true;
    setOpen(true);
    const fold = wrong[1].closest("details");
    if (fold) fold.open = true;
    wrong[1].focus();
    wrong[1].reportValidity();
    return false;
  }

  function setOpen(isOpen) {
    node.hidden = !isOpen;
    button.setAttribute("aria-expanded", String(isOpen));
  }

  function close() {
    setOpen(false);
    button.focus();
  }

  function toggle() {
    setOpen(node.hidden);
    if (!node.hidden) fields.system.focus();
  }

  function setCapabilities(can) {
    const needs = { thinking: "reasoning", schema: "structured_output", tools: "tools" };
    for (const [name, word] of Object.entries(needs)) {
      node.querySelector(`#field-${name}`).hidden = !can.has(word);
    }
  }

  return { node, show, values, check, toggle, setCapabilities,
    setButton: (opener) => (button = opener) };
}
