"""A flag of the gateway is refused, not ignored, where there is one model."""

from __future__ import annotations

import pytest

from dovetail.config.config import Config
from dovetail.config.rules.one_model import check_one_model
from dovetail.errors import ConfigError
from dovetail.llm.llm import LLM


def test_a_flag_of_several_models_is_refused() -> None:
    check_one_model(Config.from_fields({"max_num_seqs": 2}).origins)
    with pytest.raises(ConfigError, match="there is one model") as caught:
        LLM("a", load_wait_s=3.0)
    assert caught.value.where == "--load-wait-s"
