"""The build backend: hatchling's, whose metadata needs no build.

Under pip hatchling offers no metadata of its own, since build hooks might change it; pip then
builds the whole wheel while it says that it prepares metadata, and the kernels compile there. Ours
change no metadata but the wheel's tag, so hatchling's functions are taken as others get them.
"""

from __future__ import annotations

import os

_TRACKER = "PIP_BUILD_TRACKER"
_told = os.environ.pop(_TRACKER, None)

from hatchling.build import (  # noqa: E402  (it looks at the variable when it is imported)
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

if _told is not None:
    os.environ[_TRACKER] = _told

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]
