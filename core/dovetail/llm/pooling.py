"""PoolingCalls: the pooling methods of an LLM: vectors, classes, scores and rewards.

The arguments and results have vLLM's names.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.engine.client.pooling.named_prompts import prompt_before, prompted
from dovetail.engine.client.pooling.results import (
    ClassificationResult,
    EmbeddingResult,
    PoolingResult,
    ProcessedResult,
    ScoringResult,
)
from dovetail.engine.client.pooling.scores import Join, Scoring, plan_scores
from dovetail.engine.client.requests.input_processor import PreparedRequest, Prompt
from dovetail.engine.client.requests.io_processing import (
    DATA,
    make_io_processor,
    processed_answer,
    processed_prompts,
)
from dovetail.engine.client.results.collector import RequestCollector
from dovetail.errors import RequestError
from dovetail.interfaces.data.pooling_params import (
    CLASSIFY,
    EMBED,
    TASKS,
    TOKEN_CLASSIFY,
    TOKEN_EMBED,
    PoolingParams,
)
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.llm.adapters import Loras
from dovetail.llm.prompts import Prompts, listed

Result = TypeVar("Result", bound=PoolingResult)
_VECTORS = (EMBED, TOKEN_EMBED)


class PoolingCalls:
    """The pooling methods of an LLM."""

    _engine: Any
    _frontend: FrontendConfig

    @property
    @abstractmethod
    def spec(self) -> EngineSpec:
        """Return the resolved facts of the engine."""

    @abstractmethod
    def _adapter_names(self, adapters: Loras, count: int) -> list[str]:
        """Return the adapter's name for each prompt, after loading the missing ones."""

    @abstractmethod
    def _ended(
        self,
        prepared: Sequence[PreparedRequest],
        texts: Sequence[str | None],
        doing: str,
        *,
        shows_progress: bool,
    ) -> list[RequestCollector]:
        """Run prepared requests to completion."""

    def encode(
        self,
        prompts: Prompts,
        pooling_params: PoolingParams | None = None,
        use_tqdm: bool = True,
        *,
        pooling_task: str | None = None,
        truncate_prompt_tokens: int | None = None,
        prompt_name: str | None = None,
        lora_request: Loras = None,
    ) -> list[PoolingResult]:
        """Return the pooled output of each prompt, in order: `outputs.data` has the numbers.

        `pooling_task` is one of PoolingParams' tasks (None: the task of the params, or the model's
        default). {"data": ...} is turned into prompts by the plugin of --io-processor-plugin; the
        result is then one ProcessedResult whose `outputs` is the plugin's answer. A prompt longer
        than `truncate_prompt_tokens` is cut (-1: to the model's limit). `prompt_name` is the
        checkpoint's prompt to prepend to texts for vectors. `lora_request` is the adapter of all
        prompts, or of each. A request that ends with a fault has `error` set; the others continue.
        Raises: RequestError before anything runs when a prompt or its params are wrong.
        """
        given = pooling_params.task if pooling_params is not None else None
        if isinstance(prompts, Mapping) and DATA in prompts:
            return self._processed(prompts[DATA], pooling_params, pooling_task or given)
        return self._pool(
            PoolingResult,
            prompts,
            self._params(pooling_params, pooling_task or given or self._usual_task()),
            use_tqdm,
            truncate_prompt_tokens,
            prompt_name,
            lora_request,
        )

    def _processed(
        self, data: Any, params: PoolingParams | None, task: str | None
    ) -> list[PoolingResult]:
        """Return the I/O processor's answer to `data`, by the model. Raises: RequestError"""
        processor = make_io_processor(self.spec)
        if processor is None:
            raise RequestError(
                "data of other forms is not read.", where=DATA, fix="give io_processor_plugin."
            )
        prompts = processed_prompts(processor, data)
        checked_params = self._params(params, task or processor.task or self._usual_task())
        results = self._pool(PoolingResult, prompts, checked_params, False)
        failed = next((one for one in results if one.error is not None), None)
        if failed is not None:
            return [failed]
        answer = processed_answer(processor, data, [one.data for one in results])
        return [
            ProcessedResult(
                request_id=results[0].request_id,
                prompt=None,
                prompt_token_ids=tuple(i for one in results for i in one.prompt_token_ids),
                answer=answer,
            )
        ]

    def embed(
        self,
        prompts: Prompts,
        use_tqdm: bool = True,
        pooling_params: PoolingParams | None = None,
        *,
        truncate_prompt_tokens: int | None = None,
        prompt_name: str | None = None,
        lora_request: Loras = None,
    ) -> list[EmbeddingResult]:
        """Return each prompt's vector as `outputs.embedding`; for the arguments see `encode`."""
        return self._pool(
            EmbeddingResult,
            prompts,
            self._params(pooling_params, EMBED),
            use_tqdm,
            truncate_prompt_tokens,
            prompt_name,
            lora_request,
        )

    def classify(
        self,
        prompts: Prompts,
        use_tqdm: bool = True,
        pooling_params: PoolingParams | None = None,
        *,
        truncate_prompt_tokens: int | None = None,
        lora_request: Loras = None,
    ) -> list[ClassificationResult]:
        """Return the class probabilities of each prompt as `outputs.probs`; for the arguments see
        `encode`."""
        params = self._params(pooling_params, CLASSIFY)
        return self._pool(
            ClassificationResult,
            prompts,
            params,
            use_tqdm,
            truncate_prompt_tokens,
            lora_request=lora_request,
        )

    def reward(
        self,
        prompts: Prompts,
        use_tqdm: bool = True,
        pooling_params: PoolingParams | None = None,
        *,
        truncate_prompt_tokens: int | None = None,
        lora_request: Loras = None,
    ) -> list[PoolingResult]:
        """Return the rewards of each prompt as `outputs.data`: one per token or step, or a single
        one if the model judges the whole prompt. For the arguments see `encode`."""
        pooling = self.spec.run.pooling
        judges_tokens = pooling is None or CLASSIFY not in pooling.tasks
        params = self._params(pooling_params, TOKEN_CLASSIFY if judges_tokens else CLASSIFY)
        return self._pool(
            PoolingResult,
            prompts,
            params,
            use_tqdm,
            truncate_prompt_tokens,
            lora_request=lora_request,
        )

    def score(
        self,
        data_1: Prompts,
        data_2: Prompts,
        use_tqdm: bool = True,
        pooling_params: PoolingParams | None = None,
        *,
        truncate_prompt_tokens: int | None = None,
        chat_template: str | None = None,
        lora_request: Loras = None,
    ) -> list[ScoringResult]:
        """Return how well pairs match as `outputs.score`: one text with each of the others, or two
        equally long lists in pairs (see `engine.client.scores`); models of vectors also take
        mappings with media. `chat_template` renders a pair as messages with the roles "query" and
        "document" (None: --chat-template).

        A pair whose request ends with a fault has `error` set. Raises: RequestError as `encode`
        """
        first, second = listed(data_1), listed(data_2)
        (adapter,) = self._adapter_names(lora_request, 1)
        scoring = plan_scores(
            self.spec,
            self._engine.vocabularies.of(adapter).tokenizer,
            first,
            second,
            truncate=truncate_prompt_tokens,
            params=pooling_params,
            join=self._join(chat_template),
        )
        prepared = [
            self._engine.prepare_pooled(
                one.prompt, one.params, truncate=truncate_prompt_tokens, adapter=adapter
            )
            for one in scoring.prompts
        ]
        ended = self._ended(prepared, [None] * len(prepared), "score", shows_progress=use_tqdm)
        return _scores(scoring, [collector.pooled(PoolingResult) for collector in ended])

    def _pool(
        self,
        result_type: type[Result],
        prompts: Prompts,
        params: PoolingParams,
        use_tqdm: bool,
        truncate: int | None = None,
        prompt_name: str | None = None,
        lora_request: Loras = None,
    ) -> list[Result]:
        """Return the results of pooling prompts."""
        given = listed(prompts)
        if params.task in _VECTORS or prompt_name is not None:
            given = self._with_prompts(given, prompt_name)
        adapters = self._adapter_names(lora_request, len(given))
        prepared = [
            self._engine.prepare_pooled(one, params, truncate=truncate, adapter=adapter)
            for one, adapter in zip(given, adapters, strict=True)
        ]
        texts = [prompt if isinstance(prompt, str) else None for prompt in given]
        ended = self._ended(prepared, texts, params.task, shows_progress=use_tqdm)
        return [collector.pooled(result_type) for collector in ended]

    def _with_prompts(self, prompts: Sequence[Prompt], name: str | None) -> list[Prompt]:
        """Prepend the checkpoint's prompt of this name to the texts. Raises: RequestError"""
        before = prompt_before(self.spec.run.pooling, name)
        if name is not None and not all(isinstance(prompt, str) for prompt in prompts):
            raise RequestError(
                "a prompt is put before texts, not before token ids.", where="prompt_name"
            )
        return [prompted(before, one) if isinstance(one, str) else one for one in prompts]

    def _usual_task(self) -> str:
        pooling = self.spec.run.pooling
        return pooling.tasks[0] if pooling is not None else EMBED

    def _params(self, given: PoolingParams | None, task: str) -> PoolingParams:
        """Return the params for a task. Raises: RequestError for params of another task"""
        if given is None:
            return PoolingParams(task=task)
        if given.task in TASKS and given.task != task:
            raise RequestError(
                f"the pooling params are for {given.task}, and {task} is asked for.", where="task"
            )
        return msgspec.structs.replace(given, task=task)

    def _join(self, chat_template: str | None) -> Join | None:
        """Return the function that joins two texts into a prompt, None without a template. Raises:
        RequestError, ConfigError"""
        source = chat_template or self._frontend.chat_template
        if not source:
            return None
        # Only templates need pydantic and jinja, so they are imported here.
        from dovetail.server.generate.rendering.score import score_template

        return score_template(source, self._engine.tokenizer.facts())


def _scores(scoring: Scoring, results: Sequence[PoolingResult]) -> list[ScoringResult]:
    """Return the scores of pairs from the pooled results of their prompts."""
    scores = []
    for number, pair in enumerate(scoring.pairs):
        parts = [results[at] for at in pair]
        error = next((part.error for part in parts if part.error is not None), None)
        score = scoring.score(number, [part.data for part in parts]) if error is None else None
        scores.append(
            ScoringResult(
                request_id="_".join(dict.fromkeys(part.request_id for part in parts)),
                prompt_token_ids=tuple(i for part in parts for i in part.prompt_token_ids),
                score=score,
                num_cached_tokens=sum(part.num_cached_tokens for part in parts),
                error=error,
            )
        )
    return scores
