"""Platform: a device that keeps its own limits, whose plugins exist and whose ops are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dovetail import registry
from dovetail.errors import ConfigError
from dovetail.interfaces.platform import AUTO_DTYPE, Platform
from dovetail.interfaces.worker import Worker
from dovetail.registry import Entry
from dovetail.registry.files import import_target
from dovetail.registry.value_rules import value_fault
from dovetail_testing.contract import requires

STORED = (None, "float32", "bfloat16", "float16")


@pytest.fixture
def platform(plugin: Any) -> Platform:
    """Return the platform with its default options."""
    new_platform: Platform = plugin(plugin.Options())
    return new_platform


class TestPlatform:
    """Clauses of platforms."""

    kind = "platform"

    def test_names_its_device(self, plugin: Any) -> None:
        """It has a device_type, which is among its devices."""
        assert plugin.device_type, "device_type is empty"
        message = f"device_type is {plugin.device_type}, and info.devices is {plugin.info.devices}"
        assert plugin.device_type in plugin.info.devices, message

    def test_its_plugins_exist(self, platform: Platform) -> None:
        """Every plugin among its defaults can be loaded, and the worker fits the device."""
        usual = platform.defaults()
        named = {
            "worker": usual.worker,
            "scheduler": usual.scheduler,
            "executor": usual.executor,
            "kv_policy": usual.kv_policy,
            "attention_backend": usual.attention,
        }
        for kind, name in named.items():
            if name is not None:
                registry.load(kind, name)
        worker: type[Worker] = registry.load("worker", usual.worker)
        reasons = worker.why_not(platform.device_type)
        assert not reasons, f"the worker {usual.worker} does not fit: {'; '.join(reasons)}"

    def test_defaults_keep_the_limits(self, platform: Platform) -> None:
        """Its defaults are within its limits."""
        usual, limits = platform.defaults(), platform.limits()
        assert usual.rows <= usual.step_tokens, f"{usual.rows} rows in {usual.step_tokens} tokens"
        for name in ("rows", "step_tokens"):
            limit = getattr(limits, name)
            message = f"it takes {name}={getattr(usual, name)}, and allows {limit}"
            assert limit is None or getattr(usual, name) <= limit, message
        sizes = limits.block_tokens
        message = f"it takes blocks of {usual.block_tokens} tokens, and allows {sizes}"
        assert not sizes or usual.block_tokens in sizes, message
        message = f"it takes a KV cache of {usual.kv_dtype}, and allows {limits.kv_dtypes}"
        assert not (usual.kv_dtype and limits.kv_dtypes) or usual.kv_dtype in limits.kv_dtypes, (
            message
        )

    @pytest.mark.parametrize("stored", STORED)
    def test_auto_gives_types_it_takes(self, platform: Platform, stored: str | None) -> None:
        """Whatever a checkpoint stores, "auto" becomes types that core knows and it allows."""
        computed, weight_dtype = platform.dtypes(AUTO_DTYPE, stored)
        for name in (computed, weight_dtype):
            fault = value_fault("dtype", name)
            assert fault is None, f"{fault}."
        allowed = platform.limits().dtypes
        assert not allowed or weight_dtype in allowed, (
            f"auto comes to {weight_dtype}, and it allows {allowed}"
        )

    @requires("host_memory")
    def test_tells_what_memory_is_free(self, platform: Platform) -> None:
        """It says how much main memory an engine may take."""
        free = platform.free_bytes()
        assert free is not None, "free_bytes() is None, and main memory can be asked"
        assert free > 0, f"free_bytes() is {free}"

    def test_engines_get_a_device_each(self, platform: Platform) -> None:
        """Several engines have different environments, or none, or are refused."""
        try:
            found = [dict(platform.engine_variables(place, 2, 1)) for place in range(2)]
        except ConfigError as error:
            assert error.fix, "it is not said how many engines there can be"
            return
        assert all(type(text) is str for one in found for pair in one.items() for text in pair)
        assert found == [{}, {}] or found[0] != found[1]

    def test_ops_compute_what_is_defined(self, plugin: Any) -> None:
        """Each of its ops gives the reference's results in the op's own cases."""
        import torch

        from dovetail_kernels import load_op
        from dovetail_kernels.check import check_case

        for name, target in plugin.ops.items():
            implementation = import_target(target)
            op = load_op(name).extended(implementation)
            device = torch.device(plugin.torch_type or plugin.device_type)
            message = f"{target} runs on {implementation.devices}, not on torch's {device.type}"
            assert device.type in implementation.devices, message
            for case in op.small_cases():
                fault = check_case(op, case, implementation.name, device)
                assert fault is None, f"{name}, case {case.name}: {fault}"

    def test_runs_an_engine(self, entry: Entry, platform: Platform, tmp_path: Path) -> None:
        """An engine on it answers, with a device's own scheduler, worker, ops and KV policy."""
        from dovetail import LLM, SamplingParams
        from dovetail_testing.tiny.models import write_tiny_checkpoint, write_tiny_tokenizer

        write_tiny_checkpoint(tmp_path, "LlamaForCausalLM")
        write_tiny_tokenizer(tmp_path)
        greedy = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
        flags = {"device": entry.name, "kv_cache_memory_bytes": "8m", "use_tqdm_on_load": False}
        prompts = [[5, 6, 7], list(range(5, 60)), [9]]
        with LLM(model=str(tmp_path), **flags) as llm:
            alone = [llm.generate([prompt], greedy, use_tqdm=False)[0] for prompt in prompts]
            together = llm.generate(prompts, greedy, use_tqdm=False)
        drawn = [list(answer.outputs[0].token_ids) for answer in alone]
        assert [len(tokens) for tokens in drawn] == [6, 6, 6], f"it drew {drawn}"
        found = [list(answer.outputs[0].token_ids) for answer in together]
        assert found == drawn, f"requests together drew {found}, and alone {drawn}"
