// Markdown within a paragraph: emphasis, code, links. Links go to http, https and mailto alone, and
// pictures become links, because this page loads nothing from elsewhere.

import { el } from "./dom.js";

const SCHEMES = new Set(["http:", "https:", "mailto:"]);
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const MAX_DEPTH = 12;
const MAX_CHARS = 20_000;

/** Each rule: where it may begin, and what becomes of a match. The first that matches wins. */
const RULES = [
  [/^\\([!-/:-@[-`{-~])/, (m) => m[1]],
  [/^(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)/, (m) => el("code", {}, trimmedCode(m[2]))],
  [/^!?\[((?:[^[\]\\]|\\.|\[[^[\]]*\])*)\]\(\s*<?([^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)>?(?:\s+["'(][^)]*["')])?\s*\)/,
    (m, depth) => link(m[2], m[1] ? inline(m[1], depth + 1) : [m[2]])],
  [/^<((?:https?:\/\/|mailto:)[^\s<>]+)>/, (m) => link(m[1], [m[1]])],
  [/^(https?:\/\/[^\s<>`*]*[^\s<>`*.,;:!?"'()[\]{}])/, (m) => link(m[1], [m[1]])],
  [/^(\*\*\*|___)(?=\S)([\s\S]*?\S)\1/, (m, depth) =>
    el("strong", {}, el("em", {}, inline(m[2], depth + 1)))],
  [/^(\*\*|__)(?=\S)([\s\S]*?\S[*_]?)\1(?!\1)/, (m, depth) => el("strong", {}, inline(m[2], depth + 1))],
  [/^\*(?=[^\s*])((?:[^*]|\*\*[^*]+\*\*)*?[^\s*])\*(?!\*)/, (m, depth) => el("em", {}, inline(m[1], depth + 1))],
  [/^_(?=[^\s_])((?:[^_]|__[^_]+__)*?[^\s_])_(?![\w_])/, (m, depth) => el("em", {}, inline(m[1], depth + 1))],
  [/^~~(?=\S)([\s\S]*?\S)~~/, (m, depth) => el("del", {}, inline(m[1], depth + 1))],
  [/^(?: {2,}|\\)?\n/, () => el("br")],
  [/^<br\s*\/?>/i, () => el("br")],
];
const STARTS = /[\\`![<*_~\nh]| {2,}\n/g;

/** Return the nodes of a text. */
export function inline(text, depth = 0) {
  if (depth > MAX_DEPTH || text.length > MAX_CHARS) return [text];
  const found = [];
  let plain = "";
  let at = 0;
  while (at < text.length) {
    STARTS.lastIndex = at;
    const next = STARTS.exec(text)?.index ?? text.length;
    plain += text.slice(at, next);
    at = next;
    if (at === text.length) break;
    const match = matchAt(text, at, plain.at(-1), depth);
    if (match) {
      found.push(plain, match.node);
      plain = "";
      at += match.length;
    } else {
      plain += text[at];
      at += 1;
    }
  }
  return [...found, plain].filter((part) => part !== "");
}

function matchAt(text, at, before, depth) {
  const isWord = before !== undefined && /\w/.test(before);
  if (isWord && (text[at] === "_" || text[at] === "h")) return null;
  const rest = text.slice(at);
  for (const [rule, make] of RULES) {
    const match = rule.exec(rest);
    if (match) return { node: make(match, depth), length: match[0].length };
  }
  return null;
}

function trimmedCode(text) {
  const line = text.replaceAll("\n", " ");
  return /^ .*[^ ].* $/.test(line) ? line.slice(1, -1) : line;
}

/** Return a link, or its text where the address is none that may be followed. */
function link(address, label) {
  const url = safeUrl(address.replace(/\\(.)/g, (all, sign) => (PUNCTUATION.test(sign) ? sign : all)));
  if (url === null) return el("span", {}, label);
  return el("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow" }, label);
}

/** Return an absolute address of a scheme that runs nothing; null for any other. */
export function safeUrl(text) {
  try {
    const url = new URL(text);
    return SCHEMES.has(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}
