"""The flags of `dovetail bench`, one dataclass per topic, spelled as in `vllm bench`.

None means that the code using the flag decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.config.sections.field import flag


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFlags:
    "Prompts: source, number and lengths."

    dataset_name: str = flag("random", kind="bench_dataset", help="where prompts come from")
    dataset_path: str | None = flag(
        None, metavar="FILE", help="file of prompts, for datasets that read one"
    )
    num_prompts: int = flag(100, ge=1, unit="requests", help="how many requests are measured")
    num_warmups: int = flag(
        0, ge=0, unit="requests", help="number of warm-up requests, which are not counted"
    )
    input_len: int | None = flag(
        None,
        ge=1,
        unit="tokens",
        default_note="1024",
        aliases=("--random-input-len",),
        help="length of random prompts, without the prefix",
    )
    output_len: int | None = flag(
        None,
        ge=1,
        unit="tokens",
        default_note="as the dataset says, else 128",
        aliases=("--random-output-len", "--sharegpt-output-len"),
        help="tokens asked for in every answer",
    )
    range_ratio: float = flag(
        0.0,
        ge=0,
        le=1,
        aliases=("--random-range-ratio",),
        help="lengths of random prompts and answers vary from 1 - X to 1 + X times the given ones",
    )
    prefix_len: int = flag(
        0,
        ge=0,
        unit="tokens",
        aliases=("--random-prefix-len",),
        help="length of a prefix in front of every random prompt",
    )
    prefix_share: float = flag(
        1.0,
        ge=0,
        le=1,
        aliases=("--random-prefix-share",),
        help="fraction of the prompts that share one prefix; each other prompt gets its own "
        "random prefix",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFlags:
    "The server, and the fields of every request."

    base_url: str | None = flag(
        None,
        metavar="URL",
        default_note="http://HOST:PORT",
        help="address of the server; https works too",
    )
    host: str = flag("127.0.0.1", help="host of the server, without --base-url")
    port: int = flag(8000, ge=1, le=65535, help="port of the server, without --base-url")
    backend: str | None = flag(
        None,
        metavar="NAME",
        default_note="what --endpoint says",
        help="what is measured, where no --endpoint says it: openai (completions), openai-chat, "
        "openai-embeddings, vllm-pooling, vllm-classify, vllm-score or vllm-rerank",
    )
    endpoint: str | None = flag(
        None,
        metavar="PATH",
        default_note="/v1/completions, or that of --backend",
        help="path to ask; its end says with what: messages for /chat/completions, lists of texts "
        "for /embeddings, /pooling and /classify, a query and documents for /score and /rerank",
    )
    batch_size: int = flag(
        1,
        ge=1,
        unit="texts",
        aliases=("--random-batch-size",),
        help="texts in a request that is embedded, pooled or classified; documents in one that is "
        "scored or ranked",
    )
    model: str | None = flag(
        None, default_note="the first one the server lists", help="name of the model to ask"
    )
    tokenizer: str | None = flag(
        None,
        default_note="the model's, where the server names a folder or hub id",
        help="folder or hub id of the model's tokenizer, for random prompts and counts",
    )
    trust_remote_code: bool = flag(
        False,
        help="run the tokenizer's code that comes with a checkpoint, where nothing else can read "
        "it, with all rights of this user",
    )
    code_revision: str | None = flag(
        None,
        metavar="PIN",
        help="the code that --trust-remote-code runs: sha256: and the digest of its files, which "
        "the error without this flag tells, or on the hub the whole hash of a commit",
    )
    vocab_size: int | None = flag(
        None,
        ge=1,
        unit="tokens",
        help="draw random prompts as token ids below this; no tokenizer is needed then",
    )
    seed: int = flag(0, help="seed for random prompts, lengths and arrival times")
    api_key: str | None = flag(
        None, secret=True, default_note="$OPENAI_API_KEY", help="key for the server"
    )
    temperature: float = flag(0.0, ge=0, help="temperature of every request; 0 is greedy")
    ignore_eos: bool = flag(
        False,
        help="ask the server to ignore the end token, so that answers have exactly the given "
        "length",
    )
    extra_body: Mapping[str, Any] = flag(
        {}, help="fields added to every request body; null removes a field"
    )
    request_timeout: float = flag(
        600.0, ge=0.001, unit="seconds", help="time after which a request counts as failed"
    )
    ready_check_timeout_sec: float = flag(
        0.0, ge=0, unit="seconds", help="how long to wait for a server that does not answer yet"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFlags:
    """When requests are sent."""

    request_rate: float | None = flag(
        None,
        ge=1e-6,
        unit="requests per second",
        words={"inf": None},
        default_note="inf",
        help="mean rate of arrivals; inf sends all at once",
    )
    burstiness: float = flag(
        1.0,
        ge=1e-3,
        help="shape of the gamma distribution of gaps between arrivals: 1 is a Poisson process, "
        "less comes in bursts, more comes evenly",
    )
    max_concurrency: int | None = flag(
        None,
        ge=1,
        unit="requests",
        default_note="no limit",
        help="maximum number of concurrent requests; further ones wait at the client",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFlags:
    "Latencies and goals."

    percentile_metrics: tuple[str, ...] = flag(
        ("ttft", "tpot", "itl", "e2el"),
        metavar="NAME",
        help="latencies to show: ttft (time to first token), tpot (time per further token), itl "
        "(between tokens), e2el (whole request)",
    )
    goodput: tuple[str, ...] = flag(
        (),
        metavar="NAME:MS",
        help="limits in milliseconds, e.g. ttft:200 tpot:50, for goodput: the requests per "
        "second that meet all of them",
    )
    fail_on_error: bool = flag(
        False, help="exit with status 1 when any request failed, not only when all did"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFlags:
    "What is reported and saved."

    metric_percentiles: tuple[str, ...] = flag(
        ("90", "99"),
        metavar="P",
        help="percentiles to report for every latency, in addition to the median",
    )
    output_json: str | None = flag(None, metavar="FILE", help="write the result as JSON")
    save_result: bool = flag(False, help="write the result to a file with a generated name")
    result_dir: str = flag(".", metavar="FOLDER", help="where --save-result writes")
    result_filename: str | None = flag(
        None,
        metavar="FILE",
        default_note="kind, label, model and time",
        help="file name for --save-result",
    )
    save_detailed: bool = flag(False, help="include the times of every request in the result")
    label: str | None = flag(None, help="name of this measurement, kept in the result")
    metadata: tuple[str, ...] = flag(
        (), metavar="KEY=VALUE", help="additional entries of the result"
    )
    plot: str | None = flag(
        None, metavar="FILE.png", help='plot the distributions; needs the extra "plot"'
    )
    profile: bool = flag(
        False,
        help="run the measured requests, and no warm-up, under the profiler of every rank, which "
        "makes them slower; the engine needs --profiler-config FOLDER",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyFlags:
    "The repeated batch."

    input_len: int = flag(32, ge=1, unit="tokens", help="length of every prompt")
    output_len: int = flag(128, ge=1, unit="tokens", help="length of every answer")
    batch_size: int = flag(8, ge=1, unit="requests", help="requests that start together")
    num_iters_warmup: int = flag(3, ge=0, help="number of warm-up batches, which are not counted")
    num_iters: int = flag(10, ge=1, help="number of measured batches")


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureFlags:
    "What is written beside the table."

    output_json: str | None = flag(None, metavar="FILE", help="write the figures as JSON")
    plot: str | None = flag(None, metavar="FILE.png", help='draw them; needs the extra "plot"')


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedFlags:
    "The server whose start is shown."

    base_url: str = flag("http://127.0.0.1:8000", metavar="URL", help="address of the server")
    api_key: str | None = flag(
        None, secret=True, default_note="$OPENAI_API_KEY", help="key for the server"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeFlags:
    "All flags of `dovetail bench serve`."

    dataset: DatasetFlags
    target: TargetFlags
    load: LoadFlags
    metrics: MetricFlags
    report: ReportFlags

    @property
    def groups(self) -> tuple[object, ...]:
        """Return the groups in the order of SERVE_GROUPS."""
        return (self.dataset, self.target, self.load, self.metrics, self.report)


SERVE_GROUPS: tuple[type[object], ...] = (
    DatasetFlags,
    TargetFlags,
    LoadFlags,
    MetricFlags,
    ReportFlags,
)
LATENCY_GROUPS: tuple[type[object], ...] = (LatencyFlags, ReportFlags)
THROUGHPUT_GROUPS: tuple[type[object], ...] = (DatasetFlags, ReportFlags)
COMPARE_GROUPS: tuple[type[object], ...] = (PictureFlags,)
STARTUP_GROUPS: tuple[type[object], ...] = (StartedFlags, PictureFlags)
GROUPS_BY_COMMAND: Mapping[str, tuple[type[object], ...]] = {
    "serve": SERVE_GROUPS,
    "latency": LATENCY_GROUPS,
    "throughput": THROUGHPUT_GROUPS,
    "compare": COMPARE_GROUPS,
    "startup": STARTUP_GROUPS,
}
"""The flags that each measurement adds; latency and throughput take the engine's flags too."""
