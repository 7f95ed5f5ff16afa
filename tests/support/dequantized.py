"""What a quantized model is compared with: transformers, given the matrices that are meant.

Shares no product and no packing with what it checks. Knows no quantization method: the caller says
what a layer's weight becomes. Needs transformers. Shape letters: T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.llm.llm import LLM

Meant = Callable[[str, torch.Tensor], torch.Tensor]
"""A linear layer's name and its weight [O, I] give the matrix that is meant."""
Rounding = Callable[[torch.Tensor], torch.Tensor]
"""Activations [T, I] as a product takes them."""


def dequantized_model(path: str | Path, meant: Meant) -> Any:
    """Return transformers' float32 model, every linear layer and expert replaced by `meant`'s.

    A head that is tied to the embedding changes the embedding with it.
    """
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        for name, module in model.named_modules():
            for leaf, weight in module.named_parameters(recurse=False):
                if isinstance(module, nn.Linear) and leaf == "weight":
                    weight.copy_(meant(name, weight))
                elif weight.dim() == 3:
                    for expert in weight:
                        expert.copy_(meant(f"{name}.{leaf}", expert))
    return model


def round_inputs(model: Any, rounding: Rounding) -> None:
    """Let every linear layer of a transformers model round what it is given. Mutates: model"""

    def rounded(module: nn.Module, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (rounding(given[0]),)

    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(rounded)


def wanted_logprobs(model: Any, prompts: Sequence[list[int]]) -> tuple[torch.Tensor, float]:
    """Return transformers' logprobs after every token [T, V], and the deviation of its logits."""
    with torch.inference_mode():
        logits = torch.cat([model(torch.tensor([prompt])).logits[0] for prompt in prompts])
    return logits.log_softmax(-1), logits.std().item()


def found_logprobs(llm: LLM, prompts: Sequence[list[int]]) -> torch.Tensor:
    """Return the engine's logprobs after every token of all prompts. Shapes: -> [T, V]

    Needs: an engine with max_logprobs=-1.
    """
    asked = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=-1, logprobs=-1)
    rows = []
    for result in llm.generate(list(prompts), asked, use_tqdm=False):
        assert result.error is None and result.prompt_logprobs is not None
        last = result.outputs[0].logprobs
        assert last is not None
        for entry in filter(None, (*result.prompt_logprobs, *last)):
            row = torch.full((llm.spec.run.model.vocab_size,), float("nan"))
            row[list(entry.top_ids)] = torch.tensor(entry.top_logprobs)
            rows.append(row)
    return torch.stack(rows)
