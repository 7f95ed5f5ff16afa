"""Conversion of a body with inputs or a conversation to the prompts of a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request

from dovetail.engine.client.async_engine import AsyncEngine
from dovetail.engine.client.pooling.named_prompts import prompted
from dovetail.errors import RequestError
from dovetail.interfaces.data.pooling_params import PoolingParams
from dovetail.interfaces.data.spec import PoolingSpec
from dovetail.server.endpoint import (
    CHAT_NAMES,
    MAX_MESSAGES,
    MAX_NAME_CHARS,
    MAX_TEMPLATE_CHARS,
    App,
    ChatRequest,
    Message,
    ModelText,
    in_words_of,
)
from dovetail_plugins.apis._pool.fields import InputPart, Inputs, PoolFields, listed
from dovetail_plugins.apis._pool.instructions import instruction
from dovetail_plugins.apis._pool.pictures import Input, Picture, as_image, is_alone, of_parts
from dovetail_plugins.apis._pool.work import PoolingJob, check_inputs, job_of

_CHAT_FIELDS = (
    "messages",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
)


class InputFields(PoolFields):
    """Inputs, or the messages of one conversation, which the chat template renders as a prompt."""

    input: Inputs | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = False
    continue_final_message: bool = False
    chat_template: Annotated[str, Field(max_length=MAX_TEMPLATE_CHARS)] | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=64)] | None = None
    prompt_name: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None
    input_type: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None


def pooling_of(engine: AsyncEngine) -> PoolingSpec:
    """Return the model's pooling. Routes are only served for models that support them."""
    pooling = engine.spec.run.pooling
    assert pooling is not None
    return pooling


async def input_job(
    server: App,
    text: ModelText,
    body: InputFields,
    request: Request,
    params: PoolingParams,
    *,
    field: str = "input",
    model: str = "",
    given: Sequence[Input] = (),
) -> tuple[PoolingJob, list[str]]:
    """Return a body's job, and the names of fields without effect. `field` is the name of its
    inputs, `model` the model that answers, and `text` how its text is read; `given` are inputs that
    the family has read itself. Raises: RequestError"""
    ignored = server.fields.check(body, known=("messages.",))
    if not given and (body.input is None) == (body.messages is None):
        raise RequestError("give either input or messages.", where=field)
    prompts: Sequence[Input]
    if body.messages is not None:
        prompt, unused = await _chat_prompt(text, body)
        ignored += server.fields.report(unused)
        prompts = [prompt]
        field, is_list = "messages", False
    else:
        sent, is_list = (given, True) if body.input is None else listed(body.input)
        prompts = [
            _of_part(text, one, f"{field}[{place}]" if is_list else field)
            if isinstance(one, InputPart)
            else one
            for place, one in enumerate(sent)
        ]
        check_inputs(prompts, field, is_list=is_list)
        prompts = _with_instruction(text, body, prompts, field)
    adds_special_tokens = body.add_special_tokens is not False
    job = job_of(
        body,
        request,
        prompts,
        params,
        field=field,
        is_list=is_list,
        adds_special_tokens=adds_special_tokens,
        adapter=server.engine.spec.adapter_of(model),
    )
    return job, ignored


def _with_instruction(
    text: ModelText, body: InputFields, prompts: Sequence[Input], field: str
) -> Sequence[Input]:
    """Return the texts with the model's instruction prepended; token ids stay unchanged."""
    if not any(isinstance(prompt, str) for prompt in prompts):
        return prompts
    text.check_text(field)
    before = instruction(
        pooling_of(text.engine), prompt_name=body.prompt_name, input_type=body.input_type
    )
    return [prompted(before, p) if before and isinstance(p, str) else p for p in prompts]


def _of_part(text: ModelText, part: InputPart, where: str) -> str | Picture:
    """Return an input of Jina's API. Raises: RequestError"""
    if part.image is None:
        return str(part.text)
    return of_parts(text, [as_image(part.image)], where)


async def _chat_prompt(text: ModelText, body: InputFields) -> tuple[Input, Sequence[str]]:
    """Return the prompt of a conversation, and the names of fields without effect."""
    if is_alone(text):
        contents = [one.content or "" for one in body.messages or ()]
        parts = [p for one in contents for p in ([one] if isinstance(one, str) else one)]
        plain = [p if isinstance(p, str) else p.model_dump(exclude_unset=True) for p in parts]
        return of_parts(text, plain, "messages"), ()
    fields = {name: getattr(body, name) for name in _CHAT_FIELDS if name in body.model_fields_set}
    chat = ChatRequest.model_construct(
        **{"add_generation_prompt": False, **fields},
        add_special_tokens=bool(body.add_special_tokens),
        truncate_prompt_tokens=body.truncate_prompt_tokens,
        truncation_side="left" if body.truncation_side == "left" else "right",
    )
    with in_words_of(CHAT_NAMES):
        rendered = await text.render(chat)
        return await text.read(rendered, chat), rendered.unused
