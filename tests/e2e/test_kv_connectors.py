"""KV blocks kept elsewhere change no answer: every sort of layer, restarts, preemptions, two ranks,
and stores that fail in every way."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail import LLM, SamplingParams
from dovetail.engine.client.outputs import GenerationResult
from dovetail.engine.messages import EngineRequest
from dovetail.errors import ConfigError
from dovetail.interfaces.kv_connector import BlockStore
from dovetail.testing.tiny_models import write_tiny_checkpoint
from support.tiny_encoder_decoders import write_encoder_decoder

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

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
ENGINE: dict[str, Any] = {
    "max_model_len": 128,
    "dtype": "float32",
    "block_size": 8,
    "use_tqdm_on_load": False,
}
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=3)
LONG = [3 + (7 * i + i // 9) % 60 for i in range(70)]
PROMPTS = [LONG, LONG[:45], [*LONG[:33], 5, 6, 7], [9, 8, 7, *LONG[:40]], LONG[20:60]]


def connected(connector: str, folder: Path | None = None, **keys: Any) -> dict[str, Any]:
    """Return the flag of an engine that keeps blocks in a folder."""
    extra = {} if folder is None else {"folder": str(folder)}
    extra |= keys.pop("extra", {})
    names = {"kv_connector": connector, "kv_role": "kv_both"}
    return {"kv_transfer_config": {**names, "kv_connector_extra_config": extra, **keys}}


def ask(llm: LLM, prompts: list[list[int]] = PROMPTS) -> list[GenerationResult]:
    """Return the answers to prompts, one after the other: then every batch is the same."""
    results = [llm.generate([prompt], GREEDY, use_tqdm=False)[0] for prompt in prompts]
    assert all(result.error is None for result in results), [r.error for r in results]
    return results


def told(results: list[GenerationResult]) -> list[Any]:
    """Return all that the answers say, to the last bit."""
    return [
        (one.outputs[0].token_ids, [(p.logprob, p.top_logprobs) for p in one.outputs[0].logprobs])
        for one in results
    ]


def tokens(results: list[GenerationResult]) -> list[Any]:
    return [one.outputs[0].token_ids for one in results]


def loaded(llm: LLM) -> int:
    """Return how many tokens came from elsewhere since the start."""
    return llm._engine.core.cache.num_loaded_tokens


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    made: dict[str, Path] = {}

    def path(architecture: str) -> Path:
        if architecture not in made:
            folder = tmp_path_factory.mktemp(architecture)
            made[architecture] = write_tiny_checkpoint(folder, architecture)
        return made[architecture]

    yield path


@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_sort_of_layer_comes_back_bit_by_bit(
    architecture: str, paths: Callable[[str], Path], tmp_path: Path
) -> None:
    model = {"model": str(paths(architecture)), **ENGINE}
    with LLM(**model) as llm:
        cold, warm = ask(llm), ask(llm)
    store = connected("offloading", tmp_path)
    with LLM(**model, **store) as llm:
        assert told(ask(llm)) == told(cold)
    with LLM(**model, **store) as llm:
        again = ask(llm)
        assert loaded(llm) > 0
        assert tokens(again) == tokens(cold)
        # The longest prompt comes from the folder as far as it would from the device.
        assert again[0].num_cached_tokens == warm[0].num_cached_tokens > 0
        assert told(again[:1]) == told(warm[:1])
        llm._engine.core.reset_prefix_cache()
        assert told(ask(llm)) == told(cold)


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "MistralForCausalLM"])
def test_half_on_the_device_and_half_in_the_store(
    architecture: str, paths: Callable[[str], Path], tmp_path: Path
) -> None:
    model = {"model": str(paths(architecture)), **ENGINE}
    store = connected("offloading", tmp_path)
    with LLM(**model, **store) as llm:
        ask(llm, [LONG])
        wanted = ask(llm, [LONG])
    with LLM(**model, **store) as llm:
        ask(llm, [LONG[:33]])
        first = loaded(llm)
        assert told(ask(llm, [LONG])) == told(wanted)
        assert first == 32 and loaded(llm) == 64


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Lfm2ForCausalLM"])
@pytest.mark.parametrize("host", [0, 0.01])
def test_preemptions(
    architecture: str, host: float, paths: Callable[[str], Path], tmp_path: Path
) -> None:
    model = {"model": str(paths(architecture)), **ENGINE, "swap_space": host}
    few = {"num_gpu_blocks_override": 24 if architecture == "LlamaForCausalLM" else 40}
    longer = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    with LLM(**model) as llm:
        wanted = tokens(llm.generate(PROMPTS * 2, longer, use_tqdm=False))
    for _ in range(2):
        with LLM(**model, **few, **connected("offloading", tmp_path)) as llm:
            assert tokens(llm.generate(PROMPTS * 2, longer, use_tqdm=False)) == wanted
            llm._engine.core.check_idle()
    with LLM(**model, **few, **connected("offloading", tmp_path)) as llm:
        assert tokens(llm.generate(PROMPTS * 2, longer, use_tqdm=False)) == wanted
        assert loaded(llm) > 0


def test_two_ranks(paths: Callable[[str], Path], tmp_path: Path) -> None:
    model = {"model": str(paths("LlamaForCausalLM")), **ENGINE}
    ranks = {"tensor_parallel_size": 2}
    with LLM(**model, **ranks) as llm:
        wanted = tokens(ask(llm))
    for wants_loads in (False, True):
        with LLM(**model, **ranks, **connected("offloading", tmp_path)) as llm:
            assert tokens(ask(llm)) == wanted
            assert (loaded(llm) > 0) == wants_loads
    with LLM(**model, **connected("offloading", tmp_path)) as llm:
        ask(llm)
        assert loaded(llm) == 0  # one rank's blocks are not two ranks'


def test_several_engines_share_a_folder(paths: Callable[[str], Path], tmp_path: Path) -> None:
    model = {"model": str(paths("LlamaForCausalLM")), **ENGINE}
    shared = connected("SharedStorageConnector", extra={"shared_storage_path": str(tmp_path)})
    with LLM(**model, **shared) as one, LLM(**model, **shared) as other:
        wanted = tokens(ask(one))
        one._engine.core._executor.worker.runner.transfers.detach()  # writes what is on its way
        assert tokens(ask(other)) == wanted
        assert loaded(other) > 0


def test_several_connectors(paths: Callable[[str], Path], tmp_path: Path) -> None:
    model = {"model": str(paths("LlamaForCausalLM")), **ENGINE}
    both = [
        {"kv_connector": "OffloadingConnector"},
        {"kv_connector": "shared_storage", "kv_connector_extra_config": {"folder": str(tmp_path)}},
    ]
    several = connected("MultiConnector", extra={"connectors": both})
    with LLM(**model, **several) as llm:
        wanted = tokens(ask(llm))
    with LLM(**model, **several) as llm:
        assert tokens(ask(llm)) == wanted
        assert loaded(llm) > 0


def test_memory_alone_serves_what_the_device_has_lost(paths: Callable[[str], Path]) -> None:
    model = {"model": str(paths("LlamaForCausalLM")), **ENGINE, "num_gpu_blocks_override": 18}
    with LLM(**model, **connected("offloading")) as llm:
        wanted = tokens(ask(llm))
        assert tokens(ask(llm)) == wanted
        assert loaded(llm) > 0


def test_roles(paths: Callable[[str], Path], tmp_path: Path) -> None:
    model = {"model": str(paths("LlamaForCausalLM")), **ENGINE}
    with LLM(**model, **connected("shared_storage", tmp_path, kv_role="kv_consumer")) as llm:
        ask(llm)
    assert not list(tmp_path.rglob("*.0"))
    for _ in range(2):
        with LLM(**model, **connected("shared_storage", tmp_path, kv_role="kv_producer")) as llm:
            ask(llm)
            assert loaded(llm) == 0
    assert list(tmp_path.rglob("*.0"))
    with LLM(**model, **connected("shared_storage", tmp_path, kv_role="kv_consumer")) as llm:
        ask(llm)
        assert loaded(llm) > 0


def test_another_model_finds_nothing(paths: Callable[[str], Path], tmp_path: Path) -> None:
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
    jobs = llm._engine.core._executor.worker.runner.transfers._current._jobs
    jobs.put(bytes(33))  # drops what is not there; once it is taken all before it is done
    deadline_s = time.monotonic() + 60
    while not jobs.empty():
        assert time.monotonic() < deadline_s, "blocks are not written"
        time.sleep(0.001)
    return sorted(folder.rglob("*.0"))


def damage(file: Path, chance: random.Random) -> None:
    """Do something bad to a file."""
    content = bytearray(file.read_bytes()) or bytearray(64)
    match chance.randrange(6):
        case 0:
            file.unlink()
        case 1:
            file.write_bytes(content[: chance.randrange(len(content))])
        case 2:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            file.write_bytes(content)
        case 3:
            file.write_bytes(b"")
        case 4:
            others = [other for other in file.parent.parent.rglob("*.0") if other != file]
            file.write_bytes(chance.choice(others).read_bytes())
        case 5:
            file.write_bytes(bytes(len(content)))


@pytest.mark.parametrize("connector", ["offloading", "shared_storage"])
def test_damaged_files_cost_time_and_no_token(
    connector: str, paths: Callable[[str], Path], tmp_path: Path
) -> None:
    model = {"model": str(paths("LlamaForCausalLM")), **ENGINE, "num_gpu_blocks_override": 18}
    chance = random.Random(3)
    extra = {"host_bytes": 0} if connector == "offloading" else {}
    store = connected(connector, tmp_path, extra=extra)
    with LLM(**model, **store) as llm:
        wanted = tokens(ask(llm))
        for _ in range(100):
            files = files_of(tmp_path, llm)
            assert len(files) > 4, "too few files, of which up to four are damaged"
            for file in chance.sample(files, chance.randint(1, 4)):
                damage(file, chance)
            number = chance.randrange(len(PROMPTS))
            assert tokens(ask(llm, [PROMPTS[number]])) == [wanted[number]]
        for _ in range(2):  # what was damaged is written anew, and loaded
            assert tokens(ask(llm)) == wanted
        assert loaded(llm) > 0
        llm._engine.core.check_idle()


def test_all_files_that_were_removed_are_written_again_at_once(
    paths: Callable[[str], Path], tmp_path: Path
) -> None:
    model = {"model": str(paths("LlamaForCausalLM")), **ENGINE}
    with LLM(**model, **connected("shared_storage", tmp_path)) as llm:
        core = llm._engine.core
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


def test_a_store_that_goes_away(paths: Callable[[str], Path], tmp_path: Path) -> None:
    import shutil

    model = {"model": str(paths("LlamaForCausalLM")), **ENGINE, "num_gpu_blocks_override": 18}
    store = connected("offloading", tmp_path / "store", extra={"host_bytes": 0})
    with LLM(**model, **store) as llm:
        wanted = tokens(ask(llm))
        shutil.rmtree(tmp_path / "store")
        (tmp_path / "store").write_text("a file where a folder was")
        for _ in range(3):
            assert tokens(ask(llm)) == wanted


def test_a_failure_ends_the_request_where_that_is_the_policy(
    paths: Callable[[str], Path], tmp_path: Path
) -> None:
    model = {"model": str(paths("LlamaForCausalLM")), **ENGINE}
    store = connected("offloading", tmp_path, kv_load_failure_policy="fail")
    with LLM(**model, **store) as llm:
        wanted = tokens(ask(llm, [LONG]))
    with LLM(**model, **store) as llm:
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


def test_a_slow_store_holds_nobody_else_up_and_is_given_up(
    paths: Callable[[str], Path], tmp_path: Path
) -> None:
    model = {"model": str(paths("LlamaForCausalLM")), **ENGINE}
    with LLM(**model, **connected("offloading", tmp_path)) as llm:
        wanted = tokens(ask(llm, [LONG, [5, 6, 7]]))
    slow = connected("offloading", tmp_path, kv_load_timeout=0.5)
    with LLM(**model, **slow) as llm:
        transfer = llm._engine.core._executor.worker.runner.transfers._current
        transfer._store = SlowStore(transfer._store, 0.3)
        began_s = time.monotonic()
        both = llm.generate([LONG, [5, 6, 7]], GREEDY, use_tqdm=False)
        assert tokens(both) == wanted
        assert 0.5 <= time.monotonic() - began_s < 20
        assert llm._engine.core._elsewhere.num_failures == 1
        assert loaded(llm) == 0
        time.sleep(3)
        llm.generate([[5, 6]], GREEDY, use_tqdm=False)  # brings the order to forget what came late
        assert not transfer._loaded


def test_salts_and_whole_prompts_stay_apart(paths: Callable[[str], Path], tmp_path: Path) -> None:
    model = {"model": str(paths("LlamaForCausalLM")), **ENGINE}
    with LLM(**model, **connected("offloading", tmp_path)) as llm:
        wanted = ask(llm, [LONG])
    scored = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, prompt_logprobs=1)
    with LLM(**model, **connected("offloading", tmp_path)) as llm:
        core = llm._engine.core
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


def test_decode_bench_computes_no_prompt(paths: Callable[[str], Path]) -> None:
    model = {"model": str(paths("LlamaForCausalLM")), **ENGINE}
    with LLM(**model, **connected("DecodeBenchConnector")) as llm:
        (result,) = ask(llm, [LONG])
        assert result.num_cached_tokens == 64 == loaded(llm)


REFUSED = [
    ({"kv_connector": "offloading"}, "kv_role"),
    ({"kv_connector": "offloading", "kv_role": "both"}, "not a role"),
    ({"kv_role": "kv_both"}, "no connector is named"),
    ({"kv_connector": "offloading", "kv_role": "kv_both", "kv_port": 1}, "talks to no other"),
    ({"kv_connector": "offloading", "kv_role": "kv_both", "colour": 1}, "no such key"),
    ({"kv_connector": "NixlConnector", "kv_role": "kv_both"}, "pip install 'dovetail-nixl[library]'"),
    ({"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}, "dovetail-lmcache"),
    ({"kv_connector": "MooncakeConnector", "kv_role": "kv_both"}, "dovetail-mooncake"),
    ({"kv_connector": "P2pNcclConnector", "kv_role": "kv_both"}, "NCCL"),
    ({"kv_connector": "shared_storage", "kv_role": "kv_both"}, "no folder is named"),
    ({"kv_connector": "multi", "kv_role": "kv_both"}, "no connectors are named"),
    (
        {"kv_connector": "offloading", "kv_role": "kv_both", "enable_permute_local_kv": True},
        "not permuted",
    ),
    (
        {"kv_connector": "offloading", "kv_role": "kv_both", "kv_buffer_device": "cuda"},
        "host memory",
    ),
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
def test_what_cannot_work_says_why(
    keys: dict[str, Any], said: str, paths: Callable[[str], Path]
) -> None:
    with pytest.raises(ConfigError) as caught:
        LLM(model=str(paths("LlamaForCausalLM")), **ENGINE, kv_transfer_config=keys)
    assert said in str(caught.value) and "kv" in str(caught.value)


def test_without_prefix_caching_there_is_nothing_to_find(paths: Callable[[str], Path]) -> None:
    flags = connected("offloading") | {"enable_prefix_caching": False}
    with pytest.raises(ConfigError, match="prefix caching is off"):
        LLM(model=str(paths("LlamaForCausalLM")), **ENGINE, **flags)


def test_a_decoder_beside_an_encoder_says_why_not(tmp_path: Path) -> None:
    write_encoder_decoder(tmp_path, "BartForConditionalGeneration")
    with pytest.raises(ConfigError, match="depends on what its encoder has read"):
        LLM(model=str(tmp_path), dtype="float32", **connected("offloading"))


def test_the_command_lists_checks_and_removes_blocks(
    paths: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
