"""What a logits processor is given: VllmConfig, and the SamplingParams of requests."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from dovetail import registry
from dovetail.interfaces.data import sampling_params
from dovetail.interfaces.logits import ProcessorContext
from dovetail_vllm_compat.tokenizer import ModelTokenizer

_NONE_IF_EMPTY = frozenset({"extra_args", "logit_bias"})


class SamplingParams:
    """A request's sampling parameters under vLLM's names: of a request, or made by keyword."""

    def __init__(self, **fields: Any) -> None:
        self._fields = sampling_params.SamplingParams(**fields)

    @classmethod
    def of(cls, params: sampling_params.SamplingParams) -> SamplingParams:
        """Return the parameters of a request."""
        made = cls.__new__(cls)
        made._fields = params
        return made

    @property
    def all_stop_token_ids(self) -> set[int]:
        """Return every token that ends the answer."""
        return {*self._fields.stop_token_ids, *self._fields.eos_token_ids}

    @property
    def eos_token_id(self) -> int | None:
        """Return the first token that ends the answers of the model."""
        return next(iter(self._fields.eos_token_ids), None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._fields.__struct_fields__:
            raise AttributeError(f'dovetail-vllm-compat does not have "SamplingParams.{name}"')
        value = getattr(self._fields, name)
        if name in _NONE_IF_EMPTY:
            value = dict(value) or None
        elif isinstance(value, tuple):
            value = list(value)
        return value


class _Part:
    """A part of VllmConfig. A name that it lacks says so."""

    def __init__(self, part: str, **fields: Any) -> None:
        self._part = part
        vars(self).update(fields)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f'dovetail-vllm-compat does not have "{self._part}.{name}"')


class ModelConfig(_Part):
    """What is known of the model."""

    def __init__(self, context: ProcessorContext) -> None:
        import torch

        model = context.model
        text_config = SimpleNamespace(**model.hf_config)
        super().__init__(
            "ModelConfig",
            model=model.path,
            tokenizer=context.tokenizer_path,
            dtype=getattr(torch, model.dtype),
            max_model_len=context.max_model_tokens,
            hf_config=SimpleNamespace(**(model.whole_config or model.hf_config)),
            hf_text_config=text_config,
            skip_tokenizer_init=False,
            trust_remote_code=model.code is not None,
            tokenizer_mode="auto",
            tokenizer_revision=None,
            revision=None,
        )
        self._context = context

    def get_vocab_size(self) -> int:
        """Return how many tokens have a logit."""
        return self._context.model.vocab_size

    def get_hidden_size(self) -> int:
        """Return how wide the hidden states are."""
        return self._context.model.hidden_size


class VllmConfig(_Part):
    """The engine's settings, as far as logits processors ask for them."""

    def __init__(self, context: ProcessorContext) -> None:
        super().__init__(
            "VllmConfig",
            model_config=ModelConfig(context),
            scheduler_config=_Part(
                "SchedulerConfig",
                max_num_seqs=context.max_rows,
                max_model_len=context.max_model_tokens,
            ),
            device_config=_Part("DeviceConfig", device=context.device),
            speculative_config=None,
            reasoning_config=None,
            lora_config=None,
            additional_config={},
        )


def get_tokenizer(tokenizer_name: Any, *args: Any, **kwargs: Any) -> ModelTokenizer:
    """Return the tokenizer of a checkpoint's folder. Raises: ConfigError"""
    return ModelTokenizer(registry.load("tokenizer", "hf")(None, str(tokenizer_name)))


def tokenizer_from_config(model_config: ModelConfig, **kwargs: Any) -> ModelTokenizer:
    """Return the model's tokenizer. Raises: ConfigError"""
    return ModelTokenizer(model_config._context.tokenizer())


def tokenizer_names() -> Sequence[tuple[str, Any]]:
    """Return the names by which files ask for a tokenizer."""
    return (
        ("get_tokenizer", get_tokenizer),
        ("cached_get_tokenizer", get_tokenizer),
        ("cached_tokenizer_from_config", tokenizer_from_config),
        ("init_tokenizer_from_configs", tokenizer_from_config),
        ("init_tokenizer_from_config", tokenizer_from_config),
    )
