"""Runs an IOProcessor plugin on non-text data; a failure in it fails only its request."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dovetail import registry
from dovetail.errors import DovetailError, RequestError
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.io_processor import IOFacts, IOProcessor

if TYPE_CHECKING:
    import numpy

logger = logging.getLogger(__name__)
DATA = "data"


def make_io_processor(spec: EngineSpec) -> IOProcessor | None:
    """Return the plugin that makes prompts of other data, or None. Raises: ConfigError"""
    if spec.io_processor is None or spec.run.pooling is None:
        return None
    facts = IOFacts(
        model_path=spec.run.model.path,
        tasks=spec.run.pooling.tasks,
        max_model_tokens=spec.run.max_model_tokens,
    )
    processor: IOProcessor = registry.make(spec.io_processor, facts)
    return processor


def processed_prompts(processor: IOProcessor, data: Any) -> list[str | Sequence[int]]:
    """Return the prompts for some data. Raises: RequestError"""
    try:
        prompts = list(processor.prompts(data))
    except DovetailError:
        raise
    except Exception as error:  # a plugin's fault fails one request
        logger.exception("the I/O processor failed")
        raise RequestError(
            f"the server's plugin failed to read it ({type(error).__name__}).", where=DATA
        ) from error
    if not prompts:
        raise RequestError("the server's plugin made no prompt of it.", where=DATA)
    return prompts


def processed_answer(
    processor: IOProcessor, data: Any, outputs: Sequence[numpy.ndarray[Any, Any]]
) -> Any:
    """Convert the model's outputs to the answer. Raises: RequestError"""
    try:
        return processor.answer(data, outputs)
    except DovetailError:
        raise
    except Exception as error:  # a plugin's fault fails one request
        logger.exception("the I/O processor failed")
        raise RequestError(
            f"the server's plugin failed to answer ({type(error).__name__}).",
            where=DATA,
            code="io_processor_failed",
        ) from error
