"""Samples every keyword and every pair of keywords of the structured-output backends; prints
totals.

    PYTHONPATH=core:plugins:kernels:tests python tests/plugins/structured_output/sweep.py --samples
    1000

Nothing is asserted: the figures and the schemas at fault are printed, for whoever changes
`keywords` or `refuses` of a backend. `--out` keeps the totals, by backend, for the reference page.
With `--log` a sweep that was ended goes on where it was: pairs in that file are not sampled again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path

from dovetail import registry
from dovetail.interfaces.structured_output import StructuredOutputBackend
from dovetail_grammars.schema import ENFORCED_BESIDE
from dovetail_testing.random_walks import small_vocabulary
from support.schema_keywords import pairs_of
from support.schema_sampling import sample


def main() -> None:
    """Print a line per keyword or pair at fault, then totals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--backend", action="append", default=[])
    parser.add_argument("--words", nargs="*", default=[], help="only pairs with one of these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pairs-from", type=int, default=0)
    parser.add_argument("--limit-s", type=float, default=60.0, help="for one pair")
    parser.add_argument("--out", type=Path, help="a JSON file; what else it has stays")
    parser.add_argument("--log", type=Path, help="a file with a line of JSON for each pair")
    parser.add_argument("-v", action="store_true", dest="is_told", help="a line for each pair")
    chosen = parser.parse_args()
    for name in chosen.backend or registry.names("structured_output_backend"):
        sweep(name, chosen)


def sweep(name: str, chosen: argparse.Namespace) -> None:
    """Sample one backend and print what came of it."""
    plugin = registry.load("structured_output_backend", name)
    backend = plugin(plugin.Options(), small_vocabulary())
    total: Counter[str] = Counter()
    few: list[tuple[str, int]] = []
    refused: list[str] = []
    start_s = time.monotonic()
    all_pairs = list(pairs_of(backend.keywords | ENFORCED_BESIDE))
    wanted = [p for p in all_pairs if not chosen.words or set(p) & set(chosen.words)]
    done = logged(chosen.log, name)
    for words in wanted[chosen.pairs_from :]:
        pair = "+".join(words)
        if pair not in done:
            done[pair] = sampled(backend, name, words, chosen)
        counts = done[pair]
        total += counts
        if not counts["schemas"]:
            refused.append(pair)
        elif counts["end"] < chosen.samples:
            few.append((pair, counts["end"]))
    print(f"{name}: {len(wanted)} keywords and pairs in {time.monotonic() - start_s:.0f} s")
    print(f"    {dict(total)}")
    print(f"    {len(refused)} refused: {' '.join(refused)}")
    print(f"    {len(few)} with fewer samples than asked, fewest first:")
    for pair, count in sorted(few, key=lambda row: row[1])[:400]:
        print(f"        {pair}: {count}")
    if chosen.out is not None:
        keep(chosen.out, name, total, len(wanted) - len(refused), refused, few)


def logged(path: Path | None, name: str) -> dict[str, Counter[str]]:
    """Return pair -> counts of what a log has of a backend."""
    if path is None or not path.exists():
        return {}
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {row["pair"]: Counter(row["counts"]) for row in rows if row["backend"] == name}


def sampled(
    backend: StructuredOutputBackend, name: str, words: tuple[str, ...], chosen: argparse.Namespace
) -> Counter[str]:
    """Sample one pair; print its faults and write its line."""
    tally = sample(backend, words, chosen.samples, chosen.seed, chosen.limit_s)
    counts: Counter[str] = tally.counts
    if chosen.is_told or counts["wrong"]:
        print(name, "+".join(words), dict(counts), flush=True)
    for schema, text, fault in tally.faults:
        print(f"    {schema}\n        {text!r}\n        {fault}", flush=True)
    if chosen.log is not None:
        row = {"backend": name, "pair": "+".join(words), "counts": dict(counts)}
        with chosen.log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(row) + "\n")
    return counts


def keep(
    path: Path,
    name: str,
    total: Counter[str],
    num_sampled: int,
    refused: list[str],
    few: list[tuple[str, int]],
) -> None:
    """Write one backend's totals beside what else the file has."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    found.setdefault("sampled", {})[name] = {
        "full": num_sampled - len(few),
        "few": len(few),
        "fewest": dict(few),
        "refused": len(refused),
        "refused pairs": refused,
        "schemas": total["schemas"],
        "answers": total["judged"],
        "near": total["near"],
        "wrong": total["wrong"],
    }
    path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
