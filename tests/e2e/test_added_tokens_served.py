"""Adapters that add tokens from the user's side: a text names them by the tokenizer of the
adapter's folder, and answers are written with it, beside rows of the model and of others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers

from dovetail import LLM, SamplingParams
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint, write_tiny_tokenizer
from support.added_tokens import NUM_ADDED, enlarged, saved, saved_for_vllm
from support.peft_adapters import wanted
from support.server_process import ServerProcess
from support.tiny_adapters import write_adapter

pytestmark = pytest.mark.e2e

WORDS = [f"<|word{i}|>" for i in range(NUM_ADDED)]
ADDED = list(range(VOCAB_SIZE, VOCAB_SIZE + NUM_ADDED))
TEXT = f"the dog {WORDS[1]} and {WORDS[4]}"
TEMPLATE = "{% for m in messages %}" + WORDS[0] + "{{ m['content'] }}{% endfor %}" + WORDS[2]
LINEAR = ["q_proj", "v_proj", "down_proj"]
NUM_TOKENS = 8
FLAGS = {"dtype": "float32", "kv_cache_memory_bytes": "2M", "max_num_seqs": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The folders of a model and of adapters, PEFT's models of these by name, and a tokenizer with
    the added tokens."""

    folder: Path
    adapters: dict[str, Path]
    models: dict[str, Any]
    tokenizer: Any


def _with_words(folder: Path, place: Path | None) -> Any:
    """Return the model's tokenizer with added tokens, saved where a place is given."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.add_tokens(WORDS) == NUM_ADDED
    if place is not None:
        tokenizer.chat_template = TEMPLATE
        tokenizer.save_pretrained(place)
    return tokenizer


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    import peft

    root = tmp_path_factory.mktemp("added")
    folder = write_tiny_checkpoint(root / "model", "LlamaForCausalLM")
    write_tiny_tokenizer(folder)
    base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    wide = enlarged(base)
    config = peft.LoraConfig(
        r=4, lora_alpha=16, target_modules=LINEAR, modules_to_save=["embed_tokens", "lm_head"]
    )
    plain = peft.LoraConfig(r=4, lora_alpha=16, target_modules=LINEAR)
    models = {
        "words": saved(wide, config, root / "words", seed=1),
        "vllm": saved_for_vllm(wide, plain, root / "vllm", seed=2),
        "mute": saved_for_vllm(wide, plain, root / "mute", seed=3),
    }
    tokenizer = _with_words(folder, root / "words")
    _with_words(folder, root / "vllm")
    few = write_adapter(root / "few", base, seed=4, base="base")
    adapters = {name: root / name for name in models} | {"few": few}
    return Places(folder=folder, adapters=adapters, models=models, tokenizer=tokenizer)


@pytest.fixture(scope="module")
def server(places: Places) -> Iterator[ServerProcess]:
    """Return a server with two API processes."""
    flags = [word for name, value in FLAGS.items() for word in (f"--{name}", str(value))]
    given = [f"{name}={places.adapters[name]}" for name in ("words", "vllm", "few")]
    with ServerProcess(
        *(str(places.folder), "--served-model-name", "base", "--port", "0"),
        *(word.replace("_", "-") if word.startswith("--") else word for word in flags),
        *("--api-server-count", "2", "--enable-lora", "--max-loras", "4", "--max-lora-rank", "8"),
        *("--lora-extra-vocab-size", "8", "--allow-runtime-lora-updating"),
        *("--lora-modules", *given),
    ) as made:
        yield made.wait_ready()


def _post(server: ServerProcess, path: str, **body: Any) -> httpx.Response:
    with server.client() as client:
        return client.post(path, json=body)


def _greedy(places: Places, name: str, text: str) -> tuple[list[int], list[int]]:
    ids = places.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert max(ids) >= VOCAB_SIZE
    return ids, wanted(places.models[name], ids, NUM_TOKENS).token_ids


@pytest.mark.parametrize("name", ["words", "vllm"])
def test_openais_client_sends_a_text_with_added_tokens(
    server: ServerProcess, places: Places, name: str
) -> None:
    openai = pytest.importorskip("openai")
    with server.client() as client:
        asking = openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none")
    ids, tokens = _greedy(places, name, TEXT)
    answer = asking.completions.create(
        model=name,
        prompt=TEXT,
        max_tokens=NUM_TOKENS,
        temperature=0,
        logprobs=2,
        extra_body={"ignore_eos": True, "return_token_ids": True, "skip_special_tokens": False},
    )
    choice = answer.choices[0]
    assert choice.model_extra["prompt_token_ids"] == ids
    assert choice.model_extra["token_ids"] == tokens
    assert choice.text == places.tokenizer.decode(tokens)
    written = [places.tokenizer.decode([token]) for token in tokens]
    told = choice.logprobs.tokens
    assert [word for word in told if word in WORDS] == [word for word in written if word in WORDS]
    whole = "".join(
        part.choices[0].text
        for part in asking.completions.create(
            model=name, prompt=TEXT, max_tokens=NUM_TOKENS, temperature=0, stream=True,
            extra_body={"ignore_eos": True, "skip_special_tokens": False},
        )
    )  # fmt: skip
    assert whole == choice.text


def test_a_conversation_is_written_by_the_adapters_template(
    server: ServerProcess, places: Places
) -> None:
    ids, tokens = _greedy(places, "words", f"{WORDS[0]}the dog{WORDS[2]}")
    answer = _post(
        server, "/v1/chat/completions", model="words", temperature=0, max_tokens=NUM_TOKENS,
        messages=[{"role": "user", "content": "the dog"}], ignore_eos=True, return_token_ids=True,
        skip_special_tokens=False,
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    assert answer.json()["prompt_token_ids"] == ids
    assert choice["token_ids"] == tokens
    assert choice["message"]["content"] == places.tokenizer.decode(tokens)


def test_tokens_and_texts_of_each_name(server: ServerProcess, places: Places) -> None:
    ids = places.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    told = _post(server, "/tokenize", model="words", prompt=TEXT, return_token_strs=True)
    assert told.json()["tokens"] == ids
    assert WORDS[1] in told.json()["token_strs"]
    text = _post(server, "/detokenize", model="words", tokens=ids).json()["prompt"]
    assert text == TEXT
    for name in ("base", "few"):
        own = _post(server, "/tokenize", model=name, prompt=TEXT).json()["tokens"]
        assert max(own) < VOCAB_SIZE
        answer = _post(server, "/detokenize", model=name, tokens=ids)
        assert answer.status_code == 400
        assert f"0 to {VOCAB_SIZE - 1}" in answer.text
    beyond = _post(server, "/detokenize", model="words", tokens=[ADDED[-1] + 1])
    assert beyond.status_code == 400


def test_a_long_text_is_read_by_the_adapters_tokenizer(
    server: ServerProcess, places: Places
) -> None:
    text = (TEXT + " ") * 4000
    ids = places.tokenizer(text, add_special_tokens=False)["input_ids"]
    for name in ("words", "vllm", "words"):
        assert _post(server, "/tokenize", model=name, prompt=text).json()["tokens"] == ids


def test_ids_that_a_name_does_not_have_are_refused(server: ServerProcess) -> None:
    for name, last in (("base", VOCAB_SIZE - 1), ("few", VOCAB_SIZE - 1), ("words", ADDED[-1])):
        answer = _post(server, "/v1/completions", model=name, prompt=[5, last + 1], max_tokens=1)
        assert answer.status_code == 400, answer.text
        assert f"valid ids are 0 to {last}" in answer.json()["error"]["message"]
    answer = _post(
        server, "/v1/completions", model="few", prompt=[5], logit_bias={str(ADDED[0]): 1.0}
    )
    assert answer.status_code == 400


def test_beams_have_added_tokens(server: ServerProcess, places: Places) -> None:
    answer = _post(
        server, "/v1/completions", model="words", prompt=TEXT, max_tokens=4, use_beam_search=True,
        n=2, temperature=0, ignore_eos=True, return_token_ids=True,
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["choices"]) == 2


def test_a_form_has_no_added_tokens(server: ServerProcess) -> None:
    for _ in range(2):
        answer = _post(
            server, "/v1/completions", model="words", prompt=TEXT, max_tokens=12, temperature=0,
            logit_bias={str(token): 100.0 for token in ADDED}, return_token_ids=True,
            structured_outputs={"regex": "[a-z]{3,8}"},
        )  # fmt: skip
        assert answer.status_code == 200, answer.text
        choice = answer.json()["choices"][0]
        assert not set(choice["token_ids"]) & set(ADDED)
        assert choice["text"].isalpha()


def test_without_a_tokenizer_ids_alone_name_them(server: ServerProcess, places: Places) -> None:
    load = {"lora_name": "mute", "lora_path": str(places.adapters["mute"])}
    assert _post(server, "/v1/load_lora_adapter", **load).status_code == 200
    ids, tokens = _greedy(places, "mute", TEXT)
    for _ in range(4):
        answer = _post(
            server, "/v1/completions", model="mute", prompt=ids, max_tokens=NUM_TOKENS,
            temperature=0, ignore_eos=True, return_token_ids=True,
        )  # fmt: skip
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["token_ids"] == tokens
    own = _post(server, "/tokenize", model="mute", prompt=TEXT).json()["tokens"]
    assert max(own) < VOCAB_SIZE
    assert _post(server, "/v1/unload_lora_adapter", lora_name="mute").status_code == 200
    gone = _post(server, "/v1/completions", model="mute", prompt=ids, max_tokens=1)
    assert gone.status_code == 404


def _changed(places: Places, tmp_path: Path, name: str) -> Path:
    return Path(shutil.copytree(places.adapters[name], tmp_path / "changed"))


def test_what_is_wrong_is_told_and_harms_nothing(
    server: ServerProcess, places: Places, tmp_path: Path
) -> None:
    """A broken tokenizer in the place of a loaded adapter leaves that as it was."""
    folder = _changed(places, tmp_path, "words")
    (folder / "tokenizer.json").write_text("{")
    load = {"lora_name": "words", "lora_path": str(folder), "load_inplace": True}
    answer = _post(server, "/v1/load_lora_adapter", **load)
    assert answer.status_code == 400
    assert str(folder / "tokenizer.json") in answer.text
    _, tokens = _greedy(places, "words", TEXT)
    kept = _post(server, "/v1/completions", model="words", prompt=TEXT, max_tokens=NUM_TOKENS,
                 temperature=0, ignore_eos=True, return_token_ids=True)  # fmt: skip
    assert kept.json()["choices"][0]["token_ids"] == tokens


def test_its_end_token_ends_an_answer(
    server: ServerProcess, places: Places, tmp_path: Path
) -> None:
    folder = _changed(places, tmp_path, "words")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["eos_token"] = WORDS[3]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    load = {"lora_name": "ends", "lora_path": str(folder)}
    assert _post(server, "/v1/load_lora_adapter", **load).status_code == 200
    asked = {"prompt": "the dog", "max_tokens": 5, "logit_bias": {str(ADDED[3]): 100.0}}
    ended = _post(server, "/v1/completions", model="ends", **asked).json()["choices"][0]
    assert (ended["finish_reason"], ended["text"]) == ("stop", "")
    other = _post(server, "/v1/completions", model="words", **asked).json()["choices"][0]
    assert other["finish_reason"] == "length"
    form = {"structured_outputs": {"regex": "[a-z]{3,30}"}, "return_token_ids": True}
    formed = _post(server, "/v1/completions", model="ends", **asked, **form).json()["choices"][0]
    assert formed["finish_reason"] == "stop" and formed["text"].isalpha()
    assert formed["token_ids"][-1] == ADDED[3] and len(formed["token_ids"]) <= 4


def test_offline(places: Places) -> None:
    from dovetail import LoRARequest

    greedy = SamplingParams(
        temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, skip_special_tokens=False
    )
    with LLM(str(places.folder), enable_lora=True, max_loras=2, **FLAGS) as llm:
        for name in ("words", "vllm"):
            _, tokens = _greedy(places, name, TEXT)
            lora = LoRARequest(name, 1, str(places.adapters[name]))
            (result,) = llm.generate(TEXT, greedy, lora_request=lora)
            assert list(result.outputs[0].token_ids) == tokens
            assert result.outputs[0].text == places.tokenizer.decode(tokens)
            _, told = _greedy(places, name, f"{WORDS[0]}the dog{WORDS[2]}")
            talk: Any = [{"role": "user", "content": "the dog"}]
            (result,) = llm.chat(talk, greedy, lora_request=lora)
            assert list(result.outputs[0].token_ids) == told
