"""dovetail's attention inside transformers' models: a probe that learns each layer, then the layer.

transformers keeps attention and mask functions in two registries, and a missing mask function means
no mask at all. The probe therefore registers both and learns from the model's own mask calls what
each layer may see; the running layer registers only attention, gets no mask, and applies what was
learned. Source: https://huggingface.co/docs/transformers/attention_interface
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface, AttentionMaskInterface

from dovetail.errors import ConfigError
from dovetail.interfaces.attention import AttentionSpec
from dovetail.layers.attention import Attention
from dovetail_plugins.models._hf_call import TrunkCall
from dovetail_plugins.models._hf_scores import Scoring, attend_in
from dovetail_plugins.models._hf_swap import is_experts

PROBE, RUN = "dovetail_probe", "dovetail"
CHILD = "dovetail_attention"
UNSUPPORTED = ("position_bias", "alibi", "head_mask", "indices", "block_indices")
"""Arguments of attention functions that change the result and that no backend takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The keys that a mask lets queries see: everything before, or the last `window_tokens`.
    `shape` is that of the mask it replaces."""

    window_tokens: int | None
    shape: tuple[int, ...] = ()

    def __getitem__(self, key: tuple[slice, ...]) -> Seen:
        """Return itself if all of a mask is taken. Raises: TypeError for a part of it."""
        if all(part in (slice(None), slice(0, None)) for part in key):
            return self
        raise TypeError(f"'{Seen.__name__}' object has no parts")

    def size(self) -> tuple[int, ...]:
        """Return the shape of the mask."""
        return self.shape


class UnusableMask:
    """A mask other than a causal window, such as one over encodings, which no lone decoder gets."""


class _Probing(threading.local):
    """Whether a trial pass runs in this thread."""

    is_on = False


_probing = _Probing()


class AttentionTurns:
    """The attention layers of one module of transformers, one for each time that the module attends
    in a pass; they are its children. `at` counts the times of this pass."""

    ATTRIBUTE = "dovetail_turns"

    def __init__(self) -> None:
        self.at = 0

    @staticmethod
    def of(module: nn.Module) -> AttentionTurns:
        """Return a module's turns, made the first time. Mutates: module"""
        turns: AttentionTurns = vars(module).setdefault(AttentionTurns.ATTRIBUTE, AttentionTurns())
        return turns

    def next(self) -> str:
        """Return the name of the child whose turn it is. Mutates: self"""
        self.at += 1
        return CHILD if self.at == 1 else f"{CHILD}_{self.at}"


def restart(trunk: nn.Module, *_: object) -> None:
    """Begin a pass: every module attends for the first time. Mutates: its modules' turns"""
    for module in trunk.modules():
        if AttentionTurns.ATTRIBUTE in vars(module):
            AttentionTurns.of(module).at = 0


def register() -> None:
    """Make both functions known to transformers. May be called again."""
    AttentionInterface.register(PROBE, _probe_attention)
    AttentionMaskInterface.register(PROBE, _probe_mask)
    AttentionInterface.register(RUN, _run_attention)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """The findings of a trial pass: the attention layers, the trunk's output, the number that the
    trunk's own code gives the first token of a text, the linear layers whose weights other code
    reads directly, and the paths of layers that text does not pass through."""

    layers: list[Attention]
    output: Any
    first_position: int
    opened: frozenset[nn.Module]
    idle: tuple[str, ...]


def probe(
    trunk: nn.Module, call: TrunkCall, device: str, *, num_layers: int, max_tokens: int
) -> Probed:
    """Run two tokens through a trunk whose implementation is PROBE; return what was learned.

    Every attention module then has one child of our Attention for each time it attends in a pass.
    The computed values are meaningless. If fewer than `num_layers` attend, modules that multiply
    queries and keys themselves are found too, and run by ours from now on. Their own masks are
    inspected up to `max_tokens`.
    Mutates: trunk. Raises: ConfigError when a layer needs something no backend supports.
    """
    trunk.register_forward_pre_hook(restart)
    try:
        found = _probed(trunk, call, device)
        if len(found.layers) + len(found.idle) >= num_layers:
            return found
    except (TypeError, AttributeError) as error:
        if Seen.__name__ not in str(error):  # which a mask's place was taken by
            raise
    scoring = Scoring(_probe_scores, Seen(window_tokens=None), is_trial=True)
    with scoring.watching(trunk):
        found = _probed(trunk, call, device)
        if scoring.has_tables:
            with _pass(trunk):
                call(_plain_tokens(trunk, max_tokens, device), _numbers(max_tokens, device))
    for module in scoring.found:
        attend_in(module, _run_scores)
    return found


def _probed(trunk: nn.Module, call: TrunkCall, device: str) -> Probed:
    """Return the findings of two passes of two tokens. Mutates: trunk. Raises: ConfigError"""
    ids = _plain_tokens(trunk, 2, device)
    with _pass(trunk) as recorded, opening(trunk) as opened, _running(trunk) as run:
        output = call(ids, _numbers(2, device))
    with _pass(trunk) as own:
        call(ids, None)
    if not isinstance(getattr(output, "last_hidden_state", None), torch.Tensor):
        raise ConfigError("its layers below the head return no hidden states.")
    layers = []
    for path, module in trunk.named_modules():
        if isinstance(module, Attention):
            module.name = path.replace(f".{CHILD}", "")
            layers.append(module)
    return Probed(
        layers=layers,
        output=output,
        first_position=_first_position(recorded.lookups, own.lookups),
        opened=frozenset(opened),
        idle=tuple(_idle(trunk, run)),
    )


def _numbers(count: int, device: str) -> torch.Tensor:
    return torch.arange(count, device=device)


@contextmanager
def _running(trunk: nn.Module) -> Iterator[set[nn.Module]]:
    """Give the modules that run in a with block."""
    run = set[nn.Module]()
    hooks = [m.register_forward_pre_hook(lambda m, _: run.add(m)) for m in trunk.modules()]
    try:
        yield run
    finally:
        for hook in hooks:
            hook.remove()


def _idle(trunk: nn.Module, run: set[nn.Module]) -> Iterator[str]:
    """Yield the paths of layers that did not run although others in the same list did."""
    for path, layers in trunk.named_modules():
        if not isinstance(layers, nn.ModuleList) or not run.intersection(layers):
            continue
        for name, layer in layers.named_children():
            if layer not in run and not run.intersection(layer.modules()):
                yield f"{path}.{name}"


class _Closed(nn.Linear):
    """A linear layer that notes when its weight is taken from outside."""

    is_running = False
    opened: ClassVar[set[nn.Module]] = set()

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.is_running = True
        try:
            return super().forward(input)
        finally:
            self.is_running = False

    def __getattr__(self, name: str) -> Any:
        if name == "weight" and not self.is_running:
            self.opened.add(self)
        return super().__getattr__(name)


@contextmanager
def opening(trunk: nn.Module) -> Iterator[set[nn.Module]]:
    """Give the linear layers whose weights are taken from outside in a with block."""
    layers = [module for module in trunk.modules() if type(module) is nn.Linear]
    _Closed.opened = opened = set[nn.Module]()
    for layer in layers:
        layer.__class__ = _Closed
    try:
        yield opened
    finally:
        for layer in layers:
            vars(layer).pop("is_running", None)
            layer.__class__ = nn.Linear


class Watch(TorchFunctionMode):
    """Records the functions that run and the table rows that are looked up. On the meta device,
    where numbers have no values, questions about numbers are answered with yes."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: set[str] = set()
        self.lookups: list[list[int]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the function's result."""
        self.functions.add(getattr(func, "__name__", ""))
        if func in (torch.Tensor.__bool__, torch.Tensor.item) and args[0].is_meta:
            return True
        if func is F.embedding and not args[0].is_meta:
            self.lookups.append(args[0].flatten().tolist())
        return func(*args, **(kwargs or {}))


@contextmanager
def _pass(trunk: nn.Module) -> Iterator[Watch]:
    """Learn attention layers inside a with block, while experts compute nothing."""
    experts = [module for module in trunk.modules() if is_experts(module)]
    for module in experts:
        vars(module)["forward"] = lambda x, *_: torch.zeros_like(x)
    _probing.is_on = True
    try:
        with torch.inference_mode(), Watch() as watch:
            yield watch
    finally:
        _probing.is_on = False
        for module in experts:
            del vars(module)["forward"]


def _plain_tokens(trunk: nn.Module, count: int, device: str) -> torch.Tensor:
    """Return non-padding tokens, because some trunks do not count padding."""
    config = vars(trunk).get("config")
    token = 1 if getattr(config, "pad_token_id", None) == 0 else 0
    return torch.full((count,), token, dtype=torch.int64, device=device)


def _first_position(looked_up: list[list[int]], own: list[list[int]]) -> int:
    """Return the number that a trunk's own code gives the first token, from the rows that it looked
    up with and without positions 0, 1. Raises: ConfigError when it does not count one by one."""
    shifts = {
        b - a for x, y in zip(looked_up, own, strict=False) for a, b in zip(x, y, strict=False)
    }
    shifts -= {0}
    if len(shifts) > 1 or [len(x) for x in looked_up] != [len(y) for y in own]:
        raise ConfigError("it numbers positions in its own way.")
    return shifts.pop() if shifts else 0


def _probe_mask(
    *,
    mask_function: Callable[..., Any],
    local_size: int | None = None,
    batch_size: int = 1,
    q_length: int = 0,
    kv_length: int = 0,
    **_: Any,
) -> Seen | UnusableMask:
    """Return the keys that the mask lets queries see, or UnusableMask if it is
    not a causal window."""
    reach = 3 * (local_size or 8) + 2
    keys = torch.arange(reach, device="cpu")  # here numbers have values, on any device
    for query in sorted({0, 1, reach // 3, reach // 2, reach - 2, reach - 1}):
        queries = torch.full_like(keys, query)
        zero = torch.zeros_like(keys)
        mask = torch.as_tensor(mask_function(zero, zero, queries, keys), device="cpu")
        first = 0 if local_size is None else query - local_size + 1
        if not torch.equal(mask.expand(reach), (keys <= query) & (keys >= first)):
            return UnusableMask()
    return Seen(window_tokens=local_size, shape=(batch_size, 1, q_length, kv_length))


def _probe_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Give the module its Attention. Shapes: query [1, H, T, D] -> [1, T, H, D of value]"""
    _refuse(module, query, key, value, attention_mask, others)
    spec = AttentionSpec(
        num_heads=query.shape[1],
        num_kv_heads=key.shape[1],
        head_size=query.shape[-1],
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        window_tokens=attention_mask.window_tokens,
        soft_cap=softcap,
    )
    name = AttentionTurns.of(module).next()
    if name not in module._modules:
        module.add_module(name, Attention("", spec))
    return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[-1]), None


def _refuse(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    others: dict[str, Any],
) -> None:
    """Raises: ConfigError for calls that a paged backend does not support."""
    name = type(module).__name__
    if not _probing.is_on:
        raise ConfigError(f"{name} computes attention here, but did not in the trial pass at load.")
    if isinstance(attention_mask, UnusableMask):
        raise ConfigError("a layer's attention mask is neither causal nor a sliding window.")
    if not isinstance(attention_mask, Seen):
        raise ConfigError(f"{name} builds its own attention mask.")
    odd = [word for word in UNSUPPORTED if others.get(word) is not None]
    if odd:
        raise ConfigError(f"{name} passes {odd[0]}, which no attention backend supports.")
    if query.shape[1] % key.shape[1] or key.shape[1] != value.shape[1]:
        raise ConfigError(f"{name} has {query.shape[1]} query heads for {key.shape[1]} kv heads.")
    if value.shape[-1] > key.shape[-1] or key.shape[2] != query.shape[2]:
        raise ConfigError(
            f"{name} stores keys and values in a shape that the KV cache cannot hold."
        )


def _run_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attend over the paged cache. Shapes: query [1, H, T, D] -> [1, T, H, D of value]"""
    if attention_mask is not None:
        raise ConfigError(f"{type(module).__name__} builds its own attention mask.")
    attend: Any = module.get_submodule(AttentionTurns.of(module).next())
    spec: AttentionSpec = attend.spec
    heads, size = query.shape[1], value.shape[-1]
    q = _padded(query, spec.num_heads, spec.head_size)
    k = _padded(key, spec.num_kv_heads, spec.head_size)
    v = _padded(value, spec.num_kv_heads, spec.head_size)
    q, k, v = (x[0].transpose(0, 1).flatten(1) for x in (q, k, v))
    sinks = s_aux
    if sinks is not None and sinks.shape[0] < spec.num_heads:
        sinks = F.pad(sinks, (0, spec.num_heads - sinks.shape[0]))
    out = attend(q, k, v, sinks).unflatten(-1, (spec.num_heads, -1))
    return out[:, :heads, :size].unsqueeze(0), None


def _probe_scores(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Any,
    scale: float,
) -> torch.Tensor:
    """Give a module with its own attention products an Attention. Shapes: query [1, H, T, D] ->
    [1, T, H, D of value]"""
    return _probe_attention(module, query, key, value, mask, scaling=scale)[0]


def _run_scores(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Any,
    scale: float,
) -> torch.Tensor:
    """Attend over the paged cache. Shapes: query [1, H, T, D] -> [1, T, H, D of value]"""
    return _run_attention(module, query, key, value, mask)[0]


def _padded(x: torch.Tensor, heads: int, size: int) -> torch.Tensor:
    """Return x zero-padded to more and longer heads. Shapes: [1, H, T, D] -> [1, H', T, D']

    Zeros in keys and queries add nothing to scores; the padding of values is cut off.
    """
    more = (0, size - x.shape[-1], 0, 0, 0, heads - x.shape[1])
    return F.pad(x, more) if any(more) else x


def share_shape(layers: Sequence[Attention]) -> bool:
    """Let all layers cache keys and values of one shape, the largest of theirs; return whether any
    differed. All blocks of the cache have one size. Mutates: layers
    """
    kv_heads = max(layer.spec.num_kv_heads for layer in layers)
    size = max(layer.spec.head_size for layer in layers)
    differ = False
    for layer in layers:
        spec = layer.spec
        group = spec.num_heads // spec.num_kv_heads
        differ |= (spec.num_kv_heads, spec.head_size) != (kv_heads, size)
        layer.spec = replace(
            spec, num_heads=group * kv_heads, num_kv_heads=kv_heads, head_size=size
        )
    return differ
