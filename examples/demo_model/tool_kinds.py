"""The tools the demo model learns from: their names, parameters, phrasings and result forms.

A kind is one task (weather, calculator, ...). Names and parameter names vary so that the model
copies them from the schema instead of learning them by heart. This module does not know how a
chat is put together; `tool_chats.py` does.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from chats import CITIES_HELD, NAMES, NAMES_HELD, WORDS, any_city, made_name, made_up
from relations import word_list

LANGUAGES = word_list(
    """French German Italian Spanish Japanese Dutch Polish Turkish Greek Swedish"""
)
CURRENCIES = word_list("""USD EUR GBP JPY CHF SEK PLN INR""")


@dataclass(frozen=True)
class Slot:
    """One parameter: its possible names, JSON type, description and how a value is drawn."""

    names: list[str]
    type: str
    about: str
    draw: Callable[[Random, bool], object]


@dataclass(frozen=True)
class ToolKind:
    """One task: possible names, a description, its slots and the phrasings (`{0}` is slot 0)."""

    names: list[str]
    about: list[str]
    slots: list[Slot]
    asks: str
    held: str
    verb: str = ""
    optional: dict[str, list[str]] = field(default_factory=dict)


def draw_city(rng: Random, held: bool) -> str:
    """A city; the held-out ones are never in the training text."""
    return rng.choice(CITIES_HELD) if held else any_city(rng)


def draw_person(rng: Random, held: bool) -> str:
    """A first name."""
    return rng.choice(NAMES_HELD) if held else rng.choice((rng.choice(NAMES), made_name(rng)))


def draw_words(rng: Random, held: bool) -> str:
    """One to four plain or made-up words."""
    count = rng.choice((1, 1, 2, 2, 3, 4))
    return " ".join(rng.choice((rng.choice(WORDS), made_up(rng))) for _ in range(count))


def draw_number(rng: Random, held: bool) -> int:
    """A whole number, small ones more often."""
    return rng.randint(1, rng.choice((9, 99, 99, 999, 9999)))


def draw_minutes(rng: Random, held: bool) -> int:
    """A number of minutes."""
    return rng.randint(1, 90)


def draw_clock(rng: Random, held: bool) -> str:
    """A time of day."""
    return f"{rng.randint(0, 23):02d}:{rng.choice((0, 15, 30, 45, 5, 20)):02d}"


def draw_language(rng: Random, held: bool) -> str:
    """A language."""
    return rng.choice(LANGUAGES)


def draw_currency(rng: Random, held: bool) -> str:
    """A currency code."""
    return rng.choice(CURRENCIES)


def draw_ticker(rng: Random, held: bool) -> str:
    """A stock symbol."""
    return "".join(rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(rng.choice((3, 4))))


def draw_expression(rng: Random, held: bool) -> str:
    """A calculation as the tool takes it."""
    first, second = draw_number(rng, held), draw_number(rng, held)
    text = f"{first} {rng.choice('+-**/')} {second}"
    return text + f" {rng.choice('+-')} {draw_number(rng, held)}" if rng.random() < 0.15 else text


CITY = Slot(["city", "city", "location", "place", "town"], "string", "City name", draw_city)

KINDS = {
    "weather": ToolKind(
        [
            "get_weather",
            "get_weather",
            "get_current_weather",
            "weather",
            "weather_lookup",
            "fetch_weather",
            "current_weather",
        ],
        [
            "Get the weather for a city",
            "Get the current weather",
            "Returns the weather in a city.",
            "Current weather for a location",
            "Get weather information",
            "Look up the weather",
        ],
        [CITY],
        "What is the weather in {0}?|How is the weather in {0}?|Is it raining in {0}?|weather {0}"
        "|Weather in {0}?|What's the weather in {0}?|What's the weather like in {0}?"
        "|What is the weather like in {0}?|Do I need an umbrella in {0}?|How warm is it in {0}?"
        "|Tell me the weather in {0}.|Give me the forecast for {0}.|Is it sunny in {0}?"
        "|What is the temperature in {0}?|Show me the weather for {0}.|Will it rain in {0} today?"
        "|Please look up the weather in {0}.|Can you tell me the weather in {0}?|How hot is it in"
        " {0}?|What is the weather in {0} today?|What's the weather in {0} right now?"
        "|Check the weather for {0}.|Do I need a coat in {0} today?|Use the tool: weather in {0}."
        "|I am in {0}. How is the weather?|We travel to {0}. Will it rain?|I live in {0}. Do I need"
        " a coat?|Tomorrow I fly to {0}. How warm is it there?|Is it cold in {0} now?",
        "Could you check the weather in {0} for me?|I am going to {0}. What is the weather there?"
        "|How cold is it in {0} right now?|How's the weather in {0} today?",
        "the weather",
        {"unit": ["celsius", "fahrenheit"]},
    ),
    "calculator": ToolKind(
        ["calculator", "calculator", "calculate", "calc", "evaluate", "do_math", "compute"],
        [
            "Evaluate an arithmetic expression",
            "Compute a calculation",
            "A calculator.",
            "Does arithmetic",
            "Evaluate a mathematical expression",
            "Calculate the result",
        ],
        [
            Slot(
                ["expression", "expression", "formula", "input", "query"],
                "string",
                "Expression to compute",
                draw_expression,
            )
        ],
        "What is {0}?|Calculate {0}.|Compute {0}.|How much is {0}?|{0}|{0} = ?|What's {0}?"
        "|Please compute {0}.|Work out {0}.|Can you calculate {0}?|Tell me {0}.|I need {0}."
        "|Use the calculator for {0}.|Solve {0}.|What is the result of {0}?|Evaluate {0}.",
        "Could you work out {0} for me?|What does {0} equal?|Please calculate {0}.",
        "a calculation",
    ),
    "time": ToolKind(
        [
            "get_time",
            "get_time",
            "get_current_time",
            "current_time",
            "clock",
            "time_in",
            "world_clock",
        ],
        [
            "Get the current time in a city",
            "Get the local time",
            "Returns the time of day.",
            "Current time for a place",
            "Tells the time",
        ],
        [Slot(["city", "city", "location", "place", "timezone"], "string", "City name", draw_city)],
        "What time is it in {0}?|What is the time in {0}?|Tell me the time in {0}.|time in {0}"
        "|How late is it in {0}?|What's the time in {0}?|Current time in {0}?|Time in {0}, please."
        "|Can you tell me the time in {0}?|What is the local time in {0}?|Which time is it in {0}?"
        "|Give me the time in {0}.|Is it late in {0} now?|What time is it now in {0}?",
        "Could you check what time it is in {0}?|What is the current time in {0}?"
        "|Do you know what time it is in {0}?",
        "the time",
    ),
    "search": ToolKind(
        ["search", "search", "web_search", "search_web", "find_documents", "lookup", "google"],
        [
            "Search the web",
            "Search for documents",
            "Finds pages on a topic.",
            "Look up a topic",
            "Web search",
        ],
        [
            Slot(
                ["query", "query", "q", "text", "topic", "keywords"],
                "string",
                "Search text",
                draw_words,
            )
        ],
        "Search for {0}.|Look up {0}.|Find information about {0}.|Search the web for {0}."
        "|Find pages on {0}.|Google {0}.|Can you search for {0}?|Please look up {0}."
        "|Do a search for {0}.|Find out more about {0}.|Use the search for {0}.|search {0}"
        "|What can you find about {0}?|Search: {0}|I need information on {0}.",
        "Could you search the web for {0}?|Please find information about {0}."
        "|Run a search for {0}.",
        "a search",
    ),
    "email": ToolKind(
        ["send_email", "send_mail", "email", "mail_send"],
        ["Send an email", "Send a mail to a person"],
        [
            Slot(["to", "recipient", "receiver"], "string", "Who gets it", draw_person),
            Slot(["subject", "title", "topic"], "string", "Subject line", draw_words),
        ],
        "Send an email to {0} about {1}.|Email {0} about {1}.|Write {0} an email about {1}."
        "|Mail {0} about {1}.|Please send {0} an email on {1}.|Send {0} a mail about {1}.",
        "Could you send an email to {0} about {1}?|Please email {0} about {1}.",
        "an email",
    ),
    "timer": ToolKind(
        ["set_timer", "start_timer", "timer"],
        ["Set a timer", "Start a timer in minutes"],
        [Slot(["minutes", "duration", "duration_minutes"], "integer", "Minutes", draw_minutes)],
        "Set a timer for {0} minutes.|Start a {0} minute timer.|Timer: {0} minutes."
        "|Wake me in {0} minutes.|Please set a timer of {0} minutes.|Remind me in {0} minutes.",
        "Could you set a timer for {0} minutes?|Start a timer for {0} minutes.",
        "a timer",
    ),
    "translate": ToolKind(
        ["translate", "translate_text", "translator"],
        ["Translate a text", "Translate words"],
        [
            Slot(["text", "phrase", "words"], "string", "Text", draw_words),
            Slot(["language", "target", "target_language"], "string", "Language", draw_language),
        ],
        "Translate {0} into {1}.|Translate {0} to {1}.|How do you say {0} in {1}?|What is {0} in"
        " {1}?|Say {0} in {1}.|Give me {0} in {1}.",
        "Could you translate {0} into {1}?|Please translate {0} to {1}.",
        "a translation",
    ),
    "stock": ToolKind(
        ["get_stock_price", "stock_price", "quote"],
        ["Get the price of a stock", "Stock price"],
        [Slot(["symbol", "ticker", "stock"], "string", "Stock symbol", draw_ticker)],
        "What is the price of {0}?|Stock price of {0}?|How much is the {0} stock?|Price of {0}."
        "|Tell me the stock price of {0}.|How is the {0} stock doing?|Quote {0}.",
        "Could you check the stock price of {0}?|What is the stock price of {0}?",
        "a stock price",
    ),
    "convert": ToolKind(
        ["convert_currency", "currency_convert", "exchange"],
        ["Convert money", "Currency exchange"],
        [
            Slot(["amount", "value"], "number", "Amount", draw_number),
            Slot(["from", "from_currency", "source"], "string", "From", draw_currency),
            Slot(["to", "to_currency", "target"], "string", "To", draw_currency),
        ],
        "Convert {0} {1} to {2}.|How much is {0} {1} in {2}?|What are {0} {1} in {2}?"
        "|Change {0} {1} into {2}.|{0} {1} to {2}|Exchange {0} {1} for {2}.",
        "Could you convert {0} {1} to {2}?|Please convert {0} {1} into {2}.",
        "a conversion",
    ),
    "booking": ToolKind(
        ["book_table", "reserve_table", "make_reservation"],
        ["Book a table", "Reserve a table"],
        [
            Slot(["restaurant", "name", "place"], "string", "Restaurant", draw_person),
            Slot(["people", "guests", "party_size"], "integer", "Guests", draw_minutes),
            Slot(["time", "at", "hour"], "string", "Time", draw_clock),
        ],
        "Book a table at {0} for {1} people at {2}.|Reserve a table for {1} at {0}, {2}."
        "|Table at {0} for {1} guests at {2}, please.|I want a table for {1} at {0} at {2}.",
        "Could you book a table at {0} for {1} people at {2}?",
        "a booking",
    ),
    "music": ToolKind(
        ["play_music", "play_song", "music_player"],
        ["Play music", "Play a song"],
        [Slot(["song", "title", "track"], "string", "Song", draw_words)],
        "Play {0}.|Play the song {0}.|I want to hear {0}.|Put on {0}.|Please play {0}."
        "|Start the song {0}.",
        "Could you play {0}?|Play {0} for me.",
        "music",
    ),
    "note": ToolKind(
        ["create_note", "add_note", "save_note"],
        ["Save a note", "Write a note"],
        [Slot(["text", "content", "note"], "string", "Text", draw_words)],
        "Note: {0}|Write down {0}.|Save the note {0}.|Make a note: {0}|Remember {0}.|Note down"
        " {0}.",
        "Could you write down {0}?|Add a note: {0}",
        "a note",
    ),
}
