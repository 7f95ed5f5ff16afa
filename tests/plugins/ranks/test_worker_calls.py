"""Calls by name: what may be sent, what may be called, and what a class may add to a worker."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from dovetail.config.config import Config
from dovetail.config.rules.parallel.worker_extension import worker_extension
from dovetail.engine.faults import fault_of
from dovetail.engine.worker_calls import answers_of, function_name, make_worker, worker_call
from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.data.spec import Selection
from dovetail.interfaces.executor import WorkerCall
from dovetail_plugins.ranks.messages import Called
from dovetail_testing.tiny.transformer import tiny_run

WORKER = Selection(kind="worker", name="tiny", target="dovetail_testing.tiny.worker:TinyWorker")


class Making:
    """Wants to be made."""

    def __init__(self) -> None:
        self.size = 3


class Shadowed:
    """Has a name that the worker gives to a value when it is made."""

    def options(self) -> int:
        """Return nothing of use."""
        return 0


NOT_A_CLASS = 3


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Making", "its __init__ would never run"),
        ("Shadowed", "TinyWorker has options already"),
        ("NOT_A_CLASS", "is not a class"),
        ("Missing", 'has no "Missing"'),
    ],
)
def test_a_class_that_cannot_be_added_is_refused(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        make_worker(WORKER, tiny_run(worker_extension=f"{__file__}:{name}"))
    assert str(caught.value.where).startswith("--worker-extension-cls")


@pytest.mark.parametrize(
    ("given", "target"),
    [
        (None, ""),
        ("a.b.C", "a.b:C"),
        ("a.b:C", "a.b:C"),
        ("/tmp/../a.py:C", "/a.py:C"),
    ],
)
def test_a_class_is_named_in_either_way(given: str | None, target: str) -> None:
    assert worker_extension(Config.from_fields({"worker_extension_cls": given}).parallel) == target


@pytest.mark.parametrize("given", ["C", "a.b:", "a b.C", "a.py:b.c", ".C"])
def test_what_names_no_class_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="names no class"):
        worker_extension(Config.from_fields({"worker_extension_cls": given}).parallel)


def test_what_is_called_is_as_every_rank_sees_it() -> None:
    call = worker_call("m", 2.0, [(1, 2), {"a": b"b"}], {"c": {"d": None}})
    expected = WorkerCall(
        method="m", args=([1, 2], {"a": b"b"}), kwargs={"c": {"d": None}}, timeout_s=2.0
    )
    assert call == expected


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("m", None, [object()]), "arguments cannot be sent"),
        (("m", None, [1 << 70]), "arguments cannot be sent"),
        (("m", 0.0), "too short"),
        (("m", float("nan")), "too short"),
        ((lambda worker: 1,), "nothing is pickled"),
        ((partial(print),), "nothing is pickled"),
    ],
)
def test_what_cannot_be_sent_is_refused(args: Any, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        worker_call(*args)


def test_a_function_travels_by_its_name() -> None:
    assert function_name(worker_call) == "dovetail.engine.worker_calls:worker_call"


def test_answers_name_the_ranks_that_failed_or_are_silent() -> None:
    call = WorkerCall(method="m", timeout_s=1.5)
    fault = fault_of(RequestError("rank 1: m raised ValueError: no luck.", status=500))
    failed = {2: Called(0, fault=fault), 1: Called(0, fault=fault), 0: Called(0, 7)}
    with pytest.raises(RequestError, match=r"rank 1: m .* luck \(so did rank 2\)\.") as caught:
        answers_of(call, failed, 3)
    assert caught.value.status == 500
    with pytest.raises(RequestError, match=r"within 1\.5 s on rank 0, 2;") as caught:
        answers_of(call, {1: Called(0, 7)}, 3)
    assert caught.value.status == 504
    assert answers_of(call, {1: Called(0, 8), 0: Called(0, None)}, 2) == [None, 8]
