"""Chats without tools: facts, arithmetic, JSON, fixed talk, refusals, and several turns.

A sample is a dict with `messages` (the last one is the answer to learn), `tools`, `thinking` and
`kind`. Every function draws from the `random.Random` it is given, so one seed gives one text.
This module does not know the chat template or the tokenizer.
"""

import json
from random import Random
from typing import Any

import facts
from relations import RELATIONS, Relation, fill, parts, sentence, word_list
from talk import SYSTEMS, TALK, UNKNOWN, UNKNOWN_ASKS

Message = dict[str, Any]
Sample = dict[str, Any]

OPENERS = ["Hi! ", "Hello, ", "Hey, ", "OK. ", "Please: ", "Next question: ", "And now: "]
CLOSERS = [
    " Thanks.",
    " please",
    " Answer briefly.",
    " Answer in one sentence.",
    " Thank you!",
    " Be brief.",
]
SYLLABLES = word_list(
    """ba be bi bo bu da de di do du fa fe fi fo ga ge go gu ka ke ki ko la le li lo lu ma me mi
    mo mu na ne ni no nu pa pe po ra re ri ro ru sa se si so ta te ti to tu va ve vi vo wa we
    za ze zi zo xa qui sch tra plo gri ston burg ville ford mond ler nik"""
)
WORDS = word_list(
    """lamp river table garden window bread horse music paper stone cloud engine ticket orange
    blanket mirror bottle candle forest bridge island pocket ladder basket hammer rocket
    pencil carpet tunnel market dragon piano kettle saddle anchor marble violin pepper tractor
    camera helmet jacket guitar wallet button cheese pillow shovel barrel lantern"""
)
NAMES = word_list(
    """Anna Ben Clara David Emma Felix Greta Henry Ida Jonas Karin Leo Maria Nils Olga Paul Rita
    Sam Tina Ugo Vera Walter Yara Zoe Liam Noah Mia Lucas Amir Chen Priya Kofi Aisha Diego
    Ivan Sofia Hugo Elif Ravi Lena"""
)
PIECES = sorted(
    {
        word.lower()
        for relation in RELATIONS
        for pair in relation.pairs
        for word in " ".join(pair).split()
        if word.isalpha() and len(word) > 3
    }
    | {word.lower() for word in WORDS + NAMES}
)
NAMES_HELD = word_list("""Martin Julia Oscar Nina Peter Laura Tom Kate""")
CITIES = sorted({city for _, city in facts.CAPITALS if "," not in city}) + parts(
    """New York|San Francisco|Los Angeles|Boston|Seattle|Toronto|Hamburg|Munich|Cologne
Lyon|Milan|Naples|Barcelona|Valencia|Zurich|Geneva|Kyoto|Mumbai|Shanghai|Sydney
Melbourne|Dubai|Istanbul|Rio de Janeiro|Sao Paulo|Cape Town|Casablanca|Glasgow
Manchester|Liverpool|Dallas|Denver|Miami|Houston|Atlanta|Vancouver|Montreal
Krakow|Bergen|Malmo|Aarhus|Ghent|Rotterdam|Utrecht"""
)
CITIES_HELD = parts(
    """Marseille|Osaka|Porto|Chicago|Stuttgart|Gdansk|Turin|Seville|Philadelphia|Nagoya
Bordeaux|Leipzig|Portland|Las Vegas|Antwerp|Edinburgh"""
)


def made_up(rng: Random) -> str:
    """A word that does not exist: syllables, two real words spliced, or letters in turn."""
    draw = rng.random()
    if draw < 0.3:
        return "".join(rng.choice(SYLLABLES) for _ in range(rng.choice((2, 2, 3, 3, 4))))
    if draw < 0.75:
        first, second = rng.choice(PIECES), rng.choice(PIECES)
        return first[: rng.randint(1, 5)] + second[-rng.randint(1, 5) :]
    vowel_next = rng.random() < 0.4
    letters = ""
    for _ in range(rng.randint(2, 7)):
        letters += rng.choice("aeiou" if vowel_next else "bcdfghjklmnpqrstvwxyz")
        vowel_next = not vowel_next if rng.random() < 0.8 else vowel_next
    return letters


def made_name(rng: Random) -> str:
    """A name that does not exist, sometimes of two words."""
    words = [made_up(rng).capitalize() for _ in range(rng.choice((1, 1, 1, 2)))]
    return " ".join(words)


def any_city(rng: Random) -> str:
    """A real or a made-up city."""
    return rng.choice(CITIES) if rng.random() < 0.5 else made_name(rng)


def noisy(text: str, rng: Random) -> str:
    """The question as people type it: other case, other punctuation, a greeting before it."""
    draw = rng.random()
    if draw < 0.10:
        text = rng.choice(OPENERS) + text
    elif draw < 0.18:
        text = text + rng.choice(CLOSERS)
    draw = rng.random()
    if draw < 0.12:
        text = text.rstrip("?.!")
    elif draw < 0.17:
        text = text.rstrip("?.!") + rng.choice(("??", "?!", "!", "...", " ?", "."))
    draw = rng.random()
    if draw < 0.14:
        return text.lower()
    return text.upper() if draw < 0.20 else text


def with_system(messages: list[Message], rng: Random, share: float = 0.45) -> list[Message]:
    """Put a system prompt first in a share of the chats."""
    if rng.random() > share:
        return messages
    text = "You are a helpful assistant." if rng.random() < 0.3 else rng.choice(parts(SYSTEMS))
    return [{"role": "system", "content": text}, *messages]


def user(text: str) -> Message:
    """A user message."""
    return {"role": "user", "content": text}


def assistant(text: str, thought: str = "") -> Message:
    """An assistant message, with its thought."""
    return {"role": "assistant", "content": text, "reasoning_content": thought}


def fact_turn(rng: Random, relation: Relation | None = None) -> list[Message]:
    """One question about one fact, and its answer."""
    relation = relation or pick_relation(rng)
    subject, value = rng.choice(relation.pairs)
    ask = fill(rng.choice(relation.train_templates()), subject)
    thought = f"The user asks about {fill(relation.topic(), subject)}. I recall: {value}."
    return [user(noisy(sentence(ask), rng)), assistant(relation.say(subject, value), thought)]


def pick_relation(rng: Random) -> Relation:
    """A relation, the large tables more often."""
    return rng.choices(RELATIONS, [len(r.pairs) + 10 for r in RELATIONS])[0]


def superlative_turn(rng: Random) -> list[Message]:
    """A question of the kind `Which planet is the largest?`."""
    ask, answer = rng.choice(list(facts.ANSWERS.items()))
    plain = ask[:1].lower() + ask[1:].rstrip("?")
    frame = rng.choice(
        (
            "{q}?",
            "{q}?",
            "Tell me {q}.",
            "Do you know {q}?",
            "Can you tell me {q}?",
            "I want to know {q}.",
            "Please say {q}.",
        )
    )
    text = sentence(frame.replace("{q}", plain))
    return [user(noisy(text, rng)), assistant(answer, "I know this fact.")]


def talk_turn(rng: Random) -> list[Message]:
    """Fixed talk: a greeting, a question on the model or on dovetail, a story."""
    answer, asks, _ = rng.choice(TALK)
    return [user(noisy(rng.choice(parts(asks)), rng)), assistant(answer, "I can answer this.")]


def unknown_turn(rng: Random) -> list[Message]:
    """A question that the model cannot answer: a known relation on a made-up subject, or else."""
    thought = "I do not know this."
    relation = rng.choice([r for r in RELATIONS if r.unknown])
    if rng.random() < 0.45:
        ask = rng.choice(relation.train_templates()).replace("{s}", made_name(rng))
    else:
        ask = fill_unknown(rng.choice(parts(UNKNOWN_ASKS)), rng)
    return [user(noisy(sentence(ask), rng)), assistant(UNKNOWN, thought)]


def fill_unknown(template: str, rng: Random) -> str:
    """Put words, names and years into a question without an answer."""
    name = made_name(rng) if rng.random() < 0.5 else rng.choice(NAMES)
    return (
        template.replace("{w}", rng.choice(WORDS))
        .replace("{n}", name)
        .replace("{y}", str(rng.randint(1500, 2060)))
    )


OPERATIONS = {
    "+": (
        (
            "What is {a} plus {b}?|What is {a} + {b}?|{a} + {b}|{a}+{b}|{a} plus {b}|Add {a} and"
            " {b}."
            "|How much is {a} plus {b}?|How much is {a} + {b}?|{a} + {b} = ?|What's {a} + {b}?"
            "|Compute {a} + {b}.|Calculate {a} plus {b}.|What is the sum of {a} and {b}?"
            "|Please add {a} and {b}.|Tell me {a} + {b}.|What do you get if you add {a} and {b}?"
        ),
        "Can you add {a} and {b}?|What does {a} + {b} make?|How much is {a} and {b}?",
        "add",
    ),
    "-": (
        (
            "What is {a} minus {b}?|What is {a} - {b}?|{a} - {b}|{a}-{b}|{a} minus {b}"
            "|How much is {a} minus {b}?|How much is {a} - {b}?|{a} - {b} = ?|What's {a} - {b}?"
            "|Compute {a} - {b}.|Calculate {a} minus {b}.|Subtract {b} from {a}.|Tell me {a} - {b}."
            "|Please subtract {b} from {a}.|Take {b} away from {a}.|What is left of {a} minus {b}?"
        ),
        "Can you subtract {b} from {a}?|What does {a} - {b} make?|Can you compute {a} minus {b}?",
        "subtract",
    ),
    "*": (
        (
            "What is {a} times {b}?|What is {a} * {b}?|{a} * {b}|{a}*{b}|{a} times {b}|{a} x {b}"
            "|How much is {a} times {b}?|How much is {a} * {b}?|{a} * {b} = ?|What's {a} * {b}?"
            "|Compute {a} * {b}.|Calculate {a} times {b}.|Multiply {a} by {b}.|Tell me {a} * {b}."
            "|Please multiply {a} by {b}.|What is the product of {a} and {b}?|Multiply {a} and {b}."
        ),
        "Can you multiply {a} by {b}?|What does {a} * {b} make?|Can you compute {a} times {b}?",
        "multiply",
    ),
}


def operands(sign: str, rng: Random) -> tuple[int, int]:
    """Two small numbers that fit the operation."""
    top = 10 if sign == "*" else 20
    first, second = rng.randint(0, top), rng.randint(0, top)
    return (max(first, second), min(first, second)) if sign == "-" else (first, second)


def compute(first: int, sign: str, second: int) -> int:
    """The exact result."""
    return {"+": first + second, "-": first - second, "*": first * second}[sign]


def arithmetic_turn(rng: Random, sign: str = "") -> list[Message]:
    """A small sum, difference or product."""
    sign = sign or rng.choice("+-*")
    first, second = operands(sign, rng)
    asks, _, verb = OPERATIONS[sign]
    text = rng.choice(parts(asks)).replace("{a}", str(first)).replace("{b}", str(second))
    result = f"{first} {sign} {second} = {compute(first, sign, second)}"
    return [user(noisy(text, rng)), assistant(result + ".", f"I {verb} {first} and {second}.")]


JSON_FRAMES = """{ask} Answer as JSON with keys {k1} and {k2}.
{ask} Answer in JSON with the keys {k1} and {k2}.
{ask} Reply with JSON only, keys {k1} and {k2}.|{ask} Give JSON with keys {k1} and {k2}.
{ask} Return a JSON object with keys {k1}, {k2}.|{ask} Use JSON with the keys {k1}, {k2}.
{ask} Answer as JSON with keys "{k1}" and "{k2}".|Answer as JSON with keys {k1} and {k2}: {ask}
{ask} Write the answer as JSON with keys {k1} and {k2}.|JSON with keys {k1} and {k2}, please. {ask}
{ask} Output JSON: {k1}, {k2}.
{ask} Respond as a JSON object with {k1} and {k2}."""
JSON_HELD = """{ask} Please answer as a JSON object with the keys {k1} and {k2}.
{ask} Respond in JSON with keys {k1} and {k2}.|{ask} Return JSON with the keys {k1} and {k2}.
"""


def json_fact_turn(rng: Random, held: bool = False) -> list[Message]:
    """A fact asked as JSON with two named keys, in either order."""
    relation = pick_relation(rng)
    subject, value = rng.choice(relation.pairs)
    asks = relation.held_templates() if held else relation.train_templates()
    pair = [
        (rng.choice(parts(relation.subject_keys)), subject),
        (rng.choice(parts(relation.value_keys)), value),
    ]
    if rng.random() < 0.25:
        rng.shuffle(pair)
    frame = rng.choice(parts(JSON_HELD if held else JSON_FRAMES))
    ask = sentence(fill(rng.choice(asks), subject))
    text = frame.replace("{ask}", ask).replace("{k1}", pair[0][0]).replace("{k2}", pair[1][0])
    answer = json.dumps({key: json_value(item) for key, item in pair}, ensure_ascii=False)
    return [user(text), assistant(answer, f"I recall: {value}. I write JSON.")]


def json_value(text: str) -> str | int:
    """Numbers stay numbers in JSON."""
    return int(text) if text.isdigit() and len(text) < 4 else text


PERSON_FRAMES = """{n} is {a} years old and lives in {c}.|{n} lives in {c} and is {a} years old.
{n}, {a}, lives in {c}.|My friend {n} is {a} and lives in {c}.|{n} is {a}. Home: {c}.
In {c} lives {n}, who is {a} years old."""
PERSON_HELD = "{n} from {c} is {a} years old.|My neighbor {n} lives in {c} and is {a}."
EXTRACT_FRAMES = """{t} Answer as JSON with keys {k}.|Extract {k} as JSON: {t}
{t} Give JSON with keys {k}.|{t} Write this as JSON with keys {k}.
{t} Return a JSON object with keys {k}.
Turn this into JSON with keys {k}: {t}"""


def extract_turn(rng: Random, held: bool = False) -> list[Message]:
    """A sentence on a person turned into JSON: names, numbers and cities are copied."""
    name = rng.choice(NAMES_HELD if held else [*NAMES, made_up(rng).capitalize()])
    city = rng.choice(CITIES_HELD) if held else any_city(rng)
    values = {"name": name, "age": rng.randint(1, 99), "city": city}
    keys = rng.sample(sorted(values), rng.choice((2, 3, 3)))
    frame = rng.choice(parts(PERSON_HELD if held else PERSON_FRAMES))
    text = frame.replace("{n}", name).replace("{a}", str(values["age"])).replace("{c}", city)
    listed = ", ".join(keys[:-1]) + " and " + keys[-1]
    ask = rng.choice(parts(EXTRACT_FRAMES)).replace("{t}", text).replace("{k}", listed)
    answer = json.dumps({key: values[key] for key in keys}, ensure_ascii=False)
    return [user(ask), assistant(answer, "I copy the values into JSON.")]


def json_turn(rng: Random) -> list[Message]:
    """Any JSON task."""
    return extract_turn(rng) if rng.random() < 0.4 else json_fact_turn(rng)


def copy_turn(rng: Random) -> list[Message]:
    """Repeat some words, or count."""
    if rng.random() < 0.3:
        top = rng.randint(2, 20)
        frame = rng.choice(
            (
                "Count to {n}.",
                "Count from 1 to {n}.",
                "Please count to {n}.",
                "Can you count to {n}?",
                "Count up to {n}",
            )
        )
        numbers = ", ".join(str(number) for number in range(1, top + 1))
        return [user(noisy(frame.replace("{n}", str(top)), rng)), assistant(numbers, "I count.")]
    words = " ".join(
        rng.choice((rng.choice(WORDS), made_up(rng))) for _ in range(rng.randint(1, 5))
    )
    frame = rng.choice(
        (
            "Repeat after me: {w}",
            "Say this: {w}",
            "Repeat: {w}",
            "Please repeat: {w}",
            "Write exactly this: {w}",
            "Echo {w}",
        )
    )
    return [user(frame.replace("{w}", words)), assistant(words, "I repeat the words.")]


def name_turns(rng: Random, name: str = "") -> list[Message]:
    """The user says a name, something else is asked, then the name is asked."""
    name = name or (rng.choice(NAMES) if rng.random() < 0.5 else made_up(rng).capitalize())
    intro = rng.choice(
        (
            "My name is {n}.",
            "I am {n}.",
            "Hello, my name is {n}.",
            "Hi, I'm {n}.",
            "Call me {n}.",
            "Hi! My name is {n}.",
            "I am called {n}.",
        )
    )
    ask = rng.choice(
        (
            "What is my name?",
            "What's my name?",
            "Do you remember my name?",
            "Who am I?",
            "Do you know my name?",
            "Tell me my name.",
            "Can you tell me my name?",
        )
    )
    first = [
        user(noisy(intro, rng).replace("{n}", name).replace("{N}", name)),
        assistant(f"Nice to meet you, {name}!", "The user says a name."),
    ]
    middle = [m for _ in range(rng.choice((0, 0, 1, 1, 2, 3))) for m in easy_turn(rng)]
    last = [user(noisy(ask, rng)), assistant(f"Your name is {name}.", "The user said the name.")]
    return first if rng.random() < 0.25 else first + middle + last


FOLLOW_UPS = (
    "And {s}?|What about {s}?|And for {s}?|And of {s}?|Now {s}.|How about {s}?|{s}?"
    "|and {s}|The same for {s}?|And what about {s}?"
)
FOLLOW_UPS_HELD = "And how about {s}?|Same question for {s}.|Okay, and {s}?"


def follow_up_turns(rng: Random, held: bool = False) -> list[Message]:
    """A fact, then the same question on other subjects in a few words."""
    relation = rng.choice(
        [
            r
            for r in RELATIONS
            if r.name
            in (
                "capital",
                "symbol",
                "author",
                "currency",
                "language",
                "atomic_number",
                "young",
                "acronym",
                "legs",
                "opposite",
                "continent",
                "color",
            )
        ]
    )
    turns = fact_turn(rng, relation)
    asks = parts(FOLLOW_UPS_HELD if held else FOLLOW_UPS)
    for _ in range(rng.choice((1, 1, 2, 3))):
        subject, value = rng.choice(relation.pairs)
        named = fill("a {s}", subject) if relation.name in ("young", "legs") else subject
        thought = f"The user asks about {fill(relation.topic(), subject)}. I recall: {value}."
        ask = sentence(rng.choice(asks).replace("{s}", named))
        turns += [
            user(ask if held else noisy(ask, rng)),
            assistant(relation.say(subject, value), thought),
        ]
    return turns


def easy_turn(rng: Random) -> list[Message]:
    """One turn without tools, for the inside of a chat."""
    maker = rng.choices(
        (
            fact_turn,
            talk_turn,
            arithmetic_turn,
            json_turn,
            unknown_turn,
            superlative_turn,
            copy_turn,
        ),
        (8, 3, 2, 1, 1, 1, 1),
    )[0]
    return maker(rng)


def several_turns(rng: Random) -> list[Message]:
    """A chat of two to six turns."""
    draw = rng.random()
    if draw < 0.25:
        return name_turns(rng)
    if draw < 0.6:
        return follow_up_turns(rng)
    return [m for _ in range(rng.choice((2, 2, 2, 3, 3, 4, 5, 6))) for m in easy_turn(rng)]


MAKERS = {
    "fact": (fact_turn, 42),
    "superlative": (superlative_turn, 2),
    "talk": (talk_turn, 8),
    "unknown": (unknown_turn, 6),
    "arithmetic": (arithmetic_turn, 19),
    "json": (json_turn, 14),
    "copy": (copy_turn, 5),
    "turns": (several_turns, 9),
}


def chat_sample(rng: Random) -> Sample:
    """One training sample without tools."""
    kind = rng.choices(list(MAKERS), [weight for _, weight in MAKERS.values()])[0]
    messages = with_system(MAKERS[kind][0](rng), rng)
    return {"messages": messages, "tools": None, "thinking": rng.random() < 0.15, "kind": kind}
