"""What dovetail makes of a checkpoint that takes media: served with them or refused, and whether
its greedy text is that of transformers. Needs torch, transformers and Pillow.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.config.checkpoint.media_tokens import PLAIN_KINDS
from dovetail.errors import ConfigError, DovetailError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.llm.llm import LLM
from dovetail.multimodal.processors import ARGUMENTS, load_processor, rate_of
from dovetail_testing.tiny.families import VOCAB_SIZE
from support.verdicts import BACKED, NATIVE, REFUSED, WRONG, Verdict, promise_of

BACKED_BY = "transformers_media"
NEW_TOKENS = 8
GREEDY = SamplingParams(
    temperature=0.0,
    max_tokens=NEW_TOKENS,
    ignore_eos=True,
    allowed_token_ids=tuple(range(VOCAB_SIZE)),
)
"""Draws words alone: after a placeholder that was drawn, some of transformers' models read another
token."""
FLAGS: dict[str, Any] = {"dtype": "float32", "max_num_seqs": 4, "max_num_batched_tokens": 96}
Prompt = tuple[str, str, list[Any]]
"""A text, the kind of media in it, and these."""


def media_verdict(folder: str | Path, **flags: Any) -> Verdict:
    """Return what the engine makes of a checkpoint, held against transformers and `inspect`.

    Raises: ConfigError where transformers' own code gives no answer
    """
    try:
        processor = load_processor(folder, "")
        asked = prompts(processor)
        longest, wanted = greedy_by_transformers(folder, processor, asked)
    except Exception as error:  # whatever it raises
        told = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"transformers' own code gives no answer: {type(error).__name__}: {told}"
        ) from error
    fields = {"model": str(folder), **FLAGS, "max_model_len": longest + NEW_TOKENS, **flags}
    promised = promise_of(fields)
    try:
        with LLM(**fields) as llm:
            by, media = llm.spec.run.model_plugin.name, llm.spec.media
            if media is None:
                return Verdict(state=REFUSED, reason="its text part alone is served")
            left = {kind for _, kind, given in asked if given} - set(media.kinds)
            if left:
                return Verdict(state=WRONG, reason=f"it takes no {', '.join(sorted(left))}")
            fault = difference(llm, asked, wanted)
    except DovetailError as error:
        if not promised:
            return Verdict(state=WRONG, reason=f"inspect promised it, but: {error}")
        return Verdict(state=REFUSED, reason=str(error.what).rstrip("."))
    if promised:
        return Verdict(state=WRONG, reason=f"inspect refused it: {promised}")
    if fault:
        return Verdict(state=WRONG, reason=fault)
    return Verdict(state=BACKED if by == BACKED_BY else NATIVE)


def prompts(processor: Any) -> list[Prompt]:
    """Return prompts with one medium, with two, with none, and with the first again, of each kind
    that a processor reads."""
    found: list[Prompt] = [("the quick brown fox", "", [])]
    for kind in PLAIN_KINDS:
        one, other, third = (_medium(processor, kind, seed) for seed in range(3))
        place = _place(processor, kind, one)
        if place is None:
            continue
        found += [
            (f"look {place} what is it?", kind, [one]),
            (f"{place} now", kind, [other]),
            (f"again {place} now", kind, [one]),
        ]
        found.append((f"{place} and {place} compare", kind, [other, third]))
    return found


def _place(processor: Any, kind: str, medium: Any) -> str | None:
    """Return what the text has where a medium belongs, None if the processor reads no such kind: a
    word, the same between those for start and end, or nothing, as it puts them first itself."""
    names = (f"{kind}_placeholder_token", f"{kind}_token")
    word = next((w for w in (getattr(processor, n, None) for n in names) if w), None)
    if not isinstance(word, str):
        return None
    start, end = (getattr(processor, f"{kind}_{one}_token", "") for one in ("start", "end"))
    for place in (word, f"{start}{word}{end}", ""):
        with suppress(ValueError):
            read(processor, None, f"a {place} b", kind, [medium])
            return place
    return word


def _medium(processor: Any, kind: str, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    if kind == "audio":
        # Those of one prompt are equally long: padding reaches what some encoders make of the rest.
        samples = rng.normal(size=rate_of(processor) * (min(seed, 1) + 1) // 2)
        return (0.1 * samples).astype(np.float32)
    from PIL import Image

    size = [(56, 70), (84, 42), (60, 60)][seed]
    return Image.fromarray(rng.integers(0, 255, (*size, 3), dtype=np.uint8))


def greedy_by_transformers(
    folder: str | Path, processor: Any, asked: list[Prompt]
) -> tuple[int, list[list[int]]]:
    """Return the longest prompt's number of tokens, and what transformers draws after each.

    Mutates: asked, of which those with two media are left out where the processor takes one
    """
    import torch
    import transformers
    from transformers.modeling_outputs import MoeCausalLMOutputWithPast

    # transformers' class of Llama 4 reads it, and its text model does not give it
    MoeCausalLMOutputWithPast.image_outputs = None
    (architecture,) = transformers.AutoConfig.from_pretrained(folder).architectures
    kind = getattr(transformers, architecture)
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    model = getattr(model, "thinker", model)  # the part that writes text, not speech
    model.generation_config.eos_token_id = None
    others = list(range(VOCAB_SIZE, model.config.get_text_config().vocab_size))
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "suppress_tokens": others or None}
    longest, drawn = 0, []
    for text, medium, media in list(asked):
        try:
            inputs = read(processor, model, text, medium, media)
        except ValueError:
            if len(media) < 2:
                raise
            asked.remove((text, medium, media))  # it takes one for each text
            continue
        inputs = {
            n: v.float() if torch.is_tensor(v) and v.is_floating_point() else v
            for n, v in inputs.items()
        }
        start = inputs["input_ids"].shape[1]
        ids = model.generate(**inputs, **options)[0]
        drawn.append(ids[start:].tolist())
        longest = max(longest, start)
    return longest, drawn


def read(processor: Any, model: Any, text: str, kind: str, media: list[Any]) -> Any:
    """Return what transformers' model is given for a prompt."""
    if not media:
        return processor.tokenizer([text], return_tensors="pt")
    options: dict[str, Any] = {"sampling_rate": rate_of(processor)} if kind == "audio" else {}
    if model and "mm_token_type_ids" in inspect.signature(model.forward).parameters:
        options["return_mm_token_type_ids"] = True
    for given in (media, [media]):  # some ask for a list for each text
        try:
            return processor(
                text=[text], return_tensors="pt", **{ARGUMENTS[kind]: given}, **options
            )
        except ValueError:
            if given is not media or len(media) == 1:
                raise
    return None


def difference(llm: LLM, asked: list[Prompt], wanted: list[list[int]]) -> str:
    """Return which answers differ from the wanted ones, all at once and each alone; "" if none."""
    given: list[Any] = [
        {"prompt": text, "multi_modal_data": {kind: media}} if media else text
        for text, kind, media in asked
    ]
    together = llm.generate(given, GREEDY, use_tqdm=False)
    alone = [llm.generate([one], GREEDY, use_tqdm=False)[0] for one in given]
    for how, results in (("together", together), ("alone", alone)):
        for (text, _, _), result, right in zip(asked, results, wanted, strict=True):
            told = list(result.outputs[0].token_ids) if result.outputs else []
            if result.error or told != right:
                return f"{text!r} {how}: {result.error or told} instead of {right}"
    return ""
