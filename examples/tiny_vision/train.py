"""Train a vision-language model from nothing: digits and colours, in LLaVA's layout.

    nice python examples/tiny_vision/train.py --out /tmp/tiny-vision
    dovetail serve /tmp/tiny-vision
    python examples/tiny_vision/ask.py

takes about two minutes of one CPU core and writes a Hugging Face checkpoint: CLIP's encoder, a
projector, and a Llama that answers. Beside them a layer learns to name digit and colour of what the
encoder sees; it is left out of the checkpoint. This module does not know how good the model is;
`ask.py` measures that.
"""

import argparse
import json
import time
from pathlib import Path
from random import Random

import torch
import transformers as hf
from pictures import COLOURS, QUESTIONS, SIZE, UNNAMED, Scene, picture, scene, unnamed_scene
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional

SEED = 5
PATCH = 8
NUM_PATCHES = (SIZE // PATCH) ** 2
WIDTH = 96
BATCH_SCENES = 32
RATE = 2e-3
WITHOUT_COLOUR = (QUESTIONS[0], QUESTIONS[2])
IGNORED = -100
REPORT_STEPS = 50
MEASURE_STEPS = 200
BEGIN, END, IMAGE = "<|begin|>", "<|end|>", "<image>"
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: "
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% else %}<image>{% endif %}{% endfor %}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def tokenizer() -> Tokenizer:
    """Return a tokenizer whose words are those of questions and answers."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    answers = [f" a {digit} in {colour}" for colour in COLOURS for digit in range(10)]
    answers += [f" {word}" for word in (*COLOURS, *range(10))]
    made.train_from_iterator([*QUESTIONS, "user: ", "assistant:", *answers], trainer)
    made.add_special_tokens([AddedToken(IMAGE, special=True)])
    return made


def model(words: Tokenizer) -> hf.LlavaForConditionalGeneration:
    """Return LLaVA with half a million parameters."""
    shape = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_attention_heads": 4}
    begin, end = words.token_to_id(BEGIN), words.token_to_id(END)
    config = hf.LlavaConfig(
        vision_config=hf.CLIPVisionConfig(
            **shape, num_hidden_layers=3, image_size=SIZE, patch_size=PATCH, projection_dim=WIDTH
        ),
        text_config=hf.LlamaConfig(
            **shape,
            vocab_size=words.get_vocab_size(),
            num_hidden_layers=2,
            max_position_embeddings=512,
            bos_token_id=begin,
            eos_token_id=end,
            pad_token_id=end,
        ),
        image_token_id=words.token_to_id(IMAGE),
        vision_feature_layer=-1,
    )
    return hf.LlavaForConditionalGeneration(config)


def processor(words: Tokenizer) -> hf.LlavaProcessor:
    """Return what makes a model's inputs of texts and pictures."""
    size = {"height": SIZE, "width": SIZE}
    pictures = hf.CLIPImageProcessorPil(size={"shortest_edge": SIZE}, crop_size=size)
    fast = hf.PreTrainedTokenizerFast(
        tokenizer_object=words,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=END,
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
    return hf.LlavaProcessor(
        image_processor=pictures,
        tokenizer=fast,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token=IMAGE,
        chat_template=TEMPLATE,
    )


class Batches:
    """Batches of scenes, each with a question. Of the training set half are in unnamed inks. The
    picture comes first, or the text."""

    def __init__(self, words: Tokenizer, made: hf.LlavaProcessor, *, held_out: bool) -> None:
        self._words = words
        self._pictures = made.image_processor
        self._held_out = held_out
        self._rng = Random(SEED)

    def next(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[Scene]]:
        """Return pixels, token ids, which of them are the answer's, and the scenes."""
        rng = self._rng
        unnamed = 0 if self._held_out else BATCH_SCENES // 2
        named = BATCH_SCENES - unnamed
        scenes = [scene(rng, held_out=self._held_out) for _ in range(named)]
        scenes += [unnamed_scene(rng) for _ in range(unnamed)]
        pixels = self._pictures([picture(one, rng) for one in scenes], return_tensors="pt")
        asked = [rng.choice(QUESTIONS if one.colour else WITHOUT_COLOUR) for one in scenes]
        rows = [self._row(one, question) for one, question in zip(scenes, asked, strict=True)]
        width = max(len(asked) + len(told) for asked, told in rows)
        end = self._words.token_to_id(END)
        ids = torch.full((len(rows), width), end)
        answers = torch.zeros(len(rows), width, dtype=torch.bool)
        for i, (asked, told) in enumerate(rows):
            ids[i, : len(asked) + len(told)] = torch.tensor(asked + told)
            answers[i, len(asked) : len(asked) + len(told)] = True
        return pixels["pixel_values"], ids, answers, scenes

    def _row(self, one: Scene, question: str) -> tuple[list[int], list[int]]:
        places = IMAGE * NUM_PATCHES
        parts = [question, places] if self._rng.random() < 0.5 else [places, question]
        asked = self._words.encode(f"user: {''.join(parts)}\nassistant:").ids
        told = one.answer(question)
        breaks_off = told.endswith(" in ")  # before a colour that has no name
        return asked, self._words.encode(f" {told.rstrip()}{'' if breaks_off else END}").ids


def read(
    made: hf.LlavaForConditionalGeneration,
    pixels: torch.Tensor,
    ids: torch.Tensor,
    answers: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what the projector tells of each picture ``[pictures, places, width]``, the logits
    before each answer's token ``[tokens, words]``, and those tokens."""
    seen = made.get_image_features(pixel_values=pixels)
    vectors = torch.stack(list(getattr(seen, "pooler_output", seen)))
    embeds = made.get_input_embeddings()(ids)
    places = (ids == made.config.image_token_id).unsqueeze(-1)
    embeds = embeds.masked_scatter(places, vectors.to(embeds.dtype))
    states = made.model.language_model(inputs_embeds=embeds).last_hidden_state
    wanted = answers[:, 1:]
    return vectors, made.lm_head(states[:, :-1][wanted]), ids[:, 1:][wanted]


@torch.no_grad()
def share_right(made: hf.LlavaForConditionalGeneration, batches: Batches, count: int = 4) -> float:
    """Return the share of answers whose tokens are all the likeliest ones."""
    right = 0
    for _ in range(count):
        pixels, ids, answers, _ = batches.next()
        _, logits, wanted = read(made, pixels, ids, answers)
        wrong = torch.zeros(len(ids), dtype=torch.long)
        wrong.index_add_(0, answers[:, 1:].nonzero()[:, 0], (logits.argmax(-1) != wanted).long())
        right += int((wrong == 0).sum())
    return right / (count * BATCH_SCENES)


def train(
    made: hf.LlavaForConditionalGeneration, batches: Batches, held_out: Batches, steps: int
) -> None:
    """Train; print the loss, and how many held-out answers are right, now and then. Mutates:
    made"""
    named = torch.nn.Linear(WIDTH, 10 + len(COLOURS))
    learned = [p for p in (*made.parameters(), *named.parameters()) if p.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps, pct_start=0.1)
    numbers = {colour: i for i, colour in enumerate(COLOURS)} | {UNNAMED: IGNORED}
    started, total = time.process_time(), torch.zeros(2)
    for step in range(steps):
        pixels, ids, answers, scenes = batches.next()
        vectors, logits, wanted = read(made, pixels, ids, answers)
        names = named(vectors.mean(1))
        digits = torch.tensor([one.digit for one in scenes])
        inks = torch.tensor([numbers[one.colour] for one in scenes])
        naming = functional.cross_entropy(names[:, :10], digits)
        naming = naming + functional.cross_entropy(names[:, 10:], inks, ignore_index=IGNORED)
        told = functional.cross_entropy(logits, wanted)
        (told + 0.5 * naming).backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        total += torch.tensor([told.item(), naming.item()])
        if (step + 1) % REPORT_STEPS == 0:
            losses = " and ".join(f"{one:.3f}" for one in total / REPORT_STEPS)
            seconds = time.process_time() - started
            print(f"step {step + 1}/{steps}: {losses}; {seconds:.0f} s", flush=True)
            total.zero_()
        if (step + 1) % MEASURE_STEPS == 0 or step + 1 == steps:
            print(f"{share_right(made, held_out):.0%} of held-out answers are right", flush=True)


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("tiny-vision"))
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(SEED)
    words = tokenizer()
    whole = processor(words)
    made = model(words)
    print(f"{sum(p.numel() for p in made.parameters()):,} parameters", flush=True)
    batches, held_out = (Batches(words, whole, held_out=one) for one in (False, True))
    train(made, batches, held_out, asked.steps)
    made.generation_config.eos_token_id = words.token_to_id(END)
    made.eval().save_pretrained(asked.out)
    whole.save_pretrained(asked.out)
    settings = json.loads((asked.out / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["chat_template"] = TEMPLATE
    (asked.out / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


if __name__ == "__main__":
    main()
