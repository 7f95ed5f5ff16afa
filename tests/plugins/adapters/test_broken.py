"""Adapters that cannot be used: each is told by file and key, and harms nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail import LLM
from dovetail.errors import RequestError
from dovetail_testing.checkpoints import code_running_pickle
from dovetail_testing.tiny.models import write_tiny_checkpoint, write_tiny_tokenizer
from support.inside import adapters_of, engine_of
from support.peft_adapters import asked, load
from support.written_lora import CONFIG, FILE, MODULE, write_lora

FIRST = MODULE.format(layer=0, name="q_proj")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    root = tmp_path_factory.mktemp("broken")
    folder = write_tiny_tokenizer(write_tiny_checkpoint(root / "base", "LlamaForCausalLM"))
    flags = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8, "dtype": "float32"}
    with LLM(
        str(folder), max_model_len=64, max_logprobs=-1, use_tqdm_on_load=False, **flags
    ) as llm:
        load(engine_of(llm), write_lora(root / "good"))
        yield engine_of(llm)


def tensors_changed(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / FILE)
        change(tensors)
        save_file(tensors, folder / FILE)

    return apply


def config_changed(**fields: Any) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps({**config, **fields}))

    return apply


def text(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def truncated(folder: Path) -> None:
    whole = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(whole[: len(whole) // 2])


def in_a_bin(content: Any) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / FILE).unlink()
        torch.save(content, folder / "adapter_model.bin")

    return apply


def running_code(folder: Path) -> None:
    (folder / FILE).unlink()
    (folder / "adapter_model.bin").write_bytes(code_running_pickle(folder / "trace"))


def nan_of(value: float) -> Callable[[dict[str, torch.Tensor]], Any]:
    return lambda tensors: tensors[f"{FIRST}.lora_B.weight"].__setitem__((3, 1), value)


def adding(**tensors: torch.Tensor) -> Callable[[Path], None]:
    return lambda folder: save_file(tensors, folder / ADDED)


def both(*changes: Callable[[Path], Any]) -> Callable[[Path], None]:
    return lambda folder: [change(folder) for change in changes] and None


def tokenizer_with(num_added: int) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        from tokenizers import Tokenizer

        write_tiny_tokenizer(folder)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.add_tokens([f"<|word{i}|>" for i in range(num_added)])
        tokenizer.save(str(folder / "tokenizer.json"))

    return apply


ADDED, NAN = "new_embeddings.safetensors", float("nan")
ROWS = "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"
A, B = f"{FIRST}.lora_A.weight", f"{FIRST}.lora_B.weight"
WRONG: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "rank": (
        tensors_changed(lambda t: t.update({A: torch.zeros(12, 32), B: torch.zeros(32, 12)})),
        "the rank is 12, and 8 is the most",
        "layers.0.self_attn.q_proj",
    ),
    "ranks of a pair": (
        tensors_changed(lambda t: t.update({A: torch.zeros(3, 32)})),
        "do not fit each other",
        "layers.0.self_attn.q_proj",
    ),
    "inputs": (
        tensors_changed(lambda t: t.update({A: torch.zeros(4, 48)})),
        "it has 48 inputs and the layer 32",
        "layers.0.self_attn.qkv_proj",
    ),
    "outputs": (
        tensors_changed(lambda t: t.update({B: torch.zeros(40, 4)})),
        "it has 40 outputs and the layer 32",
        "layers.0.self_attn.qkv_proj",
    ),
    "half a pair": (tensors_changed(lambda t: t.pop(B)), "lora_B", "layers.0.self_attn.q_proj"),
    "layer": (
        tensors_changed(lambda t: t.update({A.replace(".0.", ".7."): t.pop(A),
                                            B.replace(".0.", ".7."): t.pop(B)})),
        "layers.7.self_attn.q_proj is not a layer",
        CONFIG,
    ),
    "tensor": (tensors_changed(lambda t: t.update({f"{FIRST}.else": torch.zeros(3)})),
               "else is without its pair, or not known", "layers.0.self_attn.q_proj"),
    "nan": (tensors_changed(nan_of(float("nan"))), "not finite", "self_attn.q_proj: up"),
    "inf": (tensors_changed(nan_of(float("-inf"))), "not finite", "self_attn.q_proj: up"),
    "no weights": (lambda folder: (folder / FILE).unlink(), f"neither {FILE} nor", ""),
    "no config": (lambda folder: (folder / CONFIG).unlink(), "no such file", CONFIG),
    "torn config": (text(CONFIG, b'{"peft_type"'), "cannot be read", CONFIG),
    "config of bytes": (text(CONFIG, b"\xff\xfe\x00"), "cannot be read", CONFIG),
    "config of a list": (text(CONFIG, b"[1]"), "does not hold an object", CONFIG),
    "unknown type": (config_changed(peft_type="VERA"), "'VERA' are not supported", "peft_type"),
    "type of a list": (config_changed(peft_type=["LORA"]), "are not supported", "peft_type"),
    "alpha": (config_changed(lora_alpha="much"), "'much' is not float", "lora_alpha"),
    "pattern": (config_changed(alpha_pattern={"(": 3}), "is not a pattern", "alpha_pattern"),
    "alpha of a pattern": (
        config_changed(alpha_pattern={"q_proj": "x"}), "is not a number", "alpha_pattern"
    ),
    "aLoRA": (config_changed(alora_invocation_tokens=[1]), "aLoRA", "alora_invocation_tokens"),
    **{
        start: (
            config_changed(init_lora_weights=start),
            "changes the model's own weights",
            "init_lora_weights",
        )
        for start in ("pissa", "pissa_niter_16", "olora", "OLoRA", "corda", "loftq", "lora_ga")
    },
    "Arrow": (config_changed(arrow_config={"top_k": 3}), "Arrow", "arrow_config"),
    "KaSA": (config_changed(kasa_config={"beta": 1e-4}), "KaSA", "kasa_config"),
    "MonteCLoRA": (
        config_changed(monteclora_config={"num_samples": 4}), "MonteCLoRA", "monteclora_config"
    ),
    "VeLoRA": (config_changed(velora_config={"rank": 4}), "VeLoRA", "velora_config"),
    "BD-LoRA": (config_changed(use_bdlora={"nblocks": 2}), "BD-LoRA", "use_bdlora"),
    "QA-LoRA": (config_changed(use_qalora=True), "QA-LoRA", "use_qalora"),
    "layers": (config_changed(layer_replication=[[0, 2]]), "repetition", "layer_replication"),
    "no tensors": (tensors_changed(lambda t: t.clear()), "has no tensors", ""),
    "no tensors of IA3": (
        both(tensors_changed(lambda t: t.clear()), config_changed(peft_type="IA3")),
        "has no tensors",
        "",
    ),
    "truncated": (truncated, "the file is cut short", FILE),
    "not safetensors": (text(FILE, b"x" * 200), "not a valid safetensors file", FILE),
    "empty": (text(FILE, b""), "the file is empty", FILE),
    "code": (running_code, "more than tensors", "adapter_model.bin"),
    "objects": (in_a_bin({"a": [1, 2]}), "does not map names to tensors", "adapter_model.bin"),
    "table": (
        tensors_changed(
            lambda t: t.update({"base_model.model.lm_head.weight": torch.zeros(300, 32)})
        ),
        "is [300, 32], and the model's [320, 32]",
        "lm_head",
    ),
    "width of a table": (
        tensors_changed(
            lambda t: t.update({"base_model.model.lm_head.weight": torch.zeros(320, 40)})
        ),
        "is [320, 40], and the model's [320, 32]",
        "lm_head",
    ),
    "tokens more": (
        tensors_changed(
            lambda t: t.update({"base_model.model.lm_head.weight": torch.zeros(330, 32)})
        ),
        "the head has vectors of 10 added tokens, and the token table of 0",
        "lm_head",
    ),
    "bias of a head": (
        tensors_changed(
            lambda t: t.update(
                {
                    "base_model.model.lm_head.weight": torch.zeros(320, 32),
                    "base_model.model.lm_head.bias": torch.zeros(320),
                }
            )
        ),
        "only low-rank changes of a table",
        "lm_head",
    ),
    "added tokens": (text("new_embeddings.bin", b"x"), "the file", "new_embeddings.bin"),
    "too many added tokens": (
        adding(input_embeddings=torch.zeros(257, 32)),
        "the adapter adds 257 tokens, and 256 is the most",
        ADDED,
    ),
    "width of added tokens": (
        adding(input_embeddings=torch.zeros(3, 40)),
        "its shape is [3, 40], and vectors of the model have 32 numbers",
        f"{ADDED}: input_embeddings",
    ),
    "nan of an added token": (
        adding(input_embeddings=torch.zeros(3, 32), output_embeddings=torch.full((3, 32), NAN)),
        "not finite",
        f"{ADDED}: output_embeddings",
    ),
    "added tokens without inputs": (
        adding(output_embeddings=torch.zeros(3, 32)), "has no input_embeddings", ADDED
    ),
    "unknown added tensors": (
        adding(input_embeddings=torch.zeros(3, 32), others=torch.zeros(3)),
        "holds others, which is not known",
        ADDED,
    ),
    "more added outputs": (
        adding(input_embeddings=torch.zeros(3, 32), output_embeddings=torch.zeros(4, 32)),
        "the head has vectors of 4 added tokens, and the token table of 3",
        "",
    ),
    "single tokens without their numbers": (
        tensors_changed(lambda t: t.update({ROWS: torch.zeros(2, 32)})),
        "does not say which tokens of model.embed_tokens were trained",
        "trainable_token_indices",
    ),
    "single tokens and other numbers": (
        both(tensors_changed(lambda t: t.update({ROWS: torch.zeros(2, 32)})),
             config_changed(trainable_token_indices=[1, 2, 3])),
        "names 3 tokens",
        "trainable_token_indices",
    ),
    "single tokens behind others": (
        both(tensors_changed(lambda t: t.update({ROWS: torch.zeros(2, 32)})),
             config_changed(trainable_token_indices=[320, 322])),
        "there is no vector of the token 321",
        "embed_tokens",
    ),
    "tokenizer of more tokens": (
        both(adding(input_embeddings=torch.zeros(1, 32)), tokenizer_with(3)),
        "the tokenizer has 323 tokens, and the model with this adapter 321",
        "",
    ),
    "added tokens without their tokenizer": (
        both(adding(input_embeddings=torch.zeros(1, 32)), text("added_tokens.json", b"{}")),
        "the tokenizer that they belong to is not there",
        "added_tokens.json",
    ),
    "rope scaling": (
        config_changed(rope_scaling={"type": "yarn"}), "not a linear scaling", "rope_scaling"
    ),
    "context length": (config_changed(context_length="long"), "is not int", "context_length"),
    "vector": (
        tensors_changed(lambda t: t.update({A: torch.zeros(32), B: torch.zeros(32)})),
        "do not fit each other",
        "layers.0.self_attn.q_proj",
    ),
}  # fmt: skip


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", WRONG)
def test_a_broken_adapter_is_told_by_file_and_key(engine: Any, tmp_path: Path, name: str) -> None:
    change, said, key = WRONG[name]
    folder = write_lora(tmp_path / "broken")
    change(folder)
    with pytest.raises(RequestError) as caught:
        load(engine, folder)
    assert said in caught.value.what
    assert str(folder) in str(caught.value.where) and key in str(caught.value.where)
    assert caught.value.status == 400 and not (folder / "trace").exists()
    assert [source.name for source in adapters_of(engine.core).served()] == ["good"]


def test_others_are_unharmed(engine: Any, tmp_path: Path) -> None:
    before = asked(engine, [("", [5, 6, 7]), ("good", [5, 6, 7])], 4)
    broken = write_lora(tmp_path / "broken")
    truncated(broken)
    with pytest.raises(RequestError):
        load(engine, broken)
    after = asked(engine, [("", [5, 6, 7]), ("good", [5, 6, 7])], 4)
    assert [a.token_ids for a in after] == [b.token_ids for b in before]
    with pytest.raises(AssertionError, match="is not loaded"):
        asked(engine, [("broken", [5, 6, 7])], 4)


def test_a_bin_of_tensors_is_read(engine: Any, tmp_path: Path) -> None:
    folder = write_lora(tmp_path / "pickled")
    torch.save(load_file(folder / FILE), folder / "adapter_model.bin")
    (folder / FILE).unlink()
    load(engine, folder)
    ours, same = asked(engine, [("pickled", [5, 6, 7]), ("good", [5, 6, 7])], 4)
    assert torch.equal(ours.logprobs, same.logprobs)
    adapters_of(engine.core).unload("pickled")
