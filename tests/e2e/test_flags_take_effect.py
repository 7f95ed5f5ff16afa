"""Flags do what they say, from the flag to its effect: for flags that no other test proves whole.

Runs on test models with made-up logits; one server at the end has many flags at once.
"""

from __future__ import annotations

import dataclasses
import io
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import torch

from dovetail import LLM, SamplingParams, registry
from dovetail.config import resolve as resolving
from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.config.rules.checks import check_choices, load_plugin_files
from dovetail.config.rules.model.demo import with_demo_fields
from dovetail.config.rules.observability.stat_loggers import stat_loggers
from dovetail.engine.kv import prefix_hash
from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.data.step import StepPlan
from dovetail.interfaces.executor import PendingStep
from dovetail.interfaces.plugin import Value
from dovetail.server.generate.tools.parsers import choose_parsers
from dovetail.server.launch.engine_start import max_queued
from dovetail_plugins import hash_algorithms
from dovetail_plugins.executors.uni import UniExecutor
from dovetail_plugins.workers import cpu
from dovetail_testing.models import write_random_checkpoint, write_replay_checkpoint
from dovetail_testing.tiny.models import write_tiny_checkpoint, write_tiny_tokenizer
from dovetail_testing.tiny.transformer import tiny_run
from support.inside import core_of, pending_steps_of, runner_of, scheduler_of, worker_of
from support.server_process import ServerProcess

pytestmark = pytest.mark.usefixtures("with_test_models")

DRAWN = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPT = list(range(5, 45))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model of random logits with the demo model's tokenizer."""
    made = tmp_path_factory.mktemp("models") / "random"
    return write_random_checkpoint(made, tokenizer_from=DEMO_PATH, logits="random", logits_seed=1)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny Llama with weights and a tokenizer."""
    made = tmp_path_factory.mktemp("models") / "llama"
    write_tiny_checkpoint(made, "LlamaForCausalLM")
    write_tiny_tokenizer(made)
    return made


def open_llm(model: Path, **flags: Any) -> LLM:
    return LLM(
        **{"model": str(model), "use_tqdm_on_load": False, "kv_cache_memory_bytes": "4m"} | flags
    )


def spec_of(model: Path, **flags: Any) -> EngineSpec:
    return resolve(Config.from_fields({"model": str(model), **flags}))


def tokens(llm: LLM, params: SamplingParams, num_requests: int = 1) -> list[list[int]]:
    results = llm.generate([PROMPT] * num_requests, params, use_tqdm=False)
    return [list(result.outputs[0].token_ids) for result in results]


def test_seed(folder: Path) -> None:
    found = []
    for seed in (1, 1, 2, None, None):
        with open_llm(folder, seed=seed) as llm:
            found.append(tokens(llm, DRAWN, 2))
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]
    assert len({str(one) for one in found}) == 4


def test_seed_of_made_up_weights(llama: Path) -> None:
    found = []
    for seed in (1, 1, 2):
        with open_llm(llama, load_format="dummy", seed=seed) as llm:
            found.append(tokens(llm, GREEDY))
    assert found[0] == found[1] != found[2]


def test_model_and_hf_overrides(folder: Path, tmp_path: Path) -> None:
    other = write_random_checkpoint(
        tmp_path / "other", tokenizer_from=DEMO_PATH, logits="random", logits_seed=2
    )
    found = []
    for model, overrides in ((folder, {}), (other, {}), (folder, {"logits_seed": 2})):
        with open_llm(model, hf_overrides=overrides) as llm:
            found.append(tokens(llm, GREEDY))
    assert found[0] != found[1] == found[2]


def test_max_logprobs(folder: Path) -> None:
    with open_llm(folder, max_logprobs=2) as llm:
        asked = SamplingParams(max_tokens=1, logprobs=2)
        assert llm.generate([PROMPT], asked, use_tqdm=False)[0].outputs[0].logprobs
        with pytest.raises(RequestError, match="2"):
            llm.generate([PROMPT], SamplingParams(max_tokens=1, logprobs=3), use_tqdm=False)


def test_max_model_len(folder: Path) -> None:
    told = pytest.raises(RequestError, match=str(len(PROMPT)))
    with open_llm(folder, max_model_len=len(PROMPT)) as llm, told:
        tokens(llm, GREEDY)
    with open_llm(folder, max_model_len=len(PROMPT) + 3) as llm:
        assert len(tokens(llm, GREEDY)[0]) == 3


@pytest.mark.parametrize(("enable_prefix_caching", "num_cached"), [(True, 32), (False, 0)])
def test_enable_prefix_caching(folder: Path, enable_prefix_caching: bool, num_cached: int) -> None:
    with open_llm(folder, enable_prefix_caching=enable_prefix_caching) as llm:
        tokens(llm, GREEDY)
        again = llm.generate([PROMPT], GREEDY, use_tqdm=False)[0]
        assert again.num_cached_tokens == num_cached


def test_prefix_caching_hash_algo(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    for module, name in ((prefix_hash, "SHA256"), (hash_algorithms, "BLAKE2B")):
        made = getattr(module, name)

        def noted(key: bytes, data: bytes, name: str = name, digest: Any = made.digest) -> Any:
            used.append(name.lower())
            return digest(key, data)

        monkeypatch.setattr(module, name, dataclasses.replace(made, digest=noted))
    for algorithm in ("sha256", "blake2b"):
        used.clear()
        with open_llm(folder, prefix_caching_hash_algo=algorithm) as llm:
            tokens(llm, GREEDY)
            again = llm.generate([PROMPT], GREEDY, use_tqdm=False)[0]
        assert again.num_cached_tokens == 32
        assert set(used) == {algorithm}


def test_size_of_the_cache(folder: Path) -> None:
    """--kv-cache-memory-bytes, --num-gpu-blocks-override and --block-size."""
    sizes = {}
    for name, flags in {
        "plain": {"kv_cache_memory_bytes": "1M"},
        "twice": {"kv_cache_memory_bytes": "2M"},
        "wide": {"kv_cache_memory_bytes": "1M", "block_size": 32},
        "exact": {"num_gpu_blocks_override": 300},
    }.items():
        with open_llm(folder, max_model_len=128, **flags) as llm:
            sizes[name] = core_of(llm).cache.num_blocks
            assert llm.spec.cache.block_tokens == flags.get("block_size", 16)
    assert sizes["exact"] == 299  # and one block that is nobody's
    assert sizes["twice"] == pytest.approx(2 * sizes["plain"], rel=0.1)
    assert sizes["wide"] == pytest.approx(sizes["plain"] / 2, rel=0.1)


def test_gpu_memory_utilization(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolving, "available_bytes", lambda: 1 << 30)
    found = [
        spec_of(folder, gpu_memory_utilization=share, device="cpu").cache.memory_bytes or 0
        for share in (0.1, 0.2)
    ]
    assert 0 < found[0] < found[1] <= 1 << 30


PLUGINS = '''
"""Plugins of a test."""
from dovetail import register
from dovetail.interfaces.logits import LogitsProcessor
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.reasoning_parser import ReasoningParser
from dovetail.interfaces.data.text import Markers
from support.serving import NameAndJson


class Sevens(LogitsProcessor):
    info = Info(summary="draws token 7 and no other")

    @classmethod
    def wants(cls, params):
        return True

    def add_row(self, tokens):
        return None

    def remove_row(self, row):
        return None

    def apply(self, logits, rows):
        for index, _ in rows:
            logits[index] = float("-inf")
            logits[index, 7] = 0.0


@register("tool_parser", "test_calls")
class Calls(NameAndJson):
    info = Info(summary="test")


@register("reasoning_parser", "test_thoughts")
class Thoughts(ReasoningParser):
    info = Info(summary="test")
    markers = Markers(start="<think>", end="</think>")
'''


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    file = tmp_path / "plugins.py"
    file.write_text(PLUGINS, encoding="utf-8")
    return file


def test_logits_processors(folder: Path, plugins: Path) -> None:
    with open_llm(folder, logits_processors=[f"{plugins}:Sevens"]) as llm:
        assert set(tokens(llm, DRAWN)[0]) == {7}
    with open_llm(folder) as llm:
        assert set(tokens(llm, DRAWN)[0]) != {7}


@pytest.mark.parametrize(
    ("flag", "kind", "name"),
    [
        ("tool_call_parser", "tool", "test_calls"),
        ("reasoning_parser", "reasoning", "test_thoughts"),
    ],
)
def test_parsers_and_their_files(flag: str, kind: str, name: str, plugins: Path) -> None:
    """--tool-call-parser, --reasoning-parser and their files: --tool-parser-plugin and
    --reasoning-parser-plugin."""
    file_flag = {"tool": "tool_parser_plugin", "reasoning": "reasoning_parser_plugin"}[kind]
    with registry.admin.with_entries({}):
        with pytest.raises(ConfigError, match=name):
            check_choices(Config.from_fields({flag: name}))
        config = Config.from_fields({flag: name, file_flag: str(plugins)})
        load_plugin_files(config.frontend, config.plugin)
        check_choices(config)
        found = getattr(choose_parsers(config, ""), kind)
        assert found.name == name
        assert found.target.startswith(str(plugins))


SCHEDULER = '''
"""A scheduler of a test."""
from dovetail.interfaces.plugin import Info
from dovetail_plugins.schedulers.continuous import ContinuousScheduler


class Mine(ContinuousScheduler):
    info = Info(summary="test")
'''


def test_scheduler_cls(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SCHEDULER, encoding="utf-8")
    with open_llm(folder, scheduler_cls=f"{file}:Mine") as llm:
        assert type(scheduler_of(core_of(llm))).__name__ == "Mine"
        assert len(tokens(llm, GREEDY)[0]) == 12


def test_no_plugin() -> None:
    with registry.admin.with_entries({}):
        config = Config.from_fields({"no_plugin": ["priority"], "scheduling_policy": "priority"})
        load_plugin_files(config.frontend, config.plugin)
        with pytest.raises(ConfigError, match='"priority"'):
            check_choices(config)


def test_tokenizer(folder: Path, llama: Path) -> None:
    with open_llm(folder) as llm, open_llm(folder, tokenizer=str(llama)) as other:
        assert llm.tokenizer.encode("hello there") != other.tokenizer.encode("hello there")
        assert other.spec.tokenizer_path == str(llama)


def test_tokenizer_mode(folder: Path) -> None:
    kinds = []
    for mode in ("auto", "slow"):
        with open_llm(folder, tokenizer_mode=mode) as llm:
            kinds.append(type(llm.tokenizer).__name__)
    assert kinds == ["HfTokenizer", "TransformersTokenizer"]


@pytest.fixture
def hub(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a hub cache in which org/model has two revisions, main and other."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    repo = tmp_path / "hub" / "models--org--model"
    (repo / "refs").mkdir(parents=True)
    for name, commit in (("main", "0" * 40), ("other", "1" * 40)):
        (repo / "refs" / name).write_text(commit)
        (repo / "snapshots" / commit).mkdir(parents=True)
        for file in llama.iterdir():
            (repo / "snapshots" / commit / file.name).symlink_to(file)
    return tmp_path / "hub"


def test_revisions_and_download_dir(hub: Path) -> None:
    """--revision, --tokenizer-revision and --download-dir."""
    flags = {"model": "org/model", "download_dir": str(hub)}
    for asked, model, tokenizer in (
        ({}, "0", "0"),
        ({"revision": "other"}, "1", "1"),
        ({"revision": "other", "tokenizer": "org/model", "tokenizer_revision": "main"}, "1", "0"),
    ):
        spec = resolve(Config.from_fields({**flags, **asked}))
        assert Path(spec.run.model.path).name == model * 40
        assert Path(spec.tokenizer_path).name == tokenizer * 40
    with pytest.raises(ConfigError, match="org/model"):
        resolve(Config.from_fields({**flags, "download_dir": str(hub / "elsewhere")}))


def test_ignore_patterns(llama: Path, tmp_path: Path) -> None:
    broken = tmp_path / "model"
    shutil.copytree(llama, broken)
    (broken / "model.safetensors").rename(broken / "part.safetensors")
    (broken / "extra.safetensors").write_bytes((broken / "part.safetensors").read_bytes()[:-9])
    with pytest.raises(ConfigError, match="extra"):
        open_llm(broken)
    with open_llm(broken, ignore_patterns=["extra*"]) as llm, open_llm(llama) as plain:
        assert tokens(llm, GREEDY) == tokens(plain, GREEDY)


SCALED = '''
"""A load format of a test."""
from dataclasses import dataclass, field
from dovetail.interfaces.plugin import Info
from dovetail_plugins.load_formats.dummy import Dummy


@dataclass(frozen=True, kw_only=True)
class Factor:
    factor: float = field(default=1.0, metadata={"help": "what weights are multiplied by"})


class Scaled(Dummy):
    info = Info(summary="made-up weights times a factor")
    Options = Factor

    def tensors(self, checkpoint):
        for name, tensor in super().tensors(checkpoint):
            yield name, tensor * self.options.factor
'''


def test_model_loader_extra_config(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no_such_option"):
        open_llm(llama, model_loader_extra_config={"no_such_option": 1})
    file = tmp_path / "scaled.py"
    file.write_text(SCALED, encoding="utf-8")
    drawn = []
    for factor in (0.0, 1.0):
        extra = {"factor": factor}
        with open_llm(llama, load_format=f"{file}:Scaled", model_loader_extra_config=extra) as llm:
            drawn.append(set(tokens(llm, GREEDY)[0]))
    assert len(drawn[0]) == 1 < len(drawn[1])  # without weights every token is as good as another


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_use_tqdm_on_load(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bars = []
    for is_shown in (True, False):
        screen = Terminal()
        monkeypatch.setattr("sys.stderr", screen)
        with open_llm(llama, use_tqdm_on_load=is_shown):
            bars.append("weights: " in screen.getvalue())  # what a bar begins with
    assert bars == [True, False]


def test_override_generation_config(folder: Path) -> None:
    with open_llm(folder, override_generation_config={"top_k": 1}) as llm:
        assert llm.default_params().top_k == 1
        params = llm.default_params(max_tokens=12, temperature=1.0)
        assert tokens(llm, params) == tokens(llm, GREEDY)


def test_async_scheduling(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With it a step is handed to the worker before the result of the last one was read."""
    unread: list[int] = []
    submit = UniExecutor.submit

    def noted(self: UniExecutor, plan: StepPlan) -> PendingStep:
        unread.append(len(pending_steps_of(core_of(llm))))
        return submit(self, plan)

    monkeypatch.setattr(UniExecutor, "submit", noted)
    found = {}
    for is_ahead in (False, True):
        with open_llm(folder, async_scheduling=is_ahead) as llm:
            unread.clear()
            found[is_ahead] = tokens(llm, GREEDY)
            assert max(unread) == is_ahead
    assert found[True] == found[False]


def test_stat_loggers_and_their_options(folder: Path) -> None:
    """--stat-loggers, --disable-log-stats."""
    assert [s.name for s in spec_of(folder, stat_loggers=["log"]).stat_loggers] == ["log"]
    assert [s.name for s in spec_of(folder, stat_loggers=[]).stat_loggers] == []
    quiet = spec_of(folder, disable_log_stats=True)
    assert [s.name for s in quiet.stat_loggers] == ["prometheus"]


def test_worker_and_executor_by_path(folder: Path) -> None:
    """--worker-cls and --distributed-executor-backend: the classes named are those that run."""
    worker = "dovetail_testing.tiny.worker:TinyWorker"
    (executor,) = [e.target for e in registry.entries("executor") if e.name == "uni"]
    with open_llm(folder, worker_cls=worker, distributed_executor_backend=executor) as llm:
        assert type(worker_of(llm)).__name__ == "TinyWorker"
        assert llm.spec.executor.target == executor
        assert len(tokens(llm, GREEDY)[0]) == 12
    with pytest.raises(ConfigError, match="--distributed-executor-backend"):
        spec_of(folder, distributed_executor_backend="no.such:Executor")


class Counting:
    """Methods that see the worker they are added to."""

    runner: Any
    num_calls: int

    def weights(self, place: int, *, scale: float = 1.0) -> float:
        """Return the bytes of a tensor."""
        return scale * float(self.runner.weights()[place].nbytes)


def name_of(model: Any) -> str:
    return type(model).__name__


def shown(worker: Any, text: str) -> str:
    return f"{type(worker).__name__} {text}"


def test_methods_are_added_to_the_worker(folder: Path) -> None:
    """--worker-extension-cls: LLM.collective_rpc reaches them, and functions of modules."""
    with open_llm(folder, worker_extension_cls=f"{__file__}:Counting") as llm:
        before = tokens(llm, GREEDY)
        (total,) = llm.collective_rpc("weights", args=(0,))
        (double,) = llm.collective_rpc("weights", 5.0, (0,), {"scale": 2.0})
        assert double == 2 * total != 0
        assert llm.collective_rpc(shown, args=("a",)) == ["CpuWorker a"]
        model = runner_of(llm).model
        assert llm.apply_model(name_of) == [type(model).__name__]
        with pytest.raises(RequestError, match="rank 0: weights raised IndexError"):
            llm.collective_rpc("weights", args=(10**9,))
        with pytest.raises(RequestError, match=r"use one of: .*weights"):
            llm.collective_rpc("weight")
        assert tokens(llm, GREEDY) == before
    with pytest.raises(ConfigError, match="--worker-extension-cls"):
        open_llm(folder, worker_extension_cls="no.such.Class")


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_device(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.config.rules.machine.platform.no_cuda_reason", lambda: None)
    assert spec_of(folder, device=name, kv_cache_memory_bytes="1M").worker.name == name


def test_threads_of_the_kernels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--num-threads, --thread-spin-us and --pin-threads reach the library that has the threads."""
    asked: list[tuple[int, int, Any]] = []

    class Library:
        isa = "none"

        def set_threads(self, count: int, *, spin_us: int, cores: list[int] | None) -> int:
            asked.append((count, spin_us, cores))
            return count

    monkeypatch.setattr(cpu.native, "library", Library)
    monkeypatch.setattr(cpu.native, "usable_cores", lambda: [3, 5])
    before = torch.get_num_threads()
    for flags in ({"num_threads": 1}, {"num_threads": 2, "thread_spin_us": 9, "pin_threads": True}):
        run = spec_of(folder, **flags).run
        fields = ("num_threads", "thread_spin_us", "pins_threads")
        tiny = msgspec.structs.replace(tiny_run(), **{f: getattr(run, f) for f in fields})
        cpu.CpuWorker(cpu.CpuWorker.Options(), tiny)
        assert torch.get_num_threads() == flags["num_threads"]
    torch.set_num_threads(before)
    assert asked == [(1, 50, None), (2, 9, [3, 5])]


def test_max_num_queued_reqs(folder: Path) -> None:
    spec = spec_of(folder, max_num_seqs=4)
    assert max_queued(Config.from_fields({"max_num_queued_reqs": 3}), spec) == 3
    assert max_queued(Config(), spec) == 16


def test_allow_long_max_model_len(folder: Path) -> None:
    with pytest.raises(ConfigError, match="4096"):
        spec_of(folder, max_model_len=5000)
    spec = spec_of(folder, max_model_len=5000, allow_long_max_model_len=True)
    assert spec.run.max_model_tokens == 5000


def test_settings_of_the_engine_reach_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--engine-reply-timeout, --engine-step-timeout, --max-engine-restarts, --socket-dir and
    --cpu-cores, no further: what follows has tests of its own."""
    monkeypatch.setattr("dovetail.config.rules.machine.cores.usable_processors", lambda: {2, 3})
    assert spec_of(folder).max_restarts == 5
    spec = spec_of(
        folder, engine_reply_timeout=3, engine_step_timeout=4, socket_dir="/run", cpu_cores="3",
        max_engine_restarts=7,
    )  # fmt: skip
    assert (spec.reply_timeout_s, spec.step_timeout_s, spec.socket_dir) == (3, 4, "/run")
    assert spec.max_restarts == 7
    assert spec.run.processors == (3,)


ELSEWHERE = Value(summary="started by another", value="some.package:Starter")


def test_several_engines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--data-parallel-size, -size-local, -backend, -router, -hybrid-lb, -start-rank, -rank, and
    -address and -rpc-port, which change nothing where all engines are here."""
    monkeypatch.setattr(
        "dovetail.config.rules.parallel.engines.usable_cores", lambda processors=(): 2
    )
    spec = spec_of(
        folder, data_parallel_size=2, data_parallel_size_local=2, data_parallel_backend="mp",
        data_parallel_router="round_robin", data_parallel_address="h", data_parallel_rpc_port=1,
    )  # fmt: skip
    assert spec.router is not None and spec.router.name == "round_robin"
    assert [(one.engine, one.num_engines) for one in spec.each()] == [(0, 2), (1, 2)]
    some = spec_of(
        folder, data_parallel_size=4, data_parallel_hybrid_lb=True, data_parallel_start_rank=2
    )
    assert [one.engine for one in some.each()] == [2, 3]
    alone = spec_of(folder, data_parallel_size=4, data_parallel_rank=3)
    assert (alone.engine, alone.num_engines, alone.shares, alone.router) == (3, 1, (), None)
    with pytest.raises(ConfigError, match="3 engines need a core each, and this process may use 2"):
        spec_of(folder, data_parallel_size=3)
    started = {"data_parallel_size": 3, "data_parallel_backend": f"{__file__}:ELSEWHERE"}
    assert [spec_of(folder, **started).elsewhere, spec_of(folder, **started).each()] == [
        (0, 1, 2), (),
    ]  # fmt: skip
    assert spec_of(folder, **started, data_parallel_size_local=1).elsewhere == (1, 2)


def test_collect_detailed_traces() -> None:
    fields = {"otlp_traces_endpoint": "h:4318", "collect_detailed_traces": ["model"]}
    config = Config.from_fields(fields)
    found = stat_loggers(config.observability, config.plugin)
    assert found["otlp"]["detail"] == ["model"]


def test_older_flags_are_told_offline_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_llm(folder, num_scheduler_steps=1):
        assert "note: --num-scheduler-steps changes nothing" in capsys.readouterr().err


def test_demo_fields_give_way() -> None:
    config = with_demo_fields(Config.from_fields({"tool_call_parser": None}))
    assert config.frontend.tool_call_parser is None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = write_replay_checkpoint(
        tmp_path_factory.mktemp("served") / "model",
        tokenizer_from=DEMO_PATH,
        scripts=[{"tokens": [20, 21, 22]}],
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    args = f"""{folder} --host 127.0.0.2 --port {port} --served-model-name one two
        --disable-frontend-multiprocessing --timeout-keep-alive 1 --log-level debug
        --log-prefix @@ --enable-log-requests --kv-cache-memory-bytes 1M --max-model-len 256"""
    with ServerProcess(*args.split()) as made:
        made.wait_ready()
        assert made.url == f"http://127.0.0.2:{port}"
        yield made


@pytest.mark.e2e
def test_host_and_port(server: ServerProcess) -> None:
    """--host, --port: nothing listens on the default address."""
    assert httpx.get(f"{server.url}/health").status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url.replace("127.0.0.2", "127.0.0.1") + "/health")


@pytest.mark.e2e
def test_served_model_name(server: ServerProcess) -> None:
    cards = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert [card["id"] for card in cards] == ["one", "two"]


@pytest.mark.e2e
def test_disable_frontend_multiprocessing(server: ServerProcess) -> None:
    assert server.descendants() == []
    body = {"prompt": "x", "max_tokens": 3, "model": "one"}
    answer = httpx.post(f"{server.url}/v1/completions", json=body).json()
    assert answer["choices"][0]["text"]


@pytest.mark.e2e
def test_log_level(server: ServerProcess) -> None:
    body = {"prompt": "x", "max_tokens": 1, "model": "one"}
    assert httpx.post(f"{server.url}/v1/completions", json=body).status_code == 200
    assert any("DEBUG" in line for line in server.lines)


@pytest.mark.e2e
def test_log_prefix(server: ServerProcess) -> None:
    told = [line for line in server.lines if "ready in" in line]
    assert told and all(line.startswith("@@") for line in told)


@pytest.mark.e2e
def test_timeout_keep_alive(server: ServerProcess) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        begun_s = time.monotonic()
        while connection.recv(4096):
            continue
        assert 0.5 < time.monotonic() - begun_s < 4  # the default is 5 s
