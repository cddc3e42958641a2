r"""Reader of an evaluator's verdict on an answer.

| read | not read |
|---|---|
| the last box: `\boxed{Correct}`, `\boxed{\text{Incorrect}}`; else the one verdict that is boxed | boxes of both verdicts |
| the verdict as the first or last sentence or line: `Correct`, `**Incorrect**`, `Verdict: Incorrect` | both verdicts; questions; `Correct answer: 10` |
| a statement on the answer in these places: `The program is wrong`, `This is not correct because ...` | statements on a step, a test, the input; doubts, modals and conditions; double negations |
| with an approval: praise | with an approval: a fault, a correction, another result (`The correct answer is 14`) |
| with a rejection: what is wrong, and what would be right | with a rejection: praise of the whole |
"""  # noqa: E501 - rows of tables

import re

from flowzoo.envs.text import DOUBT, MODAL, boxed_choice, prose, sentences, visible

VERDICTS = {"correct": True, "incorrect": False}
_BOXED = re.compile(
    r"\\(?:boxed|fbox)\s{0,3}\{\s{0,3}(?:\\text\{)?(correct|incorrect)\.?\}", re.IGNORECASE
)
_TAGGED = re.compile(r"<verify>\s*(approve|reject)\s*</verify>")
_WORD = r"(?P<no>not )?(?P<word>correct|right|incorrect|wrong)"
_END = r"(?= ?(?:$|[.,;:!)—–-]|(?:because|since|and|but|although|though|so)\b))"
_ADVERB = (
    r"(?:(?:indeed|clearly|definitely|therefore|thus|certainly|in fact|absolutely|fully|completely"
    r"|entirely|totally|actually|simply|really|an?|the|another) )*"
)
_THING = r"(?:answer|program|solution|code|function|result|implementation|attempt|response|reply)"
_KIND = (
    r"(?:final|given|provided|newest|above|proposed|submitted|current|original|whole|entire|python)"
)
_BARE = re.compile(
    r"(?:(?:(?:the |my |final )*(?:verdict|evaluation|judge?ment|conclusion|assessment)"
    r"|(?:the |final )*answer) ?(?:is|:|is:) ?|(?:yes|no),? )?"
    rf"(?:it is |it's |this is )?'?{_WORD}'?[.!]*"
)
_LABEL = re.compile(
    r"(?:verdict: ?)?(?P<no>\b)(?P<word>correct|incorrect|wrong)(?:,|: | [-–—]) ?[a-z]"
)
_STATED = re.compile(
    rf"(?:^|[,;:] |\b(?:so|and|therefore|thus|hence|that|think|believe|find|yes|no),? )"
    rf"(?:(?:the|this|that|your|its) (?:{_KIND} )*{_THING}(?: [\w()-]+)?|it|this|that)"
    rf"(?: is| was|'s) {_ADVERB}{_WORD}(?: {_THING}(?! ?:))?{_END}"
)
_HEADINGS = re.compile(r"(?:(?:the |my |final )*(?:verdict|evaluation|conclusion|assessment) ?:?)")
# Statements of both verdicts at once, or denials of a denial.
_BOTH = re.compile(
    r"\bcorrect ?(?:or|and|/|,|nor) ?(?:'?incorrect|wrong)"
    r"|\bincorrect ?(?:or|and|/|,|nor) ?'?correct"
    r"|\b(?:not|n't|no|never) (?:an? |the )?(?:incorrect|wrong)"
    r"|\b(?:correct|right|incorrect|wrong) (?:answer|verdict) is (?:not )?'?"
    r"(?:correct|incorrect|right|wrong)"
)
_REPORTED = re.compile(
    r"\b(?:nobody|someone|some|people|they|others?) (?:says?|said|thinks?|claims?|told)\b"
    r"|\bwho says\b|\bfirst thought\b|\baccording to\b|\bkidding\b"
    r"|\bnot (?:true|say|think)\b|\b(?:do|would|does|did)n't (?:say|think|believe)\b"
)
_NO_FAULT = re.compile(
    r"\b(?:no|without(?: an?y?)?|nothing(?: is)?) (?:\w+ )?(?:errors?|mistakes?|bugs?|issues?"
    r"|problems?|faults?|flaws?|wrong|incorrect|missing)\b"
)
_FAULT = re.compile(
    r"\b(?:errors?|mistakes?|mistaken|bugs?|buggy|faults?|flaws?|issues?|wrong\w*|incorrect\w*|false"
    r"|corrected|corrects|fix\w*|improved|should|instead|however|but|although|though|except|unless"
    r"|needs?|missing|lacks?|fails?|failed|not|never|cannot|must|ought|only|in most|better|rather"
    r"|for (?:positive|negative|most|some|small|large|all but)|off by|expected|provided that|wait"
    r"|too (?:many|few|much|little|high|low|often|late|early|long|short)"
    r"|as (?:far|long|soon) as|(?:i|you) (?:get|got|have)|in fact|modulo|give or take|so far"
    r"|try again)\b|n't\b"
    r"|^(?:please )?(?:check|try|multiply|add|subtract|divide|redo|revise|use)\b"
)
_OTHER_RESULT = re.compile(
    r"\b(?:correct|right|actual|true) (?:answer|result|value|solution|output)\b"
)
_RESULT = re.compile(
    r"\b(?:answer|result|value|solution|output|sum|product|total|difference)"
    r" ?(?:is|are|equals|=|:) ?\W{0,3}\d"
)
_SAME = re.compile(r"\b(?:confirm\w*|match\w*|the same|agrees?|as (?:given|stated|claimed))\b")
_PRAISE = re.compile(
    r"\b(?:works? (?:as|correctly|fine|well)|as (?:expected|intended|required)|pass(?:es|ed)? all"
    r"|all (?:steps |parts |tests )?(?:are |is )?(?:right|correct|passed|pass)|(?:is|are|was) "
    r"(?:also )?(?:right|correct|fine|good)\b|correctly|i agree|well done|good job)\b"
)
_ISNT = re.compile(r"\b(is|was)n't\b")
_NEGATED = re.compile(
    r"\b(?:not|never|no|fails? to|cannot|should|must|would|if|to be|only)\b|n't\b"
)


def read_verdict(text: str) -> bool | None:
    """Read a verdict: True for correct, False for incorrect, None if unreadable."""
    boxed = boxed_choice(text, VERDICTS)
    if boxed is None:
        # A boxed result after the verdict does not make it ambiguous; two verdicts do.
        contents = {match[1].lower() for match in _BOXED.finditer(visible(text))}
        boxed = VERDICTS[contents.pop()] if len(contents) == 1 else None
    return boxed if boxed is not None else _read_words(sentences(_ISNT.sub(r"\1 not", prose(text))))


def boxed_verdict(text: str) -> bool | None:
    """Read the boxed verdict alone, which the published loop reads first."""
    return boxed_choice(text, VERDICTS)


def read_tags(text: str) -> bool | None:
    """Read the verdict of Dr. MAS' public code: an approving tag, else a rejecting one, or None."""
    verdicts = _TAGGED.findall(visible(text))
    return "approve" in verdicts if verdicts else None


def _read_words(parts: list[str]) -> bool | None:
    """The verdict of the first or last sentence, if no other sentence contradicts it."""
    parts = [part for part in parts if not _HEADINGS.fullmatch(part)]
    if not parts or any(map(_is_open, parts)):
        return None
    verdicts = [_verdict(part, position == 0) for position, part in enumerate(parts)]
    stated = {verdict for verdict in verdicts if verdict is not None}
    if len(stated) != 1 or verdicts[0] is verdicts[-1] is None:
        return None
    approved = stated.pop()
    if approved:
        return None if any(map(_objects, parts)) else True
    return None if any(map(_praises, parts)) else False


def _is_open(part: str) -> bool:
    """True if a sentence leaves the verdict open, regardless of other sentences."""
    asks = part.endswith("?") and re.search(r"\b(?:in)?correct|\bright|\bwrong", part)
    return bool(asks or DOUBT.search(part) or _BOTH.search(part) or _REPORTED.search(part))


def _verdict(part: str, is_first: bool) -> bool | None:
    match = _BARE.fullmatch(part) or (_LABEL.match(part) if is_first else None)
    match = match or _STATED.search(part)
    if match is None or MODAL.search(part[: match.end()]):
        return None
    return (match["word"] in ("correct", "right")) != bool(match["no"])


def _objects(part: str) -> bool:
    """True if a sentence reports a fault or another result, which cancels an approval."""
    rest = _NO_FAULT.sub(" ", part)
    if _verdict(part, True) is None and _RESULT.search(rest) and not _SAME.search(rest):
        return True
    if _FAULT.search(rest) or MODAL.search(rest):
        return True
    return bool(_OTHER_RESULT.search(rest)) and not (_SAME.search(rest) or _verdict(part, False))


def _praises(part: str) -> bool:
    """True if a sentence praises the answer, which cancels a rejection."""
    match = _PRAISE.search(part)
    return match is not None and not _NEGATED.search(part[: match.end()])
