"""Words, sentences and function words of English prose, as the writing rewards count them."""

from __future__ import annotations

import re
from functools import lru_cache

from flowzoo.reward.listed import names

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_ENDINGS = ("ing", "ies", "ed", "es", "ly", "s", "e", "y")

ARTICLES = names("a an the my your his our their its")
"""Words that a noun or an adjective has to follow."""

AFTER_ARTICLES = names(
    "same other more most few many own very only such two three first last next less least "
    "once much all both up on down off over out just even still not so"
)
"""Function words that may nevertheless stand right after an article."""

PREPOSITIONS = names("of at from with into by for")
NEVER_AFTER_PREPOSITIONS = names(
    "of at from with into by for is am are was were be had has have do did will would could should "
    "i he she we they or but if because"
)
"""Words that do not stand right after one of `PREPOSITIONS`."""

FUNCTION_WORDS = (
    ARTICLES
    | AFTER_ARTICLES
    | names(
        "i me we us you he him she her it they them this that these those who whom whose which "
        "what when where why how and or but nor yet for of in on at by to from with without "
        "into onto about after before between under through during against within across toward "
        "towards than then there here as if because since until while although though unless is "
        "am are was were be been being do does did done have has had having will would shall "
        "should can could may might must no any some each every another one also too again now "
        "already ever never however therefore thus while whether either neither let's it's i'm "
        "don't didn't can't couldn't wasn't isn't"
    )
)
"""Words that make sentences and say nothing of their subject."""


def words(text: str) -> list[str]:
    """The words of `text` in lower case; numbers count as words."""
    return _WORD.findall(text.lower())


def sentences(text: str) -> list[str]:
    """The parts of `text` between full stops, question or exclamation marks and line ends."""
    return [part for part in _SENTENCE.split(text) if part.strip()]


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """`word` without one common English ending: what inflected forms have in common."""
    word = word.removesuffix("'s").removesuffix("’s")[:64]
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def content(tokens: list[str]) -> list[str]:
    """The stems of the words that are no function words, in order."""
    return [stem(word) for word in tokens if word not in FUNCTION_WORDS]
