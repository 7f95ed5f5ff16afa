"""One GGUF type for all matrices of a model: dovetail's blocks and ggml's, over several weights.

    python -m benchmarks.gguf_types MODEL --libggml libggml-base.so [--types "Q4_K;IQ4_XS"]
        [--seeds 6]

As benchmarks.gguf_quality, but in one process and without files: `benchmarks.gguf_source` makes
other weights of the same model from each seed, because the rounding errors of one and the same
method move a divergence by some percent. ggml's blocks are those of ggml_quantize_chunk. The model
runs in transformers in float32. Importances are of the second halves of four windows of Python's
language reference, scored are the first halves. "ratio" is the mean over the seeds of ours over
ggml's Kullback-Leibler divergence, with its standard error. For small models: memory takes three
copies in float32.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.gguf_source import spread, widened
from benchmarks.quality_reference import WINDOW, load, windows_of
from dovetail_plugins.gguf.blocks.integers import dequantize
from dovetail_plugins.gguf.blocks.quantize import to_blocks
from dovetail_plugins.gguf.blocks.types import BY_NAME, CODES

TYPES = ("Q3_K", "Q4_K", "IQ4_XS", "Q5_K", "Q6_K")
Importances = torch.Tensor | None
Quantize = Callable[[str, torch.Tensor, Importances], torch.Tensor]


def ggml(path: Path) -> Quantize:
    """Return ggml's own quantizer."""
    chunk = ctypes.CDLL(str(path)).ggml_quantize_chunk
    chunk.restype = ctypes.c_size_t

    def quantize(kind: str, weight: torch.Tensor, importances: Importances) -> torch.Tensor:
        rows, size = weight.shape
        blocks = size // BY_NAME[kind].values * BY_NAME[kind].block_bytes
        out = torch.empty(rows, blocks, dtype=torch.uint8)
        counts = (ctypes.c_int64(0), ctypes.c_int64(rows), ctypes.c_int64(size))
        pointers = [ctypes.c_void_p(one.data_ptr()) for one in (weight.contiguous(), out)]
        given = None if importances is None else ctypes.c_void_p(importances.data_ptr())
        chunk(CODES[kind], *pointers, *counts, given)
        return out

    return quantize


def other_weights(model: Any, seed: int) -> Any:
    """Return a model that computes the same with other weights, in bfloat16's numbers."""
    config, tied = copy.deepcopy(model.config), set(model.all_tied_weights_keys or ())
    state = {name: one for name, one in model.state_dict().items() if name not in tied}
    spread(state, config, seed)
    widened(state, config)
    made = type(model)(config)
    made.load_state_dict(state, strict=False)
    made.tie_weights()
    for parameter in made.parameters():
        parameter.copy_(parameter.bfloat16().float())
    return made.eval()


def importances_of(model: Any, windows: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the mean squares of the inputs of all matrices but the tables."""
    found: dict[str, torch.Tensor] = {}
    hooks = []
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":

            def note(_: Any, inputs: Any, __: Any, name: str = name) -> None:
                found[f"{name}.weight"] = inputs[0].square().flatten(0, -2).mean(0).contiguous()

            hooks.append(module.register_forward_hook(note))
    model(windows)
    for hook in hooks:
        hook.remove()
    return found


class Trial:
    """One model with its own logprobs."""

    def __init__(self, model: Any, windows: torch.Tensor) -> None:
        self.model, self.windows = model, windows[:, : WINDOW // 2]
        self.importances = importances_of(model, windows[:, WINDOW // 2 :])
        self.right = model(self.windows).logits.log_softmax(-1)
        self.own = {name: one.clone() for name, one in model.named_parameters()}

    def divergence(self, kind: str, quantize: Quantize, *, is_measured: bool) -> float:
        """Return how far the model is from itself with all matrices in one type."""
        for name, parameter in self.model.named_parameters():
            if parameter.dim() == 2:
                given = self.importances.get(name) if is_measured else None
                parameter.copy_(dequantize(kind, quantize(kind, self.own[name], given)))
        found = self.model(self.windows).logits.log_softmax(-1)
        return float((self.right.exp() * (self.right - found)).sum(-1).mean())


def main() -> int:
    """Print a row for each type, without and with importances."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--libggml", type=Path, required=True, help="ggml's shared library")
    parser.add_argument("--types", type=lambda text: text.split(";"), default=list(TYPES))
    parser.add_argument("--seeds", type=int, default=6)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    theirs = ggml(asked.libggml)
    found: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    with torch.inference_mode():
        model, windows = load(asked.model), torch.tensor(windows_of(asked.model, 4)[0])
        for seed in range(asked.seeds):
            trial = Trial(other_weights(model, seed), windows)
            for kind in asked.types:
                for is_measured in (False, True):
                    both = tuple(trial.divergence(kind, one, is_measured=is_measured)
                                 for one in (to_blocks, theirs))  # fmt: skip
                    found.setdefault((kind, is_measured), []).append((both[0], both[1]))
    print("| type | importances | KL | ggml's | ratio |\n|---|---|---|---|---|")
    for (kind, is_measured), pairs in found.items():
        ours, other = torch.tensor(pairs, dtype=torch.float64).unbind(1)
        ratio = ours / other
        error = float(ratio.std() / len(pairs) ** 0.5) if len(pairs) > 1 else 0.0
        print(f"| {kind} | {'yes' if is_measured else 'no'} | {float(ours.mean()):.4f} | "
              f"{float(other.mean()):.4f} | {float(ratio.mean()):.3f} ± {error:.3f} |")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
