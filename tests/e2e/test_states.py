"""States of recurrent layers through the engine: types, sleep, what they refuse, their room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail import LLM, SamplingParams
from dovetail.cli.main import main
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.interfaces.data.step import StateLayer
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.inside import runner_of

PROMPTS = [list(range(3, 43)), list(range(5, 25)), [4, 8]]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=0)
ENGINE: dict[str, Any] = {"max_model_len": 64, "dtype": "float32", "use_tqdm_on_load": False}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield write_tiny_checkpoint(tmp_path_factory.mktemp("states"), "Mamba2ForCausalLM")


def answers(llm: LLM) -> list[tuple[int, ...]]:
    results = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    return [tuple(result.outputs[0].token_ids) for result in results]


def spec_of(path: Path, **fields: Any) -> Any:
    return resolve(Config.from_fields({"model": str(path), "max_model_len": 64} | fields))


@pytest.mark.parametrize(
    ("all_of_it", "sums", "wanted"),
    [
        ("auto", "auto", ("float32", "float32")),
        ("bfloat16", "auto", ("bfloat16", "bfloat16")),
        ("auto", "float16", ("float32", "float16")),
        ("float16", "float32", ("float16", "float32")),
    ],
)
def test_types_of_states(path: Path, all_of_it: str, sums: str, wanted: tuple[str, str]) -> None:
    flags = {"mamba_cache_dtype": all_of_it, "mamba_ssm_cache_dtype": sums}
    run = spec_of(path, dtype="float32", **flags).run
    assert (run.conv_state_dtype, run.state_dtype) == wanted


def test_states_of_16_bits_are_kept_so_and_answer_nearly_the_same(path: Path) -> None:
    with LLM(model=str(path), **ENGINE) as llm:
        exact = answers(llm)
    with LLM(model=str(path), mamba_ssm_cache_dtype="bfloat16", **ENGINE) as llm:
        layers = runner_of(llm).kv_layers()
        rounded = answers(llm)
    (layer, *_) = layers
    assert isinstance(layer, StateLayer)
    assert [part.dtype for part in layer.parts] == ["float32", "bfloat16"]
    pairs = [pair for both in zip(exact, rounded, strict=True) for pair in zip(*both, strict=True)]
    assert sum(one == other for one, other in pairs) > len(pairs) // 2


def test_a_sleep_changes_no_answer(path: Path) -> None:
    with LLM(model=str(path), enable_sleep_mode=True, **ENGINE) as llm:
        before = answers(llm)
        for level in (1, 2):
            llm.sleep(level)
            llm.wake_up()
            assert answers(llm) == before


def test_nothing_ends_the_context_of_a_model_without_positions(path: Path) -> None:
    assert spec_of(path, max_model_len=100_000).run.max_model_tokens == 100_000


def test_inspect_tells_the_room_of_states(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(path)]) == 0
    told = capsys.readouterr().out
    assert "a request" in told and "none is needed" in told
