"""The resolved facts of one engine: decided once by `config.resolve`, read by every process.

Pure data (msgspec structs, so they cross processes unchanged). Nothing is chosen again later:
plugins are given by `Selection`, sizes are final numbers, and there is no "auto" any more.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dovetail.interfaces.data.adapter_spec import AdapterSearch, AdapterSource, AdapterSpec
from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.checkpoint_code import CheckpointCode
from dovetail.interfaces.data.encoder_spec import EncoderSpec as EncoderSpec
from dovetail.interfaces.data.media import MediaSpec
from dovetail.interfaces.data.media_settings import MediaSettings
from dovetail.interfaces.data.pooling_spec import PoolingSpec as PoolingSpec
from dovetail.interfaces.data.pooling_spec import ProjectionSpec as ProjectionSpec
from dovetail.interfaces.data.profile import ProfileSpec, of_engine
from dovetail.interfaces.data.schedule_spec import ScheduleSpec
from dovetail.interfaces.data.selection import Selection as Selection
from dovetail.interfaces.kv_connector import TransferSpec
from dovetail.interfaces.kv_event_publisher import EventsSpec

NO_TOKENIZER = "none"
"""Name of the Selection that is used if no tokenizer is wanted."""

PAGED = Selection(
    kind="kv_policy",
    name="paged",
    target="dovetail.engine.kv.paged:Paged",
    distribution="dovetail-llm",
)


LOGITS, NOTHING, CLASSES, TOKEN_CLASSES = "logits", "", "classes", "token_classes"
TOKEN_VECTORS, WORD_WEIGHTS, MIXED = "token_vectors", "word_weights", "mixed"
SOUND = "sound"
"""What is computed from hidden states (ModelSpec.head)."""
MAKES_VECTORS = (NOTHING, TOKEN_VECTORS, WORD_WEIGHTS, MIXED, SOUND)
"""The heads of models that make vectors."""

ACTIVATIONS = ("identity", "sigmoid", "softmax")
"""The functions that can be applied to class scores."""


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a checkpoint, read from its config.json. Sizes in elements, lengths in tokens.

    `hf_config` is the text model's config.json content (overrides applied); model plugins read
    their own settings from it. `dtype` is the torch name of the compute type ("float32").
    `weight_dtype` is the storage type of matrices if a kernel multiplies it by activations of
    `dtype`; empty means `dtype`. `rope_rules` maps each rope_type in hf_config to the
    "module:function" of its rule. `head` is what is computed from the hidden states: LOGITS of the
    vocabulary, NOTHING, the CLASSES of a prompt or of its tokens (TOKEN_CLASSES), TOKEN_VECTORS
    that are smaller than hidden states, WORD_WEIGHTS, a number for each word of the vocabulary,
    MIXED, vectors of a prompt and of its tokens, and a number for each token, or SOUND, samples.
    `is_causal` False: every token attends to all others of its prompt, so nothing is cached. The
    classes are the rows of the LM head for the `class_tokens`, or with `is_class_difference` the
    second minus the first (none: a matrix of its own). `cache` None: every layer caches keys and
    values. With an `encoder`, the input goes to it, and the model is its decoder. `code` contains
    the model's class and is allowed to run. `whole_config` is the whole config.json if the text
    model is only a part of the checkpoint.
    """

    path: str
    architecture: str
    hf_config: dict[str, Any]
    dtype: str
    weight_dtype: str = ""
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_position_tokens: int
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    rope_rules: dict[str, str] = {}
    head: str = LOGITS
    is_causal: bool = True
    class_tokens: tuple[int, ...] = ()
    is_class_difference: bool = False
    cache: CacheFacts | None = None
    code: CheckpointCode | None = None
    encoder: EncoderSpec | None = None
    whole_config: dict[str, Any] = {}


class RankSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's rank: among all ranks, among the ranks that share its layers, and among the
    ranks of its machine. All zeros and ones for a single rank.

    The model's layers are divided over `num_stages` stages of `tensor_size` consecutive ranks each
    (pipeline parallelism); `stage_layers` is the number of layers of each stage (none: one stage
    has all). `data_rank` is its engine's index among the `data_size` engines over which experts are
    divided. `context_size` consecutive ranks, which hold the same KV heads, divide the tokens of
    each request's KV cache.
    """

    rank: int = 0
    world_size: int = 1
    tensor_rank: int = 0
    tensor_size: int = 1
    local_rank: int = 0
    local_size: int = 1
    stage: int = 0
    num_stages: int = 1
    stage_layers: tuple[int, ...] = ()
    data_rank: int = 0
    data_size: int = 1
    context_size: int = 1

    @property
    def is_alone(self) -> bool:
        """Return whether no other rank takes part in its steps."""
        return self.world_size == self.data_size == 1

    @property
    def is_first_stage(self) -> bool:
        """Return whether token ids become hidden states here."""
        return self.stage == 0

    @property
    def is_last_stage(self) -> bool:
        """Return whether tokens are drawn here."""
        return self.stage == self.num_stages - 1

    @property
    def first_of_last_stage(self) -> int:
        """Return the number of the rank that returns the steps' results."""
        return (self.num_stages - 1) * self.tensor_size

    def layers(self, num_layers: int) -> range:
        """Return the numbers of this rank's layers, in a model with `num_layers` layers."""
        if not self.stage_layers:
            return range(num_layers)
        first = sum(self.stage_layers[: self.stage])
        return range(first, first + self.stage_layers[self.stage])

    @property
    def expert_rank(self) -> int:
        """Return the index among all ranks over which experts are divided."""
        return self.data_rank * self.tensor_size + self.tensor_rank

    @property
    def expert_size(self) -> int:
        """Return over how many ranks experts are divided, if they are."""
        return self.data_size * self.tensor_size


class ExpertBalanceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How experts move between ranks: every `interval_steps` steps, by how often each was selected
    in the last `window_steps`. A layer has room for `num_redundant` copies of experts. `is_logged`:
    the log reports how balanced the ranks' loads were."""

    window_steps: int = 1000
    interval_steps: int = 3000
    num_redundant: int = 0
    is_logged: bool = False


class StructuredOutputSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How answers are constrained: the backends that requests may use, and the limits of compiling.

    `backend` is used if a request names none; "auto" is the best one that enforces the whole
    constraint. With `falls_back` other backends try what that one does not enforce. `whitespace` is
    the pattern of white space within JSON. `closes_objects` forbids members that a schema does not
    name.
    """

    tokenizer: Selection
    tokenizer_path: str
    eos_ids: tuple[int, ...]
    vocab_size: int
    backends: tuple[Selection, ...]
    backend: str = "auto"
    falls_back: bool = True
    whitespace: str = r"[ \n\r\t]{0,8}"
    closes_objects: bool = False
    compile_limit_s: float = 10.0
    compile_memory_bytes: int = 2 << 30
    cache_bytes: int = 256 << 20


class WorkerDraftSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A drafter that runs on the worker, and its checkpoint: `model`, read by `load_format`.

    `model_plugin` is the plugin for the model class that its settings name (None: there is none).
    Its layers are sharded like the target's if `is_divided`, otherwise replicated on every rank.
    Rows of more than `max_model_tokens` tokens get no drafts. `max_tokens` is the longest draft.
    """

    drafter: Selection
    max_tokens: int
    model: ModelSpec
    model_plugin: Selection | None
    load_format: Selection
    quantization: Selection
    attention: Selection
    max_model_tokens: int
    is_divided: bool = False
    is_sampled: bool = False


class HalvesSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Which steps are split into two half batches: decode steps with at least `decode_tokens`
    tokens, and steps that compute prompts with at least `prefill_tokens`."""

    decode_tokens: int
    prefill_tokens: int


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one worker needs to load a model and run steps.

    A step has at most `max_rows` requests and `max_step_tokens` tokens. `num_threads` 0 means
    torch's default; `thread_spin_us` bounds how long an idle kernel thread stays awake, and
    `pins_threads` pins each to one core. `processors` are all that the engine may run on (none: no
    limit). `is_eager` forbids recording or capturing steps; `graph_sizes` are the numbers of rows
    for which steps are captured or recorded (None: chosen by the device's worker). `compiles`
    enables torch.compile if it is faster. `async_steps`: a plan may arrive before the previous
    result was read. `uses_fused_ops` False: use the framework's own operators if there is a choice.
    The engine may use the share `memory_share` of its device's memory. `logprobs_stage` is "raw"
    (the model's own logits are reported) or "processed" (the logits that tokens are drawn from),
    `logprobs_scale` "logprobs" or "logits". `kv_scales[rank][layer]` divide the keys and values of
    a cache of 8-bit floats (none: the checkpoint's own scales). With `kv_steps` scales are measured
    at the start, so that the largest key and value get these magnitudes in the cache. Blocks with
    `offload_bytes` of weights stay in host memory; the run is then eager. Ranks exchange tensors by
    `communicator`. `rank_processors` are the processors of each rank (none: the engine's).
    `expert_placement` assigns experts to ranks, `expert_balance` moves them (see BuildContext). The
    methods of the class `worker_extension`, "module:Class", are added to the worker's. Engines over
    which experts are divided exchange tokens by `all2all`, and meet in the folder `engines_folder`.
    `device` is the platform's device_type, `ops` its implementations of ops, each as
    "module:attribute" (see interfaces.platform). With `pooling` the model does not generate.
    `adapters` are the limits of adapters (None: not supported), `drafts` the drafter on the worker
    (None: none). `acceptance` decides which drafts to accept (None: no drafts). Recurrent layers
    store their latest inputs in `conv_state_dtype`, sums over all inputs in `state_dtype`.
    `transfer` is where KV blocks are stored outside the device (None: nowhere). With
    `leaves_out_tokens`, layers that read what others wrote compute only the tokens after which
    something is drawn. Each rank has a part of a media encoder's matrices, or with the
    `encoder_mode` "data" all of them for a part of a step's items; `encodings_bytes` of memory are
    reserved for encodings. `attention_dtype` is the type of queries, keys and values in attention
    (empty: the model's). `halves` says which steps are split into two halves (None: none),
    `profile` how the ranks are profiled on request (None: not). `tokenizer` is for logits
    processors that need it.
    """

    model: ModelSpec
    device: str
    kv_dtype: str
    block_tokens: int
    max_rows: int
    max_step_tokens: int
    max_model_tokens: int
    seed: int
    model_plugin: Selection
    load_format: Selection
    quantization: Selection
    attention: Selection
    logits_processors: tuple[Selection, ...] = ()
    rank: RankSpec = RankSpec()
    num_threads: int = 0
    thread_spin_us: int = 50
    pins_threads: bool = False
    processors: tuple[int, ...] = ()
    is_eager: bool = False
    async_steps: bool = False
    graph_sizes: tuple[int, ...] | None = None
    uses_fused_ops: bool = True
    compiles: bool = False
    memory_share: float = 0.9
    logprobs_stage: str = "raw"
    logprobs_scale: str = "logprobs"
    shows_progress: bool = True
    load_options: dict[str, Any] = {}
    kv_scales: tuple[tuple[float, ...], ...] = ()
    kv_steps: tuple[float, float] | None = None
    offload_bytes: int = 0
    structured_output: StructuredOutputSpec | None = None
    ops: dict[str, str] = {}
    communicator: Selection | None = None
    rank_processors: tuple[tuple[int, ...], ...] = ()
    expert_placement: str = ""
    expert_balance: ExpertBalanceSpec | None = None
    worker_extension: str = ""
    all2all: Selection | None = None
    engines_folder: str = ""
    pooling: PoolingSpec | None = None
    adapters: AdapterSpec | None = None
    drafts: WorkerDraftSpec | None = None
    acceptance: Selection | None = None
    conv_state_dtype: str = "float32"
    state_dtype: str = "float32"
    transfer: TransferSpec | None = None
    leaves_out_tokens: bool = False
    attention_dtype: str = ""
    encoder_mode: str = "weights"
    encodings_bytes: int = 0
    halves: HalvesSpec | None = None
    profile: ProfileSpec | None = None
    tokenizer: Selection | None = None
    tokenizer_path: str = ""


class CacheSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the KV cache, and how blocks are shared.

    `num_blocks` None means as many as fit in `memory_bytes` or, if that is None too, in the memory
    that the executor finds free. `host_bytes` of host memory hold the cache of preempted requests.
    With `keeps_windows`, layers with a sliding window also cache the tokens before it.
    `hash_algorithm` is the "module:attribute" of a `interfaces.block_hash.BlockHash`. Blocks are
    named by the hashes of their units of `hash_tokens` tokens (0: a block is one unit).
    """

    block_tokens: int
    num_blocks: int | None
    memory_bytes: int | None
    memory_share: float
    uses_prefix_cache: bool
    hash_algorithm: str
    hash_tokens: int = 0
    host_bytes: int = 0
    keeps_windows: bool = False


class DraftSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Speculation: the drafter, and how many tokens ahead it drafts at most.

    No tokens are drafted while more than `pause_above_requests` requests run or wait, and none for
    a request beyond its first `max_model_tokens` tokens (None: no limit). `takes_predictions`: a
    client's guess of an answer is drafted.
    """

    drafter: Selection
    max_tokens: int
    takes_predictions: bool = False
    pause_above_requests: int | None = None
    max_model_tokens: int | None = None

    def rows_of(self, max_rows: int) -> int:
        """Return the maximum number of rows with drafts in a step."""
        above = self.pause_above_requests
        return max_rows if above is None else min(above, max_rows)


class EngineShare(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that differ between engines: the number, the processors (also per rank) and
    threads as in RunSpec, and environment `variables` of its process that give it devices of its
    own."""

    engine: int
    processors: tuple[int, ...] = ()
    rank_processors: tuple[tuple[int, ...], ...] = ()
    num_threads: int = 0
    variables: dict[str, str] = {}


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One engine, resolved: sent whole to the engine process.

    Several engines of one model differ in `engine`, their number, and in their `shares`, one for
    each; `router` then chooses among them. The spec that an engine process gets has no shares
    (`each`). `num_engines` engines serve one API, including those with the numbers `elsewhere`,
    which other machines run. Requests without a seed get theirs from `request_seed` (None: at
    random). A request may name the logits processors that `processor_pattern` matches (None: all).
    An engine in a step longer than `step_timeout_s` counts as dead; a dead one is started again
    `max_restarts` times within ten minutes at most. `reply_timeout_s` is how long
    an API process waits for a reply that needs no step. The socket is in `socket_dir`.
    `times_steps` adds up the cost of each request's steps. `can_sleep`: sleep mode is on, so the
    engine can release its memory while it runs. `adapters` are loaded at the start;
    `adapter_search` says how others are found. `events` says where changes of the prefix cache are
    published (None: nowhere). `media` None: the model takes none. `takes_vectors`: requests may
    send vectors instead of a prompt; `io_processor` makes prompts of other data (None:
    unsupported).
    """

    run: RunSpec
    cache: CacheSpec
    schedule: ScheduleSpec
    scheduler: Selection
    policy: Selection
    executor: Selection
    worker: Selection
    tokenizer: Selection
    tokenizer_path: str
    platform: Selection | None = None
    kv_policy: Selection = PAGED
    drafting: DraftSpec | None = None
    stat_loggers: tuple[Selection, ...] = ()
    hooks: tuple[Selection, ...] = ()
    served_names: tuple[str, ...] = ()
    request_seed: int | None = None
    max_logprobs: int = 20
    processor_pattern: str | None = None
    stop_conditions: tuple[Selection, ...] = ()
    default_sampling: dict[str, Any] = {}
    log_level: str = "INFO"
    log_config: dict[str, Any] | None = None
    log_format: str = "dovetail.observability.logging:LineFormatter"
    log_prefix: str = ""
    sets_up_log: bool = True
    step_timeout_s: float | None = None
    max_restarts: int = 0
    reply_timeout_s: float = 10.0
    socket_dir: str | None = None
    checks_invariants: bool = False
    times_steps: bool = False
    can_sleep: bool = False
    engine: int = 0
    num_engines: int = 1
    shares: tuple[EngineShare, ...] = ()
    elsewhere: tuple[int, ...] = ()
    variables: dict[str, str] = {}
    router: Selection | None = None
    adapters: tuple[AdapterSource, ...] = ()
    adapter_search: AdapterSearch = AdapterSearch()
    events: EventsSpec | None = None
    media: MediaSpec | None = None
    takes_vectors: bool = False
    io_processor: Selection | None = None
    sounds: MediaSettings | None = None

    @property
    def model_names(self) -> tuple[str, ...]:
        """Return the names that requests may use for the model, the main one first."""
        return self.served_names or (self.run.model.path,)

    def adapter_of(self, name: str) -> str:
        """Return the adapter that a model name refers to ("": the model itself)."""
        return "" if name in ("", *self.model_names) else name

    @property
    def total_rows(self) -> int:
        """Return how many requests all engines run at the same time."""
        return self.schedule.max_rows * self.num_engines

    def each(self) -> tuple[EngineSpec, ...]:
        """Return the spec of every engine on this machine: this one, or one per share."""
        if len(self.elsewhere) == self.num_engines:
            return ()
        return tuple(self._with(share, place) for place, share in enumerate(self.shares)) or (self,)

    def every(self) -> tuple[EngineSpec, ...]:
        """Return the spec of every engine of the server, those on other machines last. How these
        use their machines is known only there."""
        others = (
            msgspec.structs.replace(self, engine=number, shares=(), elsewhere=())
            for number in self.elsewhere
        )
        return (*self.each(), *others)

    @property
    def shares_experts(self) -> bool:
        """Return whether each engine holds experts that the others need."""
        return self.run.rank.data_size > 1

    def _with(self, share: EngineShare, place: int) -> EngineSpec:
        rank = self.run.rank
        if self.shares_experts:
            rank = msgspec.structs.replace(rank, data_rank=place)
        run = msgspec.structs.replace(
            self.run, processors=share.processors, rank_processors=share.rank_processors,
            num_threads=share.num_threads, rank=rank, transfer=self._transfer_of(share),
            profile=of_engine(self.run.profile, share.engine),
        )  # fmt: skip
        return msgspec.structs.replace(
            self, run=run, engine=share.engine, shares=(), elsewhere=(), variables=share.variables,
            log_prefix=f"{self.log_prefix}engine {share.engine}: ",
        )  # fmt: skip

    def _transfer_of(self, share: EngineShare) -> TransferSpec | None:
        """Return one engine's connector settings, with a separate engine id."""
        transfer = self.run.transfer
        if transfer is None:
            return None
        name = f"{transfer.engine_id}-{share.engine}"
        return msgspec.structs.replace(transfer, engine_id=name, engine=share.engine)

    @property
    def has_tokenizer(self) -> bool:
        """Return whether text can be read and written; otherwise prompts and answers are token
        ids."""
        return self.tokenizer.name != NO_TOKENIZER
