"""Tiny checkpoints of models with layers for further tokens, under the names that their families
publish, and what the layers guess.

The reference is transformers' decoder layer of the family, joined to the model by the published
formula: concat of two norms, a projection, the layer, a norm and the model's head.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from dovetail_testing.tiny.models import randomize, write_tiny_checkpoint
from support.draft_heads import SIZE, Head, Target, Weights, continued, drawn, write
from support.tiny_media import write_media_checkpoint

Layer = Callable[[Any, torch.Tensor, dict[str, Any]], torch.Tensor]


def whole_layer(model: Any, x: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
    """Run the third layer of a model of three. Shapes: x [1, T, E] -> [1, T, E]"""
    out = model.model.layers[2](x, **given)
    made: torch.Tensor = out[0] if isinstance(out, tuple) else out
    return made


def first_half(model: Any, x: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
    """Run the first attention and the first MLP of LongCat's third layer."""
    layer = model.model.layers[2]
    x = x + layer.self_attn[0](layer.input_layernorm[0](x), **given)[0]
    made: torch.Tensor = x + layer.mlps[0](layer.post_attention_layernorm[0](x))
    return made


def two_blocks(model: Any, x: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
    """Run the last two blocks of Nemotron-H, of one part each."""
    for layer in model.model.layers[-2:]:
        x = layer(x, attention_mask=given["attention_mask"])
    return x


@dataclass(frozen=True, kw_only=True)
class OwnLayer:
    """How a family's checkpoint names its layer for further tokens: `block` the decoder layer,
    `norms` those of vector, state and result, `joined` the projection.

    `sizes` are fields of a model with one layer more; `count` what config.json has with that layer.
    `moved`: parts of names in the last layer -> the published ones, `absent`: how names begin that
    it lacks. `centre` is added to a norm's
    weight, `goes_on_normed`: the next token continues the normed state.
    """

    block: str = "model.layers.2."
    norms: tuple[str, ...] = tuple(
        f"model.layers.2.{name}" for name in ("enorm", "hnorm", "shared_head.norm")
    )
    joined: str = "model.layers.2.eh_proj"
    sizes: dict[str, Any] = field(default_factory=lambda: {"num_hidden_layers": 3})
    count: dict[str, Any] = field(default_factory=lambda: {"num_nextn_predict_layers": 1})
    moved: tuple[tuple[str, str], ...] = ()
    absent: tuple[str, ...] = ()
    centre: int = 0
    goes_on_normed: bool = False
    run: Layer = whole_layer


KINDS = ["linear_attention", "full_attention", "full_attention"]
QWEN = OwnLayer(
    block="mtp.layers.0.",
    norms=("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm"),
    joined="mtp.fc",
    sizes={"num_hidden_layers": 3, "layer_types": KINDS},
    centre=1,
    goes_on_normed=True,
)
QWEN_3_5 = replace(QWEN, count={"mtp_num_hidden_layers": 1})
HALF_NORMS = ("input", "post_attention")
NEMOTRON_KINDS = ["linear_attention", "full_attention", "mlp"]
OWN_LAYERS = {
    "Glm4MoeForCausalLM": OwnLayer(),
    "DeepseekV3ForCausalLM": OwnLayer(),
    "Glm4MoeLiteForCausalLM": OwnLayer(),
    "HYV3ForCausalLM": OwnLayer(
        norms=tuple(f"model.layers.2.{name}" for name in ("enorm", "hnorm", "final_layernorm")),
    ),
    "DeepseekV32ForCausalLM": OwnLayer(),
    "GlmMoeDsaForCausalLM": OwnLayer(
        sizes={"num_hidden_layers": 3, "indexer_types": ["full", "shared", "full"]}
    ),
    "Qwen3NextForCausalLM": QWEN,
    "Qwen3_5ForCausalLM": QWEN_3_5,
    "Qwen3_5MoeForCausalLM": QWEN_3_5,
    "Ernie4_5_MoeForCausalLM": OwnLayer(
        block="model.mtp_block.0.",
        norms=("model.mtp_emb_norm.0", "model.mtp_hidden_norm.0", "model.norm"),
        joined="model.mtp_linear_proj.0",
        sizes={"num_hidden_layers": 3, "moe_layer_start_index": 1, "moe_layer_end_index": 1},
        goes_on_normed=True,
    ),
    "LongcatFlashForCausalLM": OwnLayer(
        block="model.mtp.layers.0.",
        norms=("model.mtp.layers.0.enorm.m", "model.mtp.layers.0.hnorm.m", "model.mtp.norm"),
        joined="model.mtp.layers.0.eh_proj",
        sizes={"num_layers": 3, "num_hidden_layers": 6},
        count={"num_layers": 2, "num_hidden_layers": 4},
        moved=((".0.", "."), ("mlps.", "transformer_layer.mlp.")),
        absent=("self_attn.1.", "mlps.1.", "mlp.", *(f"{n}_layernorm.1." for n in HALF_NORMS)),
        run=first_half,
    ),
    "BailingHybridForCausalLM": OwnLayer(
        norms=tuple(f"model.layers.2.{name}" for name in ("enorm", "hnorm", "final_layernorm")),
        sizes={"num_hidden_layers": 3, "layer_types": KINDS},
        goes_on_normed=True,
    ),
    "NemotronHForCausalLM": OwnLayer(
        block="mtp.layers.",
        norms=("mtp.layers.0.enorm", "mtp.layers.0.hnorm", "mtp.layers.1.final_layernorm"),
        joined="mtp.layers.0.eh_proj",
        sizes={"layers_block_type": [*NEMOTRON_KINDS, "full_attention", "moe"]},
        count={
            "num_nextn_predict_layers": 1,
            "num_hidden_layers": 3,
            "layers_block_type": NEMOTRON_KINDS,
            "mtp_layers_block_type": ["attention", "moe"],
        },
        goes_on_normed=True,
        run=two_blocks,
    ),
}


def own_weights(family: str, whole: Weights, size: int) -> Weights:
    """Return the weights of a model of one layer more with the last one under its published names,
    and with what joins it to the model."""
    own, g, made = OWN_LAYERS[family], torch.Generator().manual_seed(6), {}
    for name, tensor in whole.items():
        found = re.match(r"(?:.*?layers\.)?(\d+)?(.*)", name, re.S)
        assert found is not None, name
        number, rest = found.groups()
        last = len(own.sizes.get("layers_block_type", ())) - 2
        if family == "NemotronHForCausalLM" and number and int(number) >= last:
            name = f"{own.block}{int(number) - last}{rest}"
        elif number == "2" and family != "NemotronHForCausalLM":
            rest = rest.removeprefix(".")
            if rest.startswith(own.absent):
                continue
            for theirs, ours in own.moved:
                rest = rest.replace(theirs, ours)
            name = f"{own.block}{rest}"
        made[name] = tensor
    for name in own.norms:
        made.setdefault(f"{name}.weight", 1 - own.centre + drawn(g, size))
    return made | {f"{own.joined}.weight": drawn(g, size, 2 * size)}


def own_layer(folder: Path, family: str, **sizes: Any) -> Head:
    """Return a model whose checkpoint has the family's layer for further tokens: the last layer of
    a model of one layer more, and what joins it."""
    import transformers

    own = OWN_LAYERS[family]
    whole = write_tiny_checkpoint(folder / "whole", family, **own.sizes, **sizes)
    w = own_weights(family, load_file(whole / "model.safetensors"), SIZE)
    config = json.loads((whole / "config.json").read_text())
    listed = [key for key in config if key.endswith("_types") and len(config[key]) == 3]
    config |= {key: config[key][:2] for key in listed}
    config |= {"num_hidden_layers": 2, **own.count}
    path = write(folder / "model", config, w)
    for file in whole.glob("tokenizer*"):
        (path / file.name).write_bytes(file.read_bytes())
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        whole, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    eps = float(config.get("rms_norm_eps") or config.get("layer_norm_epsilon") or 1e-6)

    def normed(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.rms_norm(x, (SIZE,), w[f"{name}.weight"] + own.centre, eps)

    @torch.inference_mode()
    def run(vectors: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        both = [normed(vectors, own.norms[0]), normed(states, own.norms[1])]
        x = (torch.cat(both, -1) @ w[f"{own.joined}.weight"].T)[None]
        places = torch.arange(x.shape[1])[None]
        given: dict[str, Any] = {"position_ids": places}
        if "rotary_emb" in model.model._modules:
            given["position_embeddings"] = model.model.rotary_emb(x, places)
        later = torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1)
        given["attention_mask"] = later[None, None]
        made = own.run(model, x, given)[0]
        return normed(made, own.norms[2]) if own.goes_on_normed else made

    def guess(target: Target, token_ids: list[int], wanted: int) -> list[int]:
        def logits(states: torch.Tensor) -> torch.Tensor:
            return target.logits(states if own.goes_on_normed else normed(states, own.norms[2]))

        states = target.states(token_ids)[-1][:-1]
        return continued(target, token_ids, wanted, states, run, logits)

    return Head(method="mtp:Mtp", folder=path, guess=guess)


def with_pictures(folder: Path, head: Head) -> Head:
    """Return the same head in a model that also takes pictures, as Qwen3.5 is published."""
    family = "Qwen3_5ForConditionalGeneration"
    media = write_media_checkpoint(folder / "media", family)
    config = json.loads((media / "config.json").read_text())
    text = json.loads((head.folder / "config.json").read_text())
    config["text_config"] = {**config["text_config"], **text}
    w = {k: v for k, v in load_file(media / "model.safetensors").items() if ".visual." in k}
    for name, tensor in load_file(head.folder / "model.safetensors").items():
        w[re.sub(r"^model\.", "model.language_model.", name)] = tensor
    path = write(folder / "pictures", config, w)
    for file in (*media.glob("*process*"), *head.folder.glob("tokenizer*")):
        (path / file.name).write_bytes(file.read_bytes())
    return replace(head, folder=path)


def assistant(folder: Path, *, ordered: bool = False) -> tuple[Path, Head]:
    """Return a Gemma 4 model, and the assistant that attends to its keys and values; `ordered`: it
    guesses among the tokens of the likeliest groups alone."""
    import transformers

    family = "Gemma4ForCausalLM"
    model = write_tiny_checkpoint(folder / "model", family, num_hidden_layers=4)
    text = json.loads((model / "config.json").read_text())
    text.pop("per_layer_config", None)
    small = {
        **text,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "global_head_dim": 32,
        "num_kv_shared_layers": 2,
        **dict.fromkeys(("hidden_size_per_layer_input", "vocab_size_per_layer_input"), 0),
        "use_double_wide_mlp": False,
        "final_logit_softcapping": None,
    }
    config = transformers.Gemma4AssistantConfig(
        text_config=small,
        backbone_hidden_size=text["hidden_size"],
        use_ordered_embeddings=ordered,
        num_centroids=16,
        centroid_intermediate_top_k=3,
    )
    torch.manual_seed(5)
    made: Any = transformers.Gemma4AssistantForCausalLM(config)
    randomize(made, seed=5)
    if ordered:
        made.masked_embedding.token_ordering.copy_(torch.randperm(text["vocab_size"]))
    made.save_pretrained(folder / "assistant")
    made = made.eval()
    # transformers lets it see one key more than the model's own layers with a window do.
    made.config.get_text_config().sliding_window -= 1

    @torch.inference_mode()
    def guess(target: Target, token_ids: list[int], wanted: int) -> list[int]:
        known = torch.tensor([token_ids[:-1]])
        out = target.model.model(
            known, output_hidden_states=True, return_shared_kv_states=True, use_cache=False
        )
        state, token, drafts = out.last_hidden_state[:, -1:], token_ids[-1], []
        for _ in range(wanted):
            vector = target.embed([token])[None]
            found = made(
                inputs_embeds=torch.cat([vector, state], -1),
                position_ids=torch.tensor([[len(token_ids) - 1]]),
                shared_kv_states=out.shared_kv_states,
            )
            state, token = found.last_hidden_state, int(found.logits.argmax())
            drafts.append(token)
        return drafts

    return model, Head(method="assistant:Assistant", folder=folder / "assistant", guess=guess)


IN_FLOAT8 = tuple(f"{name}.weight" for name in ("_proj", "in_proj_qkv", "in_proj_z"))


def in_float8(folder: Path, head: Head) -> tuple[Path, Path]:
    """Return two copies of a model, of the same numbers: with the layers' matrices in float8, but
    for small ones and the projection that joins, as they are published, and in full precision."""
    config = json.loads((head.folder / "config.json").read_text())
    stored: Weights = {}
    plain: Weights = {}
    for name, tensor in load_file(head.folder / "model.safetensors").items():
        stored[name] = plain[name] = tensor
        if not name.endswith(IN_FLOAT8) or "eh_proj" in name:
            continue
        scale = tensor.abs().max() / 448
        stored[name] = (tensor / scale).to(torch.float8_e4m3fn)
        stored[f"{name}_scale"] = scale
        plain[name] = stored[name].float() * scale
    quantized = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    paths = (
        write(folder / "float8", config | {"quantization_config": quantized}, stored),
        write(folder / "plain", config, plain),
    )
    for path in paths:
        for file in head.folder.glob("tokenizer*"):
            (path / file.name).write_bytes(file.read_bytes())
    return paths
