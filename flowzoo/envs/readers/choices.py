r"""Reader of an aggregator's choice.

| read | not read |
|---|---|
| the last box with a number within 1..N: `\boxed{3}`, `\boxed{Candidate 3}`, `\boxed{\text{3}}` | if the text calls another candidate right, or denies this one |
| a reply that is the number or the candidate: `2`, `**2**`, `Candidate 3.`, `Answer: 2` | numbers out of range; `The answer is 2`, which may be the problem's |
| one candidate called right or chosen: `Candidate 3 is correct`, `The right candidate is 2`, `I choose candidate 2` | two of them; a denial, a doubt, a condition, a question; `right, but ...` |
| the only candidate of a reply that begins with it: `Candidate 2: 81` | lists of candidates with their values |
"""  # noqa: E501 - rows of tables

import re
from collections.abc import Iterator

from flowzoo import reward
from flowzoo.envs.text import DOUBT, MODAL, prose, sentences

_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
_VALUES = {word: value for row in (_WORDS, _ORDINALS) for value, word in enumerate(row, 1)}
_NUMBER = rf"(?:\d{{1,4}}(?![\d%]|[.,]\d)|(?:{'|'.join(_WORDS)})\b)"
_NOUN = r"(?:candidate|program|option|solution|choice|response|generator)s?"
_JOINT = r"(?:,? ?(?:and|or|to|&|/|-|–),? ?|, ?| )"
_MENTION = re.compile(
    rf"\b(?:the |this )?{_NOUN} ?(?:(?:number|no\.?|nr\.?) )?({_NUMBER}"
    rf"(?:{_JOINT}(?:{_NOUN} )?{_NUMBER})*)(?:'s?(?= ))?"
    rf"|\b(?:the )?(?P<place>{'|'.join(_ORDINALS)}|last) (?:one|{_NOUN})\b"
    rf"|\b(?P<rest>the (?:others?|rest)\b(?: (?:\w+ )?(?:{_NOUN}|ones?))?|the remaining \w+)"
)
_T = r"⟦([\d,]+)⟧"
_ADVERB = (
    r"(?:(?:indeed|clearly|definitely|therefore|thus|also|certainly|only|in fact|obviously|surely"
    r"|absolutely|fully|completely|entirely|both|all|hence|really|now|the one (?:that|who|which) is"
    r"|the (?:candidate|program) (?:that|who|which) is) )*"
)
_KIND = (
    r"(?:candidate|program|one|answer|choice|option|solution|code|implementation|function|result"
    r"|response|winner|pick|selection|version)s?"
)
_BEST = r"(?:(?:only|most|single) )?(?:right|correct|best)"
_END = (
    r"(?= ?(?:$|[.,;:!?)(—–=⟦-]|(?:because|since|as|and|while|whereas|but|here|overall|among|of the"
    r"|of all|of them|to the (?:problem|question)|in this case)\b))"
)
_CLAIMS = tuple(
    re.compile(pattern)
    for pattern in (
        rf"{_T} (?:is|are) {_ADVERB}(?:right|correct){_END}",
        rf"{_T} (?:is|are) {_ADVERB}(?:the|my) (?:{_BEST} {_KIND}|answer|choice|winner|pick){_END}",
        rf"{_T} (?:is|are) {_ADVERB}the (?:only )?{_BEST}{_END}",
        rf"{_T} (?:is|are) the (?:one|{_KIND}) (?:that|who|which) is (?:right|correct){_END}",
        rf"{_T}:[^.⟦\n]{{1,200}} is the (?:right|correct) {_KIND}{_END}",
        rf"{_T} (?:has|gives|provides|contains|reaches|gets|got|gave|arrives at|shows)"
        rf" the (?:right|correct) {_KIND}{_END}",
        rf"{_T} wins{_END}",
        rf"\b{_BEST}(?: {_KIND})?(?: here| among them| of (?:the )?\w+)? ?(?:is|are|:|=)"
        rf" ?:? ?{_ADVERB}{_T}{_END}",
        rf"\b(?:candidate|program|one|option|code|answer|function|solution)s?"
        rf" (?:that|which|who) (?:is|are) (?:right|correct) ?(?:is|are|:) ?{_T}{_END}",
        rf"\bthe (?:candidate|program|one|code) with the (?:right|correct|best) {_KIND}"
        rf" is {_T}{_END}",
        rf"\b(?:i|we)(?: would| will|'d|'ll)? ?(?:choose|pick|select|vote for|go with|take|opt for)"
        rf" {_T}{_END}",
        rf"^(?:choose|pick|select|take) {_T}{_END}",
        rf"\b(?:answer|choice|vote|decision|selection|pick|verdict|conclusion) ?(?:is|:|is:) ?"
        rf"{_T}{_END}",
        rf"^(?:so |therefore,? |thus,? |hence,? )?(?:it is|it's) {_T}(?=[.!]*$)",
    )
)
_BARE_CLAIM = re.compile(
    rf"\b(?:{_BEST} (?:candidate|program|option|choice)"
    r"|(?:candidate|program|one|option) (?:that|which|who) is (?:right|correct))"
    r" ?(?:is|:|is:) ?(?:number )?(\d{1,6})(?=[.!]*$)"
)
_BARE = re.compile(
    r"(?:(?:my |final )*(?:(?:answer|vote|decision|selection|a) ?:|choice ?(?:is|:))\s*)?"
    r"\(?(?:number |no\.? )?(\d{1,6})\)?[.:]*"
)
_ALONE = re.compile(
    r"(?:(?:my |the |final )*(?:answer|choice|vote|decision|selection|a) ?(?:is|:)?\s*)?"
    rf"{_T}[ .:!]*"
)
_OPENING = re.compile(
    rf"{_T} ?(?:[:=](?=.*\d)|(?:is|has|gives|gets|equals|computes)"
    r" (?:[-+\\]?\d(?!\d* (?:of|out of)\b)|the [a-z ]{1,60}of \\?\d))"
)
_NOT = r"(?:n't| not| never)"
_DENIALS = re.compile(
    rf"{_T} (?:is|are|was|were|does|do|did|has|have|can|could)(?: also| both| all| clearly)*"
    rf"(?:{_NOT}\b| (?:wrong|incorrect|false|mistaken|invalid))[a-z ]{{0,20}}"
    rf"|{_T} (?:makes?|made|contains?|has|have) (?:an? |the |some )?(?:\w+ )?"
    r"(?:error|mistake|bug)s?"
    rf"|{_T} (?:fails?|failed|forgets?|forgot|computes? wrong)\b"
    rf"|\b(?:not|unlike|instead of|rather than|reject|error is in|mistake is in) {_T}"
    r"|\bnot (?P<bare>\d{1,4})(?=[.,;!]|$)"
)
_BEFORE = re.compile(
    r"\b(?:not|never|nor|neither|hardly|no|nobody|says?|said|claim\w*|told|asks?|asked|imagine"
    r"|pretend|wish|when|until|let|see|check|verify|someone|people|to be|were|how|why"
    r"|for example|e\.g)\b|n't\b"
)
_AFTER = re.compile(r"\b(?:because|since|as)\b")
_TURN = re.compile(
    r"\b(?:but|however|although|though|except|wait|actually|yet|nevertheless|otherwise|hmm|oops"
    r"|sorry|only (?:in|for|up|when|with))\b"
)
_TAKEN_BACK = re.compile(
    r"\b(?:it|its|this|that|which|no)\b[^⟦]{0,60}"
    r"\b(?:wrong|incorrect|false|not (?:right|correct|true))\b"
    r"|^(?:no|not|nope|wrong)\b"
)
_EQUAL = re.compile(
    r"\b(?:right|correct|correctly|works?|wins|best|valid|same|also|too|as well|agrees?|likewise"
    r"|equal\w*|fine|so is|so does|like|or|could|might|may)\b"
)
_ANY = re.compile(
    r"\b(?:all|both|every|each|none|neither|no|nobody)\b(?: ⟦|[^⟦.]{0,60}\b(?:right|correct|wrong"
    r"|incorrect|works?|fails?|valid)\b)|\bnone\b|^neither\b"
)
_NEGATIVE = re.compile(
    r"\b(?:not?|never|none|neither|nor|wrong|incorrect|false|invalid|mistakes?|errors?|bugs?|slips?"
    r"|fails?|failed|forgets?|forgot|miss\w*|lacks?|lacking|off|too|instead|but|however|should|short"
    r"|although|though|except|than|or|other|others|candidates|confus\w*|overlook\w*|worse)\b|n't\b"
)
# A number that may be another candidate's, or the problem's answer.
_ANSWER = re.compile(r"\b(?:right|correct) answer (?:is|:|is:) ?([1-9])(?=[.!]*$)")
_PIECE = re.compile(r"[,;:()]| and | but | while | whereas | because | since ")


def read_choice(text: str, count: int) -> int | None:
    """Read the chosen candidate's number, within 1..count, or None."""
    named = _mark_numbers(prose(text), count)
    box = _read_box(text, count)
    if box is not None:
        return None if _denies(text, named, box, count) else box
    whole = _BARE.fullmatch(named) or _ALONE.fullmatch(named)
    if whole is not None:
        return _read_number(whole[1], count)
    if DOUBT.search(named):
        return None
    return _read_statement(sentences(named), count)


def _read_box(text: str, count: int) -> int | None:
    """The number in the last box, bare or with a candidate noun."""
    content = reward.extract(text, "strict")
    if content is None or len(content) > 60:
        return None
    named = _mark_numbers(prose(content), count)
    match = re.fullmatch(r"(?:number )?(\d{1,4})\.?", named) or re.fullmatch(rf"{_T}\.?", named)
    return _read_number(match[1], count) if match and named.isprintable() else None


def _denies(text: str, statement: str, box: int, count: int) -> bool:
    """True if the text of a reply contradicts its box."""
    parts = sentences(statement)
    right = {number for part in parts for number in _read_claims(part)}
    if right and box not in right:
        return True
    if box not in right and any(box in _read_denials(part) for part in parts):
        return True
    start = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    before = _mark_numbers(prose(text[text.rfind("\n", 0, start) + 1 : start]), count)
    named = _numbers((sentences(before) or [""])[-1])
    return bool(named) and box not in named and not _NEGATIVE.search(before)


def _read_statement(parts: list[str], count: int) -> int | None:
    """The only candidate that the sentences call right or name."""
    if any("?" in part and "⟦" in part for part in parts) or any(map(_ANY.search, parts)):
        return None
    claims = [_read_claims(part) for part in parts]
    chosen = set().union(*claims)
    if not chosen:
        return _only(parts, count)
    number = chosen.pop()
    if chosen or not 1 <= number <= count:
        return None
    first = next(position for position, claim in enumerate(claims) if claim)
    clear = all(_is_clear(part) for part, claim in zip(parts, claims, strict=True) if claim)
    if any(int(other) != number for part in parts for other in _ANSWER.findall(part)):
        return None
    agreed = all(_agrees(part, number, position >= first) for position, part in enumerate(parts))
    return number if clear and agreed else None


def _read_claims(part: str) -> set[int]:
    """The numbers of the candidates that a sentence calls right; none if it asks."""
    if "?" in part:
        return set()
    part = _DENIALS.sub(" ", part)
    numbers = {
        int(number)
        for claim in _CLAIMS
        for match in claim.finditer(part)
        for number in match[1].split(",")
    }
    return numbers | {int(match[1]) for match in _BARE_CLAIM.finditer(part)}


def _read_denials(part: str) -> set[int]:
    """The numbers of the candidates that a sentence calls wrong."""
    return {
        int(number)
        for match in _DENIALS.finditer(part)
        for group in match.groups()
        if group
        for number in group.split(",")
    }


def _is_clear(part: str) -> bool:
    """True if a sentence has no condition, modal or negation."""
    head = _AFTER.split(_DENIALS.sub(" ", part))[0]
    head = re.sub(r"\b(?:i|we) would\b", "", head)
    return not (MODAL.search(head) or _BEFORE.search(head))


def _agrees(part: str, number: int, after: bool) -> bool:
    """True if a sentence does not weaken the claim of a candidate."""
    denied = _read_denials(part)
    if number in denied:
        return False
    rest = _DENIALS.sub(" ", part)
    for piece in _PIECE.split(rest):
        if _numbers(piece) - {number} and _EQUAL.search(piece):
            return False
    if not after:
        return True
    if "⟦" not in part and _TAKEN_BACK.search(part):
        return False
    return bool(denied - {number}) or not _TURN.search(rest)


def _only(parts: list[str], count: int) -> int | None:
    """The only candidate of a reply that starts with it, or whose last sentence is it."""
    named = set().union(*map(_numbers, parts))
    if len(named) != 1 or any(map(_NEGATIVE.search, parts)) or any(map(MODAL.search, parts)):
        return None
    first, last = _OPENING.match(parts[0]), _ALONE.fullmatch(parts[-1])
    match = first or _ALONE.fullmatch(parts[0]) or last
    return _read_number(match[1], count) if match else None


def _numbers(part: str) -> set[int]:
    """The candidates that a sentence names."""
    return {int(number) for match in re.finditer(_T, part) for number in match[1].split(",")}


def _read_number(number: str, count: int) -> int | None:
    return (
        int(number) if number.isascii() and number.isdigit() and 1 <= int(number) <= count else None
    )


def _mark_numbers(statement: str, count: int) -> str:
    """Replace "candidates 1 and 3" by `⟦1,3⟧`; `⟦0⟧` means the others."""

    def token(match: re.Match[str]) -> str:
        if match["rest"]:
            return "⟦0⟧"
        if match["place"]:
            return f"⟦{_VALUES.get(match['place'], count)}⟧"
        return f"⟦{','.join(_split_list(match[1]))}⟧"

    statement = _MENTION.sub(token, statement)
    joint = re.compile(r"⟧(?:, | and |, and | or |, or | & | ?/ ?| as well as )⟦")
    return re.sub(r":\s+⟦", ": ⟦", joint.sub(",", statement))


def _split_list(text: str) -> Iterator[str]:
    for word in re.findall(rf"\d+|{'|'.join(_WORDS)}", text):
        yield str(_VALUES.get(word, word))
