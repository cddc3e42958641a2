"""Comparison of short answers by SQuAD's rules.

Source: Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text", EMNLP 2016.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(text: str) -> str:
    """Convert to lower case without ASCII punctuation, articles and repeated spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, golds: Iterable[str]) -> bool:
    """Return True if `answer`, normalized and not empty, equals one of the `golds`."""
    prediction = normalize(answer)
    return bool(prediction) and any(prediction == normalize(gold) for gold in golds)


def f1(answer: str, golds: Iterable[str]) -> float:
    """The best token F1 of `answer` against `golds`, in [0, 1]."""
    prediction = Counter(normalize(answer).split())
    best = 0.0
    for gold in golds:
        reference = Counter(normalize(gold).split())
        common = (prediction & reference).total()
        if common:
            best = max(best, 2 * common / (prediction.total() + reference.total()))
    return best
