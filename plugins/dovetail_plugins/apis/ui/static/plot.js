// A plot over time: lines in SVG, with the newest values beside their names as text.

import { el, svg } from "./dom.js";

const HEIGHT = 150;
const LEFT = 44;
const RIGHT = 8;
const TOP = 10;
const BOTTOM = 22;
const GAP_FACTOR = 3.5;

/** Return a plot: its node, and draw(points, fromMs, toMs).
 *
 * A point is {atMs, values}: a value for each name, null where there is none. `format` writes a
 * value; `most` is the top of the axis where it is fixed, `least` the lowest that it may have. */
export function makePlot({ title, note, names, format, most = null, least = 0 }) {
  const values = names.map(() => el("strong", {}, "–"));
  const legend = el("dl", { class: "legend" }, names.map((name, at) =>
    el("div", { class: `series-${at}` }, el("dt", {}, name), el("dd", {}, values[at]))));
  const picture = svg("svg", { role: "img", height: HEIGHT });
  const node = el("figure", { class: "plot" },
    el("figcaption", {}, el("h2", {}, title), el("p", { class: "quiet" }, note)), legend, picture);
  let last = null;
  let pointerX = null;

  picture.addEventListener("pointermove", (event) => {
    pointerX = event.clientX - picture.getBoundingClientRect().left;
    redraw();
  });
  picture.addEventListener("pointerleave", () => {
    pointerX = null;
    redraw();
  });
  new ResizeObserver(redraw).observe(picture);

  function draw(points, fromMs, toMs) {
    last = { points, fromMs, toMs };
    redraw();
  }

  function redraw() {
    const width = picture.clientWidth;
    if (last === null || !width) return;
    const { points, fromMs, toMs } = last;
    const top = most ?? niceTop(points, fromMs, least);
    const x = (atMs) => LEFT + ((atMs - fromMs) / (toMs - fromMs)) * (width - LEFT - RIGHT);
    const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
    const seen = points.filter((point) => point.atMs >= fromMs);
    const told = pointerX === null ? seen.at(-1) : nearest(seen, x, pointerX);
    picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    picture.replaceChildren(...grid(width, top, y, format), ...times(width, fromMs, toMs),
      ...names.flatMap((_, at) => lines(seen, at, x, y)).reverse(),
      ...(pointerX !== null && told ? marker(told, x, y) : []));
    values.forEach((value, at) => (value.textContent = shown(told?.values[at], format)));
    picture.setAttribute("aria-label", summary(title, names, seen, format));
  }

  return { node, draw };
}

function shown(value, format) {
  return value === null || value === undefined ? "–" : format(value);
}

/** Return a round number that no value is above. */
function niceTop(points, fromMs, least) {
  const all = points.filter((point) => point.atMs >= fromMs).flatMap((point) => point.values);
  const most = Math.max(least, ...all.filter((value) => value !== null));
  if (most === 0) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  const step = [1, 2, 4, 6, 8, 10].find((factor) => factor * power >= most);
  return step * power;
}

function grid(width, top, y, format) {
  return [0, 0.5, 1].flatMap((share) => {
    const at = y(top * share);
    return [
      svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: at, y2: at }),
      svg("text", { class: "tick", x: LEFT - 6, y: at + 4, "text-anchor": "end" },
        format(top * share)),
    ];
  });
}

function times(width, fromMs, toMs) {
  const minutes = Math.round((toMs - fromMs) / 60_000);
  const line = HEIGHT - 5;
  return [
    svg("text", { class: "tick", x: LEFT, y: line }, `${minutes} min ago`),
    svg("text", { class: "tick", x: width - RIGHT, y: line, "text-anchor": "end" }, "now"),
  ];
}

/** Return a line for each stretch without a hole, and the area below the first one. */
function lines(points, at, x, y) {
  const usual = points.length > 1 ? (points.at(-1).atMs - points[0].atMs) / (points.length - 1) : 0;
  const stretches = [[]];
  let before = null;
  for (const point of points) {
    const isHole = before !== null && point.atMs - before > Math.max(usual * GAP_FACTOR, 5000);
    if (point.values[at] === null || isHole) stretches.push([]);
    if (point.values[at] !== null) stretches.at(-1).push(point);
    before = point.atMs;
  }
  return stretches.filter((stretch) => stretch.length).flatMap((stretch) => {
    const corners = stretch.map((point) => `${x(point.atMs).toFixed(1)},${y(point.values[at]).toFixed(1)}`);
    if (corners.length === 1) {
      const [cx, cy] = corners[0].split(",");
      return [svg("circle", { class: `dot series-${at}`, cx, cy, r: 2.5 })];
    }
    const path = `M${corners.join("L")}`;
    const ends = [x(stretch.at(-1).atMs), x(stretch[0].atMs)].map((place) => place.toFixed(1));
    const area = `${path}L${ends[0]},${y(0)}L${ends[1]},${y(0)}Z`;
    const below = at === 0 ? [svg("path", { class: `area series-${at}`, d: area })] : [];
    return [svg("path", { class: `line series-${at}`, d: path }), ...below];
  });
}

function nearest(points, x, place) {
  const away = (point) => Math.abs(x(point.atMs) - place);
  return points.reduce((best, point) => (best && away(best) <= away(point) ? best : point), undefined);
}

function marker(point, x, y) {
  const at = x(point.atMs);
  const dots = point.values.map((value, series) => value === null ? null
    : svg("circle", { class: `dot series-${series}`, cx: at, cy: y(value), r: 3.5 }));
  return [svg("line", { class: "marker", x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM }),
    ...dots.filter(Boolean)];
}

/** Return the plot in words. */
function summary(title, names, points, format) {
  const told = names.map((name, at) => {
    const values = points.map((point) => point.values[at]).filter((value) => value !== null);
    if (!values.length) return `${name}: nothing yet`;
    return `${name}: ${format(values.at(-1))} now, at most ${format(Math.max(...values))}`;
  });
  return `${title}. ${told.join(". ")}.`;
}
