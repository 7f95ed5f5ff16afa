"""GGUF files of T5: the whole model generates, the encoder alone makes vectors, as transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dovetail import LLM, SamplingParams
from dovetail.interfaces.data.pooling_params import PoolingParams
from dovetail_testing.tiny.models import randomize
from support.gguf_encoders import VOCAB_SIZE, add_setting, add_tensor, add_word_pieces

gguf = pytest.importorskip("gguf")

LENGTHS = (1, 5, 40, 23)
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "d_model": 64,
    "d_kv": 32,
    "d_ff": 96,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 128,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "decoder_start_token_id": 2,
}
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
WHOLE = {
    "t5": ("T5ForConditionalGeneration", "t5", {}),
    "t5-1.1": ("T5ForConditionalGeneration", "t5", GATED),
    "umt5": ("UMT5ForConditionalGeneration", "umt5", GATED),
}
ENCODERS = {
    "t5": ("T5EncoderModel", "t5", {}),
    "t5-1.1": ("T5EncoderModel", "t5", GATED),
    "umt5": ("UMT5EncoderModel", "umt5", GATED),
}
Case = tuple[str, str, dict[str, Any]]
FLOAT = {"plugin_options": {"quantization": {"activations": "float"}}}


def written(case: Case, file: Path, type_name: str = "F32", **more: Any) -> Any:
    """Write a random model's file as llama.cpp's converter does; return transformers' model."""
    import transformers

    name, model_type, fields = case
    config = transformers.AutoConfig.for_model(model_type, **{**SIZES, **fields, **more})
    torch.manual_seed(3)
    model = getattr(transformers, name)(config).eval()
    randomize(model, seed=3)
    architecture = "t5encoder" if name.endswith("EncoderModel") else "t5"
    writer = gguf.GGUFWriter(file, architecture)
    settings = {
        "context_length": 512,
        "embedding_length": config.d_model,
        "feed_forward_length": config.d_ff,
        "block_count": config.num_layers,
        "decoder_block_count": config.num_decoder_layers,
        "attention.head_count": config.num_heads,
        "attention.key_length": config.d_kv,
        "attention.value_length": config.d_kv,
        "attention.layer_norm_epsilon": config.layer_norm_epsilon,
        "attention.layer_norm_rms_epsilon": config.layer_norm_epsilon,
        "attention.relative_buckets_count": config.relative_attention_num_buckets,
        "decoder_start_token_id": config.decoder_start_token_id,
    }
    for key, value in settings.items():
        add_setting(writer, f"{architecture}.{key}", value)
    add_word_pieces(writer)
    kind = next(k for k, n in gguf.MODEL_ARCH_NAMES.items() if n == architecture)
    names = gguf.get_tensor_name_map(kind, max(config.num_layers, config.num_decoder_layers))
    meant = {}
    for theirs, values in model.state_dict().items():
        is_copy = "embed_tokens" in theirs or (theirs == "lm_head.weight" and not fields)
        if not is_copy:
            ours = names.get_name(theirs, try_suffixes=(".weight",))
            assert ours is not None, theirs
            stored = "F32" if "rel_b" in ours else type_name
            meant[theirs] = torch.from_numpy(add_tensor(writer, ours, values.numpy(), stored))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model.load_state_dict(meant, strict=False)
    return model


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(6, VOCAB_SIZE, (n,), generator=generator).tolist() for n in LENGTHS]


def logprobs(completion: Any, count: int) -> torch.Tensor:
    """Return the logprobs of all tokens at every drawn position."""
    rows = []
    for one in completion.logprobs:
        row = torch.empty(count)
        row[list(one.top_ids)] = torch.tensor(one.top_logprobs)
        rows.append(row)
    return torch.stack(rows)


@pytest.mark.parametrize("type_name", ["F32", "Q8_0"])
@pytest.mark.parametrize("name", WHOLE)
def test_it_generates_as_transformers(name: str, type_name: str, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    model = written(WHOLE[name], file, type_name)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=-1)
    flags: dict[str, Any] = {"dtype": "float32", "max_logprobs": -1, "max_model_len": 100}
    flags |= {"kv_cache_memory_bytes": 1 << 22, **(FLOAT if type_name != "F32" else {})}
    with LLM(str(file), **flags) as llm:
        results = llm.generate(prompts(), params, use_tqdm=False)
    for prompt, result in zip(prompts(), results, strict=True):
        (completion,) = result.outputs
        started = torch.tensor([[2, *completion.token_ids[:-1]]])
        with torch.inference_mode():
            logits = model(torch.tensor([prompt]), decoder_input_ids=started).logits[0]
        wanted = logits.log_softmax(-1)
        scale = max(1.0, float(logits.abs().max()) / 4)
        assert (logprobs(completion, VOCAB_SIZE) - wanted).abs().max() / scale < 1e-3


@pytest.mark.parametrize("type_name", ["F32", "Q8_0"])
@pytest.mark.parametrize("name", ENCODERS)
def test_the_encoder_makes_vectors(name: str, type_name: str, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    model = written(ENCODERS[name], file, type_name)
    params = PoolingParams(is_normalized=False)
    flags = FLOAT if type_name != "F32" else {}
    with LLM(str(file), dtype="float32", runner="pooling", **flags) as llm:
        found = llm.encode(prompts(), params, use_tqdm=False)
    for prompt, one in zip(prompts(), found, strict=True):
        with torch.inference_mode():
            wanted = model(torch.tensor([prompt])).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(one.data, wanted.numpy(), rtol=0, atol=1e-3)
