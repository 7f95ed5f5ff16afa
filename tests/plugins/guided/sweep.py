"""Samples every keyword and every pair of keywords of the guided-decoding backends; prints totals.

    PYTHONPATH=core:plugins:kernels python tests/plugins/guided/sweep.py --samples 1000

Nothing is asserted: the figures and the schemas at fault are printed, for whoever changes
`keywords` or `refuses` of a backend.
"""

from __future__ import annotations

import argparse
import runpy
import time
from collections import Counter
from pathlib import Path
from typing import Any

from dovetail import registry
from dovetail.testing.walks import small_vocabulary

SAMPLING: dict[str, Any] = runpy.run_path(str(Path(__file__).with_name("sampling.py")))


def main() -> None:
    """Print a line per keyword or pair at fault, then totals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--backend", action="append", default=[])
    parser.add_argument("--words", nargs="*", default=[], help="only pairs with one of these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pairs-from", type=int, default=0)
    parser.add_argument("--limit-s", type=float, default=60.0, help="for one pair")
    parser.add_argument("-v", action="store_true", dest="is_told", help="a line for each pair")
    chosen = parser.parse_args()
    for name in chosen.backend or registry.names("guided_decoding_backend"):
        sweep(name, chosen)


def sweep(name: str, chosen: argparse.Namespace) -> None:
    """Sample one backend and print what came of it."""
    plugin = registry.load("guided_decoding_backend", name)
    backend = plugin(plugin.Options(), small_vocabulary())
    total: Counter[str] = Counter()
    few = []
    start_s = time.monotonic()
    all_pairs = list(SAMPLING["KEYWORDS"]["pairs"](backend.keywords))
    wanted = [p for p in all_pairs if not chosen.words or set(p) & set(chosen.words)]
    for words in wanted[chosen.pairs_from :]:
        tally = SAMPLING["sample"](backend, words, chosen.samples, chosen.seed, chosen.limit_s)
        total += tally.counts
        if tally.counts["end"] < chosen.samples:
            few.append((words, tally.counts["end"]))
        if chosen.is_told or tally.counts["wrong"]:
            print(name, "+".join(words), dict(tally.counts), flush=True)
        for schema, text, fault in tally.faults:
            print(f"    {schema}\n        {text!r}\n        {fault}", flush=True)
    print(f"{name}: {len(wanted)} keywords and pairs in {time.monotonic() - start_s:.0f} s")
    print(f"    {dict(total)}")
    print(f"    {len(few)} with fewer samples than asked, fewest first:")
    for words, count in sorted(few, key=lambda row: row[1])[:400]:
        print(f"        {'+'.join(words)}: {count}")


if __name__ == "__main__":
    main()
