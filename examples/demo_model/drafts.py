"""Drafters for the demo model, as plain torch modules that learn from its hidden states.

Each `loss` gets a batch of texts, what the demo model computes of them, and returns how far the
drafter's guesses are from what the demo model would say. Each `save` writes the layout in which
checkpoints of the method are published. This module does not know where the texts come from.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig, Qwen3Config, Qwen3ForCausalLM
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRotaryEmbedding,
    rotate_half,
)
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

NUM_PLACES = 4
NUM_PASSES = 4  # of EAGLE, one for each token of a draft; further tokens come as well


Pair = tuple[torch.Tensor, torch.Tensor]  # keys and values


@dataclass(frozen=True)
class Window:
    """The places of a batch's answers, one after the other, one run of places a row.

    `lines` are their numbers row by row, with others behind a row's last where it has not `there`.
    Shapes: places, columns, counts [N] (counts: of the row's), lines, there [B, L]
    """

    places: torch.Tensor
    columns: torch.Tensor
    counts: torch.Tensor
    lines: torch.Tensor
    there: torch.Tensor

    @classmethod
    def of(cls, answers: torch.Tensor) -> Window:
        """Shapes: answers [B, T]"""
        counts, places = answers.sum(1), answers.nonzero()[:, 1]
        there = torch.arange(int(counts.max())) < counts[:, None]
        lines = torch.zeros(there.shape, dtype=torch.int64)
        lines[there] = torch.arange(len(places))
        columns, each = there.nonzero()[:, 1], counts.repeat_interleave(counts)
        return cls(places=places, columns=columns, counts=each, lines=lines, there=there)

    def guessed(self, depth: int) -> torch.Tensor:
        """Return which places pass `depth` guesses the next token of an answer at. Shapes: [N]"""
        return (self.columns >= depth) & (self.columns + 1 < self.counts)

    def by_row(self, values: torch.Tensor) -> torch.Tensor:
        """Shapes: values [N, H, X] -> [B, H, L, X]"""
        return values[self.lines].transpose(1, 2)

    def by_place(self, values: torch.Tensor) -> torch.Tensor:
        """Shapes: values [B, H, L, X] -> [N, H, X]"""
        return values.transpose(1, 2)[self.there]


@dataclass(frozen=True)
class Texts:
    """A batch of texts and what the demo model computes of them.

    Shapes: tokens, wanted [B, T] (wanted: what it says after each token), states [B, T, E], inner
    as many for each layer (its outputs), chances [N, V] where the answers are: `answers` [B, T]
    with N places
    """

    tokens: torch.Tensor
    answers: torch.Tensor
    states: torch.Tensor
    inner: tuple[torch.Tensor, ...]
    chances: torch.Tensor

    def loss(self, guesses: torch.Tensor, ahead: int, head: nn.Module) -> torch.Tensor:
        """Cross entropy against what the model says `ahead` tokens on, where it answers.

        Shapes: guesses [B, T, E], what `head` makes logits of
        """
        places = torch.full(self.answers.shape, -1)
        places[self.answers] = torch.arange(len(self.chances))
        there = self.answers[:, ahead:] & self.answers[:, : self.answers.shape[1] - ahead]
        found = functional.log_softmax(head(guesses[:, : there.shape[1]][there]), dim=-1)
        return -(self.chances[places[:, ahead:][there]] * found).sum(-1).mean()

    def loss_at(
        self, guesses: torch.Tensor, is_meant: torch.Tensor, head: nn.Module
    ) -> torch.Tensor:
        """The same one token ahead, of guesses at the answers' places alone, those that are meant.

        Shapes: guesses [N, E], is_meant [N], never the last one
        """
        found = functional.log_softmax(head(guesses[is_meant]), dim=-1)
        return -(self.chances[1:][is_meant[:-1]] * found).sum() / max(1, len(found))


def after(values: torch.Tensor, count: int = 1) -> torch.Tensor:
    """Shift along the text: place i gets what place i + count has. Shapes: [B, T] -> [B, T]"""
    return torch.cat([values[:, count:], values[:, :1].expand(-1, count)], dim=1)


def attended(
    queries: torch.Tensor, known: Pair, kept: Sequence[Pair], window: Window
) -> torch.Tensor:
    """Attend as the last of several passes does: to what is known up to so many places before as
    there were passes, and to what each of the passes `kept` of one place since.

    Shapes: queries, kept [N, H, D], known [B, H, T, D] -> [N, H, D]
    """
    keys, values = known
    count, depth = keys.shape[2], len(kept)
    is_later = torch.arange(count) > (window.places - depth)[:, None, None]
    before = window.by_place(window.by_row(queries) @ keys.transpose(2, 3))
    scores = [before.masked_fill(is_later, -torch.inf)]
    scores += [
        (queries * own.roll(depth - nth, 0)).sum(-1, keepdim=True)
        for nth, (own, _) in enumerate(kept, 1)
    ]
    shares = (torch.cat(scores, dim=-1) * queries.shape[-1] ** -0.5).softmax(-1)
    found = window.by_place(window.by_row(shares[..., :count]) @ values)
    for nth, (_, own) in enumerate(kept, 1):
        found = found + shares[..., count + nth - 1, None] * own.roll(depth - nth, 0)
    return found


def write(folder: Path, config: Mapping[str, object], tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a checkpoint with bf16 weights."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**config, "torch_dtype": "bfloat16"}, indent=2, sort_keys=True)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
    save_file(rounded(tensors), folder / "model.safetensors", {"format": "pt"})


def rounded(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors in bf16, as files hold them."""
    return {name: one.detach().to(torch.bfloat16).contiguous() for name, one in tensors.items()}


class Drafter(nn.Module):
    """A drafter in training."""

    def __init__(self, target: Qwen3ForCausalLM) -> None:
        super().__init__()
        self.table = target.get_input_embeddings().weight.detach()
        self.sizes = {
            "vocab_size": target.config.vocab_size,
            "hidden_size": target.config.hidden_size,
        }

    def loss(self, texts: Texts) -> torch.Tensor:
        """Return how far the guesses are from the model's."""
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        """Write the checkpoint."""
        raise NotImplementedError


class Medusa(Drafter):
    """For each place a residual block on the last hidden state, and a head of its own."""

    def __init__(self, target: Qwen3ForCausalLM) -> None:
        super().__init__(target)
        size = self.sizes["hidden_size"]
        self.blocks = nn.ModuleList(nn.Linear(size, size) for _ in range(NUM_PLACES))
        self.heads = nn.ModuleList(
            nn.Linear(size, self.sizes["vocab_size"], bias=False) for _ in range(NUM_PLACES)
        )
        for block, head in zip(self.blocks, self.heads, strict=True):
            nn.init.zeros_(block.weight)
            nn.init.zeros_(block.bias)
            head.weight.data.copy_(self.table)

    def loss(self, texts: Texts) -> torch.Tensor:
        """Every head looks at the same state."""
        total = torch.zeros(())
        for place, (block, head) in enumerate(zip(self.blocks, self.heads, strict=True)):
            guesses = texts.states + functional.silu(block(texts.states))
            total = total + texts.loss(guesses, place + 1, head)
        return total / NUM_PLACES

    def save(self, folder: Path) -> None:
        """Write FasterDecoding's layout."""
        tensors = {}
        for place, (block, head) in enumerate(zip(self.blocks, self.heads, strict=True)):
            tensors[f"{place}.0.linear.weight"] = block.weight
            tensors[f"{place}.0.linear.bias"] = block.bias
            tensors[f"{place}.1.weight"] = head.weight
        config = {"model_type": "medusa", "architectures": ["MedusaModel"]}
        counts = {"medusa_num_heads": NUM_PLACES, "medusa_num_layers": 1}
        write(folder, {**config, **counts, **self.sizes}, tensors)


class MlpSpeculator(Drafter):
    """A state, and what the token guessed last adds to it, make the next state."""

    def __init__(self, target: Qwen3ForCausalLM) -> None:
        super().__init__(target)
        size = self.sizes["hidden_size"]
        self.emb = nn.Embedding.from_pretrained(self.table.clone(), freeze=False)
        self.proj = nn.ModuleList(nn.Linear(size, size, bias=False) for _ in range(2))
        self.head = nn.Linear(size, self.sizes["vocab_size"], bias=False)
        self.head.weight.data.copy_(self.table)
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))
        self.kept = 0.5 ** (0.5 / NUM_PLACES)
        self.added = math.sqrt((1 - self.kept**2) * size / 2)

    def loss(self, texts: Texts) -> torch.Tensor:
        """Go on from every place with the tokens that follow."""
        total, states = torch.zeros(()), texts.states
        for place in range(NUM_PLACES):
            tokens = after(texts.tokens, place + 1)
            mixed = self.proj[min(place, 1)](states) * self.kept + self.emb(tokens) * self.added
            scale = torch.rsqrt(mixed.pow(2).mean(-1, keepdim=True) + 1e-6)
            states = functional.gelu(mixed * scale * self.weight + self.bias)
            total = total + texts.loss(states, place + 1, self.head)
        return total / NUM_PLACES

    def save(self, folder: Path) -> None:
        """Write the layout of ibm-ai-platform, all places sharing what they can."""
        tensors = {
            "speculator.emb.0.weight": self.emb.weight,
            "speculator.proj.0.weight": self.proj[0].weight,
            "speculator.proj.1.weight": self.proj[1].weight,
            "speculator.head.0.weight": self.head.weight,
            "speculator.ln.0.weight": self.weight,
            "speculator.ln.0.bias": self.bias,
        }
        size = self.sizes["hidden_size"]
        config = {
            "architectures": ["MLPSpeculatorPreTrainedModel"],
            "model_type": "mlp_speculator",
            "n_predict": NUM_PLACES,
            "emb_dim": size,
            "inner_dim": size,
            "tie_weights": True,
            "scale_input": False,
            "vocab_size": self.sizes["vocab_size"],
        }
        write(folder, config, tensors)


class Eagle(Drafter):
    """A Llama layer that continues the hidden states, with a head that begins as the model's own;
    the embedding is the model's.

    It learns as it is used: after a pass over the model's states, one after the other over the
    states that the pass before made, each seeing what the passes before it kept of the places
    between (the training-time test of Li et al., "EAGLE-3", 2025). Passes are over answers alone.
    """

    def __init__(self, target: Qwen3ForCausalLM) -> None:
        super().__init__(target)
        of = target.config
        self.config = LlamaConfig(
            architectures=["LlamaForCausalLM"],
            vocab_size=of.vocab_size,
            hidden_size=of.hidden_size,
            intermediate_size=of.intermediate_size,
            num_hidden_layers=1,
            num_attention_heads=of.num_attention_heads,
            num_key_value_heads=of.num_key_value_heads,
            head_dim=of.head_dim,
            max_position_embeddings=of.max_position_embeddings,
            rms_norm_eps=of.rms_norm_eps,
            rope_parameters=of.rope_parameters,
        )
        size = of.hidden_size
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.fc.weight.data[:, size:] = torch.eye(size)
        self.rotary = LlamaRotaryEmbedding(self.config)
        self.build(target)

    def build(self, target: Qwen3ForCausalLM) -> None:
        """Make the layer, the norm behind it and the head."""
        self.layer: nn.Module = LlamaDecoderLayer(self.config, 0)
        self.layer.input_layernorm = nn.Identity()
        self.layer.self_attn.q_norm = self.layer.self_attn.k_norm = nn.Identity()
        self.norm: nn.Module = nn.Identity()
        self.head = nn.Linear(self.config.hidden_size, self.config.vocab_size, bias=False)
        self.head.weight.data.copy_(self.table)

    def joined(self, tokens: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Return what the layer reads. Shapes: tokens [...], states [..., E] -> [..., E]"""
        return self.fc(torch.cat([functional.embedding(tokens, self.table), states], dim=-1))

    def rotated(self, name: str, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Return queries ("q") or keys ("k"). Shapes: x [..., E], places [...] -> [..., H, D]"""
        cos, sin = (
            one[0].view(*places.shape, 1, -1) for one in self.rotary(x, places.reshape(1, -1))
        )
        attn = self.layer.self_attn
        found = getattr(attn, f"{name}_norm")(self.heads(getattr(attn, f"{name}_proj"), x))
        return found * cos + rotate_half(found) * sin

    def heads(self, proj: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        """Return what a projection makes, for each query head. Shapes: x [..., E] -> [..., H, D]"""
        found = proj(x).unflatten(-1, (-1, self.config.head_dim))
        return found.repeat_interleave(self.config.num_attention_heads // found.shape[-2], dim=-2)

    def guesses(self, texts: Texts, window: Window) -> Iterator[torch.Tensor]:
        """Give the states of one pass after the other, NUM_PASSES of them. Shapes: [N, E]"""
        attn, tokens = self.layer.self_attn, after(texts.tokens)
        x = self.joined(tokens, texts.states)
        normed = self.layer.input_layernorm(x)
        every = torch.arange(tokens.shape[1]).expand_as(tokens)
        known = self.rotated("k", normed, every), self.heads(attn.v_proj, normed)
        known = known[0].transpose(1, 2), known[1].transpose(1, 2)
        tokens, x, normed = (one[texts.answers] for one in (tokens, x, normed))
        kept: list[Pair] = []
        states = x
        for depth in range(NUM_PASSES):
            if depth:
                x = self.joined(tokens, states.roll(1, 0))
                normed = self.layer.input_layernorm(x)
                keys = self.rotated("k", normed, window.places)
                kept.append((keys, self.heads(attn.v_proj, normed)))
            queries = self.rotated("q", normed, window.places)
            states = x + attn.o_proj(attended(queries, known, kept, window).flatten(1))
            states = states + self.layer.mlp(self.layer.post_attention_layernorm(states))
            states = self.norm(states)
            yield states

    def loss(self, texts: Texts) -> torch.Tensor:
        """Guess from every place of an answer on, along the text."""
        window, total = Window.of(texts.answers), torch.zeros(())
        for depth, states in enumerate(self.guesses(texts, window)):
            total = total + texts.loss_at(states, window.guessed(depth), self.head)
        return total / NUM_PASSES

    def save(self, folder: Path) -> None:
        """Write SafeAILab's layout."""
        tensors = {f"layers.0.{name}": tensor for name, tensor in self.layer.named_parameters()}
        tensors |= {"fc.weight": self.fc.weight, "lm_head.weight": self.head.weight}
        config = {**self.config.to_diff_dict(), "bias": False, "has_own_head": True}
        write(folder, config, tensors)


class Mtp(Eagle):
    """A layer of the model's own sort, which becomes a part of the model's checkpoint: it reads a
    token's vector and the state before it, each normed, and its normed states go to the model's own
    head. It begins as the model's last layer."""

    def build(self, target: Qwen3ForCausalLM) -> None:
        """Make the layer and the norms; embedding and head are the model's."""
        size = self.config.hidden_size
        self.layer = Qwen3DecoderLayer(target.config, 0)
        self.layer.load_state_dict(target.model.layers[-1].state_dict())
        self.norm = nn.RMSNorm(size, eps=self.config.rms_norm_eps)
        self.norm.weight.data.copy_(target.model.norm.weight)
        self.token_norm = nn.RMSNorm(size, eps=self.config.rms_norm_eps)
        self.state_norm = nn.RMSNorm(size, eps=self.config.rms_norm_eps)
        self.head = nn.Linear(size, self.config.vocab_size, bias=False).requires_grad_(False)
        self.head.weight.data.copy_(self.table)

    def joined(self, tokens: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Return what the layer reads. Shapes: tokens [...], states [..., E] -> [..., E]"""
        vectors = self.token_norm(functional.embedding(tokens, self.table))
        return self.fc(torch.cat([vectors, self.state_norm(states)], dim=-1))

    def save(self, folder: Path) -> None:
        """Write the layer in Qwen3.5's layout into the model's folder, and the number of such
        layers into its config.json."""
        tensors = {f"mtp.layers.0.{name}": one for name, one in self.layer.named_parameters()}
        tensors["mtp.fc.weight"] = self.fc.weight
        tensors["mtp.norm.weight"] = self.norm.weight
        tensors["mtp.pre_fc_norm_embedding.weight"] = self.token_norm.weight
        tensors["mtp.pre_fc_norm_hidden.weight"] = self.state_norm.weight
        save_file(rounded(tensors), folder / "model-mtp.safetensors", {"format": "pt"})
        path = folder / "config.json"
        config = {**json.loads(path.read_text(encoding="utf-8")), "mtp_num_hidden_layers": 1}
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


class DraftModel(Drafter):
    """A model of one layer, which begins as the first layer of the large one."""

    def __init__(self, target: Qwen3ForCausalLM) -> None:
        super().__init__(target)
        one_layer = {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
        config = Qwen3Config(**{**target.config.to_dict(), **one_layer})
        self.model = Qwen3ForCausalLM(config)
        first = target.state_dict()
        self.model.load_state_dict({name: first[name] for name in self.model.state_dict()})

    def loss(self, texts: Texts) -> torch.Tensor:
        """It reads the text alone, and says what the model says."""
        states = self.model.model(texts.tokens, use_cache=False).last_hidden_state
        return texts.loss(states, 0, self.model.lm_head)

    def save(self, folder: Path) -> None:
        """Write a checkpoint as any model's: embedding and head are one."""
        tensors = dict(self.model.named_parameters())
        config = self.model.config.to_diff_dict()
        write(folder, {**config, "architectures": ["Qwen3ForCausalLM"]}, tensors)
