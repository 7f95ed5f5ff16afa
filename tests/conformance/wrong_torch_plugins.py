"""Deliberately wrong plugins that need torch, most of them right built-ins with one fault."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeVar

import msgspec
import torch
from msgspec import structs
from torch import nn

from dovetail.engine.kv.kv_cache import KVCacheManager
from dovetail.engine.kv.paged import Paged
from dovetail.errors import ConfigError
from dovetail.interfaces.attention import AttentionCall, BatchLayout, IndexCall, LatentCall
from dovetail.interfaces.data.headers import TensorHeader
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import CacheSpec, ModelSpec
from dovetail.interfaces.data.step import KVLayer, KVLayout, StepPlan, StepResult
from dovetail.interfaces.kv_policy import KVAccounting, KVRoom
from dovetail.interfaces.load_format import Checkpoint
from dovetail.interfaces.logits import LogitsProcessor, RowTokens
from dovetail.interfaces.platform import Platform, PlatformDefaults
from dovetail.interfaces.plugin import Info, Value
from dovetail.interfaces.quantization import LinearMethod, LinearSpec, NamedActivation
from dovetail.interfaces.quantizer import Inputs, Quantized
from dovetail.interfaces.scheduler import RequestState
from dovetail.interfaces.tokenizer import PairFrame
from dovetail.layers.attention.rotary import Frequencies, RopeSettings, linear
from dovetail_kernels.op import Implementation
from dovetail_plugins.communicators.gloo import GlooCommunicator
from dovetail_plugins.drafters.eagle import Eagle
from dovetail_plugins.executors.uni import UniExecutor
from dovetail_plugins.load_formats.safetensors import Safetensors
from dovetail_plugins.models import llama, qwen3
from dovetail_plugins.quantization.none import Unquantized
from dovetail_plugins.quantizers.int4 import Int4
from dovetail_plugins.schedulers.continuous import ContinuousScheduler
from dovetail_plugins.tokenizers.hf import HfTokenizer
from dovetail_plugins.workers.cpu import CpuWorker
from dovetail_testing.reference import ReferenceAttention

T = TypeVar("T")


def ruled(call: AttentionCall, **rules: Any) -> AttentionCall:
    """Return a call with other rules for the layer."""
    return structs.replace(call, spec=replace(call.spec, **rules))


class FutureAttention(ReferenceAttention):
    """Lets a query see what follows it."""

    def forward(self, call: AttentionCall) -> torch.Tensor:
        """Attend without the causal mask."""
        return super().forward(ruled(call, is_causal=False))


class WindowlessAttention(ReferenceAttention):
    """Claims windows and ignores them."""

    def forward(self, call: AttentionCall) -> torch.Tensor:
        """Attend to everything."""
        return super().forward(ruled(call, window_tokens=None))


class ChunklessAttention(ReferenceAttention):
    """Claims chunks and sees windows of their length."""

    def forward(self, call: AttentionCall) -> torch.Tensor:
        """Attend to as many keys as a chunk has."""
        return super().forward(ruled(call, chunk_tokens=None, window_tokens=call.spec.chunk_tokens))


class SlopelessAttention(ReferenceAttention):
    """Claims ALiBi and adds nothing."""

    def forward(self, call: AttentionCall) -> torch.Tensor:
        """Attend without slopes."""
        return super().forward(ruled(call, alibi_slopes=None))


class ScalelessAttention(ReferenceAttention):
    """Takes caches of 8-bit floats and ignores their scales."""

    def forward(self, call: AttentionCall) -> torch.Tensor:
        """Store what comes as it is."""
        return super().forward(ruled(call, k_scale=1.0, v_scale=1.0))


class FreshKeysAttention(ReferenceAttention):
    """Takes the keys that come with a step for those of its rows' ends."""

    def prepare(self, layout: BatchLayout) -> BatchLayout:
        """Return the layout; remember its slots."""
        self._layout = layout
        return layout

    def forward_lse(self, call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the keys where the queries are."""
        layout, slots = self._layout, []
        for row, length in enumerate(layout.seq_lens_host):
            count = layout.query_start_host[row + 1] - layout.query_start_host[row]
            for position in range(length - count, length):
                block = int(layout.block_table[row, position // layout.block_tokens])
                slots.append(block * layout.block_tokens + position % layout.block_tokens)
        layout = replace(layout, slots=torch.tensor(slots))
        return super().forward_lse(structs.replace(call, prepared=layout))


class RewritingAttention(ReferenceAttention):
    """Writes keys and values of its own where it should read those of another layer."""

    def forward_shared(self, call: AttentionCall) -> torch.Tensor:
        """Write the queries, then attend."""
        own = call.q[:, : call.spec.num_kv_heads]
        return self.forward(structs.replace(call, k=own, v=own))


class FutureLatents(ReferenceAttention):
    """Lets every query of latents see all tokens of its row."""

    def forward_latent(self, call: LatentCall) -> torch.Tensor:
        """Attend token by token, as if each were its row's last."""
        super().forward_latent(call)
        prepared = call.prepared
        starts = prepared.query_start_host
        counts = [end - start for start, end in pairwise(starts)]
        rows = torch.tensor([row for row, count in enumerate(counts) for _ in range(count)])
        alone = replace(
            prepared,
            query_start=torch.arange(len(rows) + 1, dtype=torch.int32),
            seq_lens=prepared.seq_lens[rows],
            block_table=prepared.block_table[rows],
            query_start_host=list(range(len(rows) + 1)),
            seq_lens_host=[prepared.seq_lens_host[row] for row in rows.tolist()],
            max_query_tokens=1,
        )
        return super().forward_latent(structs.replace(call, prepared=alone))


class RoundingLatents(ReferenceAttention):
    """Keeps latents rounded, in a cache that would hold them as they are."""

    def forward_latent(self, call: LatentCall) -> torch.Tensor:
        """Round what is kept, by less than shows in what is attended."""
        latent = call.latent + call.latent * 2.0**-20
        return super().forward_latent(structs.replace(call, latent=latent))


class LatestPicks(ReferenceAttention):
    """Picks the latest of equal scores."""

    def pick(self, call: IndexCall) -> torch.Tensor:
        """Order equal scores from the last position on."""
        picks = super().pick(call)
        q, weights, keys, prepared = call.q, call.weights, call.keys, call.prepared
        size, table = keys.shape[1], prepared.block_table
        for row, end in enumerate(prepared.seq_lens_host):
            first, last = prepared.query_start_host[row : row + 2]
            at = torch.arange(end)
            own = keys[table[row].long()[at // size], at % size].double()
            for token in range(first, last):
                seen = own[: end - (last - 1 - token)]
                products = (seen @ q[token].double().T).relu()
                scores = (products @ weights[token].double()).float().tolist()
                order = sorted(range(len(scores)), key=lambda at: (-scores[at], -at))
                found = sorted(order[: call.spec.num_picked])
                picks[token, : len(found)] = torch.tensor(found, dtype=torch.int32)
        return picks


class EveryLatent(ReferenceAttention):
    """Attends to all latents, whatever is picked."""

    def forward_picked(self, call: LatentCall) -> torch.Tensor:
        """Leave the picks out."""
        return self.forward_latent(structs.replace(call, picks=None))


class BaseTwoAttention(ReferenceAttention):
    """Tells log-sum-exps to the base of two."""

    def forward_lse(self, call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
        """Turn natural logarithms into those of two."""
        out, lse = super().forward_lse(call)
        return out, lse / math.log(2.0)


class OneSidedAttention(ReferenceAttention):
    """Knows windows under a causal mask only."""

    def forward(self, call: AttentionCall) -> torch.Tensor:
        """Attend to all that follows a query."""
        window = call.spec.window_tokens if call.spec.is_causal else None
        return super().forward(ruled(call, window_tokens=window))


class MirroredBiasAttention(ReferenceAttention):
    """Takes the distance from key to query for that from query to key."""

    def forward_biased(self, call: AttentionCall) -> torch.Tensor:
        """Attend with the biases of the other direction."""
        assert call.bias is not None
        return super().forward_biased(structs.replace(call, bias=call.bias.flip(1)))


class PaddingAttention(ReferenceAttention):
    """Reads whole blocks, what lies behind the row's end included."""

    def prepare(self, layout: BatchLayout) -> BatchLayout:
        """Return the layout; remember its blocks."""
        self._layout = layout
        return layout

    def forward(self, call: AttentionCall) -> torch.Tensor:
        """Attend, then let a trace of the unused cells in."""
        last = call.prepared.block_table[:, -1].long()
        return super().forward(call) + 0 * call.cache[0, last].sum()


class RightBias(LogitsProcessor):
    """A right processor: adds to the tokens drawn so far. The others derive from it."""

    info = Info(summary="likes what it wrote")

    def __init__(self, options: Any, vocab_size: int) -> None:
        super().__init__(options, vocab_size)
        self.rows: dict[int, RowTokens] = {}

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        """Return whether there is a bias."""
        return bool(params.logit_bias)

    def add_row(self, tokens: RowTokens) -> None:
        """Start a row."""
        self.rows[tokens.row] = tokens

    def remove_row(self, row: int) -> None:
        """Forget a row."""
        self.rows.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        """Add one to each token drawn."""
        for index, row in rows:
            logits[index, list(set(self.rows[row].output_ids))] += 1.0


class TouchesAll(RightBias):
    """Changes rows that are not its own."""

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        """Change every row."""
        logits += 1.0


class WantsAll(RightBias):
    """Is called for everybody."""

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        """Return True."""
        return True


class MakesNan(RightBias):
    """Leaves NaN behind."""

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        """Spoil one logit."""
        for index, _ in rows:
            logits[index, 0] = float("nan")


class CopiesOutput(RightBias):
    """Looks at the tokens only once."""

    def add_row(self, tokens: RowTokens) -> None:
        """Keep a copy."""
        self.rows[tokens.row] = replace(tokens, output_ids=list(tokens.output_ids))


class NeverForgets(RightBias):
    """Keeps the first request that used a row."""

    def add_row(self, tokens: RowTokens) -> None:
        """Start a row, unless it is known."""
        self.rows.setdefault(tokens.row, tokens)

    def remove_row(self, row: int) -> None:
        """Keep it."""


class BatchMean(RightBias):
    """Lets rows of a batch see each other."""

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        """Add the batch's mean."""
        indices = [index for index, _ in rows]
        logits[indices] += logits[indices].mean()


class FiltersBest(RightBias):
    """A filter that removes the best token."""

    stage = "filter"

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        """Remove the most likely token."""
        for index, _ in rows:
            logits[index, logits[index].argmax()] = float("-inf")


class TwiceFormat(Safetensors):
    """Yields a tensor twice."""

    def tensors(self, checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield everything, and the last once more."""
        for pair in super().tensors(checkpoint):
            yield pair
        yield pair


class WideFormat(Safetensors):
    """Turns every tensor into float32."""

    def tensors(self, checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield wide tensors."""
        for name, tensor in super().tensors(checkpoint):
            yield name, tensor.float()


class LyingFormat(Safetensors):
    """Says of every tensor that it is as wide as can be."""

    def headers(self, checkpoint: Checkpoint) -> Iterator[TensorHeader]:
        """Yield headers of another type."""
        for header in super().headers(checkpoint):
            yield replace(header, dtype="float64")


class ForgivingFormat(Safetensors):
    """Reads what it can of a damaged file and says nothing."""

    def tensors(self, checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield what can be read."""
        try:
            yield from super().tensors(checkpoint)
        except ConfigError:
            return


class HoardingFormat(Safetensors):
    """Claims to be lazy and holds everything."""

    def tensors(self, checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield from a list."""
        yield from list(super().tensors(checkpoint))


class SecretFormat(Safetensors):
    """Reads a format of which the kit has no sample."""

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return that nothing fits."""
        return ["never"] if query is not None else []

    @classmethod
    def write_sample(cls, folder: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write nothing."""
        raise NotImplementedError


class DoubleBias(Unquantized):
    """Adds the bias twice."""

    info = Info(summary="too much bias")
    capabilities = frozenset({"from_checkpoint"})

    def linear(self, spec: LinearSpec) -> LinearMethod:
        """Return the faulty method."""
        return _DoubleBias(super().linear(spec))


class _DoubleBias(LinearMethod):
    def __init__(self, right: LinearMethod) -> None:
        self.right = right

    def create(self, layer: nn.Module, spec: LinearSpec) -> None:
        self.right.create(layer, spec)

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        out = self.right.apply(layer, x, bias)
        return out if bias is None else out + bias


class PlainEnds(Unquantized):
    """Leaves activations out."""

    info = Info(summary="no activations")
    capabilities = frozenset({"from_checkpoint"})

    def linear(self, spec: LinearSpec) -> LinearMethod:
        """Return the faulty method."""
        return _PlainEnds(super().linear(spec))


class _PlainEnds(LinearMethod):
    def __init__(self, right: LinearMethod) -> None:
        self.right = right

    def create(self, layer: nn.Module, spec: LinearSpec) -> None:
        self.right.create(layer, spec)

    def finish(self, layer: nn.Module) -> None:
        self.right.finish(layer)

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return self.right.apply(layer, x, bias)

    def apply_activated(
        self,
        layer: nn.Module,
        x: torch.Tensor,
        bias: torch.Tensor | None,
        activation: NamedActivation,
    ) -> torch.Tensor:
        return self.right.apply(layer, x, bias)


class SilentAbort(ContinuousScheduler):
    """Does not say whom it ended."""

    def abort(self, request_ids: Sequence[str], reason: str = "abort") -> Sequence[RequestState]:
        """End them and return nobody."""
        super().abort(request_ids, reason)
        return []


class LazyPlanner(ContinuousScheduler):
    """Plans every step's last row away."""

    def plan(self) -> StepPlan:
        """Return a plan that lost a row."""
        plan = super().plan()
        return msgspec.structs.replace(plan, rows=plan.rows[:-1])


class TalkativeCounts(ContinuousScheduler):
    """Counts wrongly."""

    def counts(self) -> tuple[int, int]:
        """Return one too many."""
        running, waiting = super().counts()
        return running + 1, waiting


class TrustingScheduler(ContinuousScheduler):
    """Counts drafts as computed whether they came true or not."""

    def update(self, plan: StepPlan, result: StepResult) -> Sequence[RequestState]:
        """Hide that there were drafts."""
        rows = tuple(msgspec.structs.replace(row, drafts=()) for row in plan.rows)
        return super().update(msgspec.structs.replace(plan, rows=rows), result)


class LosingScheduler(ContinuousScheduler):
    """Forgets to have blocks copied to the host."""

    def plan(self) -> StepPlan:
        """Return the plan without those copies."""
        return msgspec.structs.replace(super().plan(), swapped_out=())


class KeepingScheduler(ContinuousScheduler):
    """Leaves all requests their blocks."""

    def preempt_all(self) -> None:
        """Do nothing."""


class LosingWorker(CpuWorker):
    """Copies nothing back from the host."""

    def step(self, plan: StepPlan) -> StepResult:
        """Run the plan without those copies."""
        return super().step(msgspec.structs.replace(plan, swapped_in=()))


class SleepyWorker(CpuWorker):
    """Forgets its weights at every level."""

    def sleep(self, level: int) -> None:
        """Sleep, and scribble over what should have been kept."""
        for weight in self.runner.weights():
            weight.zero_()
        super().sleep(level)


class ForgivingWorker(CpuWorker):
    """Hides faults of rows."""

    def step(self, plan: StepPlan) -> StepResult:
        """Return the result without faults."""
        result = super().step(plan)
        rows = tuple(
            msgspec.structs.replace(row, fault=None, token_ids=row.token_ids or (1,))
            if row.fault
            else row
            for row in result.rows
        )
        return msgspec.structs.replace(result, rows=rows)


class AnywhereWorker(CpuWorker):
    """Says that it runs on anything."""

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return no reason."""
        return []


class CredulousWorker(CpuWorker):
    """Takes every draft for the truth."""

    def step(self, plan: StepPlan) -> StepResult:
        """Answer with the drafts."""
        result = super().step(plan)
        rows = tuple(
            msgspec.structs.replace(row, token_ids=(*step.drafts, *row.token_ids[-1:]))
            for step, row in zip(plan.rows, result.rows, strict=True)
        )
        return msgspec.structs.replace(result, rows=rows)


class BackwardWorker(CpuWorker):
    """Computes each step's rows as if their order did not matter, and mixes answers up."""

    def step(self, plan: StepPlan) -> StepResult:
        """Return the rows' tokens turned round."""
        result = super().step(plan)
        tokens = [row.token_ids for row in result.rows][::-1]
        rows = tuple(
            msgspec.structs.replace(row, token_ids=ids)
            for row, ids in zip(result.rows, tokens, strict=True)
        )
        return msgspec.structs.replace(result, rows=rows)


class QuietExecutor(UniExecutor):
    """Tells nobody that its worker died."""

    def on_death(self, callback: Callable[[str], None]) -> None:
        """Forget the callback."""


class LeakyExecutor(UniExecutor):
    """Leaves its thread behind."""

    def shutdown(self) -> None:
        """Forget the thread instead of ending it."""
        self._kept = self._thread
        if self._thread is not None:
            self._thread = None
        super().shutdown()


class Qwen3ForCausalLM(qwen3.Qwen3ForCausalLM):
    """Its logits are a little off."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits times 1.01."""
        return super().logits(hidden) * 1.01


class LlamaForCausalLM(llama.LlamaForCausalLM):
    """Loses count of positions beyond 17."""

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return hidden states with positions cut off."""
        return super().forward(token_ids, positions.clamp(max=17))


class HastyTokenizer(HfTokenizer):
    """Decodes every token by itself."""

    def stream(
        self,
        prompt_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        kept_ids: frozenset[int] = frozenset(),
    ) -> Any:
        """Return a stream that waits for nothing."""
        return _HastyStream(self, skip_special_tokens)


class _HastyStream:
    def __init__(self, tokenizer: HfTokenizer, skips: bool) -> None:
        self.tokenizer, self.skips = tokenizer, skips

    def push(self, token_id: int) -> str:
        return self.tokenizer.decode([token_id], skip_special_tokens=self.skips)

    def flush(self) -> str:
        return ""


class ChattyTokenizer(HfTokenizer):
    """Puts a word between two texts."""

    def pair_frame(self) -> PairFrame:
        """Return a frame that the checkpoint does not know."""
        return PairFrame(between=tuple(self.encode("and", add_special_tokens=False)))


class ScribblingQuantizer(Int4):
    """Rounds in the memory of the matrix it was given."""

    def quantize(self, name: str, weight: torch.Tensor, inputs: Inputs | None) -> Quantized:
        """Overwrite the matrix with what is meant."""
        done = super().quantize(name, weight, inputs)
        weight.copy_(done.meant)
        return done


class NamelessQuantizer(Int4):
    """Writes settings that no reader knows as its own."""

    def settings(self, whole: Sequence[str]) -> Mapping[str, Any]:
        """Leave the method's name out."""
        return {k: v for k, v in super().settings(whole).items() if k != "quant_method"}


LONG = Value(summary="an angle too many", value=f"{__file__}:one_more")


def one_more(settings: RopeSettings) -> Frequencies:
    """Return a pair that the head does not have."""
    angles, scale = linear(settings)
    return torch.cat([angles, angles[:1]]), scale


def half_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float, **rest: Any) -> Any:
    """Return x, which is not a norm."""
    return x.clone()


SLOPPY = Implementation(
    name="sloppy", function=half_norm, devices=("cpu",), dtypes=(torch.float32,)
)


class SloppyPlatform(Platform):
    """Brings a norm that leaves things as they are."""

    info = Info(summary="a CPU with a norm of its own", devices=("cpu",))
    device_type = "cpu"
    ops = {"rms_norm": f"{__file__}:SLOPPY"}

    def defaults(self) -> PlatformDefaults:
        """Return those of a CPU."""
        return PlatformDefaults(worker="cpu", step_tokens=128, rows=8)


class GreedyPolicy(Paged):
    """Takes twice the memory that there is."""

    info = Info(summary="takes too much")

    def plan(self, layers: Sequence[KVLayer], room: KVRoom) -> KVLayout:
        """Double it."""
        return super().plan(layers, replace(room, memory_bytes=2 * (room.memory_bytes or 0)))


class SharingPolicy(Paged):
    """Forgets that a block it has handed out is somebody's."""

    info = Info(summary="hands blocks out twice")

    def accounting(self, layout: KVLayout, spec: CacheSpec, hash_key: bytes) -> KVAccounting:
        """Return an account that does so."""
        return _Sharing(layout, spec, hash_key)


class _Sharing(KVCacheManager):
    def allocate(
        self, request: RequestState, num_tokens: int, *, cached_tokens: int = 0
    ) -> tuple[tuple[int, ...], ...] | None:
        """Hand out block 1 for every new block."""
        made = super().allocate(request, num_tokens, cached_tokens=cached_tokens)
        return None if made is None else tuple(tuple(1 for _ in blocks) for blocks in made)


class CopyingCommunicator(GlooCommunicator):
    """Leaves the tensor that it sums as it was."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum, elsewhere."""
        return super().all_reduce(x.clone())


class OwnFirstCommunicator(GlooCommunicator):
    """Puts its own tensor first."""

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return the ranks' tensors in an order of this rank's."""
        return super().all_gather(x).roll(-self.rank, 0)


class EagerCommunicator(GlooCommunicator):
    """Waits for nobody."""

    def barrier(self) -> None:
        """Return at once."""


class BoastfulCommunicator(GlooCommunicator):
    """Claims that calls overlap, and waits for the other ranks in each."""

    def begin(self, call: Callable[[], T]) -> Callable[[], T]:
        """Make the call."""
        made = call()
        return lambda: made


class AnywhereCommunicator(GlooCommunicator):
    """Says that it fits any device."""

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return nothing."""
        return []


class CrampedScheduler(ContinuousScheduler):
    """Asks the worker for drafts that have no room."""

    def plan(self) -> StepPlan:
        """Want ten drafts wherever some are wanted."""
        plan = super().plan()
        rows = (
            msgspec.structs.replace(row, num_drafts=10 * bool(row.num_drafts)) for row in plan.rows
        )
        return msgspec.structs.replace(plan, rows=tuple(rows))


class MixingDrafter(Eagle):
    """Lets the rows of a batch know of each other."""

    info = Info(summary="a head that looks around")

    def advance(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        states: torch.Tensor | None,
        depth: int,
    ) -> torch.Tensor:
        """Return states less their mean."""
        found = super().advance(token_ids, positions, states, depth)
        return found - found.mean(dim=0)


class WideDrafter(Eagle):
    """Guesses a token that the model does not have."""

    info = Info(summary="a head of one token more")

    def logits(self, states: torch.Tensor, depth: int) -> torch.Tensor:
        """Return logits with a column too many."""
        return torch.nn.functional.pad(super().logits(states, depth), (0, 1))


class MoodyDrafter(Eagle):
    """Guesses by chance."""

    info = Info(summary="a head that throws dice")

    def logits(self, states: torch.Tensor, depth: int) -> torch.Tensor:
        """Return other logits at every call."""
        return torch.rand_like(super().logits(states, depth))


class ScribblingSettings(Eagle):
    """Writes into what was read of a file."""

    info = Info(summary="a head that is not careful")

    @classmethod
    def settings(cls, raw: Mapping[str, Any], target: ModelSpec) -> dict[str, Any]:
        """Return the settings themselves, changed."""
        assert isinstance(raw, dict)
        raw["vocab_size"] = target.vocab_size + 1
        return raw
