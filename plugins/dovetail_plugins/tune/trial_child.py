"""The process of one trial: an engine that writes, judges and answers as it is asked."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from functools import singledispatchmethod
from typing import Any

import msgspec

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

SEED = 0


def main() -> int:
    """Load the engine and answer; return the exit status."""
    channel = process.open_channel()
    try:
        _serve(channel, process.read_boot(EngineSpec))
    except DovetailError as error:
        _send(channel, Failed(reason=str(error)))
        return 1
    return 0


def _serve(channel: socket.socket, spec: EngineSpec) -> None:
    """Answer until the channel ends. Raises: DovetailError"""
    from dovetail.llm.llm import LLM

    with LLM.from_spec(spec) as llm, channel.makefile("rb") as lines:
        if llm.spec.run.pooling is not None:
            raise DovetailError("the model makes vectors or classes; tune measures answers.")
        trial = Trial(llm)
        _send(channel, Loaded())
        for line in lines:
            _send(channel, trial.reply(json_struct(line, Ask)))


def _send(channel: socket.socket, reply: Reply) -> None:
    channel.sendall(msgspec.json.encode(reply) + b"\n")


class Trial:
    """A loaded engine, and what it is asked."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    @singledispatchmethod
    def reply(self, ask: Any) -> Reply:
        """Return the reply. Raises: DovetailError"""
        raise TypeError(f"{type(ask).__name__} is not asked")

    @reply.register
    def _write(self, ask: Write) -> Texts:
        if ask.path is not None:
            return Texts(texts=list(self._read(ask.path, ask.num_texts, ask.text_tokens)))
        from dovetail.interfaces.data.sampling_params import SamplingParams

        starts = [[token] for token in self._first_tokens(ask.num_texts)]
        params = [
            SamplingParams(temperature=1.0, max_tokens=ask.text_tokens - 1, seed=seed)
            for seed in range(ask.num_texts)
        ]
        results = _whole(self._llm.generate(starts, params, use_tqdm=False))
        pairs = zip(starts, results, strict=True)
        return Texts(texts=[[*start, *one.outputs[0].token_ids] for start, one in pairs])

    def _first_tokens(self, count: int) -> list[int]:
        """Return the token that begins a text, or random ones for a model without one."""
        begin = getattr(self._llm.tokenizer, "bos_token_id", None)
        draws = random.Random(SEED)
        vocab = self._llm.spec.run.model.vocab_size
        return [draws.randrange(vocab) if begin is None else begin for _ in range(count)]

    def _read(self, path: str, count: int, length: int) -> Iterator[list[int]]:
        from dovetail_plugins.quantize.text import windows_of

        windows = windows_of(
            path, self._llm.tokenizer, num_tokens=count * length, longest_tokens=length,
            where="--text",
        )  # fmt: skip
        yield from windows.tolist()

    @reply.register
    def _judge(self, ask: Judge) -> Judged:
        from dovetail.interfaces.data.sampling_params import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
        results = _whole(self._llm.generate(ask.texts, params, use_tqdm=False))
        found: list[float] = []
        for text, result in zip(ask.texts, results, strict=True):
            entries = result.prompt_logprobs or []
            found += [
                entry[token].logprob for token, entry in zip(text, entries, strict=True) if entry
            ]
        return Judged(logprobs=found)

    @reply.register
    def _answer(self, ask: Answer) -> Answered:
        from dovetail.interfaces.data.sampling_params import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=ask.answer_tokens, ignore_eos=True)
        prompts = [
            {"prompt_token_ids": prompt, "cache_salt": f"{ask.salt}-{number}"}
            for number, prompt in enumerate(ask.prompts)
        ]
        start_s = time.perf_counter()
        _whole(self._llm.generate(prompts, params, use_tqdm=False))
        return Answered(total_s=time.perf_counter() - start_s)


def _whole(results: list[Any]) -> list[Any]:
    """Return the results. Raises: DovetailError if one has an error"""
    errors = [one.error for one in results if one.error is not None]
    if errors:
        raise DovetailError(f"{len(errors)} of {len(results)} answers failed: {errors[0]}")
    return results
