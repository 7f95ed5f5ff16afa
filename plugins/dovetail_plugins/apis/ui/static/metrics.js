// Prometheus text becomes numbers: gauges, rates of counters, quantiles of histograms. No page.

const PREFIX = "dovetail:";
const LINE = /^dovetail:([\w:]+)(?:\{(.*)\})? (\S+)$/;
const LE = /(?:^|,)le="([^"]*)"/;

/** Return the samples of a /metrics answer by name, without the prefix. */
export function parse(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = line.startsWith(PREFIX) ? LINE.exec(line) : null;
    if (!match) continue;
    const [, name, labels = "", value] = match;
    if (!found.has(name)) found.set(name, []);
    found.get(name).push({ labels, value: Number(value) });
  }
  return found;
}

/** Return what is plotted, of one moment; null for what the server does not tell. Several engines
 * are added up, and of shares the mean is taken. */
export function sampleOf(metrics, atMs) {
  const values = (name) => metrics.get(name)?.map((one) => one.value) ?? [];
  const sum = (name) => (metrics.has(name) ? values(name).reduce((a, b) => a + b, 0) : null);
  const kv = values("kv_cache_usage_perc");
  return {
    atMs,
    running: sum("num_requests_running"),
    waiting: sum("num_requests_waiting"),
    generated: sum("generation_tokens_total"),
    prompt: sum("prompt_tokens_total"),
    kv: kv.length ? kv.reduce((a, b) => a + b, 0) / kv.length : null,
    hits: sum("prefix_cache_hits_total"),
    queries: sum("prefix_cache_queries_total"),
    firstToken: buckets(metrics, "time_to_first_token_seconds"),
    nextToken: buckets(metrics, "inter_token_latency_seconds"),
  };
}

/** Return a histogram as upper bound -> count, over all engines. */
function buckets(metrics, name) {
  const found = new Map();
  for (const { labels, value } of metrics.get(`${name}_bucket`) ?? []) {
    const text = LE.exec(labels)?.[1];
    const bound = text === "+Inf" ? Infinity : Number(text);
    found.set(bound, (found.get(bound) ?? 0) + value);
  }
  return found;
}

/** Return how much a counter grew each second; null where that is not known. A counter that fell
 * began anew: the server was started again. */
export function rate(now, before, name) {
  if (!before || now[name] === null || before[name] === null) return null;
  const seconds = (now.atMs - before.atMs) / 1000;
  const growth = now[name] - before[name];
  return seconds > 0 && growth >= 0 ? growth / seconds : null;
}

/** Return the share of looked-up tokens that were found, between two moments; null if none was. */
export function hitShare(now, before) {
  if (!before || now.queries === null || before.queries === null) return null;
  const looked = now.queries - before.queries;
  return looked > 0 ? (now.hits - before.hits) / looked : null;
}

/** Return a quantile, in seconds, of what a histogram got between two moments; null for nothing.
 * Between two bounds values are taken as evenly spread, as Prometheus does. */
export function quantile(now, before, q) {
  const bounds = [...now.keys()].sort((a, b) => a - b);
  const counts = bounds.map((bound) => now.get(bound) - (before?.get(bound) ?? 0));
  const total = counts.at(-1) ?? 0;
  if (!(total > 0) || counts.some((count) => count < 0)) return null;
  const wanted = q * total;
  const at = counts.findIndex((count) => count >= wanted);
  const low = at > 0 ? bounds[at - 1] : 0;
  if (bounds[at] === Infinity) return low;
  const below = at > 0 ? counts[at - 1] : 0;
  const inside = counts[at] - below;
  return low + (bounds[at] - low) * (inside > 0 ? (wanted - below) / inside : 1);
}
