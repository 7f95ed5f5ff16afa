"""The log lines at the start and end of a pooling request."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dovetail.observability.logging import shortened
from dovetail.registry.blame import described
from dovetail.server.endpoint import App

if TYPE_CHECKING:
    from dovetail_plugins.apis._pool.work import Answers, Job

logger = logging.getLogger("dovetail.server")


@contextlib.contextmanager
def logged(server: App, job: Job, answers: Answers) -> Iterator[None]:
    """Log the request around the block, which fills `answers`, if --enable-log-requests is set. The
    first of its texts is logged at level debug. Raises: what the block raises"""
    if not server.frontend.enable_log_requests:
        yield
        return
    task = job.params_of(0).task
    adapter = f", adapter {job.adapter}" if job.adapter else ""
    logger.info("request %s: %d prompts to %s%s", job.request_id, len(job.prompts), task, adapter)
    if logger.isEnabledFor(logging.DEBUG):
        shown = shortened(str(job.prompts[0]), server.frontend.max_log_len)
        logger.debug("request %s: first prompt %r", job.request_id, shown)
    start_s = time.monotonic()
    end = "the client left"
    try:
        yield
        end = "stop"
    except Exception as error:
        end = described(error)
        raise
    finally:
        seconds = time.monotonic() - start_s
        num_tokens = answers.num_tokens
        logger.info(
            "request %s ended: %s; %d tokens, %.2f s", job.request_id, end, num_tokens, seconds
        )
