"""GGUF files of the gguf package that lack parts of their vocabulary: what follows from the family
is added, and one line says so; the rest is a clear error."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import pytest

from dovetail import LLM
from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.errors import ConfigError
from dovetail_plugins.gguf.vocabulary import missing
from dovetail_plugins.gguf.vocabulary.missing import completed
from dovetail_plugins.gguf.vocabulary.splits import KINDS
from dovetail_plugins.tokenizers.gguf import GgufTokenizer
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.gguf_files import write_gguf

gguf = pytest.importorskip("gguf")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
CONVERSATION = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "U"},
    {"role": "assistant", "content": "A"},
    {"role": "user", "content": "V"},
]
RENDERED = {
    "ChatML": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
    "<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n",
    "Llama 3's": "B<|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nV<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "Gemma's": "B<start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n"
    "<start_of_turn>user\nV<end_of_turn>\n<start_of_turn>model\n",
    "Phi-3's": "<|system|>\nS<|end|>\n<|user|>\nU<|end|>\n<|assistant|>\nA<|end|>\n"
    "<|user|>\nV<|end|>\n<|assistant|>\n",
    "DeepSeek's": "B<\uff5cUser\uff5c>S\n\nU<\uff5cAssistant\uff5c>AE<\uff5cUser\uff5c>V"
    "<\uff5cAssistant\uff5c>",
    "Mistral's": "B[INST]S\n\nU[/INST]AE[INST]V[/INST]",
}


@pytest.mark.parametrize("name", RENDERED)
def test_templates_write_the_turns_of_the_family(name: str) -> None:
    (template,) = [one for found, _, one in missing._TEMPLATES if found == name]
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    told = environment.from_string(template).render(
        messages=CONVERSATION, add_generation_prompt=True, bos_token="B", eos_token="E"
    )
    assert told == RENDERED[name]


def test_every_family_cuts_words_in_a_known_way() -> None:
    ways = {*missing._PRE.values(), *(name for *_, name in missing._PRE_BY_TOKENS)}
    assert ways <= KINDS.keys()
    assert missing._PRE.keys() <= {*gguf.MODEL_ARCH_NAMES.values()}


def _without(source: Path, target: Path, *left_out: str, **changes: Any) -> Path:
    """Copy a file with the gguf package's reader and writer, without some settings."""
    reader = gguf.GGUFReader(source)
    settings = {name: field.contents() for name, field in reader.fields.items()}
    architecture = changes.pop("architecture", settings["general.architecture"])
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture" or name in left_out:
            continue
        kinds = field.types
        own = name.replace(f"{settings['general.architecture']}.", f"{architecture}.", 1)
        sub = kinds[1] if len(kinds) > 1 else None
        writer.add_key_value(own, field.contents(), kinds[0], sub_type=sub)
    for name, value in changes.items():
        writer.add_string(f"tokenizer.ggml.{name}", value)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    write_gguf(write_tiny_checkpoint(root / "hf", "Qwen2ForCausalLM"), root / "m.gguf")
    return root / "m.gguf"


def _tokenizer(file: Path) -> GgufTokenizer:
    return GgufTokenizer(GgufTokenizer.Options(), str(file))


def test_a_file_without_a_pre_tokenizer_cuts_as_its_family_does(
    whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missing._tell.cache_clear()
    file = _without(whole, tmp_path / "m.gguf", "tokenizer.ggml.pre")
    with caplog.at_level(logging.WARNING, missing.__name__):
        own = _tokenizer(file)
        load_model_facts(file)
    assert caplog.messages == ["m.gguf lacks tokenizer.ggml.pre (by its architecture it is qwen2)"]
    text = "x = 12345 cafe\u0301"
    named = _without(whole, tmp_path / "n.gguf", "tokenizer.ggml.pre", pre="qwen2")
    assert own.encode(text) == _tokenizer(named).encode(text)
    assert own.encode(text) != _tokenizer(whole).encode(text)  # numbers are cut one by one


def gguf_settings(file: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in gguf.GGUFReader(file).fields.items()}


def test_a_pre_tokenizer_that_does_not_follow_is_an_error(whole: Path, tmp_path: Path) -> None:
    file = _without(whole, tmp_path / "m.gguf", "tokenizer.ggml.pre", architecture="llama")
    with pytest.raises(ConfigError, match="--tokenizer DIR") as caught:
        _tokenizer(file)
    assert "tokenizer.ggml.pre" in caught.value.what and caught.value.where == str(file)


def test_types_of_tokens_follow_from_texts_and_named_ids(whole: Path, tmp_path: Path) -> None:
    file = _without(whole, tmp_path / "m.gguf", "tokenizer.ggml.token_type")
    own, right = _tokenizer(file).facts(), _tokenizer(whole).facts()
    assert own.special_ids == right.special_ids
    assert load_model_facts(file).eos_token_ids == load_model_facts(whole).eos_token_ids


def test_a_file_without_any_vocabulary_says_how_to_give_one(whole: Path, tmp_path: Path) -> None:
    every = [name for name in gguf_settings(whole) if name.startswith("tokenizer.")]
    file = _without(whole, tmp_path / "m.gguf", *every)
    with pytest.raises(ConfigError, match="--tokenizer DIR") as caught:
        _tokenizer(file)
    assert caught.value.where == str(file)
    flags: dict[str, Any] = {"max_model_len": 64, "num_gpu_blocks_override": 32}
    with pytest.raises(ConfigError, match="--tokenizer DIR"), LLM(str(file), **flags):
        pass
    with LLM(str(file), tokenizer=str(whole.parent / "hf"), **flags) as llm:
        (answer,) = llm.generate(["the dog"])
    assert answer.outputs[0].token_ids


def _settings(tokens: list[str], **more: Any) -> dict[str, Any]:
    named = {f"tokenizer.ggml.{key}": value for key, value in more.items()}
    architecture = named.pop("tokenizer.ggml.architecture", "llama")
    return {"general.architecture": architecture, "tokenizer.ggml.tokens": tokens, **named}


def _found(settings: Mapping[str, Any]) -> dict[str, Any]:
    more = completed(Path("m.gguf"), settings)
    return {
        key.removeprefix("tokenizer.ggml."): value
        for key, value in more.items()
        if key not in settings
    }


def test_pieces_have_the_ids_and_bytes_of_their_family() -> None:
    llama = ["<unk>", "<s>", "</s>", *BYTES, "a"]
    found = _found(_settings(llama, scores=[0.0] * len(llama)))
    assert found.pop("token_type") == [2, 3, 3, *[6] * 256, 1]
    assert found == {"model": "llama", "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    gemma = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>", "a"]
    found = _found(_settings(gemma, model="llama", architecture="gemma2"))
    assert found.pop("tokenizer.chat_template").count("<start_of_turn>") == 3
    assert found.pop("token_type") == [3, 3, 3, 2, 3, 3, 1]
    assert found == {"bos_token_id": 2, "eos_token_id": 1, "unknown_token_id": 3}


@pytest.mark.parametrize(
    ("architecture", "marks", "size", "pre"),
    [
        ("llama", ["<|begin_of_text|>", "<|eot_id|>"], 128_256, "llama-bpe"),
        ("llama", ["<\uff5cbegin\u2581of\u2581sentence\uff5c>"], 32_256, "deepseek-coder"),
        ("llama", ["<\uff5cbegin\u2581of\u2581sentence\uff5c>"], 102_400, "deepseek-llm"),
        ("deepseek2", ["<\uff5cbegin\u2581of\u2581sentence\uff5c>"], 129_280, "deepseek-v3"),
        ("qwen2", ["<\uff5cbegin\u2581of\u2581sentence\uff5c>"], 151_936, "deepseek-r1-qwen"),
        ("qwen2", ["<|im_start|>", "<|endoftext|>"], 151_936, "qwen2"),
        ("llama", ["[INST]", "[/INST]", "<s>"], 131_072, "tekken"),
        ("llama", ["<|im_start|>", "<jupyter_start>"], 49_152, "smollm"),
        ("gpt2", ["<|endoftext|>"], 50_257, "gpt-2"),
        ("gpt-oss", ["<|return|>", "<|channel|>"], 201_088, "gpt-4o"),
        ("llama", ["<|begin_of_text|>"], 500, None),
    ],
)
def test_vocabularies_that_are_known_by_their_tokens(
    architecture: str, marks: list[str], size: int, pre: str | None
) -> None:
    tokens = [*marks, *(f"t{i}" for i in range(size - len(marks)))]
    found = _found(_settings(tokens, merges=["a b"], architecture=architecture))
    assert found["model"] == "gpt2"
    assert found.get("pre") == pre


@pytest.mark.parametrize("name", RENDERED)
def test_a_template_is_chosen_by_the_tokens_of_its_turns(name: str) -> None:
    (texts,) = [texts for found, texts, _ in missing._TEMPLATES if found == name]
    tokens = [*texts, "a"]
    (template,) = [one for found, _, one in missing._TEMPLATES if found == name]
    assert _found(_settings(tokens))["tokenizer.chat_template"] == template
    own = _settings(tokens) | {"tokenizer.chat_template": "mine"}
    assert "tokenizer.chat_template" not in _found(own)
    assert "tokenizer.chat_template" not in _found(_settings([*texts[:1], "a"]))


def test_a_whole_file_is_left_as_it_is(whole: Path) -> None:
    settings = gguf_settings(whole)
    assert completed(whole, settings) == settings
