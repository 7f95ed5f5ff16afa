"""BeamCalls: beam search of an LLM, with vLLM's names.

The search itself is the server's (`server.generate.beam_search`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dovetail.engine.client.requests.input_processor import PreparedRequest
from dovetail.engine.client.results.collector import RequestCollector
from dovetail.engine.client.results.outputs import join_deltas
from dovetail.errors import RequestError, RequestFault
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.llm.adapters import Loras
from dovetail.llm.prompts import Prompts, listed

if TYPE_CHECKING:
    from dovetail.server.generate.beam_search import Beam, Beams


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchParams:
    """`beam_width` beams are searched and returned; scores are sums by length ** length_penalty."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False

    def verify(self) -> None:
        """Check the fields. Raises: RequestError"""
        for name in ("beam_width", "max_tokens"):
            if getattr(self, name) < 1:
                raise RequestError(f"must be at least 1, not {getattr(self, name)}.", where=name)
        if self.temperature not in (0.0, 1.0):
            raise RequestError(
                "beam search draws nothing, so that a temperature changes nothing.",
                where="temperature",
                fix="leave it out.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchSequence:
    """One answer. `tokens` and `text` begin with the prompt."""

    tokens: list[int]
    cum_logprob: float
    text: str
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchOutput:
    """The answers to one prompt, best first."""

    sequences: list[BeamSearchSequence]


class BeamCalls:
    """The beam search methods of an LLM."""

    _engine: Any

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

    def beam_search(
        self,
        prompts: Prompts,
        params: BeamSearchParams,
        lora_request: Loras = None,
        use_tqdm: bool = False,
    ) -> list[BeamSearchOutput]:
        """Return the most likely whole answers to each prompt, in order.

        All beams of all prompts advance together, step by step, and share cached prefixes. Raises:
        RequestError; RequestFault when a request ends with a fault
        """
        params.verify()
        given = listed(prompts)
        adapters = self._adapter_names(lora_request, len(given))
        searches = [
            _Search(self._engine, prompt, params, adapter)
            for prompt, adapter in zip(given, adapters, strict=True)
        ]
        while growing := [one for one in searches if one.beams.live]:
            requests = [request for one in growing for request in one.requests()]
            ended = self._ended(requests, [None] * len(requests), "beams", shows_progress=use_tqdm)
            answers = iter(ended)
            for one in growing:
                one.grow([next(answers) for _ in one.beams.live])
        return [one.output() for one in searches]


class _Search:
    """The search for the answers to one prompt."""

    def __init__(self, engine: Any, prompt: Any, params: BeamSearchParams, adapter: str) -> None:
        from dovetail.server.generate.beam_search import Beams, BeamSettings

        width = params.beam_width
        settings = BeamSettings(width=width, count=width, length_penalty=params.length_penalty)
        self._engine, self._params, self._adapter = engine, params, adapter
        probe = SamplingParams(max_tokens=params.max_tokens)
        prepared = engine.prepare(prompt, probe, adapter=adapter)
        if prepared.requests[0].parts:
            raise RequestError("beam search takes no media.", where="prompts")
        self._prompt_ids = prepared.prompt_ids
        self._vocabulary = engine.vocabularies.of(adapter)
        ends = () if params.ignore_eos else self._vocabulary.eos_token_ids
        self.beams: Beams = Beams(
            settings=settings,
            end_ids=frozenset(ends),
            max_tokens=prepared.requests[0].sampling.max_tokens or params.max_tokens,
        )

    def requests(self) -> list[PreparedRequest]:
        """Return a request for the next token of each live beam. Raises: RequestError"""
        params = SamplingParams(
            max_tokens=1,
            seed=0,
            logprobs=self.beams.num_wanted,
            ignore_eos=True,
            detokenize=False,
        )
        return [
            self._engine.prepare((*self._prompt_ids, *beam.tokens), params, adapter=self._adapter)
            for beam in self.beams.live
        ]

    def grow(self, ended: Sequence[RequestCollector]) -> None:
        """Extend the beams by the tokens that the requests returned. Raises: RequestFault"""
        positions = []
        for collector in ended:
            if collector.error is not None:
                raise RequestFault(collector.error, where="beam_search")
            logprobs = join_deltas(collector.deltas(0)).logprobs
            assert logprobs, "every request asks for logprobs"
            positions.append(logprobs[0])
        self.beams.grow(positions)

    def output(self) -> BeamSearchOutput:
        """Return the best answers."""
        return BeamSearchOutput(sequences=[self._sequence(beam) for beam in self.beams.best()])

    def _sequence(self, beam: Beam) -> BeamSearchSequence:
        ids = [*self._prompt_ids, *beam.tokens]
        is_cut = beam.finish_reason == "length" or self._params.include_stop_str_in_output
        return BeamSearchSequence(
            tokens=ids,
            cum_logprob=beam.total,
            text=self._vocabulary.tokenizer.decode(ids if is_cut else ids[:-1]),
            finish_reason=beam.finish_reason,
        )
