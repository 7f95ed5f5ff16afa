"""KV blocks kept elsewhere change no answer: every sort of layer, restarts, preemptions, two ranks,
and stores that fail in every way."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from dovetail import LLM, SamplingParams
from dovetail.engine.client.results.outputs import GenerationResult
from dovetail.engine.messages import EngineRequest
from dovetail.errors import ConfigError
from dovetail.interfaces.kv_connector import BlockStore
from dovetail.runner.kv.block_transfer import BlockTransfers
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support import kv_engines, samples
from support.inside import (
    core_of,
    kv_transfer_of,
    replace_store,
    runner_of,
    transfer_of,
    write_jobs_of,
)
from support.kv_engines import GREEDY, Paths, connected, forget, loaded, settle, tokens, told
from support.tiny_encoder_decoders import write_encoder_decoder

paths = pytest.fixture(scope="module")(kv_engines.checkpoints)
pytestmark = pytest.mark.e2e

FAMILIES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Gemma3ForCausalLM",
    "DeepseekV2ForCausalLM",
    "MambaForCausalLM",
    "Lfm2ForCausalLM",
    "BambaForCausalLM",
)
"""Plain, with windows, with both, latents, states, both of these in two ways."""
CONNECTORS = ("memory", "folder", "shared_storage", "multi", "p2p")
TYPES = {"auto": FAMILIES} | dict.fromkeys(("fp8", "int8", "k8v4", "int4"), FAMILIES[:3])
"""Which families are tried with which types of the cache."""
WIDTHS = {"int8": 16, "k8v4": 32, "int4": 32}
"""Head sizes that these types of the native kernel need at least."""
SAMPLE = [
    ("LlamaForCausalLM", "folder", "auto", 1),
    ("LlamaForCausalLM", "p2p", "k8v4", 1),
    ("MistralForCausalLM", "memory", "fp8", 1),
    ("Gemma3ForCausalLM", "multi", "int4", 1),
    ("DeepseekV2ForCausalLM", "shared_storage", "auto", 1),
    ("MambaForCausalLM", "p2p", "auto", 1),
    ("Lfm2ForCausalLM", "memory", "auto", 1),
    ("BambaForCausalLM", "folder", "auto", 1),
]
ALL = [
    (family, connector, dtype, ranks)
    for dtype, families in TYPES.items()
    for family in families
    for connector in CONNECTORS
    for ranks in (1, 2)
]
ENGINE = {**kv_engines.ENGINE, "block_size": 8}
LONG = [3 + (7 * i + i // 9) % 60 for i in range(70)]
PROMPTS = [LONG, LONG[:45], [*LONG[:33], 5, 6, 7], [9, 8, 7, *LONG[:40]], LONG[20:60]]
LONGER = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)


def ask(llm: LLM, prompts: list[list[int]] = PROMPTS) -> list[GenerationResult]:
    return kv_engines.ask(llm, prompts)


def flag_of(connector: str, folder: Path) -> dict[str, Any]:
    """Return --kv-transfer-config for one of the ways to keep blocks."""
    shared = connected("shared_storage", folder)["kv_transfer_config"]
    match connector:
        case "memory":
            flag = connected("offloading")
        case "folder":
            flag = connected("offloading", folder, extra={"host_bytes": 0})
        case "multi":
            del shared["kv_role"]
            flag = connected(
                "multi", extra={"connectors": [{"kv_connector": "offloading"}, shared]}
            )
        case "p2p":
            flag = kv_engines.peer(kv_engines.free_port(), 0)
        case _:
            return shared
    return flag["kv_transfer_config"]


@pytest.mark.parametrize(
    ("family", "connector", "dtype", "ranks"), ALL if samples.IS_FULL else SAMPLE
)
def test_blocks_come_back_bit_by_bit(
    family: str, connector: str, dtype: str, ranks: int, paths: Paths, tmp_path: Path
) -> None:
    wide = {"head_dim": WIDTHS[dtype]} if dtype in WIDTHS else {}
    size = 16 if dtype in WIDTHS else 8
    model = {"model": str(paths(family, **wide)), **ENGINE, "block_size": size}
    model["kv_cache_dtype"] = dtype
    with LLM(**model) as llm:
        ask(llm)
        warm = ask(llm)
        wanted = tokens(llm.generate(PROMPTS, LONGER, use_tqdm=False))
    few = {"num_gpu_blocks_override": 24 if family in FAMILIES[:2] else 40, "swap_space": ranks - 1}
    few |= {"kv_transfer_config": flag_of(connector, tmp_path), "tensor_parallel_size": ranks}
    with LLM(**model, **few) as llm:
        ask(llm)
        forget(llm)
        again = ask(llm, PROMPTS[:1])  # all of it from elsewhere
        assert loaded(llm) >= again[0].num_cached_tokens == warm[0].num_cached_tokens > 0
        forget(llm)
        ask(llm, [LONG[:33]])
        before = loaded(llm)
        again += ask(llm)  # half of it here, half elsewhere
        assert loaded(llm) > before
        assert tokens(again) == tokens([warm[0], *warm])
        if ranks == 1:
            assert told(again[:2]) == told(warm[:1] * 2)
        # And beside preemptions.
        assert tokens(llm.generate(PROMPTS, LONGER, use_tqdm=False)) == wanted
        core_of(llm).check_idle()


def test_a_restart_finds_what_was_kept(paths: Paths, tmp_path: Path) -> None:
    model = {"model": str(paths("LlamaForCausalLM")), **ENGINE}
    with LLM(**model, **connected("offloading", tmp_path)) as llm:
        wanted = ask(llm)
    with LLM(**model, **connected("offloading", tmp_path)) as llm:
        assert tokens(ask(llm)) == tokens(wanted) and loaded(llm) > 0
        core_of(llm).reset_prefix_cache()
        before = loaded(llm)
        assert told(ask(llm)) == told(wanted) and loaded(llm) == before


def test_several_engines_share_a_folder(paths: Paths, tmp_path: Path) -> None:
    model = {"model": str(paths("LlamaForCausalLM")), **ENGINE}
    shared = connected("SharedStorageConnector", extra={"shared_storage_path": str(tmp_path)})
    with LLM(**model, **shared) as one, LLM(**model, **shared) as other:
        wanted = tokens(ask(one))
        runner_of(one).parts.of(BlockTransfers).release()  # writes what is on its way
        assert tokens(ask(other)) == wanted
        assert loaded(other) > 0


def test_roles(paths: Paths, tmp_path: Path) -> None:
    model = {"model": str(paths("LlamaForCausalLM")), **ENGINE}
    asking = connected("shared_storage", tmp_path, kv_role="kv_consumer")
    giving = connected("shared_storage", tmp_path, kv_role="kv_producer")
    with LLM(**model, **asking) as one, LLM(**model, **giving) as other:
        ask(one)
        settle(one)
        assert not list(tmp_path.rglob("*.0"))
        for _ in range(2):
            ask(other)
            forget(other)
        assert loaded(other) == 0 and list(tmp_path.rglob("*.0"))
        forget(one)
        ask(one)
        assert loaded(one) > 0


def test_another_model_finds_nothing(paths: Paths, tmp_path: Path) -> None:
    with LLM(
        model=str(paths("LlamaForCausalLM")), **ENGINE, **connected("offloading", tmp_path)
    ) as llm:
        ask(llm)
    other = write_tiny_checkpoint(tmp_path / "other", "LlamaForCausalLM", seed=5)
    with LLM(model=str(other), **ENGINE) as llm:
        wanted = tokens(ask(llm))
    with LLM(model=str(other), **ENGINE, **connected("offloading", tmp_path)) as llm:
        assert tokens(ask(llm)) == wanted
        assert loaded(llm) == 0


def files_of(folder: Path, llm: LLM) -> list[Path]:
    """Return the files of blocks in a folder, once all that was ordered is written."""
    jobs = write_jobs_of(runner_of(llm))
    jobs.put(bytes(33))  # drops what is not there; once it is taken all before it is done
    deadline_s = time.monotonic() + 60
    while not jobs.empty():
        assert time.monotonic() < deadline_s, "blocks are not written"
        time.sleep(0.001)
    return sorted(folder.rglob("*.0"))


def test_all_files_that_were_removed_are_written_again_at_once(
    paths: Paths, tmp_path: Path
) -> None:
    model = {"model": str(paths("LlamaForCausalLM")), **ENGINE}
    with LLM(**model, **connected("shared_storage", tmp_path)) as llm:
        core = core_of(llm)
        written = []
        for _ in range(2):
            ask(llm, [LONG])
            ask(llm, [[5, 6, 7]])  # brings the last orders
            files = files_of(tmp_path, llm)
            written.append(files)
            for file in files:
                file.unlink()
            core.cache.forget_all()
        # Those of the prompt; what was generated is not looked up.
        assert len(set(written[0]) & set(written[1])) == len(LONG) // 8


def test_a_failure_ends_the_request_where_that_is_the_policy(paths: Paths, tmp_path: Path) -> None:
    model = {"model": str(paths("LlamaForCausalLM")), **ENGINE}
    store = connected(
        "offloading", tmp_path, kv_load_failure_policy="fail", extra={"host_bytes": 0}
    )
    with LLM(**model, **store) as llm:
        wanted = tokens(ask(llm, [LONG]))
        forget(llm)
        for file in tmp_path.rglob("*.0"):
            file.write_bytes(bytes(file.stat().st_size))
        (result,) = llm.generate([LONG], GREEDY, use_tqdm=False)
        assert result.error is not None and "could not be loaded" in str(result.error)
        assert tokens(ask(llm, [LONG])) == wanted


class SlowStore(BlockStore):
    """Lets every read of a store wait."""

    def __init__(self, store: Any, wait_s: float) -> None:
        self.store, self.wait_s = store, wait_s

    def read(self, key: bytes) -> Any:
        time.sleep(self.wait_s)
        return self.store.read(key)

    def write(self, key: bytes, block: Any) -> None:
        self.store.write(key, block)


def test_a_slow_store_holds_nobody_else_up_and_is_given_up(paths: Paths) -> None:
    model = {"model": str(paths("LlamaForCausalLM")), **ENGINE}
    with LLM(**model, **connected("offloading", kv_load_timeout=0.3)) as llm:
        wanted = tokens(ask(llm, [LONG, [5, 6, 7]]))
        forget(llm)
        transfer = transfer_of(runner_of(llm))
        replace_store(transfer, lambda store: SlowStore(store, 0.1))
        began_s = time.monotonic()
        both = llm.generate([LONG, [5, 6, 7]], GREEDY, use_tqdm=False)
        assert tokens(both) == wanted
        assert 0.3 <= time.monotonic() - began_s < 20
        assert kv_transfer_of(core_of(llm)).num_failures == 1
        assert loaded(llm) == 0
        time.sleep(1)
        llm.generate([[5, 6]], GREEDY, use_tqdm=False)  # brings the order to forget what came late
        assert not transfer._loaded


def test_salts_and_whole_prompts_stay_apart(paths: Paths) -> None:
    model = {"model": str(paths("LlamaForCausalLM")), **ENGINE}
    scored = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, prompt_logprobs=1)
    with LLM(**model, **connected("offloading")) as llm:
        wanted = ask(llm, [LONG])
        forget(llm)
        core = core_of(llm)
        core.add(
            EngineRequest(
                request_id="salted",
                prompt_ids=tuple(LONG),
                sampling=SamplingParams(temperature=0, max_tokens=6),
                seed=0,
                cache_salt="mine",
            )
        )
        while core.has_work:
            core.step()
        (scores,) = llm.generate([LONG], scored, use_tqdm=False)
        assert loaded(llm) == 0
        assert tokens([scores]) == tokens(wanted)


def test_decode_bench_computes_no_prompt(paths: Paths) -> None:
    model = {"model": str(paths("LlamaForCausalLM")), **ENGINE}
    with LLM(**model, **connected("DecodeBenchConnector")) as llm:
        (result,) = ask(llm, [LONG])
        assert result.num_cached_tokens == 64 == loaded(llm)


REFUSED = [
    ({"kv_connector": "offloading"}, "kv_role"),
    ({"kv_connector": "offloading", "kv_role": "both"}, "not a role"),
    ({"kv_role": "kv_both"}, "no connector is named"),
    ({"kv_connector": "offloading", "kv_role": "kv_both", "colour": 1}, "no such key"),
    (
        {"kv_connector": "NixlConnector", "kv_role": "kv_both"},
        "pip install 'dovetail-nixl[library]'",
    ),
    ({"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}, "dovetail-lmcache"),
    ({"kv_connector": "MooncakeConnector", "kv_role": "kv_both"}, "dovetail-mooncake"),
    ({"kv_connector": "P2pNcclConnector", "kv_role": "kv_both"}, "NCCL"),
    ({"kv_connector": "shared_storage", "kv_role": "kv_both"}, "no folder is named"),
    ({"kv_connector": "multi", "kv_role": "kv_both"}, "no connectors are named"),
    (
        {"kv_connector": "offloading", "kv_role": "kv_both", "kv_load_failure_policy": "cry"},
        "not a policy",
    ),
    (
        {
            "kv_connector": "offloading",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"host_bytes": 10},
        },
        "not one block",
    ),
]


@pytest.mark.parametrize(("keys", "said"), REFUSED, ids=[json.dumps(k)[:60] for k, _ in REFUSED])
def test_what_cannot_work_says_why(keys: dict[str, Any], said: str, paths: Paths) -> None:
    with pytest.raises(ConfigError) as caught:
        LLM(model=str(paths("LlamaForCausalLM")), **ENGINE, kv_transfer_config=keys)
    assert said in str(caught.value) and "kv" in str(caught.value)


def test_without_prefix_caching_there_is_nothing_to_find(paths: Paths) -> None:
    flags = connected("offloading") | {"enable_prefix_caching": False}
    with pytest.raises(ConfigError, match="prefix caching is off"):
        LLM(model=str(paths("LlamaForCausalLM")), **ENGINE, **flags)


def test_a_decoder_beside_an_encoder_says_why_not(tmp_path: Path) -> None:
    write_encoder_decoder(tmp_path, "BartForConditionalGeneration")
    with pytest.raises(ConfigError, match="depends on what its encoder has read"):
        LLM(model=str(tmp_path), dtype="float32", **connected("offloading"))


def test_the_command_lists_checks_and_removes_blocks(
    paths: Paths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from dovetail.cli.main import main

    path, folder = str(paths("LlamaForCausalLM")), str(tmp_path)
    with LLM(model=path, **ENGINE, **connected("shared_storage", tmp_path)) as llm:
        ask(llm, [LONG])
    capsys.readouterr()

    def told(*words: str) -> tuple[int, str]:
        return main(["cache", *words]), capsys.readouterr().out

    assert json.loads(told("ls", folder, "--json")[1])[0]["blocks"] == 9
    assert path in told("ls", folder)[1]
    assert told("verify", folder) == (0, "9 files are whole, 0 damaged ones are there.\n")
    first, second = sorted(tmp_path.rglob("*.0"))[:2]
    first.write_bytes(second.read_bytes())
    status, text = told("verify", folder)
    assert status == 1 and f"damaged: {first}" in text and text.count("damaged:") == 1
    assert told("verify", folder, "--remove")[0] == 0 and not first.exists()
    assert told("rm", folder)[0] == 2
    assert told("rm", folder, "--model", "another", "-y")[0] == 2
    assert "0 files" in told("rm", folder, "--unused-days", "1", "-y")[1]
    assert "8 files" in told("rm", folder, "--model", path, "-y")[1]
    assert not list(tmp_path.rglob("*.0"))


def test_keys_that_change_nothing_are_logged(
    paths: Paths, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {"kv_port": 1, "enable_permute_local_kv": True, "kv_buffer_device": "cuda"}
    with LLM(model=str(paths("LlamaForCausalLM")), **ENGINE, **connected("offloading", **keys)):
        pass
    told = [r.getMessage() for r in caplog.records if "has no effect" in r.getMessage()]
    assert {line.split()[0] for line in told} == {f"--kv-transfer-config.{key}" for key in keys}
