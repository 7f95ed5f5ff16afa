"""Samples of combinations have what they promise."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from support import samples

SIZES = {"size": 4, "kind": 7, "threads": 2, "isa": 3}
CASES = [dict(zip(SIZES, values, strict=True)) for values in product(*map(range, SIZES.values()))]


@pytest.mark.parametrize("strength", [1, 2])
def test_all_groups_of_values_occur(strength: int) -> None:
    def groups(cases: list[dict[str, int]]) -> set[object]:
        return {group for case in cases for group in combinations(case.items(), strength)}

    chosen = [CASES[i] for i in samples.sample(CASES, strength)]
    assert groups(chosen) == groups(CASES)
    assert len(chosen) < len(CASES) / 3


def test_values_occur_about_as_often() -> None:
    cases = [{"name": i % 50, "company": i // 50} for i in range(100)]
    chosen = [cases[i] for i in samples.sample(cases, 1)]
    assert sorted(case["name"] for case in chosen) == list(range(50))
    assert sum(case["company"] for case in chosen) == 25


def test_one_parameter_is_no_combination() -> None:
    assert samples.sample([{"name": i} for i in range(9)]) == list(range(9))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("isa", ["avx2", "avx512"])
@pytest.mark.parametrize("size", range(5))
def test_marked(size: int, isa: str) -> None:
    assert isa and size >= 0


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("number", range(9))
def test_of_one_kind(number: int) -> None:
    assert number >= 0


@pytest.mark.full_only
def test_of_the_full_run() -> None:
    assert samples.IS_FULL


def test_what_a_run_leaves_out(request: pytest.FixtureRequest) -> None:
    found = [item for item in request.session.items if item.name.startswith("test_marked[")]
    if not found:
        pytest.skip("a run of this test alone has no sample")
    assert len(found) == (10 if samples.IS_FULL else 5)
    parts = [item.name.removesuffix("]").partition("[")[2].split("-") for item in found]
    assert {size for size, _ in parts} == set("01234")
    assert {isa for _, isa in parts} == {"avx2", "avx512"}
    names = {item.name for item in request.session.items if item.path == request.path}
    assert ("test_of_the_full_run" in names) == samples.IS_FULL
    some = {f"test_of_one_kind[{i}]" for i in (range(9) if samples.IS_FULL else (0, 4, 8))}
    assert {name for name in names if name.startswith("test_of_one_kind[")} == some
