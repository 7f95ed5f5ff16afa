"""A LoRA in a GGUF file computes what PEFT computes with the adapter that it was made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dovetail import LLM
from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.errors import ConfigError
from dovetail_plugins.adapters.gguf import GgufAdapter
from dovetail_plugins.gguf.reading.file import find_file
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.gguf_adapters import write_gguf_adapter
from support.gguf_files import write_gguf
from support.inside import engine_of
from support.peft_adapters import asked, load, made, wanted

pytest.importorskip("gguf")
pytest.importorskip("peft")

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
GATED = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]
CASES: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "llama": ("LlamaForCausalLM", {"num_key_value_heads": 2}, GATED),
    "llama_tables": ("LlamaForCausalLM", {}, ["q_proj", "embed_tokens", "lm_head"]),
    "qwen2": ("Qwen2ForCausalLM", {}, GATED),
    "qwen3": ("Qwen3ForCausalLM", {}, GATED),
    "gemma3": (
        "Gemma3ForCausalLM",
        {
            "query_pre_attn_scalar": 16,
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        },
        GATED,
    ),
    "phi3": ("Phi3ForCausalLM", {}, ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]),
    "gpt2": ("GPT2LMHeadModel", {}, ["c_attn", "c_fc", "c_proj"]),
}
PROMPT = torch.randint(3, VOCAB_SIZE, (17,), generator=torch.Generator().manual_seed(3)).tolist()
NUM_TOKENS = 5
FLAGS: dict[str, Any] = {
    "dtype": "float32",
    "enable_lora": True,
    "max_logprobs": -1,
    "max_num_seqs": 4,
    "max_model_len": 64,
    "num_gpu_blocks_override": 64,
    "use_tqdm_on_load": False,
}


def _made(root: Path, name: str) -> tuple[Path, Path, Any]:
    """Write a tiny model and a random adapter of PEFT; return both folders and PEFT's model."""
    import peft
    import transformers

    architecture, fields, modules = CASES[name]
    folder = write_tiny_checkpoint(root / "base", architecture, **fields)
    base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    config = peft.LoraConfig(r=4, lora_alpha=12, target_modules=modules, task_type="CAUSAL_LM")
    return folder, root / "peft", made(base, config, root / "peft", seed=5)


@pytest.mark.parametrize("name", CASES)
def test_as_peft_computes_over_both_kinds_of_files(tmp_path: Path, name: str) -> None:
    folder, adapter, model = _made(tmp_path, name)
    file = write_gguf_adapter(folder, adapter, tmp_path / "lora.gguf")
    write_gguf(folder, tmp_path / "model.gguf")
    theirs = wanted(model, PROMPT, NUM_TOKENS)
    for served in (folder, tmp_path / "model.gguf"):
        with LLM(str(served), **FLAGS) as llm:
            engine = engine_of(llm)
            load(engine, file)
            ours, plain = asked(engine, [(file.name, PROMPT), ("", PROMPT)], NUM_TOKENS)
        assert (ours.logprobs - theirs.logprobs).abs().max() <= 1e-4
        assert ours.token_ids == theirs.token_ids
        assert (plain.logprobs - theirs.logprobs).abs().max() > 0.01


def test_a_flag_names_the_file_or_its_folder(tmp_path: Path) -> None:
    folder, adapter, model = _made(tmp_path, "qwen3")
    own = tmp_path / "alone"
    own.mkdir()
    file = write_gguf_adapter(folder, adapter, own / "lora.gguf")
    theirs = wanted(model, PROMPT, NUM_TOKENS)
    with LLM(str(folder), **FLAGS, lora_modules=[f"a={file}", f"b={own}"]) as llm:
        both = asked(engine_of(llm), [("a", PROMPT), ("b", PROMPT)], NUM_TOKENS)
    for ours in both:
        assert (ours.logprobs - theirs.logprobs).abs().max() <= 1e-4


def _read(folder: Path, file: Path) -> Any:
    return GgufAdapter(None, load_model_facts(folder)).read(file, {})


@pytest.mark.parametrize("alpha", [None, 0.0])
def test_without_an_alpha_the_scale_is_one_as_in_llama_cpp(
    tmp_path: Path, alpha: float | None
) -> None:
    folder, adapter, _ = _made(tmp_path, "qwen3")
    more: dict[str, Any] = {"adapter__lora__alpha": alpha}
    file = write_gguf_adapter(folder, adapter, tmp_path / "lora.gguf", **more)
    assert {change.scale for change in _read(folder, file).changes.values()} == {1.0}


def test_quantized_matrices_are_read_as_the_package_reads_them(tmp_path: Path) -> None:
    import gguf

    folder, adapter, _ = _made(tmp_path, "qwen3")
    file = write_gguf_adapter(folder, adapter, tmp_path / "lora.gguf", type_name="Q8_0")
    down = _read(folder, file).changes["model.layers.1.self_attn.q_proj"].down
    name = "blk.1.attn_q.weight.lora_a"
    (stored,) = [one for one in gguf.GGUFReader(file).tensors if one.name == name]
    assert stored.tensor_type == gguf.GGMLQuantizationType.Q8_0
    theirs = gguf.quants.dequantize(stored.data, stored.tensor_type)
    assert np.array_equal(down.numpy(), theirs)


@pytest.mark.parametrize(
    ("settings", "where", "what"),
    [
        ({"general__type": "model"}, "general.type", "'adapter'"),
        ({"general__type": None}, "general.type", "missing"),
        ({"adapter__type": "dora"}, "adapter.type", "'dora'"),
        ({"adapter__lora__alpha": "many"}, "adapter.lora.alpha", "'many'"),
        ({"general__architecture": "nothing"}, "general.architecture", '"nothing"'),
        ({"adapter__alora__invocation_tokens": [1, 2]}, "adapter.alora", "aLoRA"),
    ],
)
def test_settings_of_another_adapter_are_refused(
    tmp_path: Path, settings: dict[str, Any], where: str, what: str
) -> None:
    folder, adapter, _ = _made(tmp_path, "qwen3")
    file = write_gguf_adapter(folder, adapter, tmp_path / "lora.gguf", **settings)
    with pytest.raises(ConfigError, match="Fix: ") as caught:
        _read(folder, file)
    assert str(caught.value.where).startswith(f"{file}: {where}")
    assert what in caught.value.what


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda t: {k: v for k, v in t.items() if k != "blk.0.attn_q.weight.lora_b"}, "its pair"),
        (lambda t: {**t, "blk.0.attn_norm.weight": np.ones(32)}, "not belong to a LoRA"),
        (lambda t: {**t, "blk.0.attn_q.weight.lora_b": np.ones((32, 3))}, "do not fit"),
        (lambda t: {f"x.{k}": v for k, v in t.items()}, "not read"),
        (lambda t: {k.replace("attn_q", "attn_norm"): v for k, v in t.items()}, "not read"),
        (lambda t: {}, "no tensors"),
    ],
)
def test_tensors_that_are_no_lora_are_refused(tmp_path: Path, change: Any, what: str) -> None:
    folder, adapter, _ = _made(tmp_path, "qwen3")
    file = write_gguf_adapter(folder, adapter, tmp_path / "lora.gguf", changed=change)
    with pytest.raises(ConfigError, match="Fix: ") as caught:
        _read(folder, file)
    assert what in caught.value.what
    assert str(file) in str(caught.value.where)


def test_an_adapter_of_another_architecture_is_refused_over_a_gguf_file(tmp_path: Path) -> None:
    folder, adapter, _ = _made(tmp_path, "qwen3")
    more: dict[str, Any] = {"general__architecture": "qwen2"}
    file = write_gguf_adapter(folder, adapter, tmp_path / "lora.gguf", **more)
    write_gguf(folder, tmp_path / "model.gguf")
    with pytest.raises(ConfigError, match="qwen3"):
        _read(tmp_path / "model.gguf", file)


def test_a_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    folder, adapter, _ = _made(tmp_path, "qwen3")
    file = write_gguf_adapter(folder, adapter, tmp_path / "lora.gguf")
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(ConfigError, match=str(file)):
        _read(folder, file)


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    folder, adapter, _ = _made(tmp_path, "qwen3")

    def broken(tensors: dict[str, Any]) -> dict[str, Any]:
        tensors["blk.0.attn_q.weight.lora_a"][0, 0] = np.nan
        return tensors

    file = write_gguf_adapter(folder, adapter, tmp_path / "lora.gguf", changed=broken)
    with LLM(str(folder), **FLAGS) as llm, pytest.raises(Exception, match=r"lora\.gguf.*q_proj"):
        load(engine_of(llm), file)


def test_a_resolver_finds_files_of_a_folder(tmp_path: Path) -> None:
    from dovetail.interfaces.adapter_resolver import ResolverFacts
    from dovetail_plugins.adapter_resolvers.folder import FolderResolver

    folder, adapter, _ = _made(tmp_path, "qwen3")
    own = tmp_path / "all"
    own.mkdir()
    url: dict[str, Any] = {"general__base_model__0__repo_url": "https://huggingface.co/org/base"}
    write_gguf_adapter(folder, adapter, own / "poems.gguf", **url)
    facts = ResolverFacts(base_names=("org/base",), model_path=str(folder))
    resolver = FolderResolver(FolderResolver.Options(path=str(own)), facts)
    found = resolver.find("poems")
    assert found is not None and found.path == str(own / "poems.gguf")
    assert resolver.find("others") is None
    elsewhere = ResolverFacts(base_names=("org/another",), model_path=str(folder))
    assert FolderResolver(FolderResolver.Options(path=str(own)), elsewhere).find("poems") is None
    assert found.base == "org/base"


def test_experts_in_one_tensor_compute_what_their_merged_matrices_compute(tmp_path: Path) -> None:
    import shutil

    from safetensors.numpy import load_file, save_file

    folder = write_tiny_checkpoint(tmp_path / "base", "Qwen3MoeForCausalLM", norm_topk_prob=True)
    weights = load_file(folder / "model.safetensors")
    random = np.random.default_rng(2)
    tensors: dict[str, Any] = {}
    merged = dict(weights)
    for stem, leaf in (("ffn_gate_exps", "gate_proj"), ("ffn_down_exps", "down_proj")):
        names = sorted(
            (n for n in weights if "layers.1.mlp.experts" in n and leaf in n),
            key=lambda name: int(name.split(".")[5]),
        )
        rows, inputs = weights[names[0]].shape
        a = random.normal(size=(len(names), 3, inputs), scale=0.3).astype(np.float32)
        b = random.normal(size=(len(names), rows, 3), scale=0.3).astype(np.float32)
        tensors |= {f"blk.1.{stem}.weight.lora_a": a, f"blk.1.{stem}.weight.lora_b": b}
        for number, name in enumerate(names):
            merged[name] = weights[name] + 2 * b[number] @ a[number]
    (tmp_path / "peft").mkdir()
    (tmp_path / "peft" / "adapter_config.json").write_text('{"lora_alpha": 6}')
    save_file({}, tmp_path / "peft" / "adapter_model.safetensors")
    file = write_gguf_adapter(
        folder, tmp_path / "peft", tmp_path / "lora.gguf", changed=lambda none: tensors
    )
    shutil.copytree(folder, tmp_path / "merged")
    save_file(merged, tmp_path / "merged" / "model.safetensors", metadata={"format": "pt"})
    with LLM(str(folder), **FLAGS) as llm:
        load(engine_of(llm), file)
        ours, plain = asked(engine_of(llm), [(file.name, PROMPT), ("", PROMPT)], NUM_TOKENS)
    with LLM(str(tmp_path / "merged"), **FLAGS) as llm:
        (theirs,) = asked(engine_of(llm), [("", PROMPT)], NUM_TOKENS)
    assert (ours.logprobs - theirs.logprobs).abs().max() <= 1e-4
    assert (plain.logprobs - theirs.logprobs).abs().max() > 0.01


def test_a_file_of_an_adapter_is_not_served_as_a_model(tmp_path: Path) -> None:
    folder, adapter, _ = _made(tmp_path, "qwen3")
    file = write_gguf_adapter(folder, adapter, tmp_path / "lora.gguf")
    with pytest.raises(ConfigError, match="--lora-modules") as caught:
        load_model_facts(file)
    assert caught.value.where == str(file)


def test_an_adapter_beside_a_model_in_its_folder_is_not_a_second_model(tmp_path: Path) -> None:
    folder, adapter, _ = _made(tmp_path, "qwen3")
    both = tmp_path / "both"
    both.mkdir()
    write_gguf_adapter(folder, adapter, both / "a-lora.gguf")
    write_gguf(folder, both / "m.gguf")
    assert find_file(both) == both / "m.gguf"
    assert load_model_facts(both).architecture == "Qwen3ForCausalLM"
