"""Ranks under Nsight Systems: the environment of Ray that starts each rank below `nsys profile`.

Ray looks for `nsys` on the machine of each rank, and starts the `python` found there under it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dovetail.errors import ConfigError
from dovetail_plugins.executors._ray_places import reason_of

FLAG = "--ray-workers-use-nsight"


def environment(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return Ray's runtime environment of ranks with such variables. If this program is not on the
    PATH, `python` would be another interpreter, which lacks Ray, and no rank would ever come.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}${{PATH}}"
    return {"env_vars": {**variables, "PATH": path}, "nsight": _options()}


def _options() -> dict[str, str]:
    """Return the options of `nsys profile`, which write a report per rank into Ray's log folder.
    They differ from start to start: Ray remembers for minutes that an environment failed."""
    started = time.strftime("%Y%m%d_%H%M%S")
    report = f"'dovetail_{started}_rank_%p'"
    return {"t": "cuda,cudnn,cublas,nvtx", "o": report, "stop-on-exit": "true"}


def check(ray: Any, actors: Sequence[Any]) -> None:
    """Raise ConfigError if nsys is missing, or does not run, on the machine of an actor."""
    try:
        ray.get([actor.place.remote() for actor in actors])
    except ray.exceptions.RuntimeEnvSetupError as error:
        raise ConfigError(
            f"ranks cannot run under `nsys profile` on a machine of the Ray cluster: "
            f"{reason_of(error)}",
            where=FLAG,
            fix="install Nsight Systems there, with nsys on the PATH of `ray start`, or leave the "
            "flag out.",
        ) from error
