"""IOProcessor: its sample becomes prompts and an answer, always the same ones, in any thread."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from dovetail.errors import RequestError
from dovetail.interfaces.data.pooling_params import EMBED, TASKS
from dovetail.interfaces.io_processor import IOFacts, IOProcessor
from dovetail_testing.contract import default_options

SIZE = 8
STRANGE: tuple[Any, ...] = (None, True, -1, "", [], {}, [[[]]], {"\x00": None}, "x" * 10_000)


@pytest.fixture
def processor(plugin: Any) -> IOProcessor:
    """Return the processor with its default options."""
    tasks = (plugin.task or EMBED,)
    facts = IOFacts(model_path="model", tasks=tasks, max_model_tokens=512)
    found: IOProcessor = plugin(default_options(plugin), facts)
    return found


def sample(plugin: Any) -> Any:
    """Return a new object of the plugin's sample."""
    return json.loads(plugin.sample)


def vectors(count: int, task: str) -> list[np.ndarray[Any, Any]]:
    """Return possible outputs of a model for prompts."""
    shape = (3, SIZE) if task.startswith("token_") else (SIZE,)
    return [np.full(shape, 0.25 * (i + 1), dtype=np.float32) for i in range(count)]


def answered(processor: IOProcessor, data: Any, prompts: Sequence[Any]) -> str:
    """Return an answer as JSON."""
    answer = processor.answer(data, vectors(len(prompts), processor.task))
    return json.dumps(answer, allow_nan=False, sort_keys=True)


class TestIOProcessor:
    """Clauses of processors of other data."""

    kind = "io_processor"

    def test_names_a_task(self, plugin: Any) -> None:
        """Its task is one that models have, or none."""
        assert plugin.task in ("", *TASKS)

    def test_makes_prompts_of_its_sample(self, plugin: Any, processor: IOProcessor) -> None:
        """The sample becomes at least one prompt, none empty, each a text or token ids."""
        prompts = processor.prompts(sample(plugin))
        assert len(prompts) >= 1
        for prompt in prompts:
            assert len(prompt) >= 1
            assert isinstance(prompt, str) or all(type(one) is int for one in prompt)

    def test_answers_in_json(self, plugin: Any, processor: IOProcessor) -> None:
        """The answer is something that JSON can hold, without NaN."""
        data = sample(plugin)
        assert json.loads(answered(processor, data, processor.prompts(data))) is not None

    def test_leaves_the_data_alone(self, plugin: Any, processor: IOProcessor) -> None:
        """Neither prompts nor answer change what was sent."""
        data = sample(plugin)
        answered(processor, data, processor.prompts(data))
        assert data == sample(plugin)

    def test_reads_every_output(self, plugin: Any, processor: IOProcessor) -> None:
        """Other vectors give another answer."""
        data = sample(plugin)
        outputs = vectors(len(processor.prompts(data)), processor.task)
        first = json.dumps(processor.answer(data, outputs), sort_keys=True)
        changed = [one * np.linspace(-3, 5, SIZE, dtype=np.float32) for one in outputs]
        assert json.dumps(processor.answer(data, changed), sort_keys=True) != first

    def test_requests_do_not_mix(self, plugin: Any, processor: IOProcessor) -> None:
        """The same data has the same prompts and answer, whatever other threads ask."""
        data = sample(plugin)
        wanted = (processor.prompts(data), answered(processor, data, processor.prompts(data)))

        def again(_: int) -> Any:
            mine = sample(plugin)
            prompts = processor.prompts(mine)
            return prompts, answered(processor, mine, prompts)

        with ThreadPoolExecutor(4) as pool:
            assert all(found == wanted for found in pool.map(again, range(16)))

    @pytest.mark.parametrize("strange", STRANGE, ids=lambda value: repr(value)[:20])
    def test_other_data_is_a_client_error(self, processor: IOProcessor, strange: Any) -> None:
        """Data of another form raises RequestError, or is taken: nothing else is raised."""
        try:
            prompts = processor.prompts(strange)
        except RequestError as error:
            assert error.what
        else:
            assert len(prompts) >= 1
