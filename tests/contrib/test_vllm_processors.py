"""Logits processors written for vLLM's V1 interface, in programs and behind HTTP."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from dovetail import LLM, SamplingParams, registry
from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.logits import RowTokens
from dovetail.processes.process import import_paths
from dovetail_testing.contracts.test_logits_processor import new_processor
from dovetail_testing.tiny.models import write_tiny_checkpoint
from dovetail_vllm_compat import batches
from dovetail_vllm_compat.processors import ForeignBatch
from support.inside import adapted
from support.server_process import ServerProcess
from support.vllm_files import FILES, PACKAGE

transformers = pytest.importorskip("transformers")
FILE = FILES / "processors.py"
NAMES = [f"{FILE}:{name}" for name in ("Only", "NoRepeats", "Says", "Best")]
PROMPT = "the quick brown fox and the dog"


def greedy(**extra: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, extra_args=extra)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("model"), "LlamaForCausalLM")


@pytest.fixture
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), max_model_len=64, logits_processors=NAMES, use_tqdm_on_load=False) as one:
        yield one


def answers(llm: LLM, *params: SamplingParams) -> list[Any]:
    return llm.generate([PROMPT] * len(params), list(params), use_tqdm=False)


def test_in_a_program(llm: LLM, folder: Path) -> None:
    asked = [{}, {"target_token": 7}, {"no_repeat_ngram_size": 2}, {"says": "the dog"}]
    results = answers(llm, *(greedy(**extra) for extra in asked))
    ids = [result.outputs[0].token_ids for result in results]
    assert [answers(llm, greedy(**extra))[0].outputs[0].token_ids for extra in asked] == ids
    assert set(ids[1]) == {7}
    assert results[3].outputs[0].text.startswith("the dog")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = torch.tensor([results[0].prompt_token_ids])
    for answer, size in ((ids[0], 0), (ids[2], 2)):
        wanted = model.generate(
            prompt, max_new_tokens=12, min_new_tokens=12, do_sample=False, no_repeat_ngram_size=size
        )
        assert tuple(wanted[0, prompt.shape[1] :].tolist()) == tuple(answer)
    # what keeps the best token comes after the temperature: a hot draw is a greedy one
    hot = SamplingParams(temperature=5.0, max_tokens=12, ignore_eos=True, seed=1)
    assert answers(llm, hot)[0].outputs[0].token_ids == ids[0]


def test_a_fault_ends_one_request(llm: LLM) -> None:
    bad, good, plain = answers(llm, greedy(target_token=-1), greedy(target_token=7), greedy())
    assert "no such token" in str(bad.error)
    assert set(good.outputs[0].token_ids) == {7}
    assert plain.outputs[0].token_ids == answers(llm, greedy())[0].outputs[0].token_ids
    with pytest.raises(RequestError, match="target_token must be a number"):
        answers(llm, greedy(target_token="x"))


@pytest.mark.e2e
def test_behind_http(folder: Path, tmp_path: Path) -> None:
    """Fields that no processor claims reach those of vLLM in vllm_xargs, and only there."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/__init__.py").write_text("from vllm.v1.sample import logits_processor\n")
    (tmp_path / "theirs/only.py").write_text(FILE.read_text(encoding="utf-8"), encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), str(PACKAGE), *import_paths()])
    flags = ["--logits-processors", "theirs.only:Only", "--max-model-len", "64"]
    with ServerProcess(str(folder), *flags, env={"PYTHONPATH": path}) as server:
        url = server.wait_ready().url

        def asked(**fields: Any) -> httpx.Response:
            body = {"prompt": "the dog", "max_tokens": 3, "temperature": 0, "logprobs": 0, **fields}
            return httpx.post(f"{url}/v1/completions", json=body, timeout=60)

        plain = asked().json()["choices"][0]["text"]
        forced = asked(vllm_xargs={"target_token": 40}).json()["choices"][0]
        assert len(set(forced["logprobs"]["tokens"])) == 1
        assert forced["text"] != plain
        wrong = asked(vllm_xargs={"target_token": "x"})
        assert wrong.status_code == 400
        assert "target_token must be a number" in wrong.text
        outside = asked(target_token=40)
        assert outside.json()["choices"][0]["text"] == plain
        assert "target_token" in outside.headers["x-dovetail-ignored-fields"]


def test_the_batch_is_told_truly() -> None:
    """Whatever comes, draws and leaves: each index has its row's params and tokens."""

    class Recorder(batches.LogitsProcessor):
        """Keeps what it is told, and adds each row's number to its logits."""

        def __init__(self) -> None:
            self.known: dict[int, tuple[Any, list[int]]] = {}

        def is_argmax_invariant(self) -> bool:
            return False

        def update_state(self, batch_update: batches.BatchUpdate | None) -> None:
            batches.process_dict_updates(self.known, batch_update, lambda p, _, out: (p, out))
            if batch_update is not None:
                assert sorted(self.known) == list(range(batch_update.batch_size))

        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            for index, (params, output) in self.known.items():
                logits[index] += params.extra_args["number"] + 1000 * len(output)
            return logits

    chance, batch, rows = random.Random(0), ForeignBatch(Recorder()), {}
    for step in range(400):
        for row in [row for row in rows if chance.random() < 0.2]:
            batch.remove(row)
            del rows[row]
        for row in range(6):
            if row not in rows and chance.random() < 0.3:
                params = SamplingParams(extra_args={"number": step})
                rows[row] = RowTokens(row=row, params=params, prompt_ids=(1,), output_ids=[])
        drawing = [row for row in rows if chance.random() < 0.8]
        chance.shuffle(drawing)
        if not drawing:
            continue
        logits = torch.zeros(len(drawing), 4)
        batch.apply(logits, [(index, rows[row]) for index, row in enumerate(drawing)])
        for index, row in enumerate(drawing):
            tokens = rows[row]
            wanted = tokens.params.extra_args["number"] + 1000 * len(tokens.output_ids)
            assert (logits[index] == wanted).all()
            tokens.output_ids.append(step)


def test_a_class_that_is_no_processor(tmp_path: Path) -> None:
    file = tmp_path / "plain.py"
    file.write_text("import vllm\n\nclass Plain:\n    '''Nothing.'''\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="no logits processor"):
        registry.load("logits_processor", f"{file}:Plain")
    assert not any(name.partition(".")[0] == "vllm" for name in sys.modules)


def test_what_a_class_can_ask_of_the_engine() -> None:
    processor = new_processor(registry.load("logits_processor", NAMES[0]))
    assert adapted(processor).vocab_size == 32
    config = processor._config()
    with pytest.raises(AttributeError, match=r"VllmConfig\.quant_config"):
        _ = config.quant_config
    assert config.scheduler_config.max_num_seqs == 8
