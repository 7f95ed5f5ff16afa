"""Trial: an engine with some settings, in its own process, and what is measured of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import msgspec
import psutil

from dovetail.errors import DovetailError
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.json_values import json_struct
from dovetail.processes import process
from dovetail_plugins.tune.messages import (
    Answer,
    Answered,
    Ask,
    Failed,
    Judge,
    Judged,
    Loaded,
    Reply,
    Texts,
    Write,
)

LOAD_LIMIT_S = 1800.0
END_GRACE_S = 5.0
_Kind = TypeVar("_Kind", bound=Reply)


class TrialError(DovetailError):
    """An engine could not be loaded with these settings, or failed."""


@dataclass(kw_only=True)
class Trial:
    """A running engine."""

    child: process.Child
    lines: Any
    num_asked: int = 0

    @classmethod
    def start(cls, spec: EngineSpec) -> Self:
        """Load an engine. Raises: TrialError"""
        child = process.spawn("dovetail_plugins.tune.trial_child", spec, has_channel=True)
        assert child.channel is not None
        child.channel.settimeout(LOAD_LIMIT_S)
        trial = cls(child=child, lines=child.channel.makefile("rb"))
        try:
            trial._reply(Loaded)
        except TrialError:
            trial.end()
            raise
        return trial

    def texts(self, path: str | None, num_texts: int, text_tokens: int) -> list[list[int]]:
        """Return texts that the model writes, or those of a file. Raises: TrialError"""
        ask = Write(path=path, num_texts=num_texts, text_tokens=text_tokens)
        return self._ask(ask, Texts).texts

    def logprobs(self, texts: list[list[int]]) -> list[float]:
        """Return the logarithm of each token's probability. Raises: TrialError"""
        return self._ask(Judge(texts=texts), Judged).logprobs

    def answer(self, prompts: Sequence[list[int]], answer_tokens: int) -> Answered:
        """Answer prompts together. Raises: TrialError"""
        self.num_asked += 1
        ask = Answer(prompts=list(prompts), answer_tokens=answer_tokens, salt=str(self.num_asked))
        return self._ask(ask, Answered)

    def memory_bytes(self) -> int:
        """Return the memory of the trial's processes; pages that several share count once."""
        own = psutil.Process(self.child.pid)
        return sum(one.memory_full_info().pss for one in (own, *own.children(recursive=True)))

    def end(self) -> None:
        """End the process; may be called twice."""
        self.lines.close()
        self.child.end(grace_s=END_GRACE_S)

    def _ask(self, ask: Ask, kind: type[_Kind]) -> _Kind:
        assert self.child.channel is not None
        try:
            self.child.channel.sendall(msgspec.json.encode(ask) + b"\n")
        except OSError as error:
            raise self._ended() from error
        return self._reply(kind)

    def _reply(self, kind: type[_Kind]) -> _Kind:
        try:
            line = self.lines.readline()
        except OSError as error:
            raise TrialError(f"no answer within {LOAD_LIMIT_S:.0f} s") from error
        if not line:
            raise self._ended()
        reply = json_struct(line, Reply)
        if isinstance(reply, Failed):
            raise TrialError(reply.reason)
        assert isinstance(reply, kind)
        return reply

    def _ended(self) -> TrialError:
        return TrialError(f"the process ended with status {self.child.wait(END_GRACE_S)}")
