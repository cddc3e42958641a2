"""# Search team

A verifier decides whether the passages are sufficient; if not, a searcher writes a query, else an
answerer answers. Source: Dr. MAS (search workflow).

| | |
|---|---|
| Creation | `search_team_v0.env(task="search")` |
| Agents | `verifier_0`, `searcher_0`, `answerer_0` |
| Observation | `{"messages": [...]}`: the question and, for each search so far, its query and the passages found |
| Action | `<verify>yes</verify>` or `no`; `<search>query</search>`; `<answer>text</answer>` |
| Reward | 1 to every call if the answer equals a reference answer (SQuAD normalization), else 0 |
| End | at the answer |

## Arguments
| name | default | meaning |
|---|---|---|
| `max_turns` | 4 | most turns; in the last one the answerer always answers |
| `top_k` | 3 | passages per search |
| `preset` | `"strict"` | see below |

* `strict`: an unreadable verdict counts as no; the verifier is not asked in the last turn, since
  its verdict would have no effect.
* `dr_mas`: an unreadable verdict counts as yes; the verifier is also asked in the last turn. (The
  published flow also asks for a last query that is never used; this one does not.)

An unreadable query is not searched. An answer is read only from the answerer's reply; tags in
passages and queries are neutralized. A retriever failure raises an error and is never shown as a
passage.

Role scores (only for problems with known gold passages): verifier, 1 if its verdict matches whether
all gold passages were found; searcher, the fraction of gold passages that its query newly found;
answerer, the exact match.

Facts in `info` at the end: `searches`, `unread_queries`, `unread_verdicts`, `f1` (of the answer),
and for known gold passages `recall` (fraction found before the answerer was asked), `evidence` (all
found), `true_yes`, `false_yes`, `true_no`, `false_no`.

## Version history
* v0: first version.
"""  # noqa: E501 - rows of tables

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from flowzoo.envs.script import (
    Ask,
    Grade,
    Message,
    Outcome,
    Passage,
    Reply,
    RoleScore,
    Script,
    ScriptPart,
    Search,
)
from flowzoo.envs.settings import check_whole
from flowzoo.envs.tasks.search import INSTRUCTION, RELATIONS, read_fact
from flowzoo.envs.tasks.task import Problem
from flowzoo.envs.text import visible
from flowzoo.envs.workflow import Workflow
from flowzoo.reward.text.qa import normalize

_VERDICT = re.compile(r"<verify>[\s*]*(yes|no)[\s*.]*</verify>", re.IGNORECASE)
_QUERY = re.compile(r"<search>((?:(?!<search>).){1,500}?)</search>", re.DOTALL | re.IGNORECASE)
_TAG = re.compile(r"<(?=/?[A-Za-z])")
_VERDICTS = ("true_yes", "false_yes", "true_no", "false_no")


def read_verdict(text: str) -> bool | None:
    """Read the last tagged verdict: True for yes, False for no, None without one."""
    verdicts = _VERDICT.findall(visible(text))
    return verdicts[-1].lower() == "yes" if verdicts else None


def read_query(text: str) -> str | None:
    """Read the last tagged query (at most 500 characters) as one line, or None."""
    reply = visible(text)
    queries = _QUERY.findall(reply) if "</search>" in reply.lower() else []
    return (" ".join(queries[-1].split()) or None) if queries else None


def harmless(text: str) -> str:
    """Neutralize tags in `text`: `<answer>` becomes `‹answer>`."""
    return _TAG.sub("‹", text)


def show(query: str, passages: Sequence[Passage]) -> str:
    """Format a search for the team."""
    lines = [
        f"[{number}] {harmless(passage.text)}" for number, passage in enumerate(passages, start=1)
    ]
    return "\n".join([f"Search: {harmless(query)}", *(lines or ["Nothing was found."])])


@dataclass(slots=True)
class RetrievedPassages:
    """Passages that the searches of an episode have returned."""

    gold: frozenset[str]
    texts: list[str] = field(default_factory=list)
    gold_ids: set[str] = field(default_factory=set)

    @property
    def recall(self) -> float:
        """Fraction of gold passages found; 0 if they are unknown."""
        return len(self.gold_ids) / len(self.gold) if self.gold else 0.0

    def add(self, query: str, passages: Sequence[Passage]) -> float:
        """Add a search; return the gain of recall."""
        before = self.recall
        self.gold_ids |= self.gold & {passage.id for passage in passages}
        self.texts.append(show(query, passages))
        return self.recall - before


@dataclass(frozen=True)
class SearchTeam(Workflow):
    """Verify, search, answer."""

    name: ClassVar[str] = "search_team_v0"
    roles: ClassVar[Mapping[str, int]] = {"verifier": 1, "searcher": 1, "answerer": 1}
    presets: ClassVar[tuple[str, ...]] = ("strict", "dr_mas")
    kinds: ClassVar[tuple[str, ...]] = ("search",)
    default_task: ClassVar[str] = "search"
    own_instruction: ClassVar[bool] = True
    prompts: ClassVar[Mapping[str, str]] = {
        "state": "Question: {problem}\n\n{history}\n\n{request}",
        "nothing": "Nothing was searched yet.",
        "verify": "Is this enough to answer? Reply <verify>yes</verify> or <verify>no</verify>.",
        "search": "Write one search query between <search> and </search>.",
        "answer": INSTRUCTION,
    }

    max_turns: int = 4
    top_k: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("max_turns", self.max_turns, 1)
        check_whole("top_k", self.top_k, 1)

    def play(self, problem: Problem) -> Script:
        evidence = RetrievedPassages(frozenset(problem.meta.get("gold_ids", ())))
        counts: Counter[str] = Counter()
        for turn in range(1, self.max_turns + 1):
            last = turn == self.max_turns
            enough = last
            if not last or self.preset == "dr_mas":
                verdict = yield self.ask("verifier_0", "verify", problem, evidence, read_verdict)
                enough = yield from self.score_verdict(verdict, evidence, counts)
            if enough or last:
                break
            reply = yield self.ask("searcher_0", "search", problem, evidence, read_query)
            yield from self.search(reply, evidence, counts)
        final = yield self.ask("answerer_0", "answer", problem, evidence, self.task.answer)
        grade = yield Grade(final.strict, of=final)
        facts: dict[str, object] = {
            "searches": len(evidence.texts),
            "unread_queries": counts["unread_queries"],
            "unread_verdicts": counts["unread_verdicts"],
            **dict(grade.parts),
        }
        if evidence.gold:
            facts |= {"recall": evidence.recall, "evidence": evidence.recall == 1.0}
            facts |= {name: counts[name] for name in _VERDICTS}
        return Outcome(final.strict, grade.score, facts)

    def score_verdict(
        self, verdict: Reply, evidence: RetrievedPassages, counts: Counter[str]
    ) -> ScriptPart[bool]:
        """Count a verdict; return True if it says that the evidence is sufficient."""
        answer = verdict.strict
        if evidence.gold:
            right = answer is not None and answer == (evidence.recall == 1.0)
            yield RoleScore(verdict, float(right))
            if answer is not None:
                counts[f"{'true' if right else 'false'}_{'yes' if answer else 'no'}"] += 1
        counts["unread_verdicts"] += answer is None
        return self.preset == "dr_mas" if answer is None else answer

    def search(
        self, reply: Reply, evidence: RetrievedPassages, counts: Counter[str]
    ) -> ScriptPart[None]:
        """Run a query; an unreadable one is not searched."""
        gain = 0.0
        if reply.strict is None:
            counts["unread_queries"] += 1
        else:
            result = yield Search(reply.strict, self.top_k)
            gain = evidence.add(reply.strict, result.passages)
        if evidence.gold:
            yield RoleScore(reply, gain)

    def ask(
        self,
        agent: str,
        request: str,
        problem: Problem,
        evidence: RetrievedPassages,
        parse: Callable[[str], object],
    ) -> Ask:
        """A prompt of the team: the problem, the searches, the instruction."""
        text = self.prompts["state"].format(
            problem=problem.text,
            history="\n\n".join(evidence.texts) or self.prompts["nothing"],
            request=self.prompts[request],
        )
        return Ask(agent, text, parse)

    def expert(
        self, role: str, messages: list[Message], problem: Problem, rng: random.Random, right: bool
    ) -> str:
        """Follow the question's relations through the shown passages."""
        here, missing = follow(problem, messages[-1]["content"])
        if role == "verifier":
            return f"<verify>{'yes' if (missing is None) == right else 'no'}</verify>"
        other = self.task.answer(self.task.solve(problem, rng, False)) or ""
        if role == "searcher":
            return f"<search>{(missing or problem.text) if right else other}</search>"
        return f"<answer>{(here if missing is None else 'unknown') if right else other}</answer>"

    def samples(self) -> tuple[str, ...]:
        return (
            *self.task.samples(),
            "<verify>yes</verify>",
            "<verify>no</verify>",
            "<search>the founder of Bacecorp</search>",
            "<search></search>",
        )


def follow(problem: Problem, text: str) -> tuple[str, str | None]:
    """The end of the chain of facts in `text`, and the query for the next fact (or None)."""
    if "relations" not in problem.meta:  # a question from a file: after a search
        golds = problem.meta.get("golds", ())
        passages = normalize("\n".join(re.findall(r"(?m)^\[\d+\] .*", text)))
        read = next((gold for gold in golds if normalize(gold) in passages), None)
        return (read, None) if read is not None else ("", problem.text)
    here = problem.meta["start"]
    for relation in problem.meta["relations"]:
        target = read_fact(text, here, relation)
        if target is None:
            return here, RELATIONS[relation].phrase.format(s=here)
        here = target
    return here, None
