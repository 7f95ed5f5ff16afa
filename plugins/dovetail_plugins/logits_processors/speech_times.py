"""SpeechTimes: times and text in the order in which a transcript has them.

A request names it with the ids that count. Times come in pairs, an end and a beginning, never
earlier than the previous one; a window begins with a time; if times together are more likely than
any text, a time is sampled. Without times only the suppressed tokens are banned.
Source: Radford et al., 2022, section 4.5, and the rules of openai/whisper's decoding
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dovetail.errors import RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.logits import LogitsProcessor, RowTokens
from dovetail.interfaces.plugin import Info
from dovetail_plugins.logits_processors._ids import verify_ids

if TYPE_CHECKING:
    import torch

NAME = "speech_times"
SINGLE = ("first_time", "end", "no_times")
LISTS = ("suppressed", "suppressed_first")


@dataclass(frozen=True, slots=True)
class TimestampRules:
    """A request's rules. `first_time` None: only the suppressed ids count. The first time of a
    window is one of the first `most_first` ones."""

    first_time: int | None
    end: int
    no_times: int
    most_first: int
    suppressed: tuple[int, ...]
    suppressed_first: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A row's live tokens, its rules, and as tensors the ids of `TimestampRules` that are never
    written and not at the beginning."""

    tokens: RowTokens
    rules: TimestampRules
    never: torch.Tensor
    never_first: torch.Tensor


class SpeechTimes(LogitsProcessor):
    """Bans what cannot continue a transcript (`logits_processors: {"speech_times": {...}}`)."""

    info = Info(summary="keeps the times of a transcript in order", source="arXiv:2212.04356")
    stage = "bias"

    def __init__(self, options: Any, vocab_size: int) -> None:
        super().__init__(options, vocab_size)
        self._rows: dict[int, Row] = {}

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        """Return whether the request names it."""
        return NAME in params.logits_processors

    @classmethod
    def verify(cls, params: SamplingParams, vocab_size: int) -> None:
        """Raises: RequestError for other words or ids outside the vocabulary."""
        _rules(params.logits_processors[NAME], vocab_size)

    def add_row(self, tokens: RowTokens) -> None:
        """Keep the row's rules and its live tokens."""
        import torch  # not for `verify`, which servers call without it

        rules = _rules(tokens.params.logits_processors[NAME], self.vocab_size)
        never, first = (
            torch.tensor(ids, dtype=torch.int64)
            for ids in (rules.suppressed, rules.suppressed_first)
        )
        self._rows[tokens.row] = Row(tokens, rules, never, first)

    def remove_row(self, row: int) -> None:
        """Forget the row."""
        self._rows.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        """Ban tokens that cannot follow. Shapes: logits [S, V]. Mutates: logits"""
        for index, row in rows:
            _apply(logits[index], self._rows[row])


def _apply(logits: torch.Tensor, row: Row) -> None:
    """Ban tokens that cannot follow those of one row. Shapes: logits [V]. Mutates: logits"""
    rules, output, never = row.rules, row.tokens.output_ids, -float("inf")
    logits.index_fill_(0, row.never.to(logits.device), never)
    if not output:
        logits.index_fill_(0, row.never_first.to(logits.device), never)
    first = rules.first_time
    if first is None:
        return
    logits[rules.no_times] = never
    if not output:
        logits[:first] = never
        logits[first + rules.most_first + 1 :] = never
        return
    was_time = output[-1] >= first
    was_before = len(output) < 2 or output[-2] >= first
    if was_time and was_before:
        logits[first:] = never
    elif was_time:
        end = logits[rules.end].clone()
        logits[:first] = never
        logits[rules.end] = end
    times = [one for one in output if one >= first]
    if times:
        first_allowed = times[-1] if was_time and not was_before else times[-1] + 1
        logits[first:first_allowed] = never
    if logits[first:].logsumexp(-1) > logits[:first].max():
        logits[:first] = never


def _rules(given: Mapping[str, Any], vocab_size: int) -> TimestampRules:
    """Return a request's rules. Raises: RequestError"""
    where = f"logits_processors.{NAME}"
    names = {*SINGLE, *LISTS, "most_first"}
    foreign = sorted(set(given) - names)
    if foreign:
        raise RequestError(
            f"{foreign[0]} is unknown here.", where=where, fix=f"use {sorted(names)}."
        )
    ids = [one for name in LISTS for one in given.get(name, ())]
    ids += [given[name] for name in SINGLE if given.get(name) is not None]
    verify_ids(ids, vocab_size, where)
    return TimestampRules(
        first_time=given.get("first_time"),
        end=int(given.get("end", 0)),
        no_times=int(given.get("no_times", 0)),
        most_first=int(given.get("most_first", 50)),
        suppressed=tuple(given.get("suppressed", ())),
        suppressed_first=tuple(given.get("suppressed_first", ())),
    )
