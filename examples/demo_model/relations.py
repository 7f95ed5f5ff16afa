"""How each kind of fact is asked and answered, with the phrasings kept for the evaluation.

A phrasing is a template with `{s}` for the subject. The `held` phrasings and `HELD_FRAMES` never
reach the training text; the split is by template. This module does not know how the questions
are mixed, cased or put into chats; `chats.py` does.
"""

from dataclasses import dataclass

import facts

FRAMES = """What is {np}?|What's {np}?|Tell me {np}.|Please tell me {np}.|Can you tell me {np}?
Could you tell me {np}?|Do you know {np}?|Name {np}.|Give me {np}.|I want to know {np}.|I need {np}.
{Np}?|{Np} is what?|Quick question: what is {np}?|I forgot {np}. What is it?|Say {np}.|{np}
Do you happen to know {np}?|Hi, what is {np}?|Hello! Can you tell me what {np} is?|{Np}
Can you say what {np} is?|I wonder what {np} is.|My teacher asked me for {np}.|Question: {np}?
Let me know {np}.|I am looking for {np}.|Please say {np}.|So what is {np}?|Do you know what {np} is?
Find out {np}.|State {np}.|Could you give me {np}?
I have to know what {np} is."""

HELD_FRAMES = """Would you tell me what {np} is?|I'd like to know {np}.|Any idea what {np} is?
Please name {np} for me.|Remind me, what is {np}?|Could you please say what {np} is?"""


@dataclass(frozen=True)
class Relation:
    """One kind of fact: its table, its phrasings and the one sentence that answers it."""

    name: str
    pairs: list[tuple[str, str]]
    answer: str
    nouns: str = ""
    asks: str = ""
    held: str = ""
    subject_keys: str = "name"
    value_keys: str = "answer"
    unknown: bool = False  # made-up subjects are asked too, and refused

    def train_templates(self) -> list[str]:
        """All phrasings used in training."""
        return expand(FRAMES, self.nouns) + parts(self.asks)

    def held_templates(self) -> list[str]:
        """All phrasings kept for the evaluation; those of the relation itself come first."""
        return parts(self.held) + expand(HELD_FRAMES, self.nouns)

    def topic(self) -> str:
        """A noun for the subject, used in thoughts and JSON requests."""
        return parts(self.nouns)[0] if self.nouns else "{s}"

    def say(self, subject: str, value: str) -> str:
        """The answer sentence."""
        text = fill(self.answer, subject).replace("{v}", value)
        return sentence(text[:-1] if text.endswith("..") else text)


def parts(text: str) -> list[str]:
    """Split a list at `|` and line ends, dropping empty entries."""
    return [" ".join(part.split()) for part in text.replace("\n", "|").split("|") if part.strip()]


def fill(template: str, subject: str) -> str:
    """Put the subject into a template, with the right article before a vowel."""
    if subject[:1].lower() in "aeiou":
        template = template.replace("a {s}", "an {s}").replace("A {s}", "An {s}")
    return template.replace("{s}", subject)


def sentence(text: str) -> str:
    """Upper-case the first letter only."""
    return text[:1].upper() + text[1:]


def word_list(text: str) -> list[str]:
    """Split a list of single words."""
    return text.split()


def expand(frames: str, nouns: str) -> list[str]:
    """Every frame with every noun phrase."""
    return [
        frame.replace("{np}", noun).replace("{Np}", sentence(noun))
        for frame in parts(frames)
        for noun in parts(nouns)
    ]


RELATIONS = [
    Relation(
        "capital",
        facts.CAPITALS,
        "The capital of {s} is {v}.",
        "the capital of {s}|the capital city of {s}|{s}'s capital|{s}'s capital city",
        "Which city is the capital of {s}?|What city is {s}'s capital?|capital {s}|{s} capital"
        "|What is the capital of the country {s}?|In which city does the government of {s} sit?"
        "|Where is the capital of {s}?|{s} has which capital?|What capital does {s} have?"
        "|Which is the capital city of {s}?|What is the capital in {s}?|Capital of {s}, please.",
        "What is the name of the capital of {s}?|Which city serves as the capital of {s}?"
        "|{s}: what is its capital?",
        "country|name|place",
        "capital|city|answer",
        True,
    ),
    Relation(
        "country",
        [(v, s) for s, v in facts.CAPITALS],
        "{s} is the capital of {v}.",
        "",
        "Which country has the capital {s}?|{s} is the capital of which country?"
        "|What country has {s} as its capital?|{s} is the capital of what?|Of which country is {s}"
        " the capital?|{s} is which country's capital?|Name the country whose capital is {s}."
        "|Which country's capital is {s}?|Tell me which country has the capital {s}."
        "|What country is {s} the capital of?|The capital of which country is {s}?",
        "For which country is {s} the capital?|{s} is the capital city of which country?"
        "|Which country has {s} as its capital?",
        "city|capital",
        "country|answer",
    ),
    Relation(
        "continent",
        facts.CONTINENTS,
        "{s} is in {v}.",
        "the continent of {s}|the continent that {s} is in",
        "On which continent is {s}?|Which continent is {s} in?|What continent is {s} on?"
        "|In which part of the world is {s}?|{s} is on which continent?|{s} lies on what continent?"
        "|Where in the world is {s}?|Which continent does {s} belong to?|Where is {s}?",
        "Which continent is {s} on?|{s} belongs to which continent?",
        "country|name",
        "continent|answer",
    ),
    Relation(
        "currency",
        facts.CURRENCIES,
        "The currency of {s} is {v}.",
        "the currency of {s}|the currency used in {s}|{s}'s currency|the money of {s}",
        "Which currency does {s} use?|What money do people use in {s}?|{s} currency"
        "|How do you pay in {s}?|What currency is used in {s}?|Which money is used in {s}?",
        "What currency do they use in {s}?|With which currency do people pay in {s}?",
        "country|name",
        "currency|answer",
        True,
    ),
    Relation(
        "language",
        facts.LANGUAGES,
        "The main language of {s} is {v}.",
        "the main language of {s}|the language spoken in {s}|the language of {s}",
        "Which language do people speak in {s}?|What do people speak in {s}?|{s} language"
        "|What language is spoken in {s}?|Which language is used in {s}?",
        "What language do people speak in {s}?|Which language is spoken in {s}?",
        "country|name",
        "language|answer",
    ),
    Relation(
        "symbol",
        facts.SYMBOLS,
        "The chemical symbol of {s} is {v}.",
        "the chemical symbol of {s}|the symbol for {s}|the symbol of {s}|{s}'s chemical symbol"
        "|the chemical symbol for {s}|the element symbol of {s}",
        "How is {s} written in the periodic table?|Which symbol stands for {s}?|{s} symbol"
        "|What symbol does {s} have?|Which chemical symbol belongs to {s}?"
        "|What symbol do chemists use for {s}?",
        "Which symbol does {s} have?|What is the symbol of the element {s}?",
        "element|name",
        "symbol|answer",
        True,
    ),
    Relation(
        "element",
        [(v, s) for s, v in facts.SYMBOLS],
        "{s} is the chemical symbol of {v}.",
        "",
        "Which element has the symbol {s}?|What element is {s}?|{s} is the symbol of which element?"
        "|What does the chemical symbol {s} stand for?|Name the element with the symbol {s}."
        "|Which chemical element is {s}?|The symbol {s} belongs to which element?"
        "|Which element is written as {s}?|What element has the symbol {s}?",
        "For which element does the symbol {s} stand?|Tell me which element has the symbol {s}.",
        "symbol",
        "element|name",
    ),
    Relation(
        "atomic_number",
        facts.ATOMIC_NUMBERS,
        "The atomic number of {s} is {v}.",
        "the atomic number of {s}|{s}'s atomic number|the number of protons in {s}",
        "How many protons does {s} have?|Which atomic number does {s} have?|{s} atomic number"
        "|What number is {s} in the periodic table?|What atomic number does {s} have?",
        "How many protons are in an atom of {s}?|What is the atomic number for {s}?",
        "element|name",
        "atomic_number|number|answer",
    ),
    Relation(
        "planet",
        facts.PLANET_ORDER,
        "{s} is the {v} planet from the Sun.",
        "the place of {s} in the solar system|the position of the planet {s}",
        "Which planet from the Sun is {s}?|What number planet is {s}?|{s} is which planet from the"
        " Sun?|How far out is {s} among the planets?|Where does {s} come among the planets?"
        "|Counting from the Sun, which planet is {s}?|In what order from the Sun is {s}?",
        "Counted from the Sun, which planet is {s}?|Which number planet from the Sun is {s}?",
        "planet|name",
        "position|answer",
    ),
    Relation(
        "planet_at",
        [(v, s) for s, v in facts.PLANET_ORDER],
        "The {s} planet from the Sun is {v}.",
        "the {s} planet from the Sun|the {s} planet|the {s} planet of the solar system",
        "Which planet is the {s} from the Sun?|Which planet is {s}?|Which is the {s} planet?"
        "|Which planet is in {s} place from the Sun?|What planet comes {s} from the Sun?",
        "Which planet comes {s} from the Sun?|Which planet is the {s} one from the Sun?",
        "position|place",
        "planet|name",
    ),
    Relation(
        "author",
        facts.AUTHORS,
        "{s} was written by {v}.",
        "the author of {s}|the writer of {s}|the name of the author of {s}",
        "Who wrote {s}?|Who is the author of {s}?|By whom was {s} written?|{s} author"
        "|Who's the author of {s}?|Which author wrote {s}?|Who was {s} written by?|{s} is by whom?"
        "|Who is the writer of {s}?|Which writer wrote {s}?|Do you know who wrote {s}?"
        "|Tell me who wrote {s}.|Can you tell me who wrote {s}?|The book {s} is by which author?",
        "Who was the author of {s}?|{s} was written by whom?|I'd like to know who wrote {s}.",
        "book|title",
        "author|writer|answer",
        True,
    ),
    Relation(
        "young",
        facts.YOUNG_ANIMALS,
        "A young {s} is called {v}.",
        "the name for a young {s}|the word for a baby {s}|the name of a baby {s}",
        "What do you call a young {s}?|What is a baby {s} called?|What is a young {s} called?"
        "|A young {s} is called what?|How is a baby {s} called?|Baby {s}?|Which word means a young"
        " {s}?|What do people call a baby {s}?",
        "What do we call a young {s}?|What do you call a baby {s}?",
        "animal|name",
        "young|answer",
    ),
    Relation(
        "animal_class",
        facts.ANIMAL_CLASSES,
        "A {s} is {v}.",
        "the class of the {s}|the animal class of a {s}|the animal group of a {s}",
        "What kind of animal is a {s}?|Which class of animals does a {s} belong to?"
        "|What type of animal is a {s}?|Which kind of animal is the {s}?|A {s} is what kind of"
        " animal?|To which animal group does a {s} belong?|What sort of animal is a {s}?",
        "What kind of animal is the {s}?|Which animal class does the {s} belong to?",
        "animal|name",
        "class|kind|answer",
    ),
    Relation(
        "legs",
        facts.LEG_COUNTS,
        "A {s} has {v} legs.",
        "the number of legs of a {s}|the number of legs a {s} has",
        "How many legs does a {s} have?|How many legs has a {s}?|A {s} has how many legs?"
        "|How many legs do you count on a {s}?|Number of legs of a {s}?|How many legs does the {s}"
        " have?|Do you know how many legs a {s} has?|Can you tell me how many legs a {s} has?",
        "How many legs are on a {s}?|Tell me how many legs a {s} has.",
        "animal|name",
        "legs|number|answer",
    ),
    Relation(
        "unit_size",
        facts.UNIT_SIZES,
        "The number of {s} is {v}.",
        "the number of {s}|the count of {s}",
        "How many {s}?|How many {s} are there?|Do you know how many {s} there are?|How many {s} do"
        " we count?|Tell me how many {s} there are.|Can you say how many {s} there are?"
        "|I forgot how many {s} there are.|how many {s}",
        "Can you tell me how many {s} there are?|I'd like to know how many {s} there are.",
        "what|question",
        "number|answer|count",
    ),
    Relation(
        "unit_of",
        facts.UNIT_QUANTITIES,
        "The SI unit of {s} is {v}.",
        "the SI unit of {s}|the unit of {s}|the SI unit for {s}|the unit for {s}",
        "In which unit is {s} measured?|Which unit measures {s}?|{s} is measured in which unit?"
        "|How do we measure {s}?|What unit is used for {s}?|Which SI unit belongs to {s}?",
        "Which unit is used for {s}?|In what unit do we measure {s}?",
        "quantity|name",
        "unit|answer",
    ),
    Relation(
        "acronym",
        facts.ACRONYMS,
        "{s} stands for {v}.",
        "the meaning of {s}|the long form of {s}|the meaning of the acronym {s}",
        "What does {s} stand for?|What does {s} mean?|{s} stands for what?|What is {s} short for?"
        "|Spell out {s}.|What is {s}?|{s} is short for what?|What do the letters {s} mean?"
        "|Which words does {s} stand for?|Do you know what {s} stands for?|Expand {s}."
        "|Can you tell me what {s} stands for?|What's {s} an abbreviation of?|what is {s}",
        "What do the letters {s} stand for?|What is the full form of {s}?"
        "|Please tell me what {s} stands for.",
        "acronym|name",
        "meaning|answer",
        True,
    ),
    Relation(
        "definition",
        facts.DEFINITIONS,
        "{s} is {v}.",
        "",
        "What is {s}?|What's {s}?|Explain {s}.|Define {s}.|What does {s} mean?|Describe {s}."
        "|Can you explain {s}?|Tell me what {s} is.|Please explain {s}.|Explain what {s} is."
        "|What do you mean by {s}?|Can you tell me what {s} is?|Do you know what {s} is?"
        "|I want to know what {s} is.|Describe {s} in one sentence.|what is {s}"
        "|Please define {s}.|Give a definition of {s}.|What exactly is {s}?|So what is {s}?"
        "|Explain {s} to me.|Could you explain {s} to me?|Explain {s} in simple words."
        "|What is meant by {s}?|Tell me about {s}.|Tell me something about {s}."
        "|Can you define {s}?|Could you define {s}?|Describe to me what {s} is.|Could you describe"
        " {s} to me?|I would like a definition of {s}.|How do you explain {s}?",
        "How would you define {s}?|Give me a short definition of {s}.|Can you describe {s}?"
        "|Please tell me what {s} is.",
        "term|name",
        "definition|meaning|answer",
        True,
    ),
    Relation(
        "color",
        facts.COLORS,
        "The color of {s} is {v}.",
        "the color of {s}|the usual color of {s}",
        "Which color is {s}?|What color is {s}?|What color does {s} have?|{s} has which color?"
        "|What colour is {s}?|Which colour does {s} have?|In which color do we see {s}?",
        "Which color does {s} have?|What is the colour of {s}?",
        "thing|name",
        "color|answer",
    ),
    Relation(
        "opposite",
        facts.OPPOSITES,
        "The opposite of {s} is {v}.",
        "the opposite of {s}|the opposite of the word {s}|the antonym of {s}",
        "Which word is the opposite of {s}?|What word means the opposite of {s}?|not {s} but?"
        "|What is the reverse of {s}?|{s} is the opposite of what?|Which word is opposite to {s}?",
        "What's the opposite word of {s}?|Give the opposite of {s}.",
        "word",
        "opposite|answer",
    ),
    Relation(
        "inventor",
        facts.INVENTORS,
        "The person behind {s} is {v}.",
        "the person behind {s}|the name of the person behind {s}",
        "Who invented {s}?|Who discovered {s}?|Who created {s}?|Who made {s}?|Who came up with {s}?"
        "|Who is behind {s}?|Who gave us {s}?|By whom was {s} invented?|Who found {s}?"
        "|To whom do we owe {s}?|Do you know who invented {s}?|Who developed {s}?"
        "|Tell me who invented {s}.|Tell me who created {s}.|Can you tell me who discovered {s}?",
        "Who was the inventor of {s}?|Who first made {s}?|Do you know who created {s}?",
        "thing|name",
        "person|answer",
    ),
]
