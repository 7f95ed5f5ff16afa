// The plugins and settings in force, and where each came from: /settings as tables.

import { el } from "./dom.js";
import { askJson } from "./server.js";

const FACTS = { model_path: "Checkpoint", architecture: "Architecture", model_plugin: "Model plugin",
  compute_dtype: "Computes in", eos_token_ids: "Ends with tokens",
  logits_processors: "Logits processors", hooks: "Hooks", records_steps: "Records steps" };

/** Return the view in an element: show and hide. */
export function makeSettingsPage(root, models) {
  let told = null;
  let isShown = false;
  const search = el("input", { type: "search", id: "settings-search", oninput: draw,
    placeholder: "Name, value or origin" });
  const chosen = el("input", { type: "checkbox", checked: true, onchange: draw });
  const number = el("p", { class: "quiet", role: "status" });
  const body = el("div");
  root.append(el("div", { class: "page" },
    el("div", { class: "page-head" }, el("div", {}, el("h1", {}, "Settings"), number),
      el("div", { class: "row filters" },
        el("label", { class: "unseen", for: "settings-search" }, "Search the settings"), search,
        el("label", { class: "check" }, chosen, "Only what is not just a default"))),
    body));

  async function show() {
    isShown = true;
    try {
      const of = models.isOfSeveral() ? `?model=${encodeURIComponent(models.current().id)}` : "";
      told = await askJson(`settings${of}`);
      draw();
    } catch (error) {
      told = null;
      number.textContent = "";
      body.replaceChildren(el("p", { class: "notice fault", role: "alert" }, error.message));
    }
  }

  function draw() {
    if (told === null) return;
    const words = search.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const isFound = (...texts) => {
      const text = texts.join(" ").toLowerCase();
      return words.every((word) => text.includes(word));
    };
    const rows = told.settings.filter((row) => (row.is_chosen || !chosen.checked)
      && isFound(row.flag, row.name, row.group, shown(row), row.origin, row.help));
    const plugins = told.plugins.filter((one) =>
      isFound(one.kind, one.name, one.distribution, one.summary, one.origin));
    const of = models.isOfSeveral() ? ` of ${models.current().id}` : "";
    number.textContent =
      `dovetail ${told.version}, ${rows.length} of ${told.settings.length} settings${of}`;
    body.replaceChildren(
      ...(words.length ? [] : [facts(told), sampling(told.sampling)]),
      pluginTable(plugins), ...groups(rows));
  }

  return {
    show,
    hide() {
      isShown = false;
    },
    setModel() {
      if (isShown && models.isOfSeveral()) show();
    },
  };
}

function facts({ facts: found }) {
  const told = Object.entries(FACTS).filter(([name]) => !isEmpty(found[name]));
  return section("What is served", el("dl", { class: "facts" }, told.map(([name, label]) =>
    el("div", {}, el("dt", {}, label), el("dd", {}, text(found[name]))))));
}

function sampling(rows) {
  return section("A request that says nothing", el("dl", { class: "facts" }, rows.map((row) =>
    el("div", {}, el("dt", {}, row.name),
      el("dd", {}, row.name === "max_tokens" && row.value === null ? "all that fits"
        : text(row.value), " ", origin(row.origin))))));
}

function pluginTable(plugins) {
  if (!plugins.length) return "";
  return section("Plugins in force", table(["Kind", "Plugin", "What it is", "Chosen by"],
    plugins.map((one) => [
      [one.kind.replaceAll("_", " ")],
      [el("strong", {}, one.name), el("span", { class: "quiet" }, ` ${one.distribution}`)],
      [one.summary],
      [origin(one.origin)],
    ])));
}

function groups(rows) {
  const found = Map.groupBy ? Map.groupBy(rows, (row) => row.group) : grouped(rows);
  return [...found].map(([group, own]) =>
    section(group.replace(/Config$/, "").replace(/(?<=[a-z])(?=[A-Z])/g, " "),
      table(["Setting", "Value", "From", "What it is"], own.map((row) => [
        [el("code", {}, row.flag)], [shown(row)], [origin(row.origin)],
        [el("span", { class: "quiet" }, row.help)]]))));
}

function grouped(rows) {
  const found = new Map();
  for (const row of rows) found.set(row.group, [...(found.get(row.group) ?? []), row]);
  return found;
}

/** Return a table whose cells name their column where there is no room for one beside another. */
function table(heads, rows) {
  return el("table", { class: "settings-table" },
    el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((parts, at) =>
      el("td", { "data-head": heads[at] }, el("div", {}, parts)))))));
}

function section(title, ...children) {
  return el("section", { class: "card" }, el("h2", {}, title), children);
}

function origin(name) {
  const kind = ["default", "model", "machine", "demo model"].includes(name) ? "given" : "asked";
  return el("span", { class: `origin ${kind}` }, name);
}

function shown(row) {
  if (row.name.endsWith("_bytes") && typeof row.value === "number") {
    return `${text(row.value)} (${(row.value / 2 ** 20).toPrecision(4)} MiB)`;
  }
  return text(row.value);
}

function isEmpty(value) {
  return value === null || value === undefined || value === "" || (Array.isArray(value) && !value.length);
}

/** Return a value as a person would type it. */
function text(value) {
  if (value === true) return "on";
  if (value === false) return "off";
  if (isEmpty(value)) return "none";
  if (Array.isArray(value)) return value.map(text).join(" ");
  if (typeof value === "object") return JSON.stringify(value);
  return String(value);
}
