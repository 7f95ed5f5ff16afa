"""Which steps are captured: sizes, modes and levels."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.config.config import Config
from dovetail.config.rules.steps.compile_level import StepMaking, default_sizes, step_making
from dovetail.errors import ConfigError

pytest.importorskip("dovetail_plugins")


def making(*, device: str = "cuda", max_rows: int = 256, **fields: Any) -> StepMaking:
    recorded = 64 if device == "cpu" else None
    config = Config.from_fields(fields)
    sections = config.model, config.scheduler, config.engine
    return step_making(*sections, recorded_rows=recorded, max_rows=max_rows)


def test_default_sizes() -> None:
    sizes = default_sizes(512)
    assert sizes[:5] == (1, 2, 4, 8, 16) and sizes[-2:] == (496, 512)
    assert 256 in sizes and 264 not in sizes and 272 in sizes
    assert default_sizes(1) == (1,)
    assert default_sizes(20) == (1, 2, 4, 8, 16, 20)
    assert default_sizes(4096)[-1] == 512


@pytest.mark.parametrize(
    ("fields", "sizes"),
    [
        ({"cuda_graph_sizes": ["24"]}, (1, 2, 4, 8, 16, 24)),
        ({"cuda_graph_sizes": ["3", "1", "7"]}, (1, 3, 7)),
        ({"cuda_graph_sizes": ["2", "300", "400"]}, (2, 256)),
        ({"compilation_config": {"cudagraph_capture_sizes": [5, 9]}}, (5, 9)),
        ({"compilation_config": {"max_capture_size": 16}}, (1, 2, 4, 8, 16)),
        ({"compilation_config": {"cudagraph_mode": "NONE"}}, ()),
        ({"compilation_config": {"cudagraph_mode": "FULL", "max_capture_size": 2}}, (1, 2)),
        ({"compilation_config": {"cudagraph_mode": "PIECEWISE", "max_capture_size": 2}}, (1, 2)),
        ({"cuda_graph_sizes": ["8"], "enforce_eager": True}, ()),
        ({"compilation_config": {"level": 1}}, ()),
    ],
)
def test_sizes(fields: dict[str, Any], sizes: tuple[int, ...]) -> None:
    made = making(**fields)
    assert made.graph_sizes == sizes
    assert made.is_eager == (sizes == ())


def test_fused_operators_from_level_1() -> None:
    levels = [making(compilation_config={"level": level}) for level in range(4)]
    assert [made.uses_fused_ops for made in levels] == [False, True, True, True]
    assert [made.is_eager for made in levels] == [True, True, False, False]
    assert making(enforce_eager=True).uses_fused_ops


def test_only_level_3_compiles_and_not_what_is_eager() -> None:
    levels = [making(compilation_config={"level": level}) for level in range(4)]
    assert [made.compiles for made in levels] == [False, False, False, True]
    assert not making(compilation_config={"level": 3}, enforce_eager=True).compiles
    assert making(compilation_config={"level": 3, "cudagraph_mode": "none"}).compiles


def test_a_cpu_records_every_number() -> None:
    assert making(device="cpu").graph_sizes == tuple(range(1, 65))
    assert making(device="cpu", max_rows=3).graph_sizes == (1, 2, 3)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"cuda_graph_sizes": ["a"]}, "'a' is not a number"),
        ({"cuda_graph_sizes": ["0"]}, "--cuda-graph-sizes"),
        ({"compilation_config": {"cudagraph_capture_sizes": 4}}, "not a list"),
        ({"compilation_config": {"cudagraph_mode": "all"}}, "all is not a mode"),
        ({"compilation_config": {"levle": 3}}, "did you mean level"),
        ({"compilation_config": {"custom_ops": ["none"]}}, "not supported yet"),
        (
            {"cuda_graph_sizes": ["4"], "compilation_config": {"cudagraph_capture_sizes": [8]}},
            "other than those",
        ),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        making(**fields)


def test_an_object_with_the_others_own_defaults_passes() -> None:
    """People copy the whole object out of a log."""
    whole = {
        "backend": "",
        "cache_dir": "",
        "compile_sizes": None,
        "cudagraph_capture_sizes": None,
        "cudagraph_copy_inputs": False,
        "cudagraph_num_of_warmups": 0,
        "custom_ops": [],
        "debug_dump_path": "",
        "full_cuda_graph": False,
        "inductor_passes": {},
        "inductor_compile_config": {"enable_auto_functionalized_v2": False},
        "level": 3,
        "local_cache_dir": None,
        "max_capture_size": None,
        "splitting_ops": [],
        "use_cudagraph": True,
        "use_inductor": True,
    }
    assert making(compilation_config=whole) == making(compilation_config={"level": 3})


@pytest.mark.parametrize(
    "settings",
    [
        {"cudagraph_mm_encoder": True},
        {"cudagraph_mode": "FULL_AND_PIECEWISE"},
        {"custom_ops": ["all"]},
        {"pass_config": {"fuse_allreduce_rms": True, "eliminate_noops": True}},
        {"use_inductor_graph_partition": True},
    ],
)
def test_a_choice_among_kernels_changes_nothing(settings: dict[str, Any]) -> None:
    assert making(compilation_config=settings) == making()


def test_nothing_is_compiled_without_inductor() -> None:
    assert not making(compilation_config={"level": 3, "use_inductor": False}).compiles


@pytest.mark.parametrize(
    ("mode", "compiles"),
    [(0, False), ("NONE", False), (3, True), ("VLLM_COMPILE", True), ("1", True)],
)
def test_vllms_mode_says_whether_to_compile(mode: Any, compiles: bool) -> None:
    level = 3 if compiles else 2
    assert making(compilation_config={"mode": mode}) == making(compilation_config={"level": level})


def test_a_mode_is_known_and_stands_alone() -> None:
    with pytest.raises(ConfigError, match="use 0 to 3, or none"):
        making(compilation_config={"mode": "fast"})
    with pytest.raises(ConfigError, match="leave one of them out"):
        making(compilation_config={"mode": 3, "level": 3})
