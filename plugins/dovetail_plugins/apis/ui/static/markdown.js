// Markdown as blocks of DOM nodes. Made for text that is still coming: blocks that have not changed
// keep their nodes. Source of the rules: CommonMark and GitHub's tables, as far as models use them.

import { codeBlock } from "./code.js";
import { el } from "./dom.js";
import { inline } from "./inline.js";

const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}>\s?/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const MAX_DEPTH = 8;

const drawn = new WeakMap();

/** Show a text in an element. Mutates: node */
export function showMarkdown(node, text) {
  const before = drawn.get(node) ?? [];
  const now = blocks(text);
  now.forEach((block, index) => {
    const old = before[index];
    if (old?.raw === block.raw && old.kind === block.kind) {
      block.node = old.node;
      return;
    }
    block.node = nodeOf(block, 0);
    if (old) old.node.replaceWith(block.node);
    else node.append(block.node);
  });
  for (const gone of before.slice(now.length)) gone.node.remove();
  drawn.set(node, now);
}

/** Return the blocks of a text: each has its kind, its raw text and its lines. */
export function blocks(text) {
  const lines = text.replaceAll("\r\n", "\n").replaceAll("\t", "    ").split("\n");
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const { kind, end } = blockAt(lines, at);
    const own = lines.slice(at, end);
    found.push({ kind, raw: own.join("\n"), lines: own });
    at = end;
  }
  return found;
}

function blockAt(lines, at) {
  const line = lines[at];
  if (FENCE.test(line)) return { kind: "code", end: endOfFence(lines, at) };
  if (HEADING.test(line)) return { kind: "heading", end: at + 1 };
  if (RULE.test(line)) return { kind: "rule", end: at + 1 };
  if (QUOTE.test(line)) return { kind: "quote", end: endWhile(lines, at, (l) => QUOTE.test(l)) };
  if (ITEM.test(line)) return { kind: "list", end: endOfList(lines, at) };
  if (isTable(lines, at)) return { kind: "table", end: endWhile(lines, at, (l) => l.includes("|")) };
  return { kind: "paragraph", end: endOfParagraph(lines, at) };
}

function endWhile(lines, at, isPart) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && isPart(lines[end])) end += 1;
  return end;
}

/** A fence that nobody has closed yet goes to the end. */
function endOfFence(lines, at) {
  const mark = FENCE.exec(lines[at])[2];
  for (let end = at + 1; end < lines.length; end += 1) {
    const line = lines[end].trim();
    if (line.startsWith(mark) && line.replaceAll(mark[0], "") === "") return end + 1;
  }
  return lines.length;
}

/** A list goes on over blank lines as long as what follows is indented or an item. */
function endOfList(lines, at) {
  let end = at + 1;
  let fence = null;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    if (fence !== null) {
      if (line.trim().startsWith(fence)) fence = null;
      continue;
    }
    if (!line.trim()) {
      const next = lines.slice(end).find((later) => later.trim());
      if (next === undefined || !(ITEM.test(next) || /^ {2,}/.test(next))) break;
    } else if (!/^ {2,}/.test(line) && !ITEM.test(line)) {
      if (startsBlock(lines, end) || !lines[end - 1].trim()) break;
    } else {
      fence = FENCE.exec(line.trim())?.[2] ?? null;
    }
  }
  return end;
}

function endOfParagraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !startsBlock(lines, end)) end += 1;
  return end;
}

function startsBlock(lines, at) {
  const line = lines[at];
  return [FENCE, HEADING, RULE, QUOTE, ITEM].some((rule) => rule.test(line)) || isTable(lines, at);
}

function isTable(lines, at) {
  const next = lines[at + 1];
  return lines[at].includes("|") && next !== undefined && next.includes("-") && DIVIDER.test(next);
}

function nodeOf(block, depth) {
  const { lines } = block;
  switch (block.kind) {
    case "code":
      return fenced(lines);
    case "heading": {
      const [, marks, text] = HEADING.exec(lines[0]);
      return el(`h${Math.min(6, marks.length + 1)}`, { class: `h${marks.length}` }, inline(text));
    }
    case "rule":
      return el("hr");
    case "quote":
      return el("blockquote", {}, nodes(lines.map((l) => l.replace(QUOTE, "")).join("\n"), depth));
    case "list":
      return list(lines, depth);
    case "table":
      return table(lines);
    default:
      return el("p", {}, inline(lines.map((line) => line.trimStart()).join("\n")));
  }
}

function nodes(text, depth) {
  if (depth >= MAX_DEPTH) return [el("p", {}, text)];
  return blocks(text).map((block) => nodeOf(block, depth + 1));
}

function fenced(lines) {
  const [, indent, mark, language] = FENCE.exec(lines[0]);
  const last = lines.at(-1).trim();
  const isClosed = lines.length > 1 && last.startsWith(mark) && !last.replaceAll(mark[0], "");
  const inner = lines.slice(1, isClosed ? -1 : undefined);
  return codeBlock(inner.map((line) => line.slice(0, indent.length).trimStart() +
    line.slice(indent.length)).join("\n"), language);
}

function list(lines, depth) {
  const items = itemsOf(lines);
  const isOrdered = /\d/.test(items[0].mark);
  const start = isOrdered ? Number.parseInt(items[0].mark, 10) : 1;
  const isLoose = items.some((item) => item.lines.slice(0, -1).some((line) => !line.trim()));
  const made = items.map((item) => listItem(item, depth, isLoose));
  return el(isOrdered ? "ol" : "ul", { start: start === 1 ? null : start }, made);
}

/** Return the items of the outermost list, with their lines moved to the left. */
function itemsOf(lines) {
  const outer = ITEM.exec(lines[0])[1].length;
  const items = [];
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (found && found[1].length <= outer + 1) {
      items.push({ mark: found[2], indent: line.length - found[3].length, lines: [found[3]] });
    } else {
      const item = items.at(-1);
      const blank = line.length - line.trimStart().length;
      item.lines.push(line.slice(Math.min(item.indent, blank)));
    }
  }
  return items;
}

function listItem(item, depth, isLoose) {
  const task = /^\[([ xX])\]\s+/.exec(item.lines[0]);
  if (task) item.lines[0] = item.lines[0].slice(task[0].length);
  const inner = nodes(item.lines.join("\n"), depth);
  if (!isLoose && inner[0]?.tagName === "P") inner.splice(0, 1, ...inner[0].childNodes);
  if (task) inner.unshift(task[1] === " " ? "☐ " : "☑ ");
  return el("li", {}, inner);
}

function table(lines) {
  const rows = lines.filter((_, index) => index !== 1).map(cells);
  const sides = cells(lines[1]).map((cell) =>
    cell.endsWith(":") ? (cell.startsWith(":") ? "middle" : "right") : null);
  const [head, ...body] = rows;
  const row = (tag, texts) =>
    el("tr", {}, head.map((_, at) => el(tag, { class: sides[at] }, inline(texts[at] ?? ""))));
  return el("div", { class: "table-scroll", tabindex: "0", role: "group", "aria-label": "Table" },
    el("table", {}, el("thead", {}, row("th", head)),
      el("tbody", {}, body.map((texts) => row("td", texts)))));
}

/** Return the cells of a row; bars within code or behind a backslash divide nothing. */
function cells(line) {
  const parts = [""];
  let isCode = false;
  for (let at = 0; at < line.length; at += 1) {
    if (line[at] === "\\" && line[at + 1] === "|") {
      parts[parts.length - 1] += "|";
      at += 1;
    } else if (line[at] === "|" && !isCode) {
      parts.push("");
    } else {
      isCode = line[at] === "`" ? !isCode : isCode;
      parts[parts.length - 1] += line[at];
    }
  }
  const trimmed = parts.map((part) => part.trim());
  if (trimmed[0] === "") trimmed.shift();
  if (trimmed.at(-1) === "") trimmed.pop();
  return trimmed;
}
