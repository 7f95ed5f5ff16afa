"""Executors that break one promise each about calls of their workers' methods."""

from __future__ import annotations

from typing import Any

import msgspec

from dovetail.errors import EngineDead, RequestError
from dovetail.interfaces.executor import WorkerCall
from dovetail_plugins.executors.uni import UniExecutor


class ForgetfulExecutor(UniExecutor):
    """Calls methods without the arguments that have names."""

    def collective_rpc(self, call: WorkerCall) -> list[Any]:
        """Drop what has a name."""
        return super().collective_rpc(msgspec.structs.replace(call, kwargs={}))


class PatientExecutor(UniExecutor):
    """Waits for as long as a method takes."""

    def collective_rpc(self, call: WorkerCall) -> list[Any]:
        """Drop the limit."""
        return super().collective_rpc(msgspec.structs.replace(call, timeout_s=None))


class FragileExecutor(UniExecutor):
    """Ends when a method raises."""

    def collective_rpc(self, call: WorkerCall) -> list[Any]:
        """Take any fault for the end."""
        try:
            return super().collective_rpc(call)
        except RequestError as error:
            raise EngineDead(error.what) from error
