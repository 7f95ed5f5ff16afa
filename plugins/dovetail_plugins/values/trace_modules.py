"""Parts whose time is added up for every request: the choices of --collect-detailed-traces.

`value` names what a span then carries: the time of the model, of the worker, or both.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

MODEL = Value(summary="the model's forward passes", value=("model",))
WORKER = Value(summary="the worker's steps, from call to result", value=("worker",))
ALL = Value(summary="both", value=("model", "worker"))
