"""Logits processors as written for vLLM's V1 interface: of a batch, and of each request."""

import torch
from transformers import NoRepeatNGramLogitsProcessor
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.tokenizers import get_tokenizer
from vllm.v1.sample.logits_processor import (
    AdapterLogitsProcessor,
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
    RequestLogitsProcessor,
)

logger = init_logger(__name__)


class Only(LogitsProcessor):
    """Leaves one token, the request's target_token; a fault where that is negative."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self.targets = {}
        self.vocab_size = vllm_config.model_config.get_vocab_size()

    @classmethod
    def validate_params(cls, params: SamplingParams) -> None:
        target = params.extra_args and params.extra_args.get("target_token")
        if target is not None and not isinstance(target, int):
            raise ValueError(f"target_token must be a number, not {target!r}")

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for index, params, _, _ in batch_update.added:
            self.targets.pop(index, None)
            target = params.extra_args and params.extra_args.get("target_token")
            if target is not None:
                self.targets[index] = target
        for index in batch_update.removed:
            self.targets.pop(index, None)
        for source, target, direction in batch_update.moved:
            moved, replaced = self.targets.pop(source, None), self.targets.pop(target, None)
            if moved is not None:
                self.targets[target] = moved
            if direction == MoveDirectionality.SWAP and replaced is not None:
                self.targets[source] = replaced

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for index, target in self.targets.items():
            if target < 0:
                raise RuntimeError("no such token")
            kept = logits[index, target].clone()
            logits[index] = float("-inf")
            logits[index, target] = kept
        return logits


class NoRepeats(AdapterLogitsProcessor):
    """Forbids what transformers' processor forbids, for requests with no_repeat_ngram_size."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        size = (params.extra_args or {}).get("no_repeat_ngram_size")
        if not size:
            return None
        processor = NoRepeatNGramLogitsProcessor(size)

        def forbid(prompt_ids: list[int], output_ids: list[int], logits: torch.Tensor):
            ids = torch.tensor([prompt_ids + output_ids])
            return processor(ids, logits[None])[0]

        return forbid


class Says(AdapterLogitsProcessor):
    """Begins the answer with the text `says`, by the model's tokenizer."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        self.tokenizer = get_tokenizer(vllm_config.model_config.tokenizer)

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        if params.extra_args is None or "says" not in params.extra_args:
            return None
        ids = self.tokenizer.encode(params.extra_args["says"], add_special_tokens=False)

        def force(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            if len(output_ids) < len(ids):
                logits[ids[len(output_ids)]] = 1e4
            return logits

        return force


class Best(LogitsProcessor):
    """Leaves the best token: what is most likely stays that."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self.steps = 0

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        self.steps += 1

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return torch.where(logits == logits.amax(dim=-1, keepdim=True), logits, float("-inf"))
