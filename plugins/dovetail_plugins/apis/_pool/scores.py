"""Scoring of text pairs in a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from starlette.requests import Request

from dovetail.engine.client.pooling.scores import Scoring, plan_scores, scoring_task
from dovetail.engine.context_length import PROMPT
from dovetail.interfaces.data.pooling_params import CLASSIFY, EMBED, TOKEN_EMBED, PoolingParams
from dovetail.interfaces.data.spec import PoolingSpec
from dovetail.server.endpoint import App, ModelText, in_words_of
from dovetail_plugins.apis._pool.fields import PoolFields
from dovetail_plugins.apis._pool.pictures import Input
from dovetail_plugins.apis._pool.work import Answers, answered, array_of, check_inputs, job_of

TASKS = (CLASSIFY, EMBED, TOKEN_EMBED)
"""A model with one of these tasks can score."""


def can_score(pooling: PoolingSpec) -> bool:
    """Return whether a model scores pairs: by its single class, or by vectors."""
    return scoring_task(pooling) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """The texts or images to score against each other: the two lists pairwise, or a single first
    one with every second one. The fields are their names in the body."""

    firsts: Sequence[Input]
    seconds: Sequence[Input]
    first_field: str
    second_field: str
    is_activated: bool | None = None

    def check(self) -> None:
        """Raise RequestError if there are no texts or too many, or one is empty."""
        check_inputs(self.firsts, self.first_field, is_list=len(self.firsts) > 1)
        check_inputs(self.seconds, self.second_field)

    def places(self) -> Mapping[str, str]:
        """Return the place of each text in the body; the first place if it occurs twice."""
        is_one = len(self.firsts) == 1
        firsts = {
            text: self.first_field if is_one else f"{self.first_field}[{place}]"
            for place, text in reversed([*enumerate(self.firsts)])
            if isinstance(text, str)
        }
        seconds = {
            text: f"{self.second_field}[{place}]"
            for place, text in reversed([*enumerate(self.seconds)])
            if isinstance(text, str)
        }
        return seconds | firsts

    def names(self) -> Mapping[str, str]:
        """Return the client's names of the fields in errors."""
        return {
            PROMPT: self.second_field,
            "text_1": self.first_field,
            "text_2": self.second_field,
        }


async def scored(
    server: App,
    text: ModelText,
    body: PoolFields,
    request: Request,
    pairs: Pairs,
    model: str = "",
) -> tuple[str, Answers]:
    """Return (the request's id, the scores with the number of tokens read). Raises: as `answered`;
    RequestError if the model has several classes"""
    text.check_text(pairs.second_field)
    pairs.check()
    plan = await _planned(text, body, pairs)
    are_joined = all(len(pair) == 1 for pair in plan.pairs)
    job = job_of(
        body,
        request,
        [one.prompt for one in plan.prompts],
        [one.params for one in plan.prompts],
        field=pairs.second_field,
        is_list=are_joined,
        places=None if are_joined else pairs.places(),
        adapter=server.engine.spec.adapter_of(model),
    )
    answers = await answered(server, job, array_of)
    size = sum(one.size for one in answers.items)
    scores = await text.threads.run(partial(plan.scores, answers.items), size)
    return job.request_id, replace(answers, items=scores)


async def _planned(text: ModelText, body: PoolFields, pairs: Pairs) -> Scoring:
    """Return what to pool; long texts are processed in a thread. Raises: RequestError"""
    params = PoolingParams(task=EMBED, is_activated=pairs.is_activated)
    work = partial(
        plan_scores,
        text.engine.spec,
        text.vocabulary.tokenizer,
        pairs.firsts,
        pairs.seconds,
        truncate=body.truncate_prompt_tokens,
        params=params,
    )
    firsts, seconds = ([x for x in s if isinstance(x, str)] for s in (pairs.firsts, pairs.seconds))
    num_chars = sum(map(len, seconds)) + len(seconds) * sum(map(len, firsts[:1]))
    with in_words_of(pairs.names()):
        return await text.threads.run(work, num_chars)
