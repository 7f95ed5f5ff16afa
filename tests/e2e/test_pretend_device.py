"""The sample package that adds a device, contrib/pretend-device: all of it takes part in an engine.

The package changes nothing of dovetail; without its variable its device is not there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail import LLM, SamplingParams
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.errors import ConfigError, UnavailablePlugin
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.data.step import StepPlan, StepResult
from dovetail.layers.native import use_ops
from dovetail.registry import discovery
from dovetail_testing.tiny.models import write_tiny_checkpoint, write_tiny_tokenizer
from support.inside import core_of, scheduler_of

SAMPLE = Path(__file__).resolve().parents[2] / "contrib" / "pretend-device"
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
PROMPTS = [[5, 6, 7], list(range(5, 45)), [9]]


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the package on the path, and its device plugged in."""
    monkeypatch.setenv("PRETEND_DEVICE", "1")
    monkeypatch.syspath_prepend(str(SAMPLE))
    discovery.forget()
    yield
    discovery.forget()
    use_ops({})
    for name in [n for n in sys.modules if n.startswith("dovetail_pretend_device")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny Llama with weights and a tokenizer."""
    made = tmp_path_factory.mktemp("models") / "llama"
    write_tiny_checkpoint(made, "LlamaForCausalLM")
    write_tiny_tokenizer(made)
    return made


def spec_of(model: Path, **flags: Any) -> EngineSpec:
    return resolve(Config.from_fields({"model": str(model), **flags}))


def open_llm(model: Path, **flags: Any) -> LLM:
    return LLM(model=str(model), use_tqdm_on_load=False, kv_cache_memory_bytes="8m", **flags)


def answers(llm: LLM) -> list[list[int]]:
    done = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    return [list(answer.outputs[0].token_ids) for answer in done]


def test_auto_finds_the_device_and_takes_what_it_says(llama: Path) -> None:
    spec = spec_of(llama)
    assert spec.run.device == "pretend"
    assert (spec.worker.name, spec.scheduler.name) == ("pretend", "pretend_buckets")
    assert (spec.kv_policy.name, spec.run.attention.name) == ("pretend_reserve", "torch_sdpa")
    assert (spec.cache.block_tokens, spec.schedule.max_step_tokens) == (32, 128)
    assert (spec.schedule.max_rows, spec.run.num_threads) == (8, 0)
    assert spec.cache.memory_bytes is None  # the worker says how much there is
    assert spec.run.ops == {"rms_norm": "dovetail_pretend_device.ops:RMS_NORM"}


def test_flags_are_stronger_than_the_device(llama: Path) -> None:
    spec = spec_of(
        llama,
        scheduler_cls="continuous",
        kv_policy="paged",
        block_size=64,
        max_num_seqs=3,
        max_num_batched_tokens=200,
    )
    assert (spec.scheduler.name, spec.kv_policy.name) == ("continuous", "paged")
    assert (spec.cache.block_tokens, spec.schedule.max_rows) == (64, 3)
    assert spec.schedule.max_step_tokens == 200


def test_without_the_device_nothing_is_as_before(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRETEND_DEVICE")
    assert spec_of(llama).run.device == "cpu"
    with pytest.raises(UnavailablePlugin, match=r"--device pretend: .*PRETEND_DEVICE=1"):
        spec_of(llama, device="pretend")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"block_size": 16}, "--block-size: the device pretend .* 16 tokens.* 32, 64"),
        ({"dtype": "float16"}, "--dtype: the device pretend does not take weights of float16"),
        ({"kv_cache_dtype": "int8"}, "--kv-cache-dtype: .*a KV cache of int8.*float32, bfloat16"),
        ({"quantization": "int4"}, "--quantization: .*weights stored as int4.*none, int8"),
        ({"max_num_seqs": 17}, "--max-num-seqs: 17 are more than .* at most 16"),
        ({"max_num_batched_tokens": 300}, "--max-num-batched-tokens: 300 .* at most 256"),
        ({"worker_cls": "cpu", "scheduler_cls": "continuous", "swap_space": 1}, "--swap-space"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_the_device_does_not_take_is_refused(
    llama: Path, flags: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        spec_of(llama, **flags)


def test_scheduler_worker_and_ops_work_together(llama: Path) -> None:
    with open_llm(llama, device="cpu") as llm:
        plain = answers(llm)
    with open_llm(llama, device="pretend") as llm:
        from dovetail_pretend_device import ops

        assert answers(llm) == plain
        core = core_of(llm)
        assert type(scheduler_of(core)).__name__ == "BucketScheduler"
        assert scheduler_of(core).num_padding > 0
        assert scheduler_of(core).num_planned > len(PROMPTS) * GREEDY.max_tokens
        assert ops.calls["rms_norm"] > core.num_steps
    with open_llm(llama, device="cpu") as llm:
        called = ops.calls["rms_norm"]
        assert answers(llm) == plain
        assert ops.calls["rms_norm"] == called


def test_the_kv_policy_leaves_its_share(llama: Path) -> None:
    sizes = {}
    for share in (0.0, 0.5):
        options = {"kv_policy": {"share": share}}
        with open_llm(llama, device="pretend", plugin_options=options) as llm:
            sizes[share] = core_of(llm).layout.num_blocks
    assert sizes[0.5] == sizes[0.0] // 2


def test_free_fields_cross_processes() -> None:
    plan = StepPlan(step_id=1, rows=(), extra={"pretend.bucket": 64, "rows": {"0": [1, 2]}})
    result = StepResult(step_id=1, rows=(), extra={"pretend.padding": 3})
    for sent in (plan, result):
        received = msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=type(sent))
        assert received == sent


def test_an_op_that_no_layer_asks_for_is_said() -> None:
    with pytest.raises(ConfigError, match=r"no layer asks for the op gemm.*rms_norm"):
        use_ops({"gemm": "dovetail_pretend_device.ops:RMS_NORM"})
    with pytest.raises(ConfigError, match="not an Implementation"):
        use_ops({"rms_norm": "dovetail_pretend_device.ops:calls"})
