"""Plugins of a package that knows dovetail from its docs alone: what passes the kit, serves.

Each test runs an engine, or resolves one, with a distribution that lies in a folder of its own.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from dovetail import LLM, SamplingParams, registry
from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.errors import AmbiguousPlugin, BrokenPlugin, ConfigError, UnknownPlugin
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.registry.catalog import Catalog
from dovetail.registry.entry import BUILT_IN
from dovetail_testing.tiny.models import write_tiny_checkpoint, write_tiny_tokenizer
from support import serving
from support.third_party import installed

NAME = "Third.Party"
CODE = '''
"""Plugins."""
import hashlib
from pathlib import Path

import numpy as np

from dovetail.interfaces.data.block_hash import BlockHash
from dovetail.interfaces.load_format import LoadFormat
from dovetail.interfaces.plugin import Info, Value
from dovetail.interfaces.scheduling_policy import SchedulingPolicy
from dovetail_plugins.tokenizers.hf import HfTokenizer

DOUBLE = Value(summary="64 bits", value="float64")
ALIEN = Value(summary="no type that is known", value="posit16")
SHA3 = Value(summary="keyed SHA-3", value="third_party:SHA3_HASH")
SHA3_HASH = BlockHash(digest=lambda key, data: hashlib.sha3_256(key + data).digest())
HALVED = Value(summary="every second position", value="third_party:halved")
RAW = Value(summary="as raw_logprobs", value=("raw", "logprobs"))
PROBS = Value(summary="nothing that core reports", value=("raw", "probs"))
THINKING = Value(summary="one field", value=("reasoning",))
PARTS = Value(summary="as openai", value="openai")
LLAMA = Value(summary="everything is a Llama", value="LlamaForCausalLM")
ODD = Value(summary="48 tokens", value=48)
NOISY = Value(summary="as debug", value="DEBUG")
NOTHING = Value(summary="says little", value=None)


def halved(settings):
    exponents = np.arange(0, settings.size, 2) / settings.size
    import torch

    return torch.tensor(0.5 / settings.theta**exponents, dtype=torch.float32), 1.0


class Fair(SchedulingPolicy):
    """First come, first served."""

    info = Info(summary="another fcfs")

    def key(self, request):
        return (request.arrival_s,)


class Crashing(SchedulingPolicy):
    """Cannot be made."""

    info = Info(summary="cannot be made")

    def __init__(self, options):
        raise KeyError("colour")

    def key(self, request):
        return (0.0,)


class Inner(HfTokenizer):
    """A tokenizer in a folder of its own."""

    info = Info(summary="reads the folder mine/")

    @classmethod
    def why_not(cls, query):
        if query is None or (Path(query) / "mine").is_dir():
            return []
        return ["there is no folder mine/"]

    def __init__(self, options, path):
        super().__init__(options, str(Path(path) / "mine"))


class Archive(LoadFormat):
    """Reads one archive of arrays."""

    info = Info(summary="reads weights.arrays")

    @classmethod
    def why_not(cls, query):
        if query is None or (Path(query.path) / "weights.arrays").is_file():
            return []
        return ["there is no weights.arrays"]

    def tensors(self, checkpoint):
        import torch

        with open(Path(checkpoint.path) / "weights.arrays", "rb") as file:
            for name, array in np.load(file).items():
                yield name, torch.from_numpy(array)
'''
ENTRIES = {
    "dtype": {"double": "third_party:DOUBLE", "alien": "third_party:ALIEN"},
    "kv_cache_dtype": {"double": "third_party:DOUBLE"},
    "hash_algorithm": {"sha3": "third_party:SHA3"},
    "rope_type": {"halved": "third_party:HALVED"},
    "logprobs_mode": {"plain": "third_party:RAW", "probs": "third_party:PROBS"},
    "reasoning_field": {"thinking": "third_party:THINKING"},
    "chat_content_format": {"parts": "third_party:PARTS"},
    "model_impl": {"llama": "third_party:LLAMA"},
    "block_size": {"48": "third_party:ODD"},
    "log_level": {"noisy": "third_party:NOISY"},
    "scheduling_policy": {"crashing": "third_party:Crashing", "colonless": "third_party"},
    "tokenizer": {"inner": "third_party:Inner"},
    "load_format": {"archive": "third_party:Archive"},
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=1)
PROMPT = list(range(5, 69))


@pytest.fixture(scope="module", autouse=True)
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Install the package for this module's tests."""
    with installed(tmp_path_factory.mktemp("site"), NAME, CODE, ENTRIES):
        yield


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny Llama with weights and a tokenizer."""
    made = tmp_path_factory.mktemp("models") / "llama"
    write_tiny_checkpoint(made, "LlamaForCausalLM")
    write_tiny_tokenizer(made)
    return made


def spec_of(model: Path, **flags: Any) -> EngineSpec:
    return resolve(Config.from_fields({"model": str(model), **flags}))


def answers(model: Path, **flags: Any) -> tuple[list[int], int]:
    """Return the tokens of an answer, and how many of its prompt were cached the second time."""
    asked = {"model": str(model), "use_tqdm_on_load": False, "kv_cache_memory_bytes": "4m"} | flags
    with LLM(**asked) as llm:
        llm.generate([PROMPT], GREEDY, use_tqdm=False)
        again = llm.generate([PROMPT], GREEDY, use_tqdm=False)[0]
        return list(again.outputs[0].token_ids), int(again.num_cached_tokens or 0)


@pytest.mark.parametrize(
    "flags",
    [
        {"dtype": "double"},
        {"dtype": "double", "kv_cache_dtype": "double"},
        {"kv_cache_dtype": "double", "attention_backend": "torch_sdpa"},
        {"prefix_caching_hash_algo": "sha3"},
        {"logprobs_mode": "plain"},
        {"model_impl": "llama"},
        {"block_size": 48},
        {"log_level": "noisy"},
    ],
    ids=lambda flags: "-".join(flags),
)
def test_a_value_that_passes_its_clauses_serves(llama: Path, flags: dict[str, Any]) -> None:
    plain, _ = answers(llama)
    told, num_cached = answers(llama, **flags)
    assert told == plain
    assert num_cached == 48


def test_a_rope_rule_is_found_by_flag_and_in_a_checkpoint(llama: Path, tmp_path: Path) -> None:
    rule = {"rope_type": "halved"}
    linear, _ = answers(llama, rope_scaling={"rope_type": "linear", "factor": 2.0})
    assert answers(llama, rope_scaling=rule)[0] == linear != answers(llama)[0]
    assert answers(llama, hf_overrides={"rope_scaling": rule, "rope_parameters": None})[0] == linear
    assert spec_of(llama, rope_scaling=rule).run.model.rope_rules["halved"] == "third_party:halved"


def test_a_field_for_reasoning() -> None:
    app, _ = serving.app_for(
        serving.Script(pieces=["<think>ab", "c</think>d"]), reasoning_field="thinking"
    )
    messages = [{"role": "user", "content": "hi"}]
    message = serving.chat(app, messages=messages).json()["choices"][0]["message"]
    assert message["reasoning"] == "abc"
    assert not message.get("reasoning_content")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"logprobs_mode": "probs"}, r"--logprobs-mode probs: .*\('raw', 'probs'\)"),
        ({"dtype": "alien"}, "--dtype alien: .*'posit16', and a dtype is one of None, 'float64'"),
        ({"scheduling_policy": "colonless"}, '"third_party" names no class.*entry-point table'),
    ],
)
def test_a_wrong_one_is_refused_by_name(llama: Path, flags: dict[str, str], told: str) -> None:
    with pytest.raises(BrokenPlugin, match=told):
        spec_of(llama, **flags)


@pytest.mark.parametrize("distribution", ["Third.Party", "third-party", "THIRD_party"])
def test_a_distribution_is_spelt_as_pip_takes_it(distribution: str) -> None:
    assert registry.load("hash_algorithm", f"sha3@{distribution}").summary == "keyed SHA-3"
    fresh = Catalog()
    assert fresh.block([distribution]) == []
    assert "sha3" not in fresh.names("hash_algorithm")
    other = Catalog()
    assert other.block([f"sha3@{distribution}"]) == []
    assert "sha3" not in other.names("hash_algorithm")
    with pytest.raises(UnknownPlugin, match="sha3@third"):
        registry.find("hash_algorithm", "sha3@third")


def test_a_tokenizer_is_asked_about_files_that_core_does_not_know(
    llama: Path, tmp_path: Path
) -> None:
    shutil.copytree(llama, tmp_path / "model")
    (tmp_path / "model" / "mine").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.move(tmp_path / "model" / name, tmp_path / "model" / "mine" / name)
    assert spec_of(tmp_path / "model").tokenizer.name == "inner"
    assert spec_of(tmp_path / "model", tokenizer_mode="inner").tokenizer.name == "inner"
    with pytest.raises(ConfigError, match="no tokenizer"):
        spec_of(tmp_path / "model", tokenizer_mode="hf")
    shutil.rmtree(tmp_path / "model" / "mine")
    with pytest.raises(ConfigError, match="no tokenizer"):
        spec_of(tmp_path / "model")
    assert spec_of(llama).tokenizer.name == "hf"


def test_auto_asks_load_formats_of_packages(llama: Path, tmp_path: Path) -> None:
    shutil.copytree(llama, tmp_path / "model")
    (stored,) = (tmp_path / "model").glob("*.safetensors")
    with (tmp_path / "model" / "weights.arrays").open("wb") as file:
        np.savez(file, **load_file(stored))
    assert spec_of(tmp_path / "model").run.load_format.name == "auto"
    stored.unlink()
    assert spec_of(tmp_path / "model").run.load_format.distribution == NAME
    assert answers(tmp_path / "model") == answers(llama)


def test_a_constructor_is_called_before_the_weights_are_read(
    llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO, "dovetail"),
        pytest.raises(
            BrokenPlugin,
            match=r"--scheduling-policy crashing: making it raised KeyError: 'colour'.*"
            "third_party:Crashing",
        ),
    ):
        LLM(model=str(llama), scheduling_policy="crashing")
    assert not [line for line in caplog.messages if line.startswith("loaded ")]


DEFAULTS = {
    "scheduling_policy": {"fcfs": "rival:Fair"},
    "quantization": {"none": "rival:Fair"},
    "executor": {"uni": "rival:Fair"},
    "scheduler": {"continuous": "rival:Fair"},
    "load_format": {"auto": "rival:Fair"},
    "compilation_level": {"2": "rival:NOTHING"},
    "bench_dataset": {"random": "rival:Fair"},
    "platform": {"cpu": "rival:Fair"},
    "worker": {"cpu": "rival:Fair"},
    "kv_policy": {"paged": "rival:Fair"},
    "tokenizer": {"hf": "rival:Fair"},
    **{
        kind.name: {kind.default: "rival:NOTHING"}
        for kind in registry.KINDS.values()
        if kind.is_value and kind.default and kind.default in registry.names(kind.name)
    },
}


def test_defaults_that_nobody_chose_stay_dovetails_own(llama: Path, tmp_path: Path) -> None:
    plain = spec_of(llama)
    with installed(tmp_path / "rival", "rival", CODE, DEFAULTS):
        assert spec_of(llama) == plain
        assert plain.policy.distribution == BUILT_IN
        with pytest.raises(AmbiguousPlugin, match="fcfs@dovetail-llm or fcfs@rival"):
            spec_of(llama, scheduling_policy="fcfs")
        chosen = spec_of(llama, scheduling_policy="fcfs@Rival").policy
        assert (chosen.target, chosen.distribution) == ("rival:Fair", "rival")


def test_the_demo_model_still_serves(package: None) -> None:
    assert answers(DEMO_PATH)[0]


OWN_MODEL = """
from dovetail_plugins.models.llama import LlamaForCausalLM


class Theirs(LlamaForCausalLM):
    pass
"""


def test_a_model_that_dovetail_ships_too_is_chosen_by_its_distribution(
    llama: Path, tmp_path: Path
) -> None:
    name = "LlamaForCausalLM"
    alone, wanted = spec_of(llama).run.model_plugin, answers(llama)
    with installed(tmp_path / "early", "early", OWN_MODEL, {"model": {name: "early:Theirs"}}):
        with pytest.raises(AmbiguousPlugin) as caught:
            spec_of(llama)
        flags = [f"--model-impl {name}@{one}" for one in ("dovetail-llm", "early")]
        assert all(flag in str(caught.value) for flag in flags)
        theirs = spec_of(llama, model_impl=f"{name}@early").run.model_plugin
        assert theirs.target == "early:Theirs"
        own = spec_of(llama, model_impl=f"{name}@dovetail-llm").run.model_plugin
        assert own == alone
        assert answers(llama, model_impl=f"{name}@early") == wanted
        with pytest.raises(UnknownPlugin, match="--model-impl"):
            spec_of(llama, model_impl=f"{name}@nobody")


def test_a_tokenizer_that_dovetail_ships_too_is_chosen_by_its_distribution(
    llama: Path, tmp_path: Path
) -> None:
    code = (
        "from dovetail_plugins.tokenizers.hf import HfTokenizer\nclass Theirs(HfTokenizer): pass\n"
    )
    with installed(tmp_path / "early", "early", code, {"tokenizer": {"hf": "early:Theirs"}}):
        with pytest.raises(AmbiguousPlugin, match=r"--tokenizer-mode.*hf@dovetail-llm or hf@early"):
            spec_of(llama, tokenizer_mode="hf")
        assert spec_of(llama, tokenizer_mode="hf@early").tokenizer.target == "early:Theirs"


FAULTY = """
import torch
from dovetail_plugins.models.llama import LlamaForCausalLM


def torn():
    return torch.zeros(2) @ torch.zeros(3)


class Building(LlamaForCausalLM):
    def __init__(self, options, context):
        torn()


class Running(LlamaForCausalLM):
    def forward(self, token_ids, positions):
        torn()
"""


@pytest.mark.parametrize("name", ["Building", "Running"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_what_a_plugin_raises_at_the_start_names_it(
    llama: Path, tmp_path: Path, name: str, ranks: int
) -> None:
    with (
        installed(tmp_path / "faulty", "faulty", FAULTY, {"model": {"Odd": f"faulty:{name}"}}),
        pytest.raises(ConfigError) as caught,
    ):
        answers(llama, model_impl="Odd@faulty", tensor_parallel_size=ranks)
    text = str(caught.value)
    assert "model Odd" in text and f"faulty:{name}" in text and "RuntimeError" in text
