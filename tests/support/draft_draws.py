"""Whether answers that were drafted are distributed as the model says, by a chi-square test.

For every token that was drawn, transformers says how likely each token was; the more likely ones
first, the token's place in the sum of all chances is then spread evenly over 0 to 1 if, and only
if, tokens are drawn as they should be, whatever came before (Rosenblatt, 1952). What is drawn too
often because it was drafted is likely, and shows at the lower end.

    PYTHONPATH=core:plugins:kernels:tests python -m support.draft_draws [--draws 100000] [NAME ...]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dovetail import LLM, SamplingParams
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support import draft_heads, masked_heads
from support.draft_heads import VOCAB
from support.inside import core_of

BINS = 50
LIMIT = 106.8
"""What chi-square of 49 degrees of freedom passes once in 300,000 times."""
TEMPERATURE = 0.35
NUM_TOKENS = 64
ROWS = 256
"""Requests at a time."""
PROMPTS = ("one two three one two", "abc", "the dog and the dog and the dog and so on")
JUDGED = 64
"""Requests that transformers reads at a time."""
Sort = Callable[[Path, Path], Mapping[str, Any]]
"""(the model's folder, one for a checkpoint) -> what --speculative-config says."""


def _noisy(model: Path, folder: Path, width: float = 0.02) -> Path:
    """Return a copy of a model that says nearly the same."""
    from safetensors.torch import load_file, save_file

    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    g = torch.Generator().manual_seed(3)
    tensors = load_file(folder / "model.safetensors")
    noisy = {k: t + width * torch.randn(t.shape, generator=g).to(t) for k, t in tensors.items()}
    save_file(noisy, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _small(model: Path, folder: Path, **more: Any) -> Mapping[str, Any]:
    return {"method": "draft_model", "model": str(_noisy(model, folder / "small")), **more}


def _head(make: Callable[[Path], draft_heads.Head], **more: Any) -> Sort:
    def sort(model: Path, folder: Path) -> Mapping[str, Any]:
        head = make(folder / "head")
        method = f"dovetail_plugins.drafters.{head.method}"
        return {"method": method, "model": str(head.folder), **more}

    return sort


SAMPLED = {"draft_sample_method": "probabilistic"}
SORTS: Mapping[str, Sort] = {
    "none": lambda model, folder: {},
    "ngram": lambda model, folder: {"method": "ngram", "prompt_lookup_min": 1},
    "suffix": lambda model, folder: {"method": "suffix"},
    "draft_model": _small,
    "draft_model, sampled": lambda model, folder: _small(model, folder, **SAMPLED),
    "eagle": _head(draft_heads.eagle),
    "eagle, sampled": _head(draft_heads.eagle, **SAMPLED),
    "eagle3": _head(draft_heads.eagle3),
    "dflash": _head(masked_heads.dflash),
    "dspark, sampled": _head(masked_heads.dspark, **SAMPLED),
    "medusa": _head(draft_heads.medusa),
    "medusa, sampled": _head(draft_heads.medusa, **SAMPLED),
    "mlp_speculator": _head(draft_heads.mlp_speculator),
}
TYPICAL = {"acceptance_method": "typical_acceptance_sampler"}


def write_model(folder: Path) -> Path:
    """Write a model of a small vocabulary, in which some tokens are far likelier than others."""
    return write_tiny_checkpoint(folder, "LlamaForCausalLM", num_hidden_layers=6, vocab_size=VOCAB)


def draw(
    model: Path, asked: Mapping[str, Any], num_draws: int
) -> tuple[list[tuple[list[int], list[int]]], float]:
    """Return prompts and answers with `num_draws` tokens together, and the share of drafts that
    were accepted."""
    flags: dict[str, Any] = {"speculative_config": {**asked, "num_speculative_tokens": 3}}
    llm = LLM(
        model=str(model), dtype="float32", max_model_len=128, num_gpu_blocks_override=9 * ROWS,
        max_num_seqs=ROWS, max_num_batched_tokens=4 * ROWS, enable_prefix_caching=False,
        use_tqdm_on_load=False, seed=11, **(flags if asked else {}),
    )  # fmt: skip
    params = SamplingParams(temperature=TEMPERATURE, max_tokens=NUM_TOKENS, ignore_eos=True)
    count = -(-num_draws // NUM_TOKENS)
    drafted = accepted = 0
    with llm:
        step = core_of(llm).step

        def watched() -> Any:
            nonlocal drafted, accepted
            output = step()
            if output.stats is not None:
                drafted += output.stats.draft_tokens
                accepted += output.stats.accepted_tokens
            return output

        core_of(llm).step = watched  # type: ignore[method-assign]
        prompts = [PROMPTS[i % len(PROMPTS)] for i in range(count)]
        found = llm.generate(prompts, params, use_tqdm=False)
    told = [(list(r.prompt_token_ids), list(r.outputs[0].token_ids)) for r in found]
    return told, accepted / drafted if drafted else 0.0


@torch.inference_mode()
def places(model: Path, told: list[tuple[list[int], list[int]]]) -> np.ndarray:
    """Return the place of every drawn token in the sum of chances. Shapes: [draws]"""
    import transformers

    judge: Any = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    rng, found = np.random.default_rng(5), []
    ordered = sorted(told, key=lambda one: len(one[0]))
    for length, group in groupby(ordered, key=lambda one: len(one[0])):
        members = list(group)
        for first in range(0, len(members), JUDGED):
            some = members[first : first + JUDGED]
            texts = torch.tensor([prompt + answer for prompt, answer in some])
            logits = judge.eval()(texts).logits[:, length - 1 : -1].double() / TEMPERATURE
            chances, order = logits.softmax(-1).sort(dim=-1, descending=True)
            is_drawn = order == texts[:, length:, None]
            own = chances[is_drawn].numpy()
            below = (chances.cumsum(-1)[is_drawn]).numpy() - own
            found.append(below + own * rng.random(len(own)))
    return np.concatenate(found)


def chi_square(found: np.ndarray) -> float:
    """Return how far places are from an even spread. Shapes: [draws]"""
    counts = np.histogram(found, bins=BINS, range=(0.0, 1.0))[0]
    expected = len(found) / BINS
    return float(((counts - expected) ** 2 / expected).sum())


def main() -> None:
    """Print a line for each sort of drafter."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[*SORTS])
    parser.add_argument("--draws", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder) / "model")
        for number, name in enumerate(options.names):
            own = Path(folder) / str(number)
            own.mkdir()
            start_s = time.perf_counter()
            told, share = draw(model, SORTS[name](model, own), options.draws)
            found = places(model, told)
            print(
                f"{name:<22}{len(found):>8} draws  chi-square {chi_square(found):6.1f} "
                f"(limit {LIMIT})  accepted {share:.0%}  {time.perf_counter() - start_s:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
