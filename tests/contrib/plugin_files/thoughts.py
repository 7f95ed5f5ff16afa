"""A plugin file for vLLM of reasoning between two tokens, by the older names of the methods."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase
from vllm.entrypoints.openai.protocol import ChatCompletionRequest, DeltaMessage
from vllm.logger import init_logger
from vllm.reasoning import ReasoningParser, ReasoningParserManager

logger = init_logger(__name__)


@ReasoningParserManager.register_module("thoughts")
class Thoughts(ReasoningParser):
    """<think> ... </think>; an answer without the end is all content."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        super().__init__(tokenizer)
        self.think_start_token = "<think>"
        self.think_end_token = "</think>"
        if not self.model_tokenizer:
            raise ValueError("The model tokenizer must be passed to the parser.")
        self.start_id = self.vocab.get(self.think_start_token)
        self.end_id = self.vocab.get(self.think_end_token)
        if self.start_id is None or self.end_id is None:
            raise RuntimeError("could not locate the think tokens in the tokenizer!")

    def is_reasoning_end(self, input_ids: list[int]) -> bool:
        return self.end_id in input_ids

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        if self.end_id not in input_ids[:-1]:
            return []
        return input_ids[input_ids.index(self.end_id) + 1 :]

    def extract_reasoning_content(
        self, model_output: str, request: ChatCompletionRequest
    ) -> tuple[str | None, str | None]:
        if self.think_end_token not in model_output:
            return None, model_output
        thought, _, content = model_output.partition(self.think_end_token)
        return thought.removeprefix(self.think_start_token), content or None

    def extract_reasoning_content_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
    ) -> DeltaMessage | None:
        if len(delta_token_ids) == 1 and delta_token_ids[0] in (self.start_id, self.end_id):
            return None
        if self.start_id not in current_token_ids or self.end_id in previous_token_ids:
            return DeltaMessage(content=delta_text)
        return DeltaMessage(reasoning_content=delta_text)
