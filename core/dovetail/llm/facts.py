"""FactCalls: the facts that a program can read from an LLM, with vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dovetail.errors import RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.lora_request import LoRARequest

ABSENT = {
    "llm_engine": "use generate() and chat(); llm.spec and llm.model_config have the facts, and "
    "dovetail.AsyncEngine runs requests one by one",
    "get_metrics": "every result has its own times in result.metrics; "
    "`dovetail serve` has /metrics",
    "get_num_unfinished_requests": "generate() returns when all requests have ended",
    "enqueue": "use generate()",
    "wait_for_completion": "use generate()",
    "preprocess_chat": "use chat(); get_tokenizer().apply_chat_template() makes the text alone",
    "set_tokenizer": "name the tokenizer when the model is loaded: LLM(model, tokenizer=...)",
    "reset_mm_cache": "the cache of media is bounded, and cannot be emptied",
    "reset_encoder_cache": "the cache of media is bounded, and cannot be emptied",
}
"""Names of vLLM's LLM that do not exist here -> what to use instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The facts of a model. `dtype` is torch's; `hf_config` has the keys of the text model's
    config.json as attributes and as items."""

    model: str
    tokenizer: str
    served_model_name: str
    dtype: Any
    max_model_len: int
    seed: int
    hf_config: HfConfig
    vocab_size: int
    hidden_size: int

    def get_vocab_size(self) -> int:
        """Return how many tokens the model has logits for."""
        return self.vocab_size

    def get_hidden_size(self) -> int:
        """Return the length of a hidden state."""
        return self.hidden_size


class HfConfig(dict[str, Any]):
    """A config.json whose keys are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            value = self[name]
        except KeyError:
            raise AttributeError(f"config.json has no key {name!r}") from None
        return HfConfig(value) if isinstance(value, dict) else value


class FactCalls:
    """The read-only facts of an LLM."""

    _engine: Any

    @property
    def spec(self) -> EngineSpec:
        """Return the resolved facts of the engine."""
        spec: EngineSpec = self._engine.spec
        return spec

    @property
    def tokenizer(self) -> Any:
        """Return the tokenizer as the engine uses it (interfaces.tokenizer.Tokenizer)."""
        return self._engine.tokenizer

    def get_tokenizer(self, lora_request: LoRARequest | None = None) -> Any:
        """Return transformers' tokenizer of the model, or of a loaded adapter that has its own,
        with `apply_chat_template`, `encode`, `decode` and everything else.

        Raises: RequestError if transformers cannot read the checkpoint's tokenizer
        """
        name = lora_request.lora_name if lora_request is not None else ""
        if name:
            self._engine.adapters()
        own = self._engine.vocabularies.of(name).tokenizer_path
        return _read(own or self.spec.tokenizer_path, self.spec)

    @property
    def model_config(self) -> ModelConfig:
        """Return the facts of the model."""
        import torch

        spec, model = self.spec, self.spec.run.model
        return ModelConfig(
            model=model.path,
            tokenizer=spec.tokenizer_path,
            served_model_name=spec.model_names[0],
            dtype=getattr(torch, model.dtype),
            max_model_len=spec.run.max_model_tokens,
            seed=spec.run.seed,
            hf_config=HfConfig(model.hf_config),
            vocab_size=model.vocab_size,
            hidden_size=model.hidden_size,
        )

    def default_params(self, **fields: Any) -> SamplingParams:
        """Return the model's default sampling params overlaid by `fields`."""
        return SamplingParams(**{**self.spec.default_sampling, **fields})

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the model's default sampling params."""
        return self.default_params()

    def reset_prefix_cache(self) -> bool:
        """Clear the prefix cache. Return True, since that always succeeds."""
        self._engine.reset_prefix_cache()
        return True

    def __getattr__(self, name: str) -> Any:
        if name in ABSENT:
            raise AttributeError(f"LLM has no {name}. Fix: {ABSENT[name]}.")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def _read(path: str, spec: EngineSpec) -> Any:
    """Return transformers' tokenizer from a folder. Raises: RequestError"""
    import transformers

    runs_code = spec.run.model.code is not None
    try:
        return transformers.AutoTokenizer.from_pretrained(path, trust_remote_code=runs_code)
    except Exception as error:
        raise RequestError(
            f"transformers cannot read the tokenizer at {path}: {type(error).__name__}: {error}.",
            where="get_tokenizer",
            fix="use llm.tokenizer, which has encode and decode.",
        ) from error
