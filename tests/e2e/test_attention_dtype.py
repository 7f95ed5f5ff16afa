"""--override-attention-dtype: queries, keys and values are attended in another type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail import LLM, SamplingParams
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.errors import ConfigError, PluginError
from dovetail.interfaces.attention import AttentionCall
from dovetail_plugins.attention.torch_sdpa import TorchSdpa
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.tiny_encoder_decoders import write_encoder_decoder

PROMPT = list(range(3, 33))
ALL = SamplingParams(temperature=0, max_tokens=1, logprobs=-1)


def logprobs(path: Path, **flags: Any) -> torch.Tensor:
    """Return the logprobs of what follows the prompt."""
    engine = {"dtype": "float32", "max_model_len": 64, "max_logprobs": -1, **flags}
    with LLM(
        model=str(path), attention_backend="torch_sdpa", use_tqdm_on_load=False, **engine
    ) as llm:
        (result,) = llm.generate([PROMPT], ALL, use_tqdm=False)
    told = result.outputs[0].logprobs
    assert told is not None
    found = torch.empty(len(told[0].top_ids))
    found[list(told[0].top_ids)] = torch.tensor(told[0].top_logprobs)
    return found


@pytest.mark.e2e
def test_another_sequence_is_attended_in_the_type_that_is_named(tmp_path: Path) -> None:
    write_encoder_decoder(tmp_path, "BartForConditionalGeneration")
    exact = logprobs(tmp_path)
    rounded = logprobs(tmp_path, override_attention_dtype="bfloat16")
    assert 0 < (rounded - exact).abs().max() < 0.2


@pytest.mark.e2e
@pytest.mark.parametrize("family", ["LlamaForCausalLM", "Gemma3nForCausalLM"])
def test_attention_is_computed_in_the_type_that_is_named(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = write_tiny_checkpoint(tmp_path, family), set()
    exact = logprobs(path)
    for name in ("forward", "forward_shared"):
        plain = getattr(TorchSdpa, name)

        def looking(self: Any, call: AttentionCall, *, name: str = name, plain: Any = plain) -> Any:
            seen.add((name, call.q.dtype))
            out = plain(self, call)
            assert out.dtype == call.q.dtype
            return out

        monkeypatch.setattr(TorchSdpa, name, looking)
    rounded = logprobs(path, override_attention_dtype="bfloat16")
    assert {dtype for _, dtype in seen} == {torch.bfloat16}
    assert {name for name, _ in seen} >= {"forward"}
    assert ("forward_shared" in {name for name, _ in seen}) == (family == "Gemma3nForCausalLM")
    assert 0 < (rounded - exact).abs().max() < 0.2


def test_what_is_resolved(tmp_path: Path) -> None:
    """The backend is asked for the type; the cache keeps that of the weights."""
    path = write_tiny_checkpoint(tmp_path / "llama", "LlamaForCausalLM", head_dim=16)
    asked: dict[str, Any] = {"model": str(path), "dtype": "float32", "max_model_len": 64}
    plain = resolve(Config.from_fields(asked)).run
    assert (plain.attention_dtype, plain.attention.name) == ("", "native_cpu")
    half = resolve(Config.from_fields(asked | {"override_attention_dtype": "half"})).run
    assert (half.attention_dtype, half.attention.name) == ("float16", "torch_sdpa")
    assert half.kv_dtype == plain.kv_dtype == "float32"
    auto = resolve(Config.from_fields(asked | {"override_attention_dtype": "auto"})).run
    assert auto.attention_dtype == ""
    native = {"override_attention_dtype": "half", "attention_backend": "native_cpu"}
    with pytest.raises(PluginError, match="takes float32 activations, not float16"):
        resolve(Config.from_fields(asked | native))
    latents = write_tiny_checkpoint(tmp_path / "latents", "DeepseekV3ForCausalLM")
    with pytest.raises(ConfigError, match="latents are attended in the model's type"):
        resolve(
            Config.from_fields(
                asked | {"model": str(latents), "override_attention_dtype": "bfloat16"}
            )
        )
