"""Write the training text of the demo model: all samples come from small generators.

`python data.py --count 20 --show` prints samples; `--out file.jsonl` writes them. The same seed
gives the same text. This module does not know the tokenizer or the model.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

from chats import Sample, chat_sample
from tool_chats import tool_sample

TOOL_SHARE = 0.32


def samples(seed: int, count: int, tool_share: float = TOOL_SHARE) -> Iterator[Sample]:
    """Yield `count` samples, the same ones for the same seed."""
    rng = Random(seed)
    for _ in range(count):
        yield tool_sample(rng) if rng.random() < tool_share else chat_sample(rng)


def main() -> None:
    """Write or show samples."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--out", default="", help="JSON lines file to write")
    parser.add_argument("--show", action="store_true", help="print the samples")
    options = parser.parse_args()
    lines = [
        json.dumps(sample, ensure_ascii=False) for sample in samples(options.seed, options.count)
    ]
    if options.out:
        Path(options.out).write_text("\n".join(lines) + "\n", encoding="utf-8")
    if options.show or not options.out:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
