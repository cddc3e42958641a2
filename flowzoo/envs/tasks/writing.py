"""The task `writing`: two texts about one source, rewarded together.

| | |
|---|---|
| Creation | `make_task("writing", form="tldr")`, `make_task("writing", form="expansion")` |
| Problems | generated posts (`tldr`) or abstracts (`expansion`), or one column of a file |
| Texts | `tldr`: a concise summary, a detailed one; `expansion`: the background, the method |
| Answer | a reply without its thoughts; an empty one is no answer |
| Score | the reward over 3, so within [0, 1] |

Rewards, in [0, 3] before the division (they are in the facts and parts as `reward`):

* `published` (MAGRPO): structure and style only, see `flowzoo.reward.text.writing`. The source has
  no effect: lists of nonsense words score over 2 of 3.
* `grounded` (default): the same structure terms, with transition words counted as whole words,
  times the smaller grounding of the two texts in the source, times `apart` (0 for two equal texts),
  see `flowzoo.reward.text.grounding`.

Version history: v0, first release.
"""

import json
import random
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, ClassVar, Literal, NamedTuple

from flowzoo.envs.script import GradeResult
from flowzoo.envs.tasks.rows import (
    DataSource,
    DataTask,
    Records,
    RowPlace,
    data_source,
    first,
    objects,
)
from flowzoo.envs.tasks.task import Problem, is_in
from flowzoo.envs.text import visible
from flowzoo.errors import DataError, check_choice, need_module
from flowzoo.reward.text.grounding import pair_grounding, read_source
from flowzoo.reward.text.writing import HIGHEST, REQUIREMENTS, Form, sentences, structure

WritingReward = Literal["grounded", "published"]
COLUMNS = ("post", "prompt", "text", "document", "abstract_text", "abstract")
LONGEST = 8_000  # most characters of a text; a longer reply is not an answer
INSTRUCTIONS: dict[Form, tuple[str, str]] = {
    "tldr": (
        "Write a concise summary of this text in one or two sentences.",
        "Write a detailed summary of this text, about twice as long as a concise one.",
    ),
    "expansion": (
        "Write the background section of this article, about 140 words, from its abstract.",
        "Write the method section of this article, about 200 words, from its abstract.",
    ),
}


class WritingDraft(NamedTuple):
    """A source and a reference pair of texts."""

    source: str
    first: str
    second: str


@cache
def _templates() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    return tomllib.loads((files("flowzoo.envs.tasks") / "writing.toml").read_text(encoding="utf-8"))


def draw(form: Form, rng: random.Random) -> WritingDraft:
    """A template of `form` with its gaps filled."""
    template = rng.choice(_templates()[form])
    filling = {gap: rng.choice(choices) for gap, choices in template["gaps"].items()}
    texts = (template[part].format(**filling) for part in WritingDraft._fields)
    return WritingDraft(*(text[0].upper() + text[1:] for text in texts))


_grounds = lru_cache(maxsize=4096)(read_source)


class SourceRow(NamedTuple):
    """One source of a file."""

    line: int
    text: str


def source_rows(
    data: str, records: Records, layout: str, columns: dict[str, str]
) -> Iterator[SourceRow]:
    """Read one text per row, from the column set as `text` or the first known one."""
    names = (columns["text"],) if "text" in columns else COLUMNS
    for line, where, record in objects(data, records):
        text = first(record, names)
        if not isinstance(text, str) or not text.strip():
            raise DataError(
                f"{where}: expected a text in column {' or '.join(names)}; name another one with "
                "column=..."
            )
        yield SourceRow(line, text.strip())


@dataclass(frozen=True)
class WritingTask(DataTask[SourceRow]):
    """Sources for two writers.

    A problem's `gold` is the model's first text, empty for a file.

    Raises:
        UsageError: an unknown form or reward, or a column without a file.
        DataError: a broken file, with the line.
        MissingExtraError: the grounded reward without the extra `writing`.
    """

    name: ClassVar[str] = "writing"
    kind: ClassVar[str] = "writing"
    home: ClassVar[str] = "writing_pair_v0"
    reference_score: ClassVar[float] = 0.5
    of_file: ClassVar[tuple[str, ...]] = ("column", "digest")

    form: Form = "tldr"
    """`tldr`: two summaries of a post. `expansion`: two sections from an abstract."""
    reward: WritingReward = "grounded"
    """`grounded`: structure times grounding in the source. `published`: structure only."""
    column: str | None = None
    """The column of `data` that holds the sources; default: the first known one."""

    def __post_init__(self) -> None:
        check_choice("form", self.form, Form)
        check_choice("reward", self.reward, WritingReward)
        if self.reward == "grounded":
            need_module("rapidfuzz", "the grounded writing reward")  # not only after an episode
        super().__post_init__()
        if self.data is None:
            return
        object.__setattr__(self, "digest", self._source().digest)

    def _source(self) -> DataSource[SourceRow]:
        columns = (("text", self.column),) if self.column else ()
        return data_source(str(self.data), source_rows, columns=columns, digest=self.digest)

    def _of_row(self, row: SourceRow, index: int, split: str, where: RowPlace) -> Problem:
        return Problem(self.name, split, self.seed, index, row.text, "", where)

    def _draw_key(self, index: int) -> tuple[int | str, ...]:
        return (self.form,)

    def _draw(self, rng: random.Random, index: int, split: str, number: int) -> Problem | None:
        source, first, second = draw(self.form, rng)
        if not is_in(split, source):
            return None
        meta = {"source": self.form, "solution": join_texts(first, second)}
        return Problem(self.name, split, self.seed, index, source, first, meta)

    def prompt(self, problem: Problem) -> str:
        return f"{problem.text}\n\n{INSTRUCTIONS[self.form][0]}"

    def answer(self, text: str) -> str | None:
        reply = visible(text)
        return reply if 0 < len(reply) <= LONGEST else None

    def answer_lenient(self, text: str) -> str | None:
        return self.answer(text)

    def grade(self, problem: Problem, answer: str | None) -> GradeResult:
        """Grade a pair made by `join_texts`; status `graded`, or `none` for anything else.

        Parts: `reward` in [0, 3], the structure levels `lengths`, `ratio`, `unique` and `style`,
        and under the grounded reward `grounding_0`, `grounding_1` and `apart` in [0, 1].
        """
        pair = split_texts(answer)
        if pair is None:
            return GradeResult(0.0, "none")
        parts = structure(*pair, self.form, whole_words=self.reward == "grounded")
        reward = sum(parts.values())
        if self.reward == "grounded":
            share, grounds = pair_grounding(*pair, _grounds(problem.text), self.form)
            reward *= share
            parts |= grounds
        # The highest total of the published formula is a little under 3.
        return GradeResult(reward / HIGHEST, "graded", (("reward", reward), *parts.items()))

    def solve(self, problem: Problem, rng: random.Random, right: bool) -> str:
        return self.solve_for(problem, 0, rng, right)

    def solve_for(self, problem: Problem, writer: int, rng: random.Random, right: bool) -> str:
        """A good text by writer `writer`, or a poor one: copied, repeated, or cut off.

        For a source from a file the good text consists of its first sentences, cut to the requested
        length.
        """
        pair = split_texts(problem.meta.get("solution"))
        if right and pair is not None:
            return pair[writer]
        shape = REQUIREMENTS[self.form]
        length = (shape.shortest * (1 + writer) * (1 if self.form == "expansion" else 2)) + 4
        source_words = problem.text.split()
        lead = " ".join((source_words * (1 + length // len(source_words)))[:length])
        if right:
            return lead
        opening = (sentences(problem.text) or [problem.text])[0]
        return rng.choice((lead, " ".join([opening] * 4), " ".join(source_words[:5])))

    def reference(self, problem: Problem) -> str | None:
        return problem.meta.get("solution")

    def samples(self) -> tuple[str, ...]:
        return (
            "I lost my camera at the zoo, but a gardener found it and called me.",
            "While visiting the zoo I lost the camera that my aunt gave me. We searched it twice; "
            "however, nobody could help. Then a gardener found it under a bench and called me.",
            "A summary.",
            "",
        )


def join_texts(first: str, second: str) -> str:
    """The two texts as one answer."""
    return json.dumps([first, second])


def split_texts(answer: str | None) -> tuple[str, str] | None:
    """The two texts of an answer made by `join_texts`; None for anything else."""
    if answer is None:
        return None
    try:
        pair = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    if isinstance(pair, list) and len(pair) == 2 and all(isinstance(t, str) for t in pair):
        return pair[0], pair[1]
    return None
