"""Everything that a family of endpoints imports from the server, in one module.

A family imports this, `dovetail.interfaces` and its own modules. An endpoint works in this order:
`server.fields.check(body)` reports ignored fields, `as_chat` turns the body into a chat request,
`prepare` validates and renders it, and `generation.steps` yields the answer as it is generated.
"""

from __future__ import annotations

from dovetail import moved
from dovetail.server.generate.application import App
from dovetail.server.generate.body.as_chat import (
    CHAT_NAMES,
    Content,
    as_chat,
    check_one,
    engine_names,
    in_words_of,
    is_deep,
    joined,
    sent_as,
)
from dovetail.server.generate.body.chat import (
    MAX_MESSAGES,
    MAX_NAME_CHARS,
    MAX_PARTS,
    MAX_TEMPLATE_CHARS,
    MAX_TOOLS,
    ChatRequest,
    FunctionCall,
    Message,
    ResponseFormat,
    ToolBody,
)
from dovetail.server.generate.body.dialect import AnswerEnd, Dialect
from dovetail.server.generate.body.fields import (
    INT31,
    MAX_STOPS,
    Body,
    Metadata,
    Reply,
    SamplingFields,
    StopString,
    StreamOptions,
    TokenId,
    TranslatedBody,
)
from dovetail.server.generate.body.foreign_fields import fault_of, is_hint
from dovetail.server.generate.body.ignored_fields import HEADER, header_value, json_reply
from dovetail.server.generate.body.words import Words, is_left_out, words_of
from dovetail.server.generate.conversation import count_prompt_tokens, prepare
from dovetail.server.generate.dependencies import ServerOf, state_of
from dovetail.server.generate.events import (
    Collected,
    CollectedCall,
    ContentDelta,
    CountedSession,
    Event,
    ReasoningDelta,
    SessionPlan,
    ToolCallArgsDelta,
    ToolCallStart,
)
from dovetail.server.generate.generation import (
    Generation,
    ResponseMeta,
    event_stream_response,
    generation_for,
    json_response,
    response_meta,
)
from dovetail.server.generate.intervals import joined as joined_intervals
from dovetail.server.generate.logprobs import (
    TokenLogprob,
    TokenNames,
    chat_logprobs,
    check_named_logprobs,
    prompt_logprobs,
)
from dovetail.server.generate.model_text import LONG_WORK, ModelText
from dovetail.server.generate.rendering.chat import RenderedPrompt
from dovetail.server.generate.rendering.messages import tool_values
from dovetail.server.generate.rendering.switches import Switch, switch
from dovetail.server.generate.request_log import RequestEnd, logged
from dovetail.server.generate.streaming import (
    EventStream,
    Framing,
    Step,
    StreamHead,
    cancel_on_disconnect,
    data_frame,
    event_frame,
    merged,
    named_frame,
    one_line,
)
from dovetail.server.generate.tools.parsers import Parsers
from dovetail.server.generate.tools.structured_outputs import requested_constraint
from dovetail.server.generate.tools.tool_choice import known_markers, layout_in_use
from dovetail.server.generate.tools.tool_formats import text_grammar_of
from dovetail.server.http.addresses import is_local_only
from dovetail.server.http.errors import Problem, problem, problem_of
from dovetail.server.http.middleware import MAX_REQUEST_ID_CHARS
from dovetail.server.http.not_found import unsupported_route
from dovetail.server.http.owner import FILE_OWNER, as_owner, named_owner, owner_of, owner_of_key

__getattr__ = moved.attributes(__name__)
