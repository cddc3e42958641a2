r"""The task `math`: problems with one final answer, generated or from a file.

| | |
|---|---|
| Creation | `make_task("math", level=2)`, `make_task("math", data="test.jsonl")` |
| Problems | endless in five levels, or the rows of a file |
| Prompt | the statement, then `Put the final answer in \boxed{}.` |
| Answer | strict: last balanced box; lenient: `####`, answer phrase, last number |
| Score | 1 if equal to the reference by `score_batch` and not copied from the problem, else 0 |
| Grader | `grader="published"`: that of the public code of arXiv 2605.24202, "mathd or sympy" |

Version history: v0, first release.
"""

import logging
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import ClassVar, Literal, NamedTuple, cast, get_args

from flowzoo.aliases import DataRecord
from flowzoo.envs.readers.published import read_answer
from flowzoo.envs.script import GradeResult
from flowzoo.envs.tasks.golds import (
    SHOWN,
    GoldRow,
    GoldSurvey,
    is_placeholder,
    is_right,
    other_boxes,
    respelled,
    stated_answer,
    survey,
    unwrapped,
)
from flowzoo.envs.tasks.rows import (
    Columns,
    DataSource,
    DataTask,
    Names,
    Records,
    RowPlace,
    Unusable,
    check_layout,
    data_source,
    find_layout,
    first,
    objects,
    text_of,
    unusable_rows,
)
from flowzoo.envs.tasks.task import Problem, is_in, read_levels
from flowzoo.errors import DataError, check_choice
from flowzoo.reward import MathOptions, equivalence_classes, extract, is_gradable, score_batch
from flowzoo.reward.math.published.statuses import published_statuses
from flowzoo.reward.unknown import unknown_status
from flowzoo.sandbox.tier import SandboxName


# Generated problems in five levels, each with its worked solution:
#
# 1. a product of digits plus or minus a number, all results in 0..99 (`Compute 12+7*8.`; 15,000
#    instances)
# 2. two to four operations on larger numbers
# 3. linear equations in one unknown
# 4. sums of fractions, quadratic equations, systems of two linear equations
# 5. number theory: gcd, lcm, powers modulo n, counting divisors
#
# A solution is a chain of short steps, `7*8=56. 12+56=68. \boxed{68}`, that a model with a million
# parameters can learn. With a mistake, the generator makes one wrong step and continues from it: a
# plausible wrong solution. Random draws never depend on a mistake.
class MathInstance(NamedTuple):
    """A generated problem: statement, final answer and worked solution of `steps` steps."""

    text: str
    gold: str
    solution: str
    steps: int


@dataclass(slots=True)
class SolutionWriter:
    """Writes the steps of a solution, with an error of `delta` in step `mistake` (from 0)."""

    mistake: int = -1
    delta: int = 0
    lines: list[str] = field(default_factory=list)
    count: int = 0

    def step(self, before: str, value: int, after: str = "") -> int:
        """Write `before`, the value (wrong at the step of the mistake) and `after`."""
        if self.mistake == self.count:
            value += self.delta
        self.count += 1
        self.lines.append(f"{before}{value}{after}.")
        return value

    def instance(self, text: str, answer: int | str) -> MathInstance:
        """Return the finished instance; `answer` is the chain's result."""
        solution = " ".join([*self.lines, f"\\boxed{{{answer}}}"])
        return MathInstance(text, str(answer), solution, self.count)


LevelGenerator = Callable[[random.Random, SolutionWriter], MathInstance]


_LEVEL_1_FORMS = ("c+p", "p+c", "p-c", "c-p")


def _numbers(form: str, product: int) -> range:
    # Of c, with all results in 0..99.
    if form == "p-c":
        return range(1, product + 1)
    return range(product, 100) if form == "c-p" else range(1, 100 - product)


def _level_1(rng: random.Random, chain: SolutionWriter) -> MathInstance:
    form = _LEVEL_1_FORMS[rng.randrange(4)]
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    numbers = _numbers(form, a * b)
    return _product_and(chain, form, a, b, rng.randint(numbers[0], numbers[-1]))


@cache
def _level_1_size(split: str) -> int:
    instances = (
        _product_and(SolutionWriter(), form, a, b, c)
        for form in _LEVEL_1_FORMS
        for a in range(2, 10)
        for b in range(2, 10)
        for c in _numbers(form, a * b)
    )
    return sum(is_in(split, instance.text) for instance in instances)


def _product_and(chain: SolutionWriter, form: str, a: int, b: int, c: int) -> MathInstance:
    # In `form`, p is the product of a and b.
    numbers = {"c": c, "p": chain.step(f"{a}*{b}=", a * b)}
    texts = {"c": str(c), "p": f"{a}*{b}"}
    left, sign, right = form
    result = numbers[left] + numbers[right] if sign == "+" else numbers[left] - numbers[right]
    answer = chain.step(f"{numbers[left]}{sign}{numbers[right]}=", result)
    return chain.instance(f"Compute {texts[left]}{sign}{texts[right]}.", answer)


def _two_operations(rng: random.Random, chain: SolutionWriter) -> MathInstance:
    kind = rng.choices(range(6), weights=(18, 18, 18, 18, 20, 8))[0]
    a, b, c, d = rng.randint(1, 99), rng.randint(2, 9), rng.randint(2, 12), rng.randint(2, 12)
    e, f, g = rng.randint(2, 12), rng.randint(1, 20), rng.randint(1, 20)
    if kind < 4:
        first = a + 100 if kind == 2 else a
        return _product_and(chain, ("c+p", "p-c", "c-p", "p+c")[kind], b, c, first)
    if kind == 4:
        left, right = chain.step(f"{d}*{c}=", d * c), chain.step(f"{b}*{e}=", b * e)
        text = f"Compute {d}*{c}+{b}*{e}."
        return chain.instance(text, chain.step(f"{left}+{right}=", left + right))
    total = chain.step(f"{f}+{g}=", f + g)
    return chain.instance(f"Compute ({f}+{g})*{b}.", chain.step(f"{total}*{b}=", total * b))


def _four_operations(rng: random.Random, chain: SolutionWriter) -> MathInstance:
    kind = rng.randrange(3)
    a, b, c, d, e = (rng.randint(2, 30) for _ in range(5))
    p, q = rng.randint(2, 12), rng.randint(2, 12)
    if kind == 0:
        left, right = chain.step(f"{a}*{p}=", a * p), chain.step(f"{b}*{q}=", b * q)
        total = chain.step(f"{left}+{right}=", left + right)
        text = f"Compute {a}*{p}+{b}*{q}-{e}."
        return chain.instance(text, chain.step(f"{total}-{e}=", total - e))
    if kind == 1:
        total = chain.step(f"{a}+{b}=", a + b)
        left, right = chain.step(f"{total}*{p}=", total * p), chain.step(f"{c}*{q}=", c * q)
        text = f"Compute ({a}+{b})*{p}-{c}*{q}."
        return chain.instance(text, chain.step(f"{left}-{right}=", left - right))
    left, right = chain.step(f"{c}+{d}=", c + d), chain.step(f"{a}-{e}=", a - e)
    product = chain.step(f"{p}*{left}=", p * left)
    text = f"Compute {p}*({c}+{d})-({a}-{e})."
    return chain.instance(text, chain.step(f"{product}-({right})=", product - right))


def _level_3(rng: random.Random, chain: SolutionWriter) -> MathInstance:
    # Linear equations; after a mistake a division may be inexact, then the chain rounds down.
    kind = rng.randrange(3)
    x, a, b, c = rng.randint(-15, 30), rng.randint(2, 12), rng.randint(1, 60), rng.randint(1, 9)
    if kind == 0:
        result = a * x + b
        product = chain.step(f"{a}x={result}-{b}=", result - b)
        text = f"Solve {a}x+{b}={result} for x."
        return chain.instance(text, chain.step(f"x={product}/{a}=", product // a))
    if kind == 1:
        result = a * (x + b)
        inner = chain.step(f"x+{b}={result}/{a}=", result // a)
        text = f"Solve {a}(x+{b})={result} for x."
        return chain.instance(text, chain.step(f"x={inner}-{b}=", inner - b))
    right = a * x + b
    text = f"Solve {a + c}x+{b}={c}x{right:+d} for x."
    factor = chain.step(f"{a + c}-{c}=", a)
    product = chain.step(f"{factor}x={right}-{b}=", right - b)
    return chain.instance(text, chain.step(f"x={product}/{factor}=", product // (factor or 1)))


def _fractions(rng: random.Random, chain: SolutionWriter) -> MathInstance:
    b, d = rng.randint(2, 15), rng.randint(2, 15)
    a, c = rng.randint(1, 3 * b), rng.randint(1, 3 * d)
    left, right = chain.step(f"{a}*{d}=", a * d), chain.step(f"{c}*{b}=", c * b)
    top, bottom = chain.step(f"{left}+{right}=", left + right), chain.step(f"{b}*{d}=", b * d)
    shared = math.gcd(top, bottom) or 1
    top, bottom = top // shared, bottom // shared
    answer = str(top) if bottom == 1 else f"\\frac{{{top}}}{{{bottom}}}"
    text = f"Compute {a}/{b}+{c}/{d}. Give a fraction in lowest terms."
    return chain.instance(text, answer)


def _quadratic(rng: random.Random, chain: SolutionWriter) -> MathInstance:
    low = rng.randint(-12, 12)
    high = low + rng.randint(1, 15)
    total, product = low + high, low * high
    text = f"Find the larger root of x^2{-total:+d}x{product:+d}=0."
    root = chain.step(f"({total})^2-4*({product})=", total * total - 4 * product)
    gap = chain.step("its root is ", math.isqrt(abs(root)))
    return chain.instance(text, chain.step(f"(({total})+{gap})/2=", (total + gap) // 2))


def _system(rng: random.Random, chain: SolutionWriter) -> MathInstance:
    x, y, a, b = rng.randint(-9, 20), rng.randint(-9, 20), rng.randint(2, 9), rng.randint(1, 9)
    first, second = a * x + b * y, x - y
    text = f"Given {a}x+{b}y={first} and x-y={second}, find x+y."
    total = chain.step(f"{a + b}y={first}-{a}*({second})=", first - a * second)
    low = chain.step(f"y={total}/{a + b}=", total // (a + b))
    high = chain.step(f"x={low}+({second})=", low + second)
    return chain.instance(text, chain.step(f"x+y={high}+({low})=", high + low))


def _euclid(chain: SolutionWriter, a: int, b: int) -> int:
    while b:
        a, b = b, chain.step(f"{a} mod {b}=", a % b)
        b = max(b, 0)
    return a


def _gcd(rng: random.Random, chain: SolutionWriter) -> MathInstance:
    shared = rng.randint(2, 40)
    a, b = shared * rng.randint(2, 60), shared * rng.randint(2, 60)
    a, b = max(a, b), min(a, b)
    text = f"Find the greatest common divisor of {a} and {b}."
    return chain.instance(text, _euclid(chain, a, b))


def _lcm(rng: random.Random, chain: SolutionWriter) -> MathInstance:
    shared = rng.randint(1, 12)
    a, b = shared * rng.randint(2, 20), shared * rng.randint(2, 20)
    a, b = max(a, b), min(a, b)
    text = f"Find the least common multiple of {a} and {b}."
    part = chain.step(f"{a}/{_euclid(chain, a, b)}=", a // math.gcd(a, b))
    return chain.instance(text, chain.step(f"{part}*{b}=", part * b))


def _power(rng: random.Random, chain: SolutionWriter) -> MathInstance:
    base, exponent, modulus = rng.randint(2, 30), rng.randint(5, 99), rng.randint(7, 60)
    value = chain.step(f"{base} mod {modulus}=", base % modulus)
    start = value
    for bit in bin(exponent)[3:]:
        square = f"{value}^2" if bit == "0" else f"{value}^2*{start}"
        power = value * value if bit == "0" else value * value * start
        value = chain.step(f"{square} mod {modulus}=", power % modulus)
    return chain.instance(f"Find the remainder of {base}^{exponent} divided by {modulus}.", value)


def _divisors(rng: random.Random, chain: SolutionWriter) -> MathInstance:
    number = rng.randint(12, 3000)
    left, prime, count = number, 2, 1
    while left > 1:
        if prime * prime > left:
            prime = left
        exponent = 0
        while left % prime == 0:
            left, exponent = left // prime, exponent + 1
        if exponent:
            factor = exponent + 1
            count = chain.step(f"{prime}^{exponent}: {count}*{factor}=", count * factor)
        prime += 1
    return chain.instance(f"How many positive divisors does {number} have?", count)


LEVELS: dict[int, tuple[LevelGenerator, ...]] = {
    1: (_level_1,),
    2: (_two_operations, _four_operations),
    3: (_level_3,),
    4: (_fractions, _quadratic, _system),
    5: (_gcd, _lcm, _power, _divisors),
}


def generate(level: int, rng: random.Random, mistake: int = -1, delta: int = 0) -> MathInstance:
    """Draw a problem of `level` (1 to 5), with an error of `delta` in step `mistake` (from 0)."""
    # The statement is the same with and without a mistake; `gold` is then the wrong final answer.
    kinds = LEVELS[level]
    kind = rng.choice(kinds) if len(kinds) > 1 else kinds[0]
    return kind(rng, SolutionWriter(mistake, delta))


# Statement, answer and a solution in words.
WORKED = (
    (
        "A bakery packs 12 rolls in a bag. Nora buys 4 bags for a party and 9 rolls are left over. "
        "How many rolls were eaten?",
        "39",
        "4 bags hold 4 * 12 = 48 rolls. 9 are left over, so 48 - 9 = 39 rolls were eaten.",
    ),
    (
        "If $3x + 7 = 22$, what is the value of $2x$?",
        "10",
        "Subtracting 7 gives $3x = 15$, so $x = 5$. Then $2x = 2 \\cdot 5 = 10$.",
    ),
    (
        "A train covers 150 miles in 2.5 hours. At the same speed, how many miles does it cover in "
        "4 hours?",
        "240",
        "Its speed is 150 / 2.5 = 60 miles per hour. In 4 hours it covers 4 * 60 = 240 miles.",
    ),
    (
        "A bag has 3 red and 5 blue marbles. One marble is drawn at random. What is the "
        "probability that it is red? Give a common fraction.",
        "\\frac{3}{8}",
        "There are 3 + 5 = 8 marbles, and 3 of them are red. The probability is $\\frac{3}{8}$.",
    ),
    (
        "Omar saves $15 a week. He wants a bicycle for $180 and has $60 already. In how many weeks "
        "can he buy it?",
        "8",
        "He still needs 180 - 60 = 120 dollars. At 15 a week that takes 120 / 15 = 8 weeks.",
    ),
    (
        "What is the area of a rectangle whose sides are 9 and 14?",
        "126",
        "The area is the product of the sides: $9 \\cdot 14 = 126$.",
    ),
)


MathLayout = Literal["auto", "gsm8k", "math", "dapo", "gpqa", "plain"]

_COLUMNS: dict[str, Names] = {  # in the order in which `auto` tries them
    "gsm8k": {"text": ("question",), "answer": ("answer",), "solution": ()},
    "dapo": {
        "text": ("prompt",),
        "answer": ("reward_model.ground_truth", "answer"),
        "solution": (),
    },
    "math": {"text": ("problem",), "answer": ("answer",), "solution": ("solution",)},
    "gpqa": {"text": ("Question",), "answer": ("Correct Answer",), "solution": ()},
    "plain": {"text": ("question",), "answer": ("answer",), "solution": ("solution",)},
}
_WRONG_CHOICES = tuple(f"Incorrect Answer {number}" for number in (1, 2, 3))
_ANNOTATION = re.compile(r"<<[^<>\n]*>>")
# Published DAPO prompts contain an answer format that contradicts flowzoo's.
_DAPO_HEAD = re.compile(r"Solve the following math problem step by step\.[^\n]*\n\n")
_DAPO_FOOT = re.compile(r'\n\nRemember to put your answer on its own line after "Answer:"\.\s*\Z')


@dataclass(frozen=True, slots=True)
class MathRow:
    """One problem of a file. `line` counts from 1; `solution` may be empty."""

    line: int
    text: str
    gold: str
    solution: str
    remark: str = field(default="", repr=False)  # the digest of a data set is of its repr


def math_rows(
    data: str, records: Records, layout: str, columns: dict[str, str]
) -> Iterator[MathRow]:
    """The rows of a mathematics file; see `rows.load`."""
    check_layout(layout, get_args(MathLayout), columns, ("text", "answer", "solution"))
    names: Names | None = None
    rows = list[MathRow]()
    for line, where, record in objects(data, records):
        if names is None:
            fits = partial(_fits, record=record)
            layout, names = find_layout(where, record, layout, _COLUMNS, columns, fits)
        rows.append(_row(where, line, record, layout, names))
    wrapped = [row.remark.startswith(_READ_FROM) for row in rows]
    _note(data, "answers are read out of a wrapping", rows, wrapped)
    others = other_boxes([(row.gold, row.solution) for row in rows])
    for position in (position for position, differs in enumerate(others) if differs):
        row = rows[position]
        remark = f"{row.remark}; {_OTHER_BOX} {extract(row.solution)!r:.60}".removeprefix("; ")
        rows[position] = replace(row, remark=remark)
    _note(data, "solutions have another answer in their box, which does not count", rows, others)
    return iter(rows)


def _note(data: str, subject: str, rows: Sequence[MathRow], chosen: Sequence[bool]) -> None:
    noted = [row for row, is_chosen in zip(rows, chosen, strict=True) if is_chosen]
    if noted:
        examples = "; ".join(
            f"line {row.line}: {row.gold!r:.40} {row.remark}" for row in noted[:SHOWN]
        )
        _log.warning("%s: %d of %d %s: %s", data, len(noted), len(rows), subject, examples)


def _fits(name: str, names: Names, record: DataRecord) -> bool:
    # True if a record has the columns and the marks of a layout.
    text, answer, solution = (first(record, names[key]) for key in ("text", "answer", "solution"))
    is_marked = name != "gsm8k" or "####" in str(answer)
    return text is not None and is_marked and (answer is not None or solution is not None)


def _row(where: str, line: int, record: DataRecord, layout: str, names: Names) -> MathRow:
    text = text_of(first(record, names["text"]))
    if text is None or not text.strip():
        raise DataError(f"{where}: column {names['text'][0]!r} is missing or blank.")
    given = first(record, names["answer"])
    try:
        item = unwrapped(given)
    except ValueError as error:
        raise DataError(f"{where}: answer {given!r:.80} {error}.") from error
    answer = text_of(item)
    solution = text_of(first(record, names["solution"])) or ""
    if layout == "gsm8k":
        worked, mark, answer = (answer or "").rpartition("####")
        if not mark:
            raise DataError(
                f"{where}: column {names['answer'][0]!r} has no '####' and answer, as in the "
                "layout gsm8k; answers without a solution are layout=plain."
            )
        solution = solution or _ANNOTATION.sub("", worked).strip()
    if layout == "plain" and "####" in (answer or ""):
        raise DataError(
            f"{where}: column {names['answer'][0]!r} has '####', but the first row's has none: a "
            "file with '####' in every answer is layout=gsm8k."
        )
    if layout == "dapo":
        text = _DAPO_FOOT.sub("", _DAPO_HEAD.sub("", text, count=1))
    if layout == "gpqa":
        text, answer = _choices(where, line, record, text, answer)
    gold = (answer or "").strip() or (extract(solution) or "")
    boxed = extract(gold) or gold
    gold = stated_answer(boxed)
    remark = f"{_READ_FROM} {given!r:.60}" if gold != boxed or item is not given else ""
    if is_placeholder(gold):
        remark = _NO_ANSWER
    if not gold:
        columns = " and ".join(repr(name) for name in (*names["answer"], *names["solution"]))
        raise DataError(f"{where}: no answer in {columns}.")
    if not is_gradable(gold) or extract(f"\\boxed{{{gold}}}") != gold:
        raise DataError(f"{where}: answer {gold[:80]!r} is too long or its braces do not match.")
    return MathRow(line, text.strip(), gold, solution, remark)


def _choices(
    where: str, line: int, record: DataRecord, text: str, answer: str | None
) -> tuple[str, str]:
    """A question with its choices, and the letter of the right one.

    Their order is that of the public code of arXiv 2605.24202.
    """
    choices = [answer, *(text_of(record.get(column)) for column in _WRONG_CHOICES)]
    if not all(choices):
        names = ", ".join(map(repr, ("Correct Answer", *_WRONG_CHOICES)))
        raise DataError(f"{where}: a row of the layout gpqa needs all of {names}.")
    order = list(range(len(choices)))
    random.Random(line - 1).shuffle(order)
    lines = (f"{letter}) {choices[idx]}" for letter, idx in zip("ABCD", order, strict=True))
    return "\n".join([f"{text}\n", *lines]), "ABCD"[order.index(0)]


CopiesRule = Literal["refused", "paid"]
GraderName = Literal["flowzoo", "published"]
PlaceholderRule = Literal["refused", "kept"]
INSTRUCTION = "Put the final answer in \\boxed{}."
_LONGEST_SHOWN = 600
# The 95 % quantile of the worked solutions' characters in files with short replies.
_SHORT_SOLUTION = 1000
_AS_GIVEN = MathOptions(read="answer")
_NUMBER = re.compile(r"\d+", re.ASCII)
_UNREADABLE = GradeResult(math.nan, unknown_status("the reference answer cannot be read"))
_READ_FROM = "is read from"
_NO_ANSWER = "is a placeholder for a missing answer"
_OTHER_BOX = "is not in its solution's box, which has"
_log = logging.getLogger(__name__)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}")
_DELTAS = (-10, -3, -2, -1, 1, 2, 3, 10)


def wrong_answer(gold: str, rng: random.Random) -> str:
    """A plausible answer that is graded different from `gold`: one number is wrong."""
    spans = [match.span() for match in _NUMBER.finditer(gold)]
    for _ in range(16):
        if spans:
            start, end = rng.choice(spans)
            number = max(0, int(gold[start:end]) + rng.choice(_DELTAS))
            answer = f"{gold[:start]}{number}{gold[end:]}"
        else:
            answer = str(rng.randint(2, 99))
        if not is_right(answer, gold) and extract(f"\\boxed{{{answer}}}") == answer:
            return answer
    return "17" if not is_right("17", gold) else "18"


@dataclass(frozen=True)
class MathTask(DataTask[MathRow]):
    """Mathematics problems with one final answer.

    A problem's `meta` has `solution`, and `level` (generated) or `source` and `row`, its line.

    Raises:
        UsageError: invalid `level`, `layout` or `columns`; `data` is neither a file nor a dataset
            id; `level` together with `data`.
        DataError: a broken file, with the line.
    """

    name: ClassVar[str] = "math"
    kind: ClassVar[str] = "math"
    instruction: ClassVar[str] = INSTRUCTION
    drawn_by: ClassVar[tuple[str, ...]] = ("level",)

    level: int | str | None = None
    """Difficulty of generated problems: 1 (default) to 5, or a range such as "1-3", cycled by
    index. Not for files."""
    layout: MathLayout = "auto"
    """Layout of `data`: gsm8k, math, dapo, gpqa, plain, or auto to detect it from the columns."""
    columns: Mapping[str, str] | Columns | str = ()
    """Column names of `data` that differ from the layout's: keys text, answer, solution."""
    copies: CopiesRule = "refused"
    """`refused`: an unevaluated formula copied from the problem has the status `copied`, even if it
    equals the reference. `paid`: it is right."""
    grader: GraderName = "flowzoo"
    """`published`: the one of the public code of arXiv 2605.24202 and Dr. MAS, "mathd or sympy",
    which reads fewer forms and pays copies."""
    placeholders: PlaceholderRule = "refused"
    """Rows of `data` whose answer marks a missing one, such as `NaN`, `N/A`, `?` or `[]`:
    `refused`, an error, or `kept`."""
    sandbox: SandboxName = "auto"  # pyrefly: ignore[bad-override]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("copies", self.copies, CopiesRule)
        check_choice("grader", self.grader, GraderName)
        check_choice("placeholders", self.placeholders, PlaceholderRule)
        if self.data is None:
            object.__setattr__(self, "level", 1 if self.level is None else self.level)
            read_levels(self.level or 0, LEVELS)
            return
        object.__setattr__(self, "digest", self._source().digest)
        rows = self._source().splits["all"]
        lost = [
            Unusable(row.line, f"{self.data}, line {row.line}: answer {row.gold!r} {_NO_ANSWER}.")
            for row in rows
            if self.placeholders == "refused" and _NO_ANSWER in row.remark
        ]
        if lost:
            remedy = "Remove such rows, or keep them with --options placeholders=kept."
            raise unusable_rows(str(self.data), lost, len(rows), remedy)

    @property
    def reply_tokens(self) -> int:
        """128 for the arithmetic of level 1, 256 for other levels.

        For files 512 if worked solutions are short, as in GSM8K, else 1024, as in MATH.
        """
        if self.data is None:
            return 128 if max(read_levels(self.level or 1, LEVELS)) == 1 else 256
        lengths = sorted(len(row.solution) for row in self._source().splits["all"])
        usual = lengths[len(lengths) * 95 // 100]
        return 512 if lengths[0] > 0 and usual <= _SHORT_SOLUTION else 1024

    def golds(self) -> GoldSurvey | None:
        if self.data is None:
            return None
        rows = self._source().splits["all"]
        return survey([GoldRow(row.line, row.gold, row.remark) for row in rows])

    def _source(self) -> DataSource[MathRow]:
        columns = cast(Columns, self.columns)
        return data_source(str(self.data), math_rows, self.layout, columns, self.digest)

    def _of_row(self, row: MathRow, index: int, split: str, where: RowPlace) -> Problem:
        meta = {**where, "solution": row.solution}
        return Problem(self.name, split, self.seed, index, row.text, row.gold, meta)

    def _draw_key(self, index: int) -> tuple[int | str, ...]:
        levels = read_levels(self.level or 1, LEVELS)
        return (levels[index % len(levels)],)

    def _draw(self, rng: random.Random, index: int, split: str, number: int) -> Problem | None:
        [level] = self._draw_key(index)
        text, gold, solution, _ = generate(int(level), rng)
        if not is_in(split, text):
            return None
        source = f"level-{self.level}"
        meta = {"source": source, "level": level, "solution": solution, "draw": number}
        return Problem(self.name, split, self.seed, index, text, gold, meta)

    def distinct(self, split: str) -> int | None:
        """All are counted for level 1; other levels have far more."""
        is_level_1 = self.data is None and read_levels(self.level or 1, LEVELS) == (1,)
        return _level_1_size(split) if is_level_1 and type(self) is MathTask else None

    def example(self, number: int) -> Problem:
        """A generated problem of the split `pretrain`; for files one of `worked`."""
        if self.data is None:
            return self.problem(number, "pretrain")
        text, gold, solution = WORKED[number % len(WORKED)]
        meta = {"source": "worked", "solution": solution}
        return Problem(self.name, "pretrain", self.seed, number, text, gold, meta)

    def answer(self, text: str) -> str | None:
        return extract(text, "strict")

    def answer_lenient(self, text: str) -> str | None:
        """The box, else the text after `####`, else an answer phrase, else the last number."""
        return extract(text, "lenient")

    def answer_published(self, text: str) -> str | None:
        """The last box; an empty one is no answer and no class of answers."""
        answer = read_answer(text)
        return answer if answer and not answer.isspace() else None

    def grade_batch(
        self, problems: Sequence[Problem], answers: Sequence[str | None]
    ) -> list[GradeResult]:
        """1.0 for an answer equal to the reference, else 0.0, with the status of `score_batch`.

        An answer that only copies a formula of the problem's text has the status `copied`.
        """
        golds = [problem.gold for problem in problems]
        if self.grader == "published":
            statuses = published_statuses(answers, golds)
            return [GradeResult(float(status == "equal"), status) for status in statuses]
        texts = [problem.text for problem in problems] if self.copies == "refused" else None
        result = score_batch(answers, golds, _AS_GIVEN, texts)
        return [
            _UNREADABLE if status == "bad_gold" else GradeResult(score, status)
            for score, status in zip(result.scores, result.statuses, strict=True)
        ]

    def classes(self, problem: Problem, answers: Sequence[str | None]) -> tuple[int, ...]:
        return equivalence_classes(answers)

    def solve(self, problem: Problem, rng: random.Random, right: bool) -> str:
        r"""A worked solution that ends in `\boxed{...}`; if not `right`, with a wrong step."""
        if "draw" in problem.meta:
            return problem.meta["solution"] if right else self._mistaken(problem, rng)
        final = problem.gold if right else wrong_answer(problem.gold, rng)
        solution = _unbox(problem.meta.get("solution", ""))
        # In a file, a repeated answer would be right even where no model can give it.
        boxed = respelled(final) if right and "row" in problem.meta else final
        conclusion = f"The answer is \\boxed{{{boxed}}}."
        if not solution or len(solution) > _LONGEST_SHOWN:
            return conclusion
        head, answer, foot = solution.rpartition(problem.gold)
        return f"{head}{final if answer else ''}{foot}\n{conclusion}"

    def _mistaken(self, problem: Problem, rng: random.Random) -> str:
        level, draw = problem.meta["level"], problem.meta["draw"]
        key = ((level,), problem.index, problem.split, draw)
        steps = generate(level, self._rng(*key)).steps
        for _ in range(16):
            mistake, delta = rng.randrange(steps), rng.choice(_DELTAS)
            wrong = generate(level, self._rng(*key), mistake, delta)
            if not is_right(wrong.gold, problem.gold):
                return wrong.solution
        return f"\\boxed{{{wrong_answer(problem.gold, rng)}}}"

    def samples(self) -> tuple[str, ...]:
        return (
            "\\boxed{7}",
            "3*4=12. 12+5=17. \\boxed{17}",
            "The answer is 42.",
            "so x=\\frac{1}{2}. \\boxed{\\frac{1}{2}}",
            "I am not sure.",
            "\\boxed{",
        )


def _unbox(solution: str) -> str:
    # `solution` with every simple `\boxed{x}` replaced by `x`; empty if a box remains.
    plain = _BOX.sub(r"\1", solution)
    return "" if extract(plain) is not None else plain
