"""POST /score and /rerank, under all their names."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from fastapi import Request

from dovetail.errors import RequestError
from dovetail.interfaces.api import Api, Route
from dovetail.interfaces.plugin import Info
from dovetail.server.endpoint import App, ModelText, ServerOf
from dovetail_plugins.apis._pool.pictures import Input, Picture, as_image, of_parts
from dovetail_plugins.apis._pool.replies import raw_reply
from dovetail_plugins.apis._pool.scores import TASKS, Pairs, scored
from dovetail_plugins.apis._pool.work import Answers
from dovetail_plugins.apis.scores.protocol import Document, RerankRequest, ScoreRequest

Ranking = list[tuple[int, float]]


async def score(body: ScoreRequest, request: Request, server: ServerOf) -> Any:
    """Return the relevance of text pairs, one number per pair."""
    text, model = await server.text_for(body.model)
    ignored = server.fields.check(body)
    pairs = Pairs(
        firsts=_sides(text, body.text_1, "text_1"),
        seconds=_sides(text, body.text_2, "text_2"),
        first_field="text_1",
        second_field="text_2",
        is_activated=_wants(body),
    )
    request_id, answers = await scored(server, text, body, request, pairs, model=model)
    reply = {
        "id": f"score-{request_id}",
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": [
            {"index": index, "object": "score", "score": one}
            for index, one in enumerate(answers.items)
        ],
        "usage": answers.usage(server).model_dump(),
    }
    return raw_reply(reply, ignored)


async def rerank(body: RerankRequest, request: Request, server: ServerOf) -> Any:
    """Sort documents by relevance to a query, best first."""
    text, model = await server.text_for(body.model)
    ignored = server.fields.check(body)
    if (body.documents is None) == (body.texts is None):
        raise RequestError("give documents.", where="documents")
    field = "texts" if body.documents is None else "documents"
    documents = _sides(text, [*(body.documents or body.texts or ())], field)
    pairs = Pairs(
        firsts=_sides(text, body.query, "query"),
        seconds=documents,
        first_field="query",
        second_field=field,
        is_activated=False if body.raw_scores else _wants(body),
    )
    if body.truncate and body.truncate_prompt_tokens is None:
        side = body.truncation_direction.lower()
        body = body.model_copy(update={"truncate_prompt_tokens": -1, "truncation_side": side})
    request_id, answers = await scored(server, text, body, request, pairs, model=model)
    ranking = ranked(answers.items, body.top_n)
    if body.texts is not None:
        return raw_reply(_texts_reply(ranking, documents if body.return_text else None), ignored)
    shown = documents if body.return_documents is not False else None
    return raw_reply(_reply(server, request_id, model, answers, ranking, shown), ignored)


def ranked(scores: Iterable[float], top_n: int | None) -> Ranking:
    """Return (index, score) pairs, best first, ties in input order; only the first `top_n` (0 or
    None: all)."""
    found = sorted(enumerate(scores), key=lambda one: -one[1])
    return found[: top_n or None]


def _texts_reply(ranking: Ranking, texts: Sequence[Input] | None) -> list[dict[str, Any]]:
    """Return the answer in text-embeddings-inference's format."""
    return [{"index": index, **_shown(texts, index), "score": number} for index, number in ranking]


def _shown(texts: Sequence[Input] | None, index: int) -> dict[str, str]:
    """Return a document with its text, if it is wanted and one."""
    text = None if texts is None else texts[index]
    return {"text": text} if isinstance(text, str) else {}


def _reply(
    server: App,
    request_id: str,
    model: str,
    answers: Answers,
    ranking: Ranking,
    documents: Sequence[Input] | None,
) -> dict[str, Any]:
    """Return the answer in the format of Jina, Cohere and llama.cpp."""
    results = []
    for index, number in ranking:
        shown = _shown(documents, index)
        document = {"document": shown} if shown else {}
        results.append({"index": index, "relevance_score": number, **document})
    return {
        "id": f"rerank-{request_id}",
        "object": "list",
        "model": model,
        "usage": answers.usage(server).model_dump(),
        "results": results,
        "meta": {
            "api_version": {"version": "2"},
            "tokens": {"input_tokens": answers.num_tokens},
        },
    }


def _sides(text: ModelText, given: Document | list[Document], field: str) -> list[str | Picture]:
    """Return what is scored: texts and images. Raises: RequestError"""
    if not isinstance(given, list):
        return [_side(text, given, field)]
    return [_side(text, one, f"{field}[{place}]") for place, one in enumerate(given)]


def _side(text: ModelText, given: Document, where: str) -> str | Picture:
    if isinstance(given, str):
        return given
    if given.text is not None:
        return given.text
    parts = given.content if given.image is None else [as_image(given.image)]
    return of_parts(text, parts or (), where)


def _wants(body: ScoreRequest | RerankRequest) -> bool | None:
    return body.use_activation if body.use_activation is not None else body.activation


class ScoresApi(Api):
    """Scores of pairs of texts, and documents sorted by them."""

    info = Info(
        summary="scores of pairs of texts, and documents sorted by them",
        source="the APIs of vLLM, Jina, Cohere, text-embeddings-inference and llama.cpp's server",
    )
    routes = (
        *(
            Route(method="POST", path=path, endpoint=score, body=ScoreRequest, tasks=TASKS)
            for path in ("/score", "/v1/score")
        ),
        *(
            Route(
                method="POST",
                path=path,
                endpoint=rerank,
                body=RerankRequest,
                tasks=TASKS,
                takes_any_length=True,
            )
            for path in ("/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking")
        ),
    )
