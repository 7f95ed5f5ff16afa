"""What clients keep in memory: each owner has its share, whatever the others hold."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail_plugins.apis.responses.owned import OVERHEAD_BYTES, OwnedObjects


@dataclass(slots=True)
class Thing:
    owner: str
    num_bytes: int
    may_go: bool = True


def sized(owner: str, num_bytes: int, *, may_go: bool = True) -> Thing:
    return Thing(owner, num_bytes - OVERHEAD_BYTES, may_go)


def test_what_may_not_go_pushes_out_nothing_of_others() -> None:
    kept = OwnedObjects[Thing](10_000, lambda one: one.may_go)
    for number in range(4):
        kept.keep(f"mine{number}", sized("a", 1_000))
    for number in range(3):
        kept.keep(f"running{number}", sized("b", 50_000, may_go=False))
    assert len(kept.of("a")) == 4
    running = kept.of("b")
    for number, one in enumerate(running):
        one.may_go = True
        kept.keep(f"running{number}", one)
    assert len(kept.of("a")) == 4 and not kept.of("b")


def test_one_who_holds_more_than_its_share_gives_up_the_oldest() -> None:
    kept = OwnedObjects[Thing](10_000)
    for number in range(10):
        kept.keep(f"a{number}", sized("a", 1_000))
    assert len(kept.of("a")) == 10
    for number in range(10):
        kept.keep(f"b{number}", sized("b", 1_000))
    assert (len(kept.of("a")), len(kept.of("b"))) == (5, 5)
    assert kept.get("a9", "a") is not None and kept.get("a0", "a") is None
    kept.keep("huge", sized("c", 20_000))
    assert kept.get("huge", "c") is None and len(kept) == 10
