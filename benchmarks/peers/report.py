"""Ratios and tables from the JSON lines of run.py. Pure, but for reading the file.

`python -m benchmarks.peers.report RESULTS.jsonl` prints the tables of a finished run again. A ratio
is taken within a round, where engines ran minutes apart, and told as the median of rounds with the
smallest and the largest. A peer without a figure has a line that says why, and a ratio to the best
says which of those that are usually the best were not there.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.catalog import NOT_ASKED, usual_best

Row = dict[str, Any]
DISTURBED = 0.1
"""A probe beside which others took more of the machine than this is no limit to compare with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of a decoder that say how much work a token is."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    vocab: int

    @property
    def layer_weights(self) -> int:
        """Return the weights of all layers' matrices."""
        attention = self.hidden * self.head_size * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.feed_forward)

    @property
    def step_weights(self) -> int:
        """Return the weights that one decode step reads: layers and head."""
        return self.layer_weights + self.hidden * self.vocab

    def operations(self, num_prompt: int, num_new: int) -> float:
        """Return multiplies and adds of one sequence: layers, causal attention, a head a token."""
        computed = num_prompt + num_new - 1
        pairs = computed * (computed + 1) / 2
        attention = 4 * self.layers * self.heads * self.head_size * pairs
        head = 2 * self.hidden * self.vocab * num_new
        return 2 * self.layer_weights * computed + attention + head


def shape_of(config: dict[str, Any]) -> Shape:
    """Return the shape told by a checkpoint's config.json."""
    return Shape(
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_size=config["head_dim"],
        feed_forward=config["intermediate_size"],
        vocab=config["vocab_size"],
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile; nan when there is nothing to rank."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def figures_of(shape: Shape, answer: Row, num_prompt: int, num_new: int, bits: float) -> Row:
    """Return what one run shows: rates of tokens, steps, bytes and operations.

    `answer` is a worker's. Units: tokens per second, ms, GB/s, GFLOP/s.
    """
    count = len(answer["num_tokens"])
    if answer["num_tokens"] != [num_new] * count:
        return {"error": f"asked for {num_new} tokens each, made {answer['num_tokens']}"}
    wall_s = answer["wall_s"]
    figures = {
        "wall_s": wall_s,
        "total_tok_s": count * (num_prompt + num_new) / wall_s,
        "new_tok_s": count * num_new / wall_s,
        "prompt_tok_s": count * num_prompt / wall_s,
        "gflop_s": count * shape.operations(num_prompt, num_new) / wall_s / 1e9,
    }
    if answer["steps_s"]:
        p10_s, p50_s = (percentile(answer["steps_s"], share) for share in (0.1, 0.5))
        figures |= {
            "step_p10_ms": 1e3 * p10_s,
            "step_p50_ms": 1e3 * p50_s,
            "step_tok_s": count / p10_s,
            "weights_gb_s": shape.step_weights * bits / 8 / p10_s / 1e9,
        }
    return figures


def headline(measure: str) -> str:
    """Return the figure of a measure that ratios are taken of; larger is better."""
    return {"decode": "step_tok_s", "prefill": "prompt_tok_s"}.get(measure, "total_tok_s")


def by_round(rows: Iterable[Row], engine: str, measure: str, threads: int) -> dict[int, Row]:
    """Return an engine's good rows of one measure by round."""
    return {
        row["round"]: row
        for row in rows
        if row.get("engine") == engine
        and row.get("measure") == measure
        and row.get("threads") == threads
        and headline(measure) in row  # not there when the run failed
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Ours over a peer's, over the rounds that both finished."""

    median: float
    smallest: float
    largest: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.smallest:.2f}-{self.largest:.2f})"


def ratio_of(ours: dict[int, Row], theirs: dict[int, Row], figure: str) -> Ratio | None:
    """Return ours over theirs, round by round; None when no round has both."""
    found = [
        ours[number][figure] / theirs[number][figure] for number in sorted(ours.keys() & theirs)
    ]
    if not found:
        return None
    return Ratio(median=statistics.median(found), smallest=min(found), largest=max(found))


def ordered(values: Iterable[Any]) -> list[Any]:
    """Return distinct values in order of first appearance."""
    return list(dict.fromkeys(values))


def middle(rows: Iterable[Row], figure: str) -> float:
    """Return the median of a figure; nan without rows."""
    values = [row[figure] for row in rows if row.get(figure) is not None]
    return statistics.median(values) if values else float("nan")


def _markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = ["---"] * len(header)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *lines))


def limit_share(row: Row) -> float:
    """Return what a run reached of what the machine gave just before: bytes read or multiplies.

    nan where the probe skipped that limit.
    """
    limits = row["limits"]
    if row["measure"] == "decode":
        return float(row["weights_gb_s"] / limits.get("read_gb_s", float("nan")))
    return float(row["gflop_s"] / limits.get("fp32_gflop_s", float("nan")))


def absences(rows: Iterable[Row], width: int, measure: str, threads: int) -> dict[str, str]:
    """Return why engines of a width have no figure of a measure: the last error, or why none ran.

    Those that nobody asked for are there too, with NOT_ASKED.
    """
    known = [row for row in rows if row.get("width") == width]
    whys: dict[str, str] = {}
    for row in known:
        concerns = row.get("threads", threads) == threads and row.get("measure", measure) == measure
        why = row.get("missing") or row.get("error")
        if concerns and why:
            whys[row["engine"]] = why
    return {name: why for name, why in whys.items() if not by_round(known, name, measure, threads)}


def uses_avx512(rows: Iterable[Row]) -> bool:
    """Return whether rows were taken with AVX-512; False where they do not say."""
    machines = [row["machine"] for row in rows if "machine" in row]
    return any("avx512f" in one["sets"] and not one["is_held"] for one in machines)


def best_missing(rows: Sequence[Row], width: int, measure: str, threads: int) -> str:
    """Return which engines that are usually the best have no figure, and why; "" when all have."""
    whys = absences(rows, width, measure, threads)
    told = []
    for family, names in usual_best(width, uses_avx512=uses_avx512(rows)).items():
        if any(by_round(rows, name, measure, threads) for name in names):
            continue
        reasons = ordered(whys.get(name, NOT_ASKED) for name in names)
        reasons = [why for why in reasons if why != NOT_ASKED] or [NOT_ASKED]
        told.append(f"{family} ({'; '.join(reasons)})")
    return f"best peer missing: {', '.join(told)}" if told else ""


def _cells(rows: Sequence[Row]) -> list[str]:
    """Return the figures of one engine and measure, medians over rounds."""
    measure = rows[0]["measure"]
    figure = headline(measure)
    told = [f"{middle(rows, figure):.1f}", f"{max(row[figure] for row in rows):.1f}"]
    if measure == "prefill":
        told += ["", ""]
    else:
        told += [f"{middle(rows, 'step_p10_ms'):.1f}", f"{middle(rows, 'step_p50_ms'):.1f}"]
    shares = [limit_share(row) for row in rows if row["limits"]["foreign_share"] <= DISTURBED]
    shares = [share for share in shares if not math.isnan(share)]
    told.append(f"{100 * statistics.median(shares):.0f} %" if shares else "-")
    told.append(f"{middle(rows, 'foreign_share'):.2f}")
    told.append(f"{max(row['peak_bytes'] for row in rows) / 2**20:.0f}")
    return told


HEADER = (
    "engine", "tok/s", "best", "step p10 ms", "p50 ms", "of limit", "others' CPU", "peak MiB",
)  # fmt: skip


def table(rows: Sequence[Row], width: int, measure: str, threads: int) -> str:
    """Return the engines of one width under one measure, fastest first, then who is missing."""
    names = ordered(r["engine"] for r in rows if r.get("width") == width)
    found = {name: list(by_round(rows, name, measure, threads).values()) for name in names}
    figure = headline(measure)
    ranked = sorted((n for n in names if found[n]), key=lambda n: -middle(found[n], figure))
    lines = [[name, *_cells(found[name])] for name in ranked]
    whys = absences(rows, width, measure, threads)
    blank = [""] * (len(HEADER) - 2)
    lines += [[name, f"missing: {why}", *blank] for name, why in whys.items() if why != NOT_ASKED]
    unasked = [name for name, why in whys.items() if why == NOT_ASKED]
    note = f"\n\n{NOT_ASKED.capitalize()}: {', '.join(unasked)}." if unasked else ""
    return _markdown(HEADER, lines) + note


def ratios(rows: Sequence[Row], width: int, threads: int) -> str:
    """Return dovetail over every peer of its width, and over the best; "" without dovetail.

    Where a peer that is usually the best is missing, the line says so beside the ratio.
    """
    measured = [row for row in rows if row.get("width") == width and "measure" in row]
    peers = ordered(row["engine"] for row in measured if not row.get("is_dovetail"))
    lines = []
    for name in ordered(row["engine"] for row in measured if row.get("is_dovetail")):
        for measure in ordered(row["measure"] for row in measured):
            mine = by_round(measured, name, measure, threads)
            figure = headline(measure)
            others = {peer: by_round(measured, peer, measure, threads) for peer in peers}
            found = {peer: ratio_of(mine, theirs, figure) for peer, theirs in others.items()}
            known = {peer: ratio for peer, ratio in found.items() if ratio}
            each = "; ".join(f"{peer} {ratio}" for peer, ratio in known.items())
            lines.append([name, measure, _against(known), each])
            lines[-1][2] += _unless_empty("; ", best_missing(rows, width, measure, threads))
    return _markdown(("engine", "measure", "of the best peer", "of each"), lines) if lines else ""


def _against(known: dict[str, Ratio]) -> str:
    """Return the ratio to the fastest of the peers that ran."""
    if not known:
        return "no peer ran"
    best = min(known, key=lambda peer: known[peer].median)
    return f"{known[best]} ({best})"


def _unless_empty(before: str, text: str) -> str:
    return before + text if text else ""


def probe_middles(rows: Iterable[Row], threads: int) -> Row:
    """Return the median of every probe taken with this number of threads."""
    probes = [row["probe"] for row in rows if "probe" in row and row["threads"] == threads]
    names = ordered(name for one in probes for name, value in one.items() if name != "skipped")
    return {name: middle(probes, name) for name in names}


def machines(rows: Iterable[Row]) -> list[str]:
    """Return a line for every machine and way of holding it that the rows were taken on."""
    told = [row["machine"] for row in rows if "machine" in row]
    return ordered(
        f"Taken on {one['name']}, {one['cores']} core(s), with {' '.join(one['sets'])}; limited to "
        f"{one['held_to']}"
        for one in told
    )


def render(rows: Sequence[Row]) -> str:
    """Return all tables of a run."""
    parts = machines(rows)
    measured = [row for row in rows if "measure" in row]
    for threads in ordered(row["threads"] for row in measured):
        probes = probe_middles(rows, threads)
        limits = ", ".join(f"{name} {value:.1f}" for name, value in probes.items())
        parts.append(f"## {threads} thread(s). Probed: {limits}")
        for width in sorted({row["width"] for row in measured}, reverse=True):
            for measure in ordered(row["measure"] for row in measured if row["width"] == width):
                limit = "read bandwidth" if measure == "decode" else "fp32 multiply peak"
                parts.append(f"### {width} bit, {measure} (limit: {limit})")
                parts.append(table(rows, width, measure, threads))
            against = ratios(rows, width, threads)
            if against:
                parts += [f"### {width} bit: dovetail over peers, median (range)", against]
    return "\n\n".join(parts)


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a results file."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


if __name__ == "__main__":
    print(render([row for name in sys.argv[1:] for row in read_rows(Path(name))]))
