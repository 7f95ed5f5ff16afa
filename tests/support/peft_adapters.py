"""Tiny adapters as PEFT makes and saves them, what PEFT computes with them, and engines asked for
several at once. Needs transformers and peft. Shape letters: n tokens, V vocabulary."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dovetail.interfaces.data.adapter_spec import AdapterSource
from dovetail.interfaces.data.sampling_params import SamplingParams
from support.inside import adapters_of

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is told of a prompt: the logprobs after each of its tokens, and the tokens that
    follow. Shapes: logprobs [n, V]"""

    logprobs: torch.Tensor
    token_ids: list[int]
    num_cached: int = 0


@contextmanager
def peft_warns() -> Iterator[None]:
    """Leave PEFT's warnings alone: it calls what newer versions of others have deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def made(base: Any, config: Any, folder: Path, *, seed: int = 0) -> Any:
    """Return a copy of a transformers model with a random adapter, saved in the folder."""
    import peft

    with peft_warns(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = peft.get_peft_model(copy.deepcopy(base), config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    with peft_warns():
        model.save_pretrained(folder)
    return model


@torch.inference_mode()
def wanted(model: Any, ids: Sequence[int], num_tokens: int) -> Answer:
    """Return what transformers, or PEFT, tells of a prompt, and its greedy answer."""
    known = list(ids)
    logits = model(input_ids=torch.tensor([known])).logits[0, -len(known) :]
    first = logits.log_softmax(-1)
    for _ in range(num_tokens):
        known.append(int(logits[-1].argmax()))
        logits = model(input_ids=torch.tensor([known])).logits[0]
    return Answer(logprobs=first, token_ids=known[len(ids) :])


def load(engine: Any, *folders: Path) -> None:
    """Have an engine of this thread serve adapters, by the names of their folders."""
    adapters = adapters_of(engine.core)
    loads = [adapters.load(AdapterSource(name=f.name, path=str(f))) for f in folders]
    while not all(one.done() for one in loads):
        adapters.poll()
    for one in loads:
        one.result()


def asked(
    engine: Any, prompts: Sequence[tuple[str, Sequence[int]]], num_tokens: int
) -> list[Answer]:
    """Return what an engine of this thread tells of prompts in one batch, each with the name of its
    adapter. Needs: max_logprobs=-1."""
    params = SamplingParams(
        temperature=0.0, max_tokens=num_tokens, prompt_logprobs=-1, logprobs=-1, ignore_eos=True
    )
    prepared = [engine.prepare(list(ids), params, adapter=name) for name, ids in prompts]
    keys = [engine.submit(one) for one in prepared]
    found: dict[int, Answer] = {}
    while engine.has_work:
        step = engine.step()
        assert not step.errors, step.errors
        for key, output in step.outputs:
            found[key] = _with(found.get(key), output)
    return [found[key] for key in keys]


def _with(before: Answer | None, output: Any) -> Answer:
    """Return what is known of a prompt, with the news of an output."""
    tokens = [token for delta in output.deltas for token in delta.token_ids]
    if before is not None:
        return replace(before, token_ids=before.token_ids + tokens)
    entries = [*output.prompt_logprobs, output.deltas[0].logprobs[0]]
    rows = []
    for entry in entries:
        row = torch.full((len(entry.top_ids),), float("nan"))
        row[list(entry.top_ids)] = torch.tensor(entry.top_logprobs)
        rows.append(row)
    return Answer(logprobs=torch.stack(rows), token_ids=tokens, num_cached=output.num_cached_tokens)


def counting(engine: Any) -> Counter[str]:
    """Return what the engine's steps count from now on: preemptions, guessed tokens and
    divided steps."""
    counts: Counter[str] = Counter()
    core, plain = engine.core, engine.core.step

    def step() -> Any:
        done = plain()
        if done.stats is not None:
            counts["preemptions"] += done.stats.preemptions
            counts["draft_tokens"] += done.stats.draft_tokens
            counts["divided_steps"] += done.stats.divided_steps
        return done

    core.step = step
    return counts
