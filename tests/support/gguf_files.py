"""GGUF files of tiny checkpoints, made with the gguf package as llama.cpp's converters do it.

Shares nothing with the reader: names, settings, block layouts and dequantized weights are the
package's. Needs gguf, safetensors and numpy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from support import (
    gguf_early,
    gguf_families,
    gguf_gpt_oss,
    gguf_recent,
    gguf_settings,
)
from support import gguf_recent_changes as changes

Array = np.ndarray[Any, Any]
TypeOf = Callable[[str], str]
"""GGUF's name of a matrix -> the type to store it in."""

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "MixtralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2MoeForCausalLM": "qwen2moe",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "Qwen2VLForConditionalGeneration": "qwen2vl",
    "Qwen3VLForConditionalGeneration": "qwen3vl",
    "Qwen3VLMoeForConditionalGeneration": "qwen3vlmoe",
    "PaddleOCRVLForConditionalGeneration": "paddleocr",
    "Phi3ForCausalLM": "phi3",
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3nForCausalLM": "gemma3n",
    "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo2",
    "Cohere2ForCausalLM": "cohere2",
    "Glm4ForCausalLM": "glm4",
    "Glm4MoeForCausalLM": "glm4moe",
    "GptOssForCausalLM": "gpt-oss",
    "GPT2LMHeadModel": "gpt2",
    "DeepseekV2ForCausalLM": "deepseek2",
    "DeepseekV3ForCausalLM": "deepseek2",
    "MambaForCausalLM": "mamba",
    "FalconMambaForCausalLM": "mamba",
    "Mamba2ForCausalLM": "mamba2",
    "FalconH1ForCausalLM": "falcon-h1",
    "Lfm2ForCausalLM": "lfm2",
    "GraniteMoeHybridForCausalLM": "granitehybrid",
    "JambaForCausalLM": "jamba",
    "Llama4ForCausalLM": "llama4",
    "Qwen3NextForCausalLM": "qwen3next",
    "NemotronHForCausalLM": "nemotron_h",
    "GPTBigCodeForCausalLM": "starcoder",
    "Starcoder2ForCausalLM": "starcoder2",
    "FalconForCausalLM": "falcon",
    "BloomForCausalLM": "bloom",
    "MptForCausalLM": "mpt",
    "GPTNeoXForCausalLM": "gptneox",
    "PhiForCausalLM": "phi2",
    "StableLmForCausalLM": "stablelm",
    "NemotronForCausalLM": "nemotron",
    "GraniteForCausalLM": "granite",
    "GraniteMoeForCausalLM": "granitemoe",
    "GraniteMoeSharedForCausalLM": "granitemoe",
    "OlmoForCausalLM": "olmo",
    "OlmoeForCausalLM": "olmoe",
    "Exaone4ForCausalLM": "exaone4",
    "SmolLM3ForCausalLM": "smollm3",
    "ArceeForCausalLM": "arcee",
    "HunYuanDenseV1ForCausalLM": "hunyuan-dense",
    "HunYuanMoEV1ForCausalLM": "hunyuan-moe",
    "Ernie4_5ForCausalLM": "ernie4_5",
    "Ernie4_5_MoeForCausalLM": "ernie4_5-moe",
    "SeedOssForCausalLM": "seed_oss",
    "Dots1ForCausalLM": "dots1",
    "CohereForCausalLM": "command-r",
    "PhimoeForCausalLM": "phimoe",
    "GPTJForCausalLM": "gptj",
    "MiniCPM3ForCausalLM": "minicpm3",
    "BitNetForCausalLM": "bitnet",
    "GlmForCausalLM": "chatglm",
    "Jais2ForCausalLM": "jais2",
    "DbrxForCausalLM": "dbrx",
    "DeepseekForCausalLM": "deepseek",
    "DeciLMForCausalLM": "deci",
    **gguf_recent.ARCHITECTURES,
}
WHOLE = ("inp.", "inp_", "position", "conv", "ssm_a", "ssm_d", "ssm_x")
"""Parts of names of tensors that are not quantized."""
STEPS: dict[str, tuple[int, ...]] = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ1_S": (0,),
    "IQ2_XXS": (0,),
    "IQ2_XS": (0,),
    "IQ2_S": (0,),
    "IQ3_XXS": (0,),
    "IQ3_S": (0,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "IQ1_M": (),
    "NVFP4": (),
}
"""Types that the package cannot write: where a block's float16 steps lie."""


def write_gguf(
    source: Path,
    target: Path,
    type_of: TypeOf = lambda name: "F32",
    *,
    settings: Mapping[str, Any] | None = None,
    extra: Mapping[str, Array] | None = None,
    num_blocks: int = 0,
    architecture: str | None = None,
    adders: Mapping[str, Any] | None = None,
    pre: str | None = "gpt-2",
) -> dict[str, Array]:
    """Write a Hugging Face checkpoint as one GGUF file; return the weights it then means, under the
    checkpoint's own names.

    `settings` are further settings, `extra` further tensors, `num_blocks` the blocks with these.
    `architecture`: GGUF's name, if it is not that of the checkpoint's class. `adders`: names of the
    package's `add_` methods -> values that differ from the usual ones; None: none. `pre`: what cuts
    text, None: the file does not say.
    """
    import gguf

    config = json.loads((source / "config.json").read_text())
    architecture = architecture or ARCHITECTURES[config["architectures"][0]]
    config["gguf"] = architecture
    writer = gguf.GGUFWriter(target, architecture)
    _add_settings(writer, config, adders or {})
    _add_vocabulary(writer, source, pre)
    if num_blocks:
        writer.add_block_count(num_blocks)
    for key, value in (settings or {}).items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    weights = _weights(source)
    as_settings = changes.as_settings(weights)
    for key, numbers in changes.lists_of(as_settings).items():
        writer.add_array(key, numbers)
    own = {name: one for name, one in weights.items() if name not in as_settings}
    joined = changes.with_joined(config, own)
    meant = as_settings | _add_tensors(writer, architecture, config, joined, type_of)
    for name, values in (changes.extra_of(config) | dict(extra or {})).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return changes.without_joined(config, meant, weights)


def quantized(values: Array, type_name: str) -> tuple[Array, Array]:
    """Return the rows of a matrix in a type, and the floats they mean.

    Of types that the package cannot write these are random blocks of about the same size.
    """
    import gguf

    kind = gguf.GGMLQuantizationType[type_name]
    if type_name not in STEPS:
        packed = gguf.quants.quantize(values, kind)
    else:
        packed = _random_rows(values, type_name)
    return packed, gguf.quants.dequantize(packed, kind).astype(np.float32)


def _random_rows(values: Array, type_name: str) -> Array:
    """Return random blocks whose floats vary as much as the values do."""
    import gguf

    kind = gguf.GGMLQuantizationType[type_name]
    size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(values.size)
    count = values.size // size
    blocks = random.integers(0, 256, (count, block_bytes), dtype=np.uint8)

    def with_step(step: float) -> Array:
        steps = (random.uniform(0.5, 1.5, (count, 1)) * step).astype(np.float16).view(np.uint8)
        for place in STEPS[type_name]:
            blocks[:, place : place + 2] = steps
        if type_name == "NVFP4":  # four steps of eight bits: exponents of 1 to 8
            blocks[:, :4] = 8 + blocks[:, :4] % 64
        if type_name == "IQ1_M":  # a nibble of the step in each of four words
            blocks[:, 49::2] &= 15
            nibbles = [steps[:, 0] & 15, steps[:, 0] >> 4, steps[:, 1] & 15, steps[:, 1] >> 4]
            blocks[:, 49::2] |= np.stack(nibbles, axis=1) << 4
        return blocks.reshape(*values.shape[:-1], -1)

    spread = gguf.quants.dequantize(with_step(1.0), kind).std()
    return with_step(float(values.std() / spread))


def _weights(source: Path) -> dict[str, Array]:
    from safetensors.torch import load_file

    files = source.glob("*.safetensors")
    return {n: v.float().numpy() for file in files for n, v in load_file(file).items()}


def _add_settings(writer: Any, config: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
    """Add what a model's shape is."""
    import gguf

    def of(*names: str) -> Any:
        return next((config[name] for name in names if config.get(name) is not None), None)

    heads = of("num_attention_heads", "n_head", "n_heads")
    hidden = of("hidden_size", "n_embd", "d_model")
    inner = of("n_inner", "intermediate_size", "ffn_hidden_size") or 4 * hidden
    rope = config.get("rope_parameters") or {}
    if isinstance(rope.get("full_attention"), dict):
        rope = rope["full_attention"]
    adders: dict[str, Any] = {
        "block_count": _num_layers(config),
        "context_length": of("max_position_embeddings", "n_positions", "max_seq_len") or hidden,
        "embedding_length": hidden,
        "feed_forward_length": inner,
        "head_count": heads,
        "head_count_kv": of("num_key_value_heads"),
        "key_length": of("head_dim"),
        "value_length": of("head_dim"),
        "layer_norm_rms_eps": of("rms_norm_eps"),
        "layer_norm_eps": of("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps"),
        "logit_scale": of("logit_scale"),
        "expert_shared_count": of("n_shared_experts"),
        "leading_dense_block_count": of("first_k_dense_replace"),
        "expert_weights_scale": of("routed_scaling_factor"),
        "rope_freq_base": rope.get("rope_theta"),
        "expert_count": of("num_experts", "num_local_experts", "n_routed_experts"),
        "expert_used_count": of("num_experts_per_tok"),
        "expert_feed_forward_length": inner
        if config["model_type"] == "gpt_oss"
        else of("moe_intermediate_size"),
        "expert_shared_feed_forward_length": of("shared_expert_intermediate_size"),
        "sliding_window": of("sliding_window"),
        "attn_logit_softcapping": of("attn_logit_softcapping"),
        "final_logit_softcapping": of("final_logit_softcapping"),
        "vocab_size": config["vocab_size"],
    }
    adders |= gguf_settings.settings_of(config) | dict(changed)
    for name, value in adders.items():
        if value is not None:
            getattr(writer, f"add_{name}")(value)
    if rope.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope.get("partial_rotary_factor"):
        size = of("head_dim") or hidden // heads
        writer.add_rope_dimension_count(int(size * rope["partial_rotary_factor"]))
    if config["model_type"] == "gemma3n_text":
        _add_gemma3n(writer, config)
    if config["model_type"] == "olmo3":
        slides = [kind == "sliding_attention" for kind in config["layer_types"]]
        writer.add_sliding_window_pattern(slides)


def _add_gemma3n(writer: Any, config: Mapping[str, Any]) -> None:
    """Add what Gemma 3n has beside others. Shares of gates are standard deviations of them."""
    normal = NormalDist()
    scales = [normal.inv_cdf(s) if s else -math.inf for s in config["activation_sparsity_pattern"]]
    writer.add_altup_active_idx(config["altup_active_idx"])
    writer.add_altup_num_inputs(config["altup_num_inputs"])
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_shared_kv_layers(config["num_kv_shared_layers"])
    writer.add_activation_sparsity_scale(scales)
    kinds = config["layer_types"]
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in kinds])


def _add_vocabulary(writer: Any, source: Path, pre: str | None) -> None:
    """Add a byte-level tokenizer.json."""
    from tokenizers import Tokenizer

    content = json.loads((source / "tokenizer.json").read_text())
    named = json.loads((source / "tokenizer_config.json").read_text())
    backend = Tokenizer.from_str(json.dumps(content))
    size = backend.get_vocab_size(with_added_tokens=True)
    tokens = [backend.id_to_token(i) for i in range(size)]
    special = {token["content"] for token in content["added_tokens"] if token["special"]}
    merges = content["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_bos_token_id(tokens.index(named["bos_token"]))
    writer.add_eos_token_id(tokens.index(named["eos_token"]))
    writer.add_add_bos_token(False)
    if named.get("chat_template"):
        writer.add_chat_template(named["chat_template"])


def _add_tensors(
    writer: Any,
    architecture: str,
    config: Mapping[str, Any],
    weights: dict[str, Array],
    type_of: TypeOf,
) -> dict[str, Array]:
    """Add all tensors; return what they mean under the names that the weights had."""
    import gguf

    kind = next(k for k, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    counts = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
    layers = _num_layers(config) + sum(config.get(name) or 0 for name in counts)
    names = gguf.get_tensor_name_map(kind, layers)
    meant: dict[str, Array] = {}
    is_oss = architecture == "gpt-oss"
    arranged = gguf_gpt_oss.apart(weights) if is_oss else gguf_families.apart(config, weights)
    arranged = gguf_early.fused(architecture, arranged)
    for name, own in _stacked(arranged).items():
        theirs = name.replace("_correction_bias", "_correction.bias")
        theirs += ".weight" if name.endswith("correct_output_scale") else ""
        theirs = theirs.replace("feed_forward.experts.", "mlp.experts.").replace(".norms.", ".")
        known = (
            theirs,
            theirs.removeprefix("transformer."),
            *changes.other_names(config, name),
        )
        known = (*changes.with_tail(name), *known)
        found = (names.get_name(one, try_suffixes=(".weight", ".bias")) for one in known)
        ours = name if name.startswith("blk.") else next((one for one in found if one), None)
        ours = ours or changes.drafting_name(config, name)
        assert ours is not None, name
        values, undo = _changed(architecture, config, name, next(iter(own.values()))
                                if len(own) == 1 else np.stack(list(own.values())))  # fmt: skip
        type_name = type_of(ours) if values.ndim > 1 and "norm" not in ours else "F32"
        type_name = _fitting(ours, type_name, values.shape[-1] if values.ndim else 0)
        if type_name == "F32":
            stored = values = np.ascontiguousarray(values, dtype=np.float32)
            writer.add_tensor(ours, stored)
        else:
            stored, values = quantized(np.ascontiguousarray(values), type_name)
            writer.add_tensor(ours, stored, raw_dtype=gguf.GGMLQuantizationType[type_name])
        whole = undo(values)
        meant |= dict(zip(own, whole if len(own) > 1 else [whole], strict=True))
    meant = gguf_early.split(architecture, meant, weights)
    if is_oss:
        return gguf_gpt_oss.together(meant)
    return gguf_families.together(config, meant, weights)


def _num_layers(config: Mapping[str, Any]) -> int:
    keys = ("num_hidden_layers", "n_layer", "n_layers")
    count = next((config[key] for key in keys if config.get(key)), 0)
    return int(count or len(config["layers_block_type"]))


def _fitting(name: str, type_name: str, inputs: int) -> str:
    """Return the type that a tensor may have: some stay whole, and rows are whole blocks."""
    import gguf

    if any(part in name for part in WHOLE) or type_name == "F32":
        return "F32"
    block, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name]]
    if inputs % block == 0:
        return type_name
    return "F32" if type_name == "Q8_0" else _fitting(name, "Q8_0", inputs)


def _stacked(weights: Mapping[str, Array]) -> dict[str, dict[str, Array]]:
    """Return the weights by name, those of all experts, or of the norms of all heads,
    under one name without their numbers."""
    found: dict[str, dict[str, Array]] = {}
    for name in sorted(
        weights, key=lambda n: [int(w) if w.isdecimal() else 0 for w in n.split(".")]
    ):
        words = name.split(".")
        for holder in ("experts", "norms"):
            if holder in words and words[words.index(holder) + 1].isdecimal():
                del words[words.index(holder) + 1]
        if words[1].startswith("altup_"):  # model.altup_projections.0.weight
            del words[2]
        found.setdefault(".".join(words), {})[name] = weights[name]
    return found


def _changed(
    architecture: str, config: Mapping[str, Any], name: str, values: Array
) -> tuple[Array, Callable[[Array], Array]]:
    """Return a tensor as GGUF has it, and how to turn such a one back."""
    if architecture in gguf_families.TURNED and (".q_proj." in name or ".k_proj." in name):
        size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        heads, rest = len(values) // size, values.shape[1:]
        turned = values.reshape(heads, 2, -1, *rest).swapaxes(1, 2).reshape(values.shape)
        return turned, lambda x: x.reshape(heads, -1, 2, *rest).swapaxes(1, 2).reshape(x.shape)
    if architecture in ("gemma", "gemma2", "gemma3") and name.endswith("norm.weight"):
        return values + 1, lambda x: x - 1
    if architecture == "gpt2" and name.endswith(
        (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")
    ):
        return values.T, lambda x: x.T
    if name.endswith("shared_expert_gate.weight"):
        return values[0], lambda x: x[None]
    return values, lambda x: x


def divide(source: Path, folder: Path, count: int) -> list[Path]:
    """Divide a file as gguf-split does: all settings in the first part, numbers in each. Return the
    parts."""
    import gguf

    folder.mkdir()
    reader = gguf.GGUFReader(source)
    tensors, paths = reader.tensors, []
    for number in range(count):
        paths.append(folder / f"{source.stem}-{number + 1:05}-of-{count:05}.gguf")
        writer = gguf.GGUFWriter(paths[-1], reader.fields["general.architecture"].contents())
        for name, field in reader.fields.items() if number == 0 else ():
            if not name.startswith("GGUF.") and name != "general.architecture":
                own = field.types[1] if len(field.types) > 1 else None
                writer.add_key_value(name, field.contents(), field.types[0], sub_type=own)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", len(tensors))
        for tensor in tensors[
            len(tensors) * number // count : len(tensors) * (number + 1) // count
        ]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths
