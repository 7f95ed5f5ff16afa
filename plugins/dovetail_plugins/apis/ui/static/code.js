// A block of code: its language, a button to copy it, and colours for what most languages share.

import { copy, el, iconButton } from "./dom.js";

const MAX_COLOURED_CHARS = 50_000;
const HASH = new Set(["python", "py", "sh", "bash", "shell", "console", "yaml", "yml", "toml", "ruby",
  "rb", "r", "perl", "makefile", "dockerfile", "ini"]);
const DASHES = new Set(["sql", "lua", "haskell", "hs"]);
const KEYWORDS = new Set((
  "abstract and as assert async await break case catch class const continue crate def default del do " +
  "elif else enum except export extends extern final finally fn for from func function global go if " +
  "impl implements import in interface is lambda let local loop match mod mut namespace new nonlocal " +
  "not of or package pass private protected pub public raise return self static struct super switch " +
  "template then this throw trait try type typeof use using var virtual void where while with yield " +
  "select insert update delete from where join group order by into values create table set begin end " +
  "echo fi done esac").split(" "));
const CONSTANTS = new Set("true false null none nil undefined True False None NaN".split(" "));

/** Return a figure with the code. */
export function codeBlock(text, language) {
  const button = iconButton("copy", "Copy code", () => copy(text, button));
  const name = language.toLowerCase();
  const label = language ? `Code, ${language}` : "Code";
  return el("figure", { class: "code" },
    el("figcaption", {}, el("span", {}, name || "text"), button),
    el("pre", { tabindex: "0", "aria-label": label, role: "region" },
      el("code", {}, coloured(text, name))));
}

/** Return the code as text and spans. */
export function coloured(text, language) {
  if (text.length > MAX_COLOURED_CHARS) return [text];
  const rule = tokens(language);
  const parts = [];
  let at = 0;
  for (const match of text.matchAll(rule)) {
    const kind = kindOf(match.groups);
    if (kind === null) continue;
    parts.push(text.slice(at, match.index), el("span", { class: `tok-${kind}` }, match[0]));
    at = match.index + match[0].length;
  }
  parts.push(text.slice(at));
  return parts.filter((part) => part !== "");
}

function tokens(language) {
  const comments = ["\\/\\*[\\s\\S]*?(?:\\*\\/|$)", "<!--[\\s\\S]*?(?:-->|$)"];
  if (HASH.has(language)) comments.push("(?<![\\w$&])#[^\\n]*");
  else if (DASHES.has(language)) comments.push("--[^\\n]*");
  else comments.push("(?<!:)\\/\\/[^\\n]*", "^#[^\\n]*");
  const strings = ["\"\"\"[\\s\\S]*?(?:\"\"\"|$)", "'''[\\s\\S]*?(?:'''|$)",
    "\"(?:[^\"\\\\\\n]|\\\\.)*\"", "'(?:[^'\\\\\\n]|\\\\.)*'", "`(?:[^`\\\\]|\\\\.)*`"];
  return new RegExp(`(?<string>${strings.join("|")})|(?<comment>${comments.join("|")})` +
    "|(?<number>\\b(?:0x[\\da-f]+|\\d[\\d_]*(?:\\.\\d+)?(?:e[+-]?\\d+)?)\\b)" +
    "|(?<call>[A-Za-z_]\\w*)(?=\\()|(?<word>[A-Za-z_]\\w*)", "gim");
}

function kindOf({ comment, string, number, call, word }) {
  if (comment !== undefined) return "comment";
  if (string !== undefined) return "string";
  if (number !== undefined) return "number";
  const name = call ?? word;
  if (KEYWORDS.has(name)) return "keyword";
  if (CONSTANTS.has(name)) return "number";
  return call !== undefined ? "call" : null;
}
