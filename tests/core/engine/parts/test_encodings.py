"""Encodings: what a step may encode, what is kept, and what is forgotten."""

from __future__ import annotations

from dovetail.engine.parts.encodings import Encodings
from dovetail.engine.request import Request
from dovetail.interfaces.data.media import PartPlace, PromptPart
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.step import RowStep, StepPlan


def request(encodings: Encodings, *parts: tuple[str, int, int], row: int = 0) -> Request:
    """Return a running request of 40 tokens with parts (key, first position, positions)."""
    made = Request(
        request_id=f"r{row}",
        prompt_ids=[5] * 40,
        sampling=SamplingParams(),
        seed=0,
        max_model_tokens=64,
        parts=[
            PromptPart(place=PartPlace(key, "image", ((start, count),), count), features=())
            for key, start, count in parts
        ],
    )
    made.encodings, made.row = encodings, row
    return made


def plan(*rows: tuple[int, int, int]) -> StepPlan:
    """Return a plan of rows (row, start, tokens)."""
    return StepPlan(
        step_id=1,
        rows=tuple(
            RowStep(row=r, start=s, num_tokens=n, samples=False, new_blocks=()) for r, s, n in rows
        ),
    )


def encoded(made: StepPlan) -> list[str]:
    return [content.key for content in made.encode]


def test_a_step_goes_to_the_first_part_that_it_has_no_room_for() -> None:
    encodings = Encodings(step_rows=8, kept_rows=100)
    one = request(encodings, ("a", 4, 6), ("b", 20, 6))
    encodings.begin_step()
    assert one.reach(0, 40) == 20
    assert encoded(encodings.take(plan((0, 0, 20)), [one])) == ["a"]
    encodings.begin_step()
    assert one.reach(20, 20) == 20
    assert encoded(encodings.take(plan((0, 20, 20)), [one])) == ["b"]


def test_one_alone_may_be_larger_than_a_step() -> None:
    encodings = Encodings(step_rows=4, kept_rows=4)
    one = request(encodings, ("a", 0, 12))
    encodings.begin_step()
    assert one.reach(0, 40) == 40


def test_requests_share_a_content() -> None:
    encodings = Encodings(step_rows=8, kept_rows=8)
    first, second = (request(encodings, ("a", 2, 6), row=row) for row in (0, 1))
    encodings.begin_step()
    assert (first.reach(0, 40), second.reach(0, 40)) == (40, 40)
    made = encodings.take(plan((0, 0, 40), (1, 0, 40)), [first, second])
    assert encoded(made) == ["a"]
    assert (encodings.num_encoded, encodings.num_reused) == (1, 1)


def test_what_is_in_use_stays_and_the_oldest_goes() -> None:
    encodings = Encodings(step_rows=8, kept_rows=12)
    one, two, three = (
        request(encodings, (key, 0, 6), row=row) for row, key in enumerate(("a", "b", "c"))
    )
    for other in (one, two):  # each stops in the middle of its part
        encodings.begin_step()
        assert other.reach(0, 3) == 3
        encodings.take(plan((other.row, 0, 3)), [other])
    encodings.begin_step()
    assert three.reach(0, 40) == 0  # both are in use
    encodings.take(plan((0, 3, 10)), [one])  # and one of them no longer
    encodings.begin_step()
    assert three.reach(0, 40) == 40
    made = encodings.take(plan((2, 0, 40)), [three])
    assert (encoded(made), made.dropped_encodings) == (["c"], ("a",))


def test_a_request_without_a_row_holds_nothing() -> None:
    encodings = Encodings(step_rows=8, kept_rows=8)
    one, two = (request(encodings, (key, 0, 6), row=row) for row, key in enumerate(("a", "b")))
    encodings.begin_step()
    encodings.take(plan((0, 0, 3)), [one])
    encodings.begin_step()
    assert two.reach(0, 40) == 0
    one.row = -1  # preempted
    encodings.begin_step()
    assert two.reach(0, 40) == 40


def test_places_behind_virtual_tokens_and_in_blocks() -> None:
    encodings = Encodings(step_rows=8, kept_rows=8)
    one = request(encodings, ("a", 4, 6))
    assert one.parts_between(0, 4) == ()
    assert one.parts_between(0, 16) == (("a", "4"),)
    assert one.parts_between(8, 16) == (("a", "-4"),)
    assert one.parts[0].place.moved(3).runs == ((7, 6),)


def test_a_part_that_is_kept_whole_waits_for_a_step_with_room() -> None:
    encodings = Encodings(step_rows=16, kept_rows=100, keeps_whole=True)
    one = request(encodings, ("a", 4, 6), ("b", 20, 10))
    encodings.begin_step()
    assert one.reach(0, 8) == 4, "up to the part"
    assert one.reach(4, 5) == 0, "not a piece of it"
    assert one.reach(4, 18) == 16, "the first whole, nothing of the second"
    assert one.reach(24, 6) == 6, "what is left of it, behind cached blocks"


class Running(Encodings):
    """Encodings beside answers, where a step computes so many rows of a pass."""

    def __init__(self, *, rows: float, kept_rows: int = 100) -> None:
        self.crowd = (1, 1)
        super().__init__(step_rows=64, kept_rows=kept_rows, crowd=lambda: self.crowd)
        self.rows = rows
        self.split.share = self.share  # type: ignore[method-assign]

    def share(self, kind: str, num_rows: int, *, weight: float = 1.0) -> float:
        return min(1.0, self.rows * weight / num_rows)

    def step(self, *askers: Request) -> tuple[StepPlan, list[int]]:
        """Return a step's plan, of what the askers reach beside an answer, and how far that is."""
        self.begin_step()
        reached = [asker.reach(0, 40) for asker in askers]
        rows = [(one.row, 0, n) for one, n in zip(askers, reached, strict=True) if n]
        asked = [one for one, n in zip(askers, reached, strict=True) if n]
        return self.take(plan(*rows), asked), reached


def pieces(made: StepPlan) -> list[tuple[str, float]]:
    return [(content.key, content.share) for content in made.encode]


def test_a_pass_beside_answers_is_divided_over_steps() -> None:
    encodings = Running(rows=4)
    one = request(encodings, ("a", 6, 10))
    told = [encodings.step(one) for _ in range(4)]
    assert [pieces(made) for made, _ in told] == [[("a", 0.4)], [("a", 0.8)], [("a", 1.0)], []]
    assert [reached for _, reached in told] == [[6], [6], [40], [40]], "the text before it at once"
    assert encodings.num_encoded == 1


def test_once_no_answer_runs_the_rest_is_made_at_once() -> None:
    encodings = Running(rows=2)
    one, two = request(encodings, ("a", 0, 10)), request(encodings, ("b", 0, 10), row=1)
    assert pieces(encodings.step(one)[0]) == [("a", 0.2)]
    encodings.crowd = (0, 2)
    made, reached = encodings.step(one, two)
    assert (pieces(made), reached) == ([("a", 1.0), ("b", 1.0)], [40, 40])


def test_contents_are_encoded_one_after_another_whoever_asks() -> None:
    encodings = Running(rows=5)
    one, two = request(encodings, ("a", 0, 10)), request(encodings, ("b", 0, 10), row=1)
    assert pieces(encodings.step(one)[0]) == [("a", 0.5)]
    made, reached = encodings.step(two)  # the first one is preempted
    assert (pieces(made), reached) == ([("a", 1.0)], [0])
    assert pieces(encodings.step(two)[0]) == [("b", 0.5)]
    assert encodings.step(one)[1] == [40], "it is kept"


def test_a_pass_ends_with_the_last_request_that_waits_for_it() -> None:
    encodings = Running(rows=5)
    one, two = (request(encodings, ("a", 0, 10), row=row) for row in (0, 1))
    encodings.step(one, two)
    encodings.release(one)
    assert not encodings.has_dropped
    encodings.release(two)
    made, _ = encodings.step()
    assert made.dropped_encodings == ("a",)
    again, _ = encodings.step(request(encodings, ("a", 0, 10)))
    assert pieces(again) == [("a", 0.5)], "from the start"


def test_a_pass_is_not_divided_for_steps_that_never_come() -> None:
    """Who draws answers may have no row for long: then the image does not wait for them."""
    encodings = Running(rows=1)
    one = request(encodings, ("a", 0, 10))
    reached = []
    for _ in range(20):
        encodings.begin_step()
        reached.append(one.reach(0, 40))
        if reached[-1]:
            break
    assert 1 < len(reached) < 20 and reached[-1] == 40
    assert pieces(encodings.take(plan((0, 0, 40)), [one])) == [("a", 1.0)]


def test_where_many_wait_for_few_answers_passes_are_not_held_up() -> None:
    encodings = Running(rows=2)
    one, two = request(encodings, ("a", 0, 10)), request(encodings, ("b", 0, 10), row=1)
    encodings.crowd = (2, 4)
    assert pieces(encodings.step(one)[0]) == [("a", 0.4)]
    encodings.crowd = (2, 20)
    assert pieces(encodings.step(one, two)[0]) == [("a", 1.0), ("b", 1.0)]


def test_a_pass_under_way_takes_its_room() -> None:
    encodings = Running(rows=5, kept_rows=16)
    one, two = request(encodings, ("a", 0, 10)), request(encodings, ("b", 0, 10), row=1)
    encodings.step(one)
    encodings.crowd = (0, 2)
    assert encodings.step(two)[1] == [0]
