"""Values of --data-parallel-backend."""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

MP = Value(summary="each engine in a process of its own on this machine", value="mp")
