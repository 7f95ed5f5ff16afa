"""The 404 and 405 answers: why a path has no route, in one sentence.

Source of the paths: the HTTP API of `vllm serve`, whose clients may request them.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import Scope

from dovetail.server.http.errors import Problem, problem, problem_of
from dovetail.unsupported import sentence

MAX_PATH_CHARS = 256
UNSUPPORTED_ROUTES = {
    "/reset_mm_cache": "media_cache_reset",
    "/scale_elastic_ep": "elastic_engines",
    "/is_scaling_elastic_ep": "elastic_engines",
}
"""Path -> the missing feature that it needs."""


def unsupported_route(path: str) -> str | None:
    """Return the sentence for a path that needs an unsupported feature, else None."""
    feature = UNSUPPORTED_ROUTES.get(path.rstrip("/"))
    return None if feature is None else f"{path}: {sentence(feature)}"


def not_found(error: HTTPException, scope: Scope, flags: Mapping[str, str]) -> Problem:
    """Return the problem for a path or a method that no route handles.

    `flags` maps paths to the flags that add them to a server. An error from a plugin's own route is
    returned unchanged.
    """
    found = problem_of(error)
    path = str(scope["path"])[:MAX_PATH_CHARS]
    headers = dict(error.headers or {})
    own = path.removeprefix(str(scope.get("root_path", "")))
    is_other_method = (error.status_code, error.detail) == (405, "Method Not Allowed")
    if is_other_method and own not in flags:
        what = f"{path} takes {headers.get('Allow', 'other methods')}, not {scope['method']}."
        return problem(405, what, code="method_not_allowed", headers=headers)
    if not is_other_method and (error.status_code, error.detail) != (404, "Not Found"):
        return found
    if (missing := unsupported_route(own)) is not None:
        return problem(404, missing, code="not_supported", headers=headers)
    if own in flags:
        what = f"{path} is there only where the server was started {flags[own]}."
        return problem(404, what, code="unknown_path", headers=headers)
    near = _nearest(own, scope)
    hint = f"Did you mean {near}?" if near else "Those of the OpenAI API begin with /v1."
    what = f"there is no path {path}. {hint}"
    return problem(404, what, code="unknown_path", headers=headers)


def _nearest(path: str, scope: Scope) -> str | None:
    """Return the path that was probably meant: a letter or two, another prefix, or more letters."""
    routes = scope["app"].router.routes if "app" in scope else ()
    known = [route.path for route in routes if isinstance(route, Route)]
    bare = "/" + "/".join(part for part in path.split("/") if part)
    ends = [one for one in known if one.endswith(bare) or (len(one) > 1 and bare.endswith(one))]
    found = sorted(ends, key=len, reverse=True) if len(bare) > 1 else []
    near, far = (get_close_matches(bare, known, n=1, cutoff=cutoff) for cutoff in (0.9, 0.75))
    return next(iter(near or found or far), None)
