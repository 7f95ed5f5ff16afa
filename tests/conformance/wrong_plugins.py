"""Deliberately wrong plugins without torch: each breaks the one clause that test_kit names."""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dovetail.interfaces.bench_dataset import BenchDataset, BenchPrompt, DatasetQuery
from dovetail.interfaces.data.block_hash import BlockHash
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.data.text import Markers, Sample, Tool, ToolCall
from dovetail.interfaces.drafter import Drafter
from dovetail.interfaces.platform import Platform, PlatformDefaults, PlatformLimits
from dovetail.interfaces.plugin import Info, Value
from dovetail.interfaces.reasoning_parser import ReasoningParser
from dovetail.interfaces.scheduling_policy import RequestView, SchedulingPolicy
from dovetail.interfaces.stats import RequestStats, StatLogger, StepStats
from dovetail.interfaces.tool_parser import MalformedToolCall, ToolParser


class RightPolicy(SchedulingPolicy):
    """Nothing is wrong with it; the others derive from it."""

    info = Info(summary="first come, first served")

    def key(self, request: RequestView) -> tuple[float, ...]:
        """Return the arrival."""
        return (request.arrival_s,)


class WrongSignature(SchedulingPolicy):
    """Names its parameter otherwise."""

    info = Info(summary="another parameter")

    def key(self, candidate: RequestView) -> tuple[float, ...]:
        """Return a key."""
        return (0.0,)


class Undocumented(RightPolicy):
    info = Info(summary="says nothing of itself")


class UnhelpfulReason(RightPolicy):
    """Says that it is unavailable, but not what to do."""

    info = Info(summary="unavailable without a fix")

    @classmethod
    def unavailable_reason(cls) -> str | None:
        """Return a reason without a remedy."""
        return "no"


class AlwaysObjects(RightPolicy):
    """Objects to a question that was not asked."""

    info = Info(summary="objects to everything")

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return a reason whatever is asked."""
        return ["no"]


class HelplessOptions(RightPolicy):
    """Its option says nothing."""

    info = Info(summary="an option without help")

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Options:
        """One unexplained option."""

        weight: float = 1.0


class LyingOptions(RightPolicy):
    """Its option's default is not of its type."""

    info = Info(summary="an option with a wrong default")

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Options:
        """One option of the wrong type."""

        count: int = field(default=1.5, metadata={"help": "a count"})  # type: ignore[assignment]


class UnknownFailure(RightPolicy):
    """Expects a clause to fail that does not exist."""

    info = Info(summary="expects what is not asked")
    expected_failures: ClassVar[dict[str, str]] = {"flies": "it cannot fly"}


class FalseFailure(RightPolicy):
    """Expects a clause to fail that it keeps."""

    info = Info(summary="expects too little of itself")
    expected_failures: ClassVar[dict[str, str]] = {"keys_compare": "said to fail"}


class InfiniteKeys(RightPolicy):
    """Its keys are no finite numbers."""

    info = Info(summary="infinite keys")

    def key(self, request: RequestView) -> tuple[float, ...]:
        """Return an infinite key."""
        return (math.inf, request.arrival_s)


class RaggedKeys(RightPolicy):
    """Its keys have several lengths."""

    info = Info(summary="ragged keys")

    def key(self, request: RequestView) -> tuple[float, ...]:
        """Return one number, or two."""
        return (0.0,) * (1 + request.num_prompt_tokens % 2)


class KnownFailure(RaggedKeys):
    """Breaks the same clause and says so: not a failure."""

    info = Info(summary="admits its fault")
    expected_failures: ClassVar[dict[str, str]] = {"keys_compare": "ragged on purpose"}


class DriftingKeys(RightPolicy):
    """A key changes with every question."""

    info = Info(summary="counts questions")

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._count = itertools.count()

    def key(self, request: RequestView) -> tuple[float, ...]:
        """Return another number each time."""
        return (float(next(self._count)),)


class PersonalKeys(RightPolicy):
    """Two objects disagree."""

    info = Info(summary="depends on the object")
    made: ClassVar[Any] = itertools.count()

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._mine = float(next(self.made))

    def key(self, request: RequestView) -> tuple[float, ...]:
        """Return the object's own number."""
        return (self._mine,)


class SlowLogger(StatLogger):
    """Blocks its caller."""

    info = Info(summary="sleeps")

    def __init__(self, options: Any, model_name: str, max_model_tokens: int) -> None:
        self.options = options

    def step(self, stats: StepStats) -> None:
        """Sleep."""
        time.sleep(0.02)

    def request(self, stats: RequestStats) -> None:
        """Do nothing."""


class PickyLogger(SlowLogger):
    """Raises for some requests."""

    info = Info(summary="raises on aborts")

    def step(self, stats: StepStats) -> None:
        """Do nothing."""

    def request(self, stats: RequestStats) -> None:
        """Raise for an abort."""
        if stats.finish_reason == "abort":
            raise KeyError(stats.finish_reason)


class ForgetfulDataset(BenchDataset):
    """Draws other prompts every time."""

    info = Info(summary="counts its draws")
    draws: ClassVar[Any] = itertools.count()

    def draw(self, query: DatasetQuery) -> list[BenchPrompt]:
        """Return prompts that tell how often was drawn."""
        text = f"draw {next(self.draws)}"
        asked = query.output_tokens or 1
        return [BenchPrompt(prompt=text, output_tokens=asked)] * query.num_prompts


class ShiftyDataset(BenchDataset):
    """Draws other prompts when more are asked for."""

    info = Info(summary="counts down")

    def draw(self, query: DatasetQuery) -> list[BenchPrompt]:
        """Return numbered prompts, the last one first."""
        asked = query.output_tokens or 1
        numbers = range(query.num_prompts, 0, -1)
        return [BenchPrompt(prompt=f"number {i}", output_tokens=asked) for i in numbers]


class SlashParser(ToolParser):
    """A right parser of /name arguments/; the others derive from it."""

    info = Info(summary="calls between slashes")
    markers = (Markers(start="//", end=";;"),)
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(text="//f {};;", calls=(ToolCall(name="f", arguments="{}"),)),
        Sample(text="//not a call;;", content="//not a call;;"),
    )

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the call."""
        name, blank, arguments = body.partition(" ")
        if not name or not blank or arguments != "{}":
            raise MalformedToolCall(body)
        return [ToolCall(name=name, arguments=arguments)]


class NoSamples(SlashParser):
    """Brings no samples."""

    samples: ClassVar[tuple[Sample, ...]] = ()


class WrongSample(SlashParser):
    """Its sample promises something else."""

    samples: ClassVar[tuple[Sample, ...]] = (
        *SlashParser.samples,
        Sample(text="//g {};;", calls=(ToolCall(name="h", arguments="{}"),)),
    )


class CrashingParser(SlashParser):
    """Raises what it should not."""

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Raise IndexError for an empty body."""
        if body == "not a call":
            raise MalformedToolCall(body)
        return [ToolCall(name=body.split()[0], arguments="{}")]


class ForgetfulParser(SlashParser):
    """Every second region is refused."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._count = itertools.count()

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the call, or not."""
        if next(self._count) % 2:
            raise MalformedToolCall(body)
        return super().parse(body, tools)


class LooseArguments(SlashParser):
    """Its arguments are no JSON object."""

    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(text="//f x;;", calls=(ToolCall(name="f", arguments="x"),)),
        Sample(text="//bad;;", content="//bad;;"),
    )

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the call with its text as arguments."""
        name, blank, arguments = body.partition(" ")
        if not name or not blank or len(name) > 1 or arguments != "x":
            raise MalformedToolCall(body)
        return [ToolCall(name=name, arguments=arguments)]


class ChoosyParser(SlashParser):
    """Drops calls of tools that nobody offered."""

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the call if the tool is known."""
        calls = super().parse(body, tools)
        return [call for call in calls if call.name in {tool.name for tool in tools}]


LONG, WIDE = "f" * 16, "{" + " " * 600 + "}"


class RepentantParser(SlashParser):
    """What it says of a beginning it takes back where the text goes wrong later."""

    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(text=f"//{LONG} {WIDE};;", calls=(ToolCall(name=LONG, arguments=WIDE),)),
        Sample(text="//bad;;", content="//bad;;"),
    )

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the call."""
        calls = self.so_far(body, tools)
        if not calls or "".join(calls[0].arguments.split()) != "{}":
            raise MalformedToolCall(body)
        return calls

    def so_far(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the call once a blank follows the name, unless the body is spoilt."""
        name, blank, arguments = body.partition(" ")
        if set(arguments) - set("{ }"):
            raise MalformedToolCall(body)
        return [ToolCall(name=name, arguments=arguments)] if name and blank else []


class WanderingEnd(SlashParser):
    """Its regions end wherever the text ends."""

    markers = (Markers(start="//"),)
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(text="//f {}", calls=(ToolCall(name="f", arguments="{}"),)),
        Sample(text="//bad", content="//bad"),
    )

    def region_end(self, body: str) -> int | None:
        """Return the end of the text, once there is a blank."""
        return len(body) if " " in body else None


class AlwaysThinks(ReasoningParser):
    """Says that every answer begins inside, and does not claim it."""

    info = Info(summary="always thinks")
    markers = Markers(start="<t>", end="</t>")
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(text="<t>why</t>so", reasoning="why", content="so"),
    )

    def starts_inside(self, prompt: str) -> bool:
        """Return True."""
        return True


class NeverThinks(AlwaysThinks):
    """Does not look at the prompt."""

    info = Info(summary="never thinks before it writes")

    def starts_inside(self, prompt: str) -> bool:
        """Return False."""
        return False


THING = Value(summary="no plain data", value=object())


class RightDrafter(Drafter):
    """Guesses that the last token comes again; the others derive from it."""

    info = Info(summary="the last token once more")

    def __init__(self, options: Any, model: ModelSpec, max_draft_tokens: int) -> None:
        self.last: dict[str, int] = {}
        self.vocab_size = model.vocab_size

    def propose(self, request_id: str, token_ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        """Return the last token."""
        self.last[request_id] = token_ids[-1]
        return [token_ids[-1]] * max_tokens

    def forget(self, request_id: str) -> None:
        """Drop it."""
        self.last.pop(request_id, None)


class EagerDrafter(RightDrafter):
    """Guesses one token more than it was asked for."""

    def propose(self, request_id: str, token_ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        """Return too many."""
        return [token_ids[-1]] * (max_tokens + 1)


class ForeignDrafter(RightDrafter):
    """Guesses a token that the model cannot draw."""

    def propose(self, request_id: str, token_ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        """Return an id behind the vocabulary."""
        return [self.vocab_size]


class ScribblingDrafter(RightDrafter):
    """Writes its guess into the engine's list."""

    def propose(self, request_id: str, token_ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        """Append to what is not its own."""
        token_ids.append(1)  # type: ignore[attr-defined]
        return [1]


class ChattyDrafter(RightDrafter):
    """Says of one request what it heard of another."""

    def propose(self, request_id: str, token_ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        """Return the last token of whoever was asked first."""
        super().propose(request_id, token_ids, max_tokens)
        return [next(iter(self.last.values()))]


class ForgetlessDrafter(RightDrafter):
    """Takes a new request for an old one of the same name."""

    def propose(self, request_id: str, token_ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        """Return the first token it ever heard of under this name."""
        return [self.last.setdefault(request_id, token_ids[0])]

    def forget(self, request_id: str) -> None:
        """Keep everything."""


class AmnesicDrafter(RightDrafter):
    """Says that it remembers, and does not."""

    capabilities = frozenset({"remembers"})


class ImposingDrafter(RightDrafter):
    """Claims a sort that it is not of."""

    info = Info(summary="says that it runs on the worker")
    capabilities = frozenset({"on_worker"})


ALIEN = Value(summary="a type that nobody computes in", value="posit16")
COLLIDING = Value(summary="looks at four bytes", value=f"{__file__}:FEW")
CROWDED = Value(summary="gives the last rank nothing to do", value=f"{__file__}:crowded")


def crowded(num_experts: int, num_ranks: int) -> list[range]:
    """Return all experts for the first rank."""
    return [range(num_experts), *[range(0)] * (num_ranks - 1)]


FEW = BlockHash(digest=lambda key, data: hashlib.sha256(key + data[:8]).digest())


class RightPlatform(Platform):
    """Nothing is wrong with it; the others derive from it."""

    info = Info(summary="a CPU by another name", devices=("cpu",))
    device_type = "cpu"

    def defaults(self) -> PlatformDefaults:
        """Return those of a CPU."""
        return PlatformDefaults(worker="cpu", step_tokens=128, rows=8)


class BoastfulPlatform(RightPlatform):
    """Takes more rows than it allows."""

    def limits(self) -> PlatformLimits:
        """Allow fewer than it takes."""
        return PlatformLimits(rows=4)


class LonelyPlatform(RightPlatform):
    """Names a worker that nobody has."""

    def defaults(self) -> PlatformDefaults:
        """Name it."""
        return PlatformDefaults(worker="abacus", step_tokens=128, rows=8)


class OddPlatform(RightPlatform):
    """Does not take what half of all checkpoints store, and does not say what it takes instead."""

    def limits(self) -> PlatformLimits:
        """Allow one type."""
        return PlatformLimits(dtypes=("float32", "bfloat16"))


class StingyPlatform(RightPlatform):
    """Gives all engines the same device."""

    def engine_variables(self, place: int, count: int, num_ranks: int) -> Mapping[str, str]:
        """Return the first device."""
        return {"DEVICE": "0"}


class ForgetfulPlatform(RightPlatform):
    """Computes on main memory and does not know how much there is."""

    capabilities = frozenset({"host_memory"})
