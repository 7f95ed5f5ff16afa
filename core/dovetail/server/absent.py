"""What is not here: why a path has no route, in a sentence.

Source of the paths: the HTTP API of `vllm serve`, whose clients may ask for them.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.types import Scope

from dovetail.server.errors import Problem, problem, problem_of

MAX_PATH_CHARS = 256
UNBUILT = {
    "/v1/embeddings": "embeddings",
    "/pooling": "embeddings",
    "/classify": "classification",
    "/score": "scores",
    "/v1/score": "scores",
    "/rerank": "reranking",
    "/v1/rerank": "reranking",
    "/v2/rerank": "reranking",
    "/v1/audio/transcriptions": "transcription",
    "/v1/audio/translations": "translation",
    "/v1/load_lora_adapter": "adapters (LoRA)",
    "/v1/unload_lora_adapter": "adapters (LoRA)",
}
"""Path -> what of it is not supported."""


def unbuilt(path: str) -> str | None:
    """Return the sentence for a path whose capability is not supported yet, else None."""
    what = UNBUILT.get(path.rstrip("/"))
    return f"{path}: this version of dovetail has no {what} yet." if what else None


def absent(error: HTTPException, scope: Scope, flags: Mapping[str, str]) -> Problem:
    """Return what to tell about a path or a method that no route takes.

    `flags` says which flag offers a path that is not always there. What a route of a plugin says
    for itself is kept.
    """
    found = problem_of(error)
    path = str(scope["path"])[:MAX_PATH_CHARS]
    headers = dict(error.headers or {})
    if (error.status_code, error.detail) == (405, "Method Not Allowed"):
        what = f"{path} takes {headers.get('Allow', 'other methods')}, not {scope['method']}."
        return problem(405, what, code="method_not_allowed", headers=headers)
    if (error.status_code, error.detail) != (404, "Not Found"):
        return found
    own = path.removeprefix(str(scope.get("root_path", "")))
    sentence = unbuilt(own)
    if sentence is not None:
        return problem(404, sentence, code="not_built", headers=headers)
    if own in flags:
        what = f"{path} is there only where the server was started with {flags[own]}."
        return problem(404, what, code="unknown_path", headers=headers)
    what = f"there is no path {path}; those of the OpenAI API begin with /v1."
    return problem(404, what, code="unknown_path", headers=headers)
