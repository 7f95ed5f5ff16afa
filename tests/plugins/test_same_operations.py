"""A trainer with the engine's operations has its log probabilities of drawn tokens, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail import LLM, SamplingParams
from dovetail.errors import ConfigError
from dovetail_plugins.weight_transfer.same_operations import SameOperations, drawn_logprobs
from dovetail_plugins.weight_transfer.shared_weights import SharedWeights
from dovetail_testing.tiny.models import write_tiny_checkpoint

PROMPTS = [list(range(5, 5 + length)) for length in (40, 21, 3)]
DRAWN = SamplingParams(temperature=1.0, n=3, max_tokens=20, ignore_eos=True, logprobs=0, seed=1)
ENGINE: dict[str, Any] = {
    "device": "cpu",
    "use_tqdm_on_load": False,
    "kv_cache_memory_bytes": 4 << 20,
    "max_model_len": 64,
    "max_num_batched_tokens": 16,  # prompts in chunks, next to rows that draw
    "max_num_seqs": 4,
}


HEADS = {"head_dim": 16}


def trainer_of(path: Path, dtype: torch.dtype = torch.float32) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype)


def rows_of(found: list[Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ids padded on the right, which of them follow as drawn, and their log probabilities.
    Shapes: [N, L], [N, L - 1] bool, [drawn]"""
    answers = [(one.prompt_token_ids, answer) for one in found for answer in one.outputs]
    length = max(len(prompt) + len(answer.token_ids) for prompt, answer in answers)
    ids = torch.zeros(len(answers), length, dtype=torch.int64)
    is_drawn = torch.zeros(len(answers), length, dtype=torch.bool)
    for i, (prompt, answer) in enumerate(answers):
        end = len(prompt) + len(answer.token_ids)
        ids[i, :end] = torch.tensor([*prompt, *answer.token_ids])
        is_drawn[i, len(prompt) : end] = True
    said = [
        at[t].logprob
        for _, one in answers
        for t, at in zip(one.token_ids, one.logprobs, strict=True)
    ]
    return ids, is_drawn[:, 1:], torch.tensor(said)


@pytest.mark.parametrize(
    ("architecture", "dtype"),
    [
        ("Qwen3ForCausalLM", "float32"),
        ("LlamaForCausalLM", "float32"),
        ("Qwen3ForCausalLM", "auto"),
    ],
)
def test_the_trainers_log_probabilities_are_the_engines(
    architecture: str, dtype: str, tmp_path: Path
) -> None:
    """Also after a step of the optimizer and an update; and of the engine's default, whose
    weights and cache are bfloat16, too."""
    path = write_tiny_checkpoint(tmp_path / "a", architecture, tie_word_embeddings=True, **HEADS)
    model, plain = trainer_of(path), trainer_of(path)
    if dtype == "auto":
        trainer_of(path, torch.bfloat16).save_pretrained(path)
    with LLM(str(path), dtype=dtype, **ENGINE) as llm, SharedWeights() as shared:
        assert (llm.spec.run.model.weight_dtype == "bfloat16") == (dtype == "auto")
        same = SameOperations(model, llm.spec.run)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(3):
            key = shared.write(model.named_parameters())
            llm.collective_rpc("update_weights", kwargs={"path": shared.path, "key": key})
            found = llm.generate(PROMPTS, DRAWN, use_tqdm=False)
            ids, is_drawn, engines = rows_of(found)
            chosen = ids[:, 1:][is_drawn]
            own = drawn_logprobs(model(ids, use_cache=False).logits[:, :-1][is_drawn], chosen)
            assert (own - engines).abs().max() == 0
            optimizer.zero_grad()
            own.mean().backward()
            if number == 0:
                logits = plain(ids, use_cache=False).logits[:, :-1][is_drawn]
                others = logits.log_softmax(-1).gather(1, chosen[:, None])[:, 0]
                assert 0 < (others - engines).abs().max() < (1e-3 if dtype == "float32" else 1.0)
                others.mean().backward()
                if dtype == "float32":
                    for mine, its in zip(model.parameters(), plain.parameters(), strict=True):
                        torch.testing.assert_close(mine.grad, its.grad, rtol=1e-3, atol=1e-5)
                same.is_on = False
                torch.testing.assert_close(model(ids).logits, plain(ids).logits, rtol=0, atol=0)
                same.is_on = True
            optimizer.step()
        with pytest.raises(ConfigError, match="padded on the right"):
            model(ids, attention_mask=torch.arange(ids.shape[1]).expand_as(ids).clamp(max=1))
        with pytest.raises(ConfigError, match="position_ids"):
            model.generate(ids[:1, :4], max_new_tokens=2)
        with pytest.raises(ConfigError, match="not float32"):
            SameOperations(trainer_of(path, torch.bfloat16), llm.spec.run)


def test_an_engine_with_other_kernels_is_refused(tmp_path: Path) -> None:
    sizes = {"head_dim": 8, "num_key_value_heads": 2}  # too small for native attention
    path = write_tiny_checkpoint(tmp_path / "a", "LlamaForCausalLM", **sizes)
    for flags, reason in (({}, "attention is that of"), ({"quantization": "int8"}, "another form")):
        if flags:
            path = write_tiny_checkpoint(tmp_path / "b", "LlamaForCausalLM", **HEADS)
        with LLM(str(path), **ENGINE, **flags) as llm, pytest.raises(ConfigError, match=reason):
            SameOperations(trainer_of(path), llm.spec.run)
