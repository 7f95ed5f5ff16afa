"""--cpu-offload-gb: weights are on the device while their block runs, and nothing else changes.

The device is a CPU, whose copies are clones; torch multiplies, since native kernels remember where
a weight lies and no GPU's do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import torch
from torch import nn

from dovetail import LLM, SamplingParams
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.config.rules.machine.host_memory import offload_bytes
from dovetail.config.sections.cache import CacheConfig
from dovetail.config.sections.model import ModelConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.layers.linear.placement import WeightHolder
from dovetail.runner.load.offload import HostCourier, Offload
from dovetail_kernels.cpu import library as native
from dovetail_plugins.platforms.cpu import CpuPlatform
from dovetail_plugins.platforms.cuda import CudaPlatform
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.inside import core_of, runner_of

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
PROMPTS = [[5, 6, 7, 8, 9] * 5, [3, 4, 5]]
NUM_BLOCKS = 5
ALL = 1 << 40


@pytest.fixture(autouse=True)
def without_native_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    state = native._State()
    state.reason = "a test"
    monkeypatch.setattr(native, "_attempt", lambda: state)


@pytest.fixture(scope="module", params=["LlamaForCausalLM", "Qwen3MoeForCausalLM"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("m") / "model"
    return write_tiny_checkpoint(made, request.param, num_hidden_layers=NUM_BLOCKS)


def spec_of(folder: Path, num_bytes: int) -> EngineSpec:
    flags = {
        "model": str(folder),
        "device": "cpu",
        "enforce_eager": True,
        "enable_sleep_mode": True,
        "kv_cache_memory_bytes": "1m",
        "skip_tokenizer_init": True,
        "use_tqdm_on_load": False,
    }
    spec = resolve(Config.from_fields(flags))
    return msgspec.structs.replace(
        spec, run=msgspec.structs.replace(spec.run, offload_bytes=num_bytes)
    )


def model_of(llm: LLM) -> nn.Module:
    return cast(nn.Module, runner_of(llm).model)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    return next(list(m) for m in model.modules() if isinstance(m, nn.ModuleList))


def has_weights(block: nn.Module) -> bool:
    """Return whether the memory of a block's layers is there, all of it or none."""
    holders = [m for m in block.modules() if isinstance(m, WeightHolder)]
    found = {
        tensor.untyped_storage().nbytes() > 0
        for holder in holders
        for tensor in (*holder.parameters(), *holder.buffers())
    }
    assert len(found) == 1
    return found.pop()


def tokens(llm: LLM) -> list[tuple[int, ...]]:
    return [r.outputs[0].token_ids for r in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


@pytest.mark.parametrize(("num_bytes", "away"), [(1, {3}), (ALL, {1, 2, 3, 4})])
def test_weights_are_there_while_their_block_runs(
    folder: Path, num_bytes: int, away: set[int]
) -> None:
    with LLM.from_spec(spec_of(folder, 0)) as llm:
        wanted = tokens(llm)
    with LLM.from_spec(spec_of(folder, num_bytes)) as llm:
        blocks = blocks_of(model_of(llm))
        seen: list[tuple[int, set[int]]] = []

        def watch(number: int) -> Any:
            def look(block: nn.Module, args: object) -> None:
                seen.append((number, {i for i in away if has_weights(blocks[i])}))

            return look

        for number, block in enumerate(blocks):
            block.register_forward_pre_hook(watch(number))
        assert tokens(llm) == wanted
    order = sorted(away)
    for number, there in seen:
        if len(away) == 1:
            assert there == away & {number}
            continue
        # Each runs with the next one on its way; between them there is the next alone.
        behind = [i for i in order if i >= number] + order
        assert there == set(behind[: 2 if number in away else 1])


def test_it_sleeps_and_wakes_up(folder: Path) -> None:
    with LLM.from_spec(spec_of(folder, ALL)) as llm:
        wanted = tokens(llm)
        for level in (1, 2):
            llm.sleep(level)
            llm.wake_up()
            assert tokens(llm) == wanted


def test_blocks_are_spread_evenly() -> None:
    def chosen(num_bytes: int, num_blocks: int) -> set[int]:
        offload = Offload(num_bytes, num_blocks, torch.device("cpu"))
        offload._first_bytes = 10
        return set(offload._choose())

    assert chosen(1, 9) == {5}
    assert chosen(20, 9) == {3, 7}
    assert chosen(21, 9) == {2, 5, 7}
    assert chosen(80, 9) == chosen(10_000, 9) == set(range(1, 9))
    assert chosen(30, 33) == {6, 17, 27}


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(ConfigError) as caught, Offload(1, 1, torch.device("cpu")).building():
        nn.Linear(3, 3)
    assert caught.value.where == "--cpu-offload-gb"


def test_copies_begin_before_they_are_needed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of calls is what a GPU's second stream needs: fetch the next, then run."""
    told: list[str] = []
    send, wait = HostCourier.send, HostCourier.wait
    monkeypatch.setattr(
        HostCourier, "send", lambda self, copy: (told.append("send"), send(self, copy))[1]
    )
    monkeypatch.setattr(
        HostCourier, "wait", lambda self, sent: (told.append("wait"), wait(self, sent))[1]
    )
    with LLM.from_spec(spec_of(folder, ALL)) as llm:
        told.clear()
        tokens(llm)
        num_steps = core_of(llm).num_steps
    # The first block's weights were fetched by the last block of the step before.
    assert told == ["wait", "send"] * (len(told) // 2)
    assert len(told) == 2 * (NUM_BLOCKS - 1) * num_steps


def test_cpu_offload_gb(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The flag's value reaches a GPU's run; on a CPU it is told that there is nothing to do."""
    config = Config.from_fields({"cpu_offload_gb": 1.5})
    assert offload_bytes(config.model, config.cache, CudaPlatform(None)) == 3 << 29
    with caplog.at_level("INFO"):
        assert offload_bytes(config.model, config.cache, CpuPlatform(None)) == 0
    assert "in host memory already" in caplog.text
    assert offload_bytes(ModelConfig(), CacheConfig(), CudaPlatform(None)) == 0
    fields = {"model": str(folder), "cpu_offload_gb": 1.5, "device": "cpu"}
    spec = resolve(Config.from_fields(fields))
    assert spec.run.offload_bytes == 0 and not spec.run.is_eager
