"""Drafters beside the model: the answers are those without, whatever the drafter guesses.

A draft of the model itself always comes true, one of other weights nearly never; both are asked
under preemption, prefix hits, chunked prefill, swap, penalties, forms, logprobs, seeds and stops.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dovetail import LLM, SamplingParams
from dovetail.engine.client.results.outputs import GenerationResult
from dovetail.engine.core import StepOutput
from dovetail.errors import ConfigError
from dovetail.interfaces.data.constraint import Regex
from dovetail.interfaces.data.step import TokenLogprobs
from dovetail.interfaces.stats import StepStats
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.inside import core_of

pytest.importorskip("dovetail_plugins")

METHOD = "dovetail_plugins.drafters.draft_model:DraftModel"
PROMPT = "one two three one two three one two three one two"
SEED_7 = {"seed": 7, "temperature": 1.0}
FORM = Regex("(one|two|three){2,5};")
REQUESTS: Sequence[tuple[str, dict[str, Any]]] = (
    (PROMPT, {"temperature": 0.0}),
    (PROMPT, {"temperature": 0.0, "logprobs": 3, "max_tokens": 17}),
    (PROMPT, {"seed": 5, "temperature": 0.6, "logprobs": 2, "top_k": 20}),
    ("the dog and the dog and the dog", {**SEED_7, "n": 2, "logprobs": 0}),
    ("a", {**SEED_7, "repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2}),
    ("abcabcabcabc", {"temperature": 0.0, "frequency_penalty": 1.0, "logprobs": 1}),
    ("x y z", {**SEED_7, "min_tokens": 9, "bad_words": ["e", "on"], "top_p": 0.7, "min_p": 0.01}),
    ("counting one two", {"seed": 1, "temperature": 2.0, "ignore_eos": False, "max_tokens": 40}),
    ("few letters", {"temperature": 0.0, "allowed_token_ids": [40, 41, 42], "logprobs": 1}),
    ("prompt logprobs", {"seed": 9, "prompt_logprobs": 1, "max_tokens": 6}),
    ("a form", {"temperature": 0.0, "ignore_eos": False, "constraint": FORM}),
    ("a form", {**SEED_7, "ignore_eos": False, "constraint": FORM, "logprobs": 1}),
    (PROMPT, {"temperature": 0.0, "max_tokens": 1}),
)


class Engine:
    """An LLM whose step statistics are kept."""

    def __init__(self, folder: Path, draft: Path | None = None, **fields: Any) -> None:
        flags: dict[str, Any] = {
            "num_gpu_blocks_override": 400,
            "max_model_len": 96,
            "max_num_batched_tokens": 48,
            "block_size": 8,
            "dtype": "float32",
            "swap_space": 0,
            "use_tqdm_on_load": False,
            "plugin_options": {"scheduler": {"growth_blocks": 0}},
        }
        if draft is not None:
            asked = {"method": METHOD, "model": str(draft), "num_speculative_tokens": 4}
            flags["speculative_config"] = asked | fields.pop("speculative_config", {})
        self.llm = LLM(model=str(folder), **(flags | fields))
        self.core = core_of(self.llm)
        self.stats: list[StepStats] = []
        step = self.core.step

        def watched() -> StepOutput:
            output = step()
            self.stats += [output.stats] if output.stats else []
            return output

        self.core.step = watched  # type: ignore[method-assign]

    def count(self, name: str) -> int:
        return sum(getattr(stats, name) for stats in self.stats)

    def all_answers(self) -> list[GenerationResult]:
        """Return the answers to REQUESTS."""
        params = []
        for _, one in REQUESTS:
            wish = {"max_tokens": 30, "ignore_eos": True, **one}
            if "constraint" in wish:
                wish["constraint"] = self.llm.compile_constraint(wish["constraint"])
            params.append(SamplingParams(**wish))
        return self.answers(params, [prompt for prompt, _ in REQUESTS])

    def answers(self, params: Sequence[SamplingParams], prompts: Any) -> list[GenerationResult]:
        results = self.llm.generate(prompts, list(params), use_tqdm=False)
        assert [result.error for result in results] == [None] * len(results)
        self.core.check_idle()
        return results


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("spec") / "model", "LlamaForCausalLM")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return another family's model, smaller in everything but the vocabulary."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "head_dim": 12, "num_attention_heads": 2}
    folder = tmp_path_factory.mktemp("spec") / "other"
    return write_tiny_checkpoint(folder, "Qwen3ForCausalLM", **sizes)


@pytest.fixture(scope="module")
def plain(folder: Path) -> list[GenerationResult]:
    """Return what is drawn without drafts."""
    engine = Engine(folder)
    with engine.llm:
        return engine.all_answers()


def assert_close(found: Sequence[TokenLogprobs], wanted: Sequence[TokenLogprobs]) -> None:
    """More rows in a product may round otherwise."""
    assert [(one.token_id, one.rank) for one in found] == [(o.token_id, o.rank) for o in wanted]
    values = [one.logprob for one in found]
    assert values == pytest.approx([one.logprob for one in wanted], abs=1e-4)


def assert_same(found: Sequence[GenerationResult], wanted: Sequence[GenerationResult]) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        assert_close((ours.prompt_logprobs or ())[1:], (theirs.prompt_logprobs or ())[1:])
        for one, other in zip(ours.outputs, theirs.outputs, strict=True):
            assert one.token_ids == other.token_ids
            assert one.text == other.text
            assert_close(one.logprobs or (), other.logprobs or ())
            ends = (one.finish_reason, one.stop_reason)
            assert ends == (other.finish_reason, other.stop_reason)


@pytest.mark.parametrize("is_async", [False, True])
def test_the_model_itself_is_always_right(
    folder: Path, plain: list[GenerationResult], is_async: bool
) -> None:
    engine = Engine(folder, folder, async_scheduling=is_async)
    with engine.llm:
        assert_same(engine.all_answers(), plain)
        engine.stats.clear()
        greedy = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
        engine.answers([greedy], [PROMPT])
    assert engine.count("accepted_tokens") == engine.count("draft_tokens") > 24
    assert len([s for s in engine.stats if s.step_tokens]) <= 13


def test_another_model_is_seldom_right(
    folder: Path, other: Path, plain: list[GenerationResult]
) -> None:
    engine = Engine(folder, other)
    with engine.llm:
        assert_same(engine.all_answers(), plain)
    assert engine.count("draft_tokens") > 0
    assert engine.count("accepted_tokens") < engine.count("draft_tokens") / 2


CROWDED = (
    {"num_gpu_blocks_override": 26, "enable_prefix_caching": False},
    {"num_gpu_blocks_override": 26, "swap_space": 0.01},
    {"num_gpu_blocks_override": 26, "async_scheduling": True},
    {"max_num_batched_tokens": 16, "max_num_seqs": 3},
)


@pytest.mark.parametrize("fields", CROWDED, ids=["recompute", "swap", "async", "chunks"])
def test_a_row_takes_its_drafts_along(
    folder: Path, plain: list[GenerationResult], fields: dict[str, Any]
) -> None:
    """Preempted, swapped and resumed rows are guessed as well as they were, so all comes true."""
    engine = Engine(folder, folder, **fields)
    with engine.llm:
        assert_same(engine.all_answers(), plain)
        engine.stats.clear()
        greedy = [SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)] * 6
        engine.answers(greedy, [f"{PROMPT} {i}" for i in range(6)])
    if "num_gpu_blocks_override" in fields:
        assert engine.count("preemptions") > 0
        assert (engine.count("swaps") > 0) == ("swap_space" in fields)
    assert engine.count("accepted_tokens") == engine.count("draft_tokens") > 10


def test_a_prefix_of_the_model_is_one_of_the_drafter(folder: Path) -> None:
    """What another request has left, drafted or not, is enough to guess from."""
    engine = Engine(folder, folder, speculative_config={"disable_by_batch_size": 2})
    greedy = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    with engine.llm:
        first = engine.answers([greedy] * 3, [PROMPT, "abc def", "ghi"])[0]  # too many: paused
        assert engine.count("draft_tokens") < 40
        engine.stats.clear()
        whole = [*first.prompt_token_ids, *first.outputs[0].token_ids]
        engine.answers([greedy], [{"prompt_token_ids": whole}])
    assert engine.count("prefix_hit_tokens") >= len(whole) - 9
    assert engine.count("accepted_tokens") == engine.count("draft_tokens") > 16


def test_layers_that_forget(tmp_path: Path) -> None:
    """The drafter's keys lie beside those of the layers that forget nothing."""
    mixed = write_tiny_checkpoint(tmp_path / "mixed", "Gemma3ForCausalLM")
    greedy = [SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)] * 2
    engine = Engine(mixed, mixed)
    with engine.llm:
        found = engine.answers(greedy, [PROMPT, "abc"])
    assert engine.count("accepted_tokens") == engine.count("draft_tokens") > 20
    engine = Engine(mixed)
    with engine.llm:
        assert_same(engine.answers(greedy, [PROMPT, "abc"]), found)


def test_two_ranks(folder: Path, plain: list[GenerationResult]) -> None:
    """A draft model that is divided as the model is (`test_draft_heads.py`: one that is not)."""
    asked = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    speculation = {"draft_tensor_parallel_size": 2}
    engine = Engine(folder, folder, speculative_config=speculation, **asked)
    with engine.llm:
        found = engine.all_answers()
        engine.stats.clear()
        engine.answers([SamplingParams(temperature=0.0, max_tokens=30)], [PROMPT])
    assert [r.outputs[0].token_ids for r in found] == [r.outputs[0].token_ids for r in plain]
    assert engine.count("accepted_tokens") == engine.count("draft_tokens") > 10


def test_rows_longer_than_the_drafter_knows(folder: Path, plain: list[GenerationResult]) -> None:
    engine = Engine(folder, folder, speculative_config={"max_model_len": 30})
    with engine.llm:
        assert_same(engine.all_answers(), plain)
    assert engine.count("draft_tokens") > 0


def test_sleeps_and_wakes(folder: Path) -> None:
    greedy = [SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)]
    engine = Engine(folder, folder, enable_sleep_mode=True)
    with engine.llm:
        wanted = engine.answers(greedy, [PROMPT])
        for level in (1, 2):
            engine.llm.sleep(level=level)
            engine.llm.wake_up()
            engine.stats.clear()
            assert_same(engine.answers(greedy, [PROMPT]), wanted)
            assert engine.count("accepted_tokens") == engine.count("draft_tokens") > 12


def changed(source: Path, target: Path, **fields: Any) -> Path:
    """Copy a checkpoint with other settings."""
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | fields))
    return target


def test_refusals_name_the_key(folder: Path, tmp_path: Path) -> None:
    smaller = write_tiny_checkpoint(tmp_path / "smaller", "LlamaForCausalLM", vocab_size=300)
    layers = changed(folder, tmp_path / "layers", num_hidden_layers=3)
    foreign = changed(folder, tmp_path / "foreign")
    tokens = json.loads((foreign / "tokenizer.json").read_text())
    vocab = tokens["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (foreign / "tokenizer.json").write_text(json.dumps(tokens))
    nobodys = {"architectures": ["NobodysForCausalLM"], "model_type": "nobodys"}
    unknown = changed(folder, tmp_path / "unknown", **nobodys)
    wrong: list[tuple[Path, dict[str, Any], str]] = [
        (smaller, {}, "vocabulary of 300 tokens"),
        (layers, {}, "missing: model.layers.2"),
        (foreign, {}, r"the token '[ab]' is \d+ to the model and \d+ to the drafter"),
        (unknown, {}, "NobodysForCausalLM"),
        (tmp_path / "nowhere", {}, "speculative-config.model"),
        (folder, {"draft_tensor_parallel_size": 3}, "not over 3"),
        (folder, {"max_model_len": 0}, "max_model_len"),
        (folder, {"quantization": "nobodys"}, "speculative-config.quantization"),
        (folder, {"model": None}, "none is named"),
        (folder, {"draft": 3}, "draft"),
        (folder, {"draft_sample_method": "random"}, "one of greedy, probabilistic"),
        (folder, {"num_speculative_tokens": 48}, "do not fit in a step"),
    ]
    with pytest.raises(ConfigError, match="pipeline-parallel-size 2"):
        Engine(folder, folder, pipeline_parallel_size=2)
    for draft, asked, text in wrong:
        with pytest.raises(ConfigError, match=text):
            Engine(folder, draft, speculative_config=asked)


def test_weights_that_are_not_numbers(folder: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    broken = changed(folder, tmp_path / "broken")
    tensors = load_file(broken / "model.safetensors")
    tensors["model.norm.weight"] = torch.full_like(tensors["model.norm.weight"], torch.nan)
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"model\.norm\.weight.*NaN"):
        Engine(folder, broken)
