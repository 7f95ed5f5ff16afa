// The server's state as plots that move, from /metrics. Asks only while somebody can see it.

import { el, icon } from "./dom.js";
import { hitShare, parse, quantile, rate, sampleOf } from "./metrics.js";
import { makePlot } from "./plot.js";
import { ask } from "./server.js";

const PERIOD_MS = 2000;
const KEPT_MS = 15 * 60_000;
const WINDOW_MS = 30_000;
const SPANS = [1, 5, 15];

const whole = (value) => value >= 100_000
  ? value.toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 })
  : value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });
const percent = (share) => `${(100 * share).toLocaleString("en", { maximumFractionDigits: 1 })} %`;

/** Return a time with the unit that fits. */
function duration(seconds) {
  if (seconds === 0) return "0";
  if (seconds < 1) {
    const ms = 1000 * seconds;
    return `${ms.toLocaleString("en", { maximumFractionDigits: ms < 10 ? 1 : 0 })} ms`;
  }
  return `${seconds.toLocaleString("en", { maximumFractionDigits: 1 })} s`;
}

const PLOTS = [
  { title: "Requests", note: "in the engine", names: ["running", "waiting"], format: whole, least: 2,
    values: (now) => [now.running, now.waiting] },
  { title: "Tokens per second", note: "between two looks", names: ["written", "read"],
    format: whole, least: 10,
    values: (now, before) => [rate(now, before, "generated"), rate(now, before, "prompt")] },
  { title: "KV cache", note: "share in use", names: ["in use"], format: percent, most: 1,
    values: (now) => [now.kv] },
  { title: "Prefix cache", note: "tokens found, of those looked up in the last 30 s",
    names: ["found"], format: percent, most: 1,
    values: (now, _, early) => [hitShare(now, early)] },
  { title: "Time to the first token", note: "requests that ended in the last 30 s",
    names: ["half below", "95 % below"], format: duration,
    values: (now, _, early) => quantiles(now, early, "firstToken") },
  { title: "Time between tokens", note: "requests that ended in the last 30 s",
    names: ["half below", "95 % below"], format: duration,
    values: (now, _, early) => quantiles(now, early, "nextToken") },
];

function quantiles(now, early, name) {
  return early ? [0.5, 0.95].map((q) => quantile(now[name], early[name], q)) : [null, null];
}

/** Return the view in an element: show and hide. */
export function makeStatePage(root, models) {
  const samples = [];
  const plots = PLOTS.map((facts) => ({ ...facts, plot: makePlot(facts), points: [] }));
  let span = 1;
  let isPaused = false;
  let isShown = false;
  let timer = null;
  let controller = null;

  const status = el("p", { class: "quiet", role: "status" });
  const states = el("ul", { class: "model-states", "aria-label": "Models", hidden: true });
  const spans = SPANS.map((minutes) => el("button", { type: "button",
    "aria-pressed": String(minutes === span), onclick: () => setSpan(minutes) }, `${minutes} min`));
  const pause = el("button", { type: "button", class: "with-icon", onclick: togglePause });
  root.append(el("div", { class: "page" },
    el("div", { class: "page-head" }, el("div", {}, el("h1", {}, "Server"), status),
      el("div", { class: "row" },
        el("div", { class: "segments", role: "group", "aria-label": "Time shown" }, spans), pause)),
    states, el("div", { class: "plots" }, plots.map(({ plot }) => plot.node)),
    el("p", { class: "quiet" }, "From /metrics, every two seconds while this page is seen."
      + " Several models or engines are added up.")));
  drawPause();
  document.addEventListener("visibilitychange", schedule);

  function setSpan(minutes) {
    span = minutes;
    spans.forEach((button, at) => button.setAttribute("aria-pressed", String(SPANS[at] === span)));
    draw();
  }

  function togglePause() {
    isPaused = !isPaused;
    drawPause();
    schedule();
  }

  function drawPause() {
    pause.replaceChildren(icon(isPaused ? "play" : "pause"), isPaused ? "Go on" : "Pause");
  }

  /** Begin to look, or end it, as it is seen or not. */
  function schedule() {
    const isWanted = isShown && !isPaused && !document.hidden;
    if (isWanted && timer === null) look();
    if (isWanted) return;
    clearTimeout(timer);
    controller?.abort();
    timer = null;
  }

  async function look() {
    timer = 0;
    controller = new AbortController();
    const { signal } = controller;
    try {
      const response = await ask("metrics", { signal });
      add(sampleOf(parse(await response.text()), Date.now()));
      await tellModels();
    } catch (error) {
      if (error.name === "AbortError" || signal.aborted) return;
      status.textContent = error.message;
      status.className = "fault";
      if (error.status === 401) {
        isPaused = true;
        drawPause();
      }
    }
    if (signal.aborted) return;
    timer = null;
    if (isShown && !isPaused && !document.hidden) timer = setTimeout(look, PERIOD_MS);
  }

  /** Show the state of each model in memory; the plots are of all together. */
  async function tellModels() {
    states.hidden = !models.isOfSeveral();
    if (states.hidden) return;
    const inMemory = (await models.refresh()).filter(({ state }) => state !== "unloaded");
    states.replaceChildren(...inMemory.map(({ id, state }) =>
      el("li", { class: `is-${state}` }, el("strong", {}, id), " ", state)));
    states.hidden = !inMemory.length;
  }

  function add(sample) {
    const before = samples.at(-1);
    const early = samples.find((one) => one.atMs >= sample.atMs - WINDOW_MS);
    for (const one of plots) {
      one.points.push({ atMs: sample.atMs, values: one.values(sample, before, early) });
      while (one.points[0].atMs < sample.atMs - KEPT_MS) one.points.shift();
    }
    samples.push(sample);
    while (samples[0].atMs < sample.atMs - KEPT_MS) samples.shift();
    status.className = "quiet";
    status.textContent = told(sample);
    draw();
  }

  function draw() {
    if (!samples.length) return;
    const toMs = samples.at(-1).atMs;
    for (const { plot, points } of plots) plot.draw(points, toMs - span * 60_000, toMs);
  }

  return {
    show() {
      isShown = true;
      schedule();
    },
    hide() {
      isShown = false;
      schedule();
    },
  };
}

function told(sample) {
  if (sample.running === null) {
    return "This server reports no statistics of its engine: it was started without the logger "
      + "prometheus (--stat-loggers, --disable-log-stats).";
  }
  const busy = sample.running + sample.waiting;
  const words = `${whole(sample.generated)} tokens written since the start.`;
  return busy ? `Working. ${words}` : `Idle. ${words}`;
}
