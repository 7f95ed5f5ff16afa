"""Tiny checkpoints of draft heads in their published layouts, and what the heads guess, by torch.

Each reference follows the published formulas, over all tokens from the start each time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

Weights = dict[str, torch.Tensor]
Guess = Callable[["Target", list[int], int], list[int]]
SIZE, INNER, HEADS, KV_HEADS, HEAD_SIZE, VOCAB = 32, 48, 4, 2, 8, 320
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": SIZE,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCAB,
}


@dataclass(frozen=True, kw_only=True)
class Head:
    """A checkpoint of a method, and what it is to guess."""

    method: str
    folder: Path
    guess: Guess


class Target:
    """The model beside the heads, by transformers."""

    def __init__(self, folder: Path) -> None:
        import transformers

        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32
        ).eval()

    @torch.inference_mode()
    def states(self, token_ids: list[int]) -> list[torch.Tensor]:
        """Return the inputs of every layer and, last, the final states. Shapes: [T, E] each"""
        out = self.model.model(torch.tensor([token_ids]), output_hidden_states=True)
        return [state[0] for state in (*out.hidden_states[:-1], out.last_hidden_state)]

    @torch.inference_mode()
    def embed(self, token_ids: list[int]) -> torch.Tensor:
        vectors: torch.Tensor = self.model.get_input_embeddings()(torch.tensor(token_ids))
        return vectors

    @torch.inference_mode()
    def logits(self, states: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.model.lm_head(states)
        return found


def drawn(generator: torch.Generator, *shape: int) -> torch.Tensor:
    width = 0.1 if len(shape) == 1 else 0.3
    return torch.randn(*shape, generator=generator) * width


def layer_weights(g: torch.Generator, name: str, in_size: int = SIZE) -> Weights:
    """Return the weights of a Llama layer that reads `in_size` numbers."""
    kv = KV_HEADS * HEAD_SIZE
    return {
        f"{name}.self_attn.q_proj.weight": drawn(g, SIZE, in_size),
        f"{name}.self_attn.k_proj.weight": drawn(g, kv, in_size),
        f"{name}.self_attn.v_proj.weight": drawn(g, kv, in_size),
        f"{name}.self_attn.o_proj.weight": drawn(g, SIZE, SIZE),
        f"{name}.mlp.gate_proj.weight": drawn(g, INNER, SIZE),
        f"{name}.mlp.up_proj.weight": drawn(g, INNER, SIZE),
        f"{name}.mlp.down_proj.weight": drawn(g, SIZE, INNER),
        f"{name}.post_attention_layernorm.weight": 1 + drawn(g, SIZE),
    }


def write(folder: Path, config: dict[str, Any], weights: Weights) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({k: v.contiguous() for k, v in weights.items()}, folder / "model.safetensors")
    return folder


def rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight, 1e-6)


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Return heads rotated by their positions 0, 1, ... Shapes: x [T, H, D]"""
    half = x.shape[-1] // 2
    speeds = 10000.0 ** (-torch.arange(half) / half)
    angles = torch.arange(len(x))[:, None, None] * speeds
    first, second = x[..., :half], x[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def attend(w: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
    """Return causal attention. Shapes: x [T, I] -> [T, E]"""
    q, k, v = (
        x @ w[f"{name}.self_attn.{leaf}_proj.weight"].T
        + w.get(f"{name}.self_attn.{leaf}_proj.bias", torch.zeros(1))
        for leaf in "qkv"
    )
    q = rotated(q.unflatten(-1, (HEADS, HEAD_SIZE)))
    k = rotated(k.unflatten(-1, (KV_HEADS, HEAD_SIZE)))
    v = v.unflatten(-1, (KV_HEADS, HEAD_SIZE))
    k, v = (one.repeat_interleave(HEADS // KV_HEADS, dim=1) for one in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / HEAD_SIZE**0.5
    is_later = torch.ones(len(x), len(x)).triu(1).bool()
    weights = scores.masked_fill(is_later, -torch.inf).softmax(-1)
    out = torch.einsum("hqk,khd->qhd", weights, v).flatten(-2)
    return out @ w[f"{name}.self_attn.o_proj.weight"].T


def feed(w: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
    """Return x with the gated layer behind it. Shapes: x [T, E] -> [T, E]"""
    inner = rms(x, w[f"{name}.post_attention_layernorm.weight"])
    gate = F.silu(inner @ w[f"{name}.mlp.gate_proj.weight"].T)
    return (
        x
        + (gate * (inner @ w[f"{name}.mlp.up_proj.weight"].T)) @ w[f"{name}.mlp.down_proj.weight"].T
    )


def argmax(logits: torch.Tensor) -> int:
    return int(logits.argmax())


def continued(
    target: Target,
    token_ids: list[int],
    count: int,
    states: torch.Tensor,
    run: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    logits: Callable[[torch.Tensor], torch.Tensor],
) -> list[int]:
    """Return the guesses of a head that reads a token's vector and the state before it. `run` makes
    states of all pairs so far."""
    drafts: list[int] = []
    for _ in range(count):
        vectors = target.embed([*token_ids[1:], *drafts])
        made = run(vectors, states)
        drafts.append(argmax(logits(made[-1:])[0]))
        states = torch.cat([states, made[-1:]])
    return drafts


def eagle(folder: Path, *, nested: bool = False, has_own_head: bool = False) -> Head:
    """Return a head of EAGLE 1; `nested`: with the settings that converters write; `has_own_head`:
    what makes logits is its own."""
    g = torch.Generator().manual_seed(1)
    w = {"fc.weight": drawn(g, SIZE, 2 * SIZE), **layer_weights(g, "layers.0")}
    w["embed_tokens.weight"] = torch.zeros(VOCAB, SIZE)
    config: dict[str, Any] = LLAMA
    if nested:
        config = {"architectures": ["EAGLEModel"], "model_type": "eagle", "model": LLAMA}
    if not nested:
        w["fc.bias"] = drawn(g, SIZE)
        config = {**config, "bias": True}
    if has_own_head:
        config = {**config, "has_own_head": True}
        w["lm_head.weight"] = drawn(g, VOCAB, SIZE)

    def run(vectors: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        x = torch.cat([vectors, states], -1) @ w["fc.weight"].T + w.get("fc.bias", torch.zeros(1))
        return feed(w, "layers.0", x + attend(w, "layers.0", x))

    def guess(target: Target, token_ids: list[int], count: int) -> list[int]:
        states = target.states(token_ids)[-1][:-1]
        logits = (lambda x: x @ w["lm_head.weight"].T) if has_own_head else target.logits
        return continued(target, token_ids, count, states, run, logits)

    return Head(method="eagle:Eagle", folder=write(folder, config, w), guess=guess)


def eagle3(folder: Path, *, whole: bool = False) -> Head:
    """Return a head of EAGLE 3, of half the vocabulary; `whole`: of all, and of other layers."""
    g, count = torch.Generator().manual_seed(4), VOCAB if whole else VOCAB // 2
    name = "layers.0" if whole else "midlayer"
    w = {"fc.weight": drawn(g, SIZE, 3 * SIZE), **layer_weights(g, name, 2 * SIZE)}
    for norm in (f"{name}.input_layernorm", f"{name}.hidden_norm", "norm"):
        w[f"{norm}.weight"] = 1 + drawn(g, SIZE)
    w["lm_head.weight"] = drawn(g, count, SIZE)
    tokens = torch.arange(count) if whole else torch.randperm(VOCAB, generator=g)[:count].sort()[0]
    config: dict[str, Any] = {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"]}
    places = [2, 3, 3]
    if whole:
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [1, 2, 4]}
        places = [1, 2, 4]
    else:
        config["draft_vocab_size"] = count
        w["d2t"] = tokens - torch.arange(count)
        w["t2d"] = torch.isin(torch.arange(VOCAB), tokens)

    def run(vectors: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        e = rms(vectors, w[f"{name}.input_layernorm.weight"])
        x = torch.cat([e, rms(states, w[f"{name}.hidden_norm.weight"])], -1)
        return feed(w, name, states + attend(w, name, x))

    def logits(states: torch.Tensor) -> torch.Tensor:
        every = torch.full((len(states), VOCAB), -torch.inf)
        every[:, tokens] = rms(states, w["norm.weight"]) @ w["lm_head.weight"].T
        return every

    def guess(target: Target, token_ids: list[int], wanted: int) -> list[int]:
        inner = target.states(token_ids)
        states = torch.cat([inner[i] for i in places], -1)[:-1] @ w["fc.weight"].T
        return continued(target, token_ids, wanted, states, run, logits)

    return Head(method="eagle3:Eagle3", folder=write(folder, config, w), guess=guess)


LATENTS: dict[str, Any] = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}


def latent_weights(g: torch.Generator, name: str) -> Weights:
    """Return the weights of latent attention over a vector and a state."""
    sizes = {
        "q_a_proj": (24, 2 * SIZE),
        "q_b_proj": (HEADS * 12, 24),
        "kv_a_proj_with_mqa": (16 + 4, 2 * SIZE),
        "kv_b_proj": (HEADS * 16, 16),
        "o_proj": (SIZE, HEADS * 8),
    }
    w = {f"{name}.{leaf}.weight": drawn(g, *shape) for leaf, shape in sizes.items()}
    norms = {"q_a_layernorm": 24, "kv_a_layernorm": 16}
    return w | {f"{name}.{leaf}.weight": 1 + drawn(g, size) for leaf, size in norms.items()}


def attend_latents(w: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
    """Return causal attention as DeepSeek has it, with neighbours rotated. Shapes: [T, I] ->
    [T, E]"""
    prefix = f"{name}.self_attn."
    own = {leaf.removeprefix(prefix): one for leaf, one in w.items() if prefix in leaf}
    latent, turned = (x @ own["kv_a_proj_with_mqa.weight"].T).split((16, 4), -1)
    keys = rms(latent, own["kv_a_layernorm.weight"]) @ own["kv_b_proj.weight"].T
    plain, values = keys.unflatten(-1, (HEADS, 16)).split((8, 8), -1)
    queries = rms(x @ own["q_a_proj.weight"].T, own["q_a_layernorm.weight"])
    queries = (queries @ own["q_b_proj.weight"].T).unflatten(-1, (HEADS, 12))

    def turn(one: torch.Tensor) -> torch.Tensor:
        return rotated(one.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2))

    q = torch.cat([queries[..., :8], turn(queries[..., 8:])], -1)
    k = torch.cat([plain, turn(turned[:, None]).expand(-1, HEADS, -1)], -1)
    scores = torch.einsum("qhd,khd->hqk", q, k) / 12**0.5
    is_later = torch.ones(len(x), len(x)).triu(1).bool()
    shares = scores.masked_fill(is_later, -torch.inf).softmax(-1)
    out = torch.einsum("hqk,khd->qhd", shares, values).flatten(-2)
    return out @ own["o_proj.weight"].T


def speculator(folder: Path, *, latent: bool = False) -> Head:
    """Return a head of EAGLE 3 as vllm-project/speculators publishes it, with all of its norms;
    `latent`: one whose layer attends to latents."""
    g, name = torch.Generator().manual_seed(7), "layers.0"
    w = {"fc.weight": drawn(g, SIZE, 3 * SIZE), **layer_weights(g, name, 2 * SIZE)}
    w["input_norm.weight"] = 1 + drawn(g, 3 * SIZE)
    w |= {f"fc_norm.{i}.weight": 1 + drawn(g, SIZE) for i in range(3)}
    for norm in (f"{name}.input_layernorm", f"{name}.hidden_norm", "norm"):
        w[f"{norm}.weight"] = 1 + drawn(g, SIZE)
    w["lm_head.weight"] = drawn(g, VOCAB, SIZE)
    norms = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    config: dict[str, Any] = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "transformer_layer_config": {**LLAMA, **(LATENTS if latent else {})},
        "draft_vocab_size": VOCAB,
        "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
        **dict.fromkeys(norms, True),
    }
    attended = attend
    if latent:
        config["architectures"] = ["Eagle3DeepseekV2ForCausalLM"]
        w = {key: one for key, one in w.items() if ".self_attn." not in key}
        w |= latent_weights(g, f"{name}.self_attn")
        attended = attend_latents

    def run(vectors: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        h = rms(states, w[f"{name}.hidden_norm.weight"])
        x = torch.cat([rms(vectors, w[f"{name}.input_layernorm.weight"]), h], -1)
        return rms(feed(w, name, h + attended(w, name, x)), w["norm.weight"])

    def guess(target: Target, token_ids: list[int], wanted: int) -> list[int]:
        inner = target.states(token_ids)
        whole = rms(torch.cat([inner[i] for i in (1, 3, 4)], -1), w["input_norm.weight"])
        each = zip(whole.split(SIZE, -1), range(3), strict=True)
        normed = [rms(one, w[f"fc_norm.{i}.weight"]) for one, i in each]
        states = torch.cat(normed, -1)[:-1] @ w["fc.weight"].T
        logits = lambda x: x @ w["lm_head.weight"].T  # noqa: E731
        return continued(target, token_ids, wanted, states, run, logits)

    return Head(method="eagle3:Eagle3", folder=write(folder, config, w), guess=guess)


def medusa(folder: Path, *, renamed: bool = False) -> Head:
    """Return heads of Medusa; `renamed`: with the names that converters write."""
    g = torch.Generator().manual_seed(2)
    count, w = 4, {}
    for i in range(count):
        block, head = (
            (f"blocks.{i}.layers.0", f"lm_heads.{i}") if renamed else (f"{i}.0.linear", f"{i}.1")
        )
        w[f"{block}.weight"], w[f"{block}.bias"] = drawn(g, SIZE, SIZE), drawn(g, SIZE)
        w[f"{head}.weight"] = drawn(g, VOCAB, SIZE)
    config: dict[str, Any] = {"medusa_num_heads": count, "medusa_num_layers": 1}
    if renamed:
        config = {"model_type": "medusa", "num_heads": count, "num_hidden_layers": 1}

    def guess(target: Target, token_ids: list[int], wanted: int) -> list[int]:
        x, drafts = target.states(token_ids)[-1][-2], []
        for i in range(wanted):
            block, head = (
                (f"blocks.{i}.layers.0", f"lm_heads.{i}")
                if renamed
                else (f"{i}.0.linear", f"{i}.1")
            )
            y = x + F.silu(x @ w[f"{block}.weight"].T + w[f"{block}.bias"])
            drafts.append(argmax(y @ w[f"{head}.weight"].T))
        return drafts

    return Head(method="medusa:Medusa", folder=write(folder, config, w), guess=guess)


def mlp_speculator(folder: Path, *, tied: bool = False) -> Head:
    """Return a network of IBM's; `tied`: all places share their layers, and the input is scaled."""
    g, inner, count = torch.Generator().manual_seed(3), 24, 4
    w: Weights = {}
    for i in range(count):
        size = SIZE if i == 0 else inner
        same = tied and i > 0
        w[f"speculator.emb.{i}.weight"] = (
            w["speculator.emb.0.weight"].clone() if same else drawn(g, VOCAB, inner)
        )
        is_second = tied and i > 1
        w[f"speculator.proj.{i}.weight"] = (
            w["speculator.proj.1.weight"].clone() if is_second else drawn(g, inner, size)
        )
        for leaf, shape in (("head", (VOCAB, inner)), ("ln", (inner,))):
            name = f"speculator.{leaf}.{i}.weight"
            w[name] = w[f"speculator.{leaf}.0.weight"].clone() if same else drawn(g, *shape)
        name = f"speculator.ln.{i}.bias"
        w[name] = w["speculator.ln.0.bias"].clone() if same else drawn(g, inner)
    config = {
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "model_type": "mlp_speculator",
        "emb_dim": SIZE,
        "inner_dim": inner,
        "n_predict": count,
        "tie_weights": tied,
        "scale_input": tied,
        "vocab_size": VOCAB,
    }

    def guess(target: Target, token_ids: list[int], wanted: int) -> list[int]:
        state, token, drafts = target.states(token_ids)[-1][-2], token_ids[-1], []
        kept = 0.5 ** (0.5 / count)
        added = ((1 - kept**2) * inner / 2) ** 0.5
        if tied:
            state = rms(state, torch.ones(SIZE)) / 2**0.5
        for i in range(wanted):
            x = kept * (state @ w[f"speculator.proj.{i}.weight"].T)
            x = x + added * w[f"speculator.emb.{i}.weight"][token]
            normed = rms(x, w[f"speculator.ln.{i}.weight"]) + w[f"speculator.ln.{i}.bias"]
            state = F.gelu(normed)
            token = argmax(state @ w[f"speculator.head.{i}.weight"].T)
            drafts.append(token)
        return drafts

    return Head(method="mlp_speculator:MlpSpeculator", folder=write(folder, config, w), guess=guess)


def mtp(folder: Path, source: Path) -> Head:
    """Return MiMo's layer for further tokens, in the checkpoint of a Qwen2 model."""
    g, prefix = torch.Generator().manual_seed(5), "model.mtp_layers.0"
    w = {f"{prefix}.input_proj.weight": drawn(g, SIZE, 2 * SIZE), **layer_weights(g, prefix)}
    for leaf in ("token_layernorm", "hidden_layernorm", "final_layernorm", "input_layernorm"):
        w[f"{prefix}.{leaf}.weight"] = 1 + drawn(g, SIZE)
    for leaf in "qkv":
        size = SIZE if leaf == "q" else KV_HEADS * HEAD_SIZE
        w[f"{prefix}.self_attn.{leaf}_proj.bias"] = drawn(g, size)
    config = json.loads((source / "config.json").read_text())
    config |= {"architectures": ["MiMoForCausalLM"], "model_type": "mimo"}
    config["num_nextn_predict_layers"] = 1
    write(folder, config, load_file(source / "model.safetensors") | w)
    for file in source.glob("tokenizer*"):
        (folder / file.name).write_bytes(file.read_bytes())
    theta = float((config.get("rope_parameters") or config)["rope_theta"])
    assert theta == 10000.0, "what `rotated` knows"

    def run(vectors: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        e = rms(vectors, w[f"{prefix}.token_layernorm.weight"])
        h = rms(states, w[f"{prefix}.hidden_layernorm.weight"])
        x = torch.cat([h, e], -1) @ w[f"{prefix}.input_proj.weight"].T
        attended = attend(w, prefix, rms(x, w[f"{prefix}.input_layernorm.weight"]))
        return rms(feed(w, prefix, x + attended), w[f"{prefix}.final_layernorm.weight"])

    def guess(target: Target, token_ids: list[int], wanted: int) -> list[int]:
        states = target.states(token_ids)[-1][:-1]
        return continued(target, token_ids, wanted, states, run, target.logits)

    return Head(method="mtp:Mtp", folder=folder, guess=guess)
