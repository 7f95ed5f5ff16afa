// Elements without markup: every text becomes a text node, so what a model writes is never parsed.

const PROPERTIES = new Set(["value", "checked", "disabled", "open", "hidden", "textContent"]);
const SVG = "http://www.w3.org/2000/svg";

/** Return an element. `props` are attributes, properties, or listeners named on...; a value that is
 * null or false is left out. */
export function el(tag, props = {}, ...children) {
  return filled(document.createElement(tag), props, children);
}

/** Return an SVG element. */
export function svg(tag, props = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

function filled(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (PROPERTIES.has(name)) node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(3).filter((child) => child !== null && child !== undefined));
  return node;
}

/** Return an icon: lines in a box of 24 by 24, in the colour of the text. */
export function icon(name) {
  const shape = svg("path", { d: ICONS[name] });
  return svg("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" }, shape);
}

/** Return a button that shows an icon and is read as `label`. */
export function iconButton(name, label, onclick, props = {}) {
  const facts = { type: "button", class: "icon-button", "aria-label": label, title: label };
  return el("button", { ...facts, onclick, ...props }, icon(name));
}

/** Tell a screen reader a short text, now that nothing else is being said. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}

/** Save a text as a file of the browser's. */
export function download(name, text, type = "application/json") {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** Return a number of bytes as people write it. */
export function size(bytes) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  const at = Math.min(units.length - 1, Math.floor(Math.log2(Math.max(1, bytes)) / 10));
  const number = bytes / 2 ** (10 * at);
  const digits = at > 1 ? 1 : 0;
  return `${number.toLocaleString("en", { maximumFractionDigits: digits })} ${units[at]}`;
}

/** Copy a text, and let the button say so for a moment. */
export async function copy(text, button) {
  if (navigator.clipboard) await navigator.clipboard.writeText(text);
  else copyByHand(text);
  button.replaceChildren(icon("check"));
  announce("Copied");
  setTimeout(() => button.replaceChildren(icon("copy")), 1500);
}

/** Copy as browsers do where a page came over plain http from another machine. */
function copyByHand(text) {
  const focused = document.activeElement;
  const field = el("textarea", { class: "unseen", value: text });
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
  focused?.focus();
}

const ICONS = {
  menu: "M4 7h16M4 12h16M4 17h16",
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M5.5 11.5 12 5l6.5 6.5",
  stop: "M8 8h8v8H8z",
  sliders: "M4 8h9M17 8h3M4 16h3M11 16h9M15 5.5v5M9 13.5v5",
  copy: "M9 9h10v10H9zM5 15V5h10",
  check: "M5 12.5 10 17 19 7",
  again: "M19 12a7 7 0 1 1-2.2-5.1M19 4v4h-4",
  edit: "M5 19h4L19 9l-4-4L5 15zM13 7l4 4",
  trash: "M5 7h14M10 7V4.5h4V7M7 7l1 12.5h8L17 7",
  save: "M12 4v11M7 10.5l5 5 5-5M5 20h14",
  upload: "M12 15V4M7 8.5l5-5 5 5M5 20h14",
  close: "M6 6l12 12M18 6 6 18",
  clip: "M19 11.5l-7.2 7.2a4.6 4.6 0 0 1-6.5-6.5l7.6-7.6a3.1 3.1 0 0 1 4.4 4.4l-7.3 7.3a1.5 1.5 0 0 1-2.2-2.2l6.6-6.6",
  page: "M7 4h7l4 4v12H7zM14 4v4h4",
  microphone: "M12 4a3 3 0 0 1 3 3v4a3 3 0 0 1-6 0V7a3 3 0 0 1 3-3zM6 11a6 6 0 0 0 12 0M12 17v3.5",
  sound: "M4 10v4M8 7v10M12 4v16M16 7v10M20 10v4",
  pause: "M9 6v12M15 6v12",
  play: "M8 5.5v13l10-6.5z",
  down: "M12 5v14M5.5 12.5 12 19l6.5-6.5",
  chevron: "M9 6l6 6-6 6",
};
