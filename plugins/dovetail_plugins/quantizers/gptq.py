"""gptq: weights rounded one input after the other; later inputs compensate for each error.

Levels are even around 0, steps those that are best for the group's own inputs. Inputs are processed
in the order of their strength, but groups keep the checkpoint's order (static groups), so readers
need to know nothing of it. Layout "gptq": `qweight` int32 [I * bits / 32, O], `qzeros` int32
[I / G, O * bits / 32] less one, `scales` float16 [I / G, O], `g_idx` int32 [I].
Source: Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers", 2022; the layout of https://github.com/ModelCloud/GPTQModel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dovetail.errors import ConfigError
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantizer import Inputs, Quantized, Quantizer

if TYPE_CHECKING:
    import torch

BITS = (4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class GptqOptions:
    """How many levels, and how much the inputs' sums are steadied."""

    bits: int = field(default=4, metadata={"choices": BITS, "help": "bits a weight"})
    damping: float = field(
        default=0.01, metadata={"help": "share of the mean added to every input's own sum"}
    )

    def __post_init__(self) -> None:
        """Raises: ConfigError for a number that is not possible."""
        if not 0 < self.damping < 1:
            raise ConfigError(
                f"{self.damping} is not possible.",
                where="--plugin-options.quantizer.damping",
                fix="use a number between 0 and 1.",
            )


class Gptq(Quantizer):
    """Rounding that knows what comes after it."""

    info = Info(
        summary="4 or 8 bits in groups by GPTQ: later inputs compensate for rounding errors",
        source="https://arxiv.org/abs/2210.17323",
    )
    capabilities = frozenset({"calibrated", "grouped"})
    Options = GptqOptions

    def why_whole(self, name: str, shape: tuple[int, int]) -> str:
        """Return why a matrix stays: groups and words must be full."""
        count = 32 // self.options.bits
        if shape[1] % self.task.group or shape[1] % count:
            return f"its inputs are not a multiple of {max(self.task.group, count)}"
        return f"its outputs are not a multiple of {count}" if shape[0] % count else ""

    def quantize(self, name: str, weight: torch.Tensor, inputs: Inputs | None) -> Quantized:
        """Return the matrix. Without inputs (a layer that the text never met) it is rounded to
        nearest. Shapes: weight [O, I]"""
        import torch

        from dovetail_plugins.quantizers import _rounding as rounding
        from dovetail_plugins.quantizers._gptq import best_steps, compensated

        bits, group = self.options.bits, self.task.group
        if inputs is None:
            steps = rounding.even_steps(weight, group, bits=bits, dtype=torch.float16)
            values = rounding.levels(weight, steps, bits=bits)
        else:
            steps = best_steps(weight, inputs.gram.diagonal(), group, bits=bits)
            values = compensated(
                weight, inputs.gram, steps, bits=bits, damping=self.options.damping
            )
        zeros = torch.full((weight.shape[1] // group, len(weight)), (1 << (bits - 1)) - 1)
        tensors = {
            "qweight": rounding.pack(values.T, bits, axis=0),
            "qzeros": rounding.pack(zeros, bits, axis=1),
            "scales": steps.T.contiguous(),
            "g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // group,
        }
        return Quantized(tensors=tensors, meant=rounding.meant(values, steps, bits=bits))

    def settings(self, whole: Sequence[str]) -> Mapping[str, Any]:
        """Return config.json's quantization_config."""
        whole_names = [name for name in whole if name != "lm_head"]
        dynamic: dict[str, Any] = {f"-:^{re.escape(name)}$": {} for name in whole_names}
        return {
            "quant_method": "gptq",
            "bits": self.options.bits,
            "group_size": self.task.group,
            "damp_percent": self.options.damping,
            "desc_act": False,
            "static_groups": True,
            "sym": True,
            "true_sequential": False,
            "lm_head": False,
            "checkpoint_format": "gptq",
            **({"dynamic": dynamic} if dynamic else {}),
        }
