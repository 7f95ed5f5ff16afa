"""What is masked wherever settings are shown, and what is not."""

from __future__ import annotations

import pytest

from dovetail.config.report.secrets import is_secret_name, masked, masked_text, masked_variable


@pytest.mark.parametrize(
    "name",
    ["VLLM_API_KEY", "api_keys", "HF_TOKEN", "S3_SECRET_ACCESS_KEY", "db_password", "X_AUTH",
     "GOOGLE_CREDENTIALS", "OTEL_EXPORTER_OTLP_HEADERS", "API_TOKENS"],
)  # fmt: skip
def test_secret_names(name: str) -> None:
    assert is_secret_name(name)
    assert masked_variable(name, "hunter2") == "***"


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "ssl_keyfile", "OMP_NUM_THREADS", "author", "PYTHONPATH"]
)
def test_other_names(name: str) -> None:
    assert masked_variable(name, "hunter2") == "hunter2"


def test_secrets_inside_values() -> None:
    value = {"worker": {"api_key": "hunter2", "max_tokens": 5, "list": [{"token": "hunter2"}]}}
    assert masked(value) == {
        "worker": {"api_key": "***", "max_tokens": 5, "list": [{"token": "***"}]}
    }
    assert masked("http://me:hunter2@proxy:3128/") == "http://***@proxy:3128/"
    assert masked_text('{"api_key": "hun\\"ter2", "n": 1}') == '{"api_key": "***", "n": 1}'


def test_who_knows_better_decides() -> None:
    assert masked_variable("DOVETAIL_MAX_NUM_BATCHED_TOKENS", "8", is_secret=False) == "8"
    assert masked_variable("DOVETAIL_PLAIN", "hunter2", is_secret=True) == "***"
