"""Episodes for the page: all, every text once, and one problem before and after a fall."""

# Prompts repeat over evaluations, and ballots quote replies: texts are in one table and the rest
# refers to it by index. Layout of the packed value:
#
# texts     all different texts
# episodes  [kind, step, problem, text, gold, answer, score, truncated, facts, calls]
# calls     [role, agent, phase, turn, reply, strict, lenient, role_score, reward, finish, tokens,
#            messages, policy, advantage (where it was saved; null: not trained on)]
# messages  [speaker, text, speaker, text, ...]
#
# Texts are indices into `texts`, except in facts, which are an object.

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flowzoo.agents.evaluation.summary import mean
from flowzoo.baselines.diagnostics.checkers import Episode
from flowzoo.baselines.diagnostics.roles import role_calls
from flowzoo.baselines.report.by_policy import by_policy
from flowzoo.baselines.report.findings import Facts
from flowzoo.baselines.report.words import is_finite
from flowzoo.baselines.run.reading import RunData, read_episodes
from flowzoo.envs.tools import call_text

LONGEST = 200_000  # characters of one text; a note replaces the middle of a longer one
MOST_CHARACTERS = 60_000_000
"""Characters of all texts of a page beyond which no more episodes are added."""


class Texts:
    """The table of texts."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self.characters = 0
        self._indices: dict[str, int] = {}

    def add(self, text: str) -> int:
        """Add `text` if it is new, and return its index."""
        index = self._indices.get(text)
        if index is None:
            index = self._indices[text] = len(self.all)
            self.all.append(shorten(text))
            self.characters += len(self.all[-1])
        return index


def shorten(text: str) -> str:
    """`text`, without its middle if it is longer than `LONGEST`."""
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[… {left_out} characters are left out of this page …]\n{text[-half:]}"


def pack(run: RunData, most: int) -> Facts:
    """At most `most` episodes of a run, from the most informative files first.

    They come with their `texts`, and with the `total` number of saved ones.
    """
    # These are the last and the first evaluation, the best one, then the last and the first saved
    # training step, then the others from the newest on.
    texts, episodes, total = Texts(), [], 0
    for kind, step, path in _in_order(run):
        rows = read_episodes(path) if len(episodes) < most else ()
        total += len(rows) or path.read_bytes().count(b"\n")
        for episode in rows:
            if len(episodes) >= most or texts.characters > MOST_CHARACTERS:
                break
            episodes.append(pack_episode(episode, kind, step, texts))
    episodes.sort(key=lambda episode: (-episode[1], texts.all[episode[0]]))
    return {"texts": texts.all, "episodes": episodes, "total": total}


def pack_episode(episode: Mapping[str, Any], kind: str, step: int, texts: Texts) -> list[Any]:
    """One episode as the comment above lays it out; its texts go into `texts`."""
    answer = episode.get("answer")
    return [
        texts.add(kind),
        step,
        texts.add(str(episode["problem"])),
        texts.add(str(episode.get("text", ""))),
        texts.add(str(episode.get("gold", ""))),
        None if answer is None else texts.add(str(answer)),
        _finite(episode.get("score")),
        bool(episode.get("truncated")),
        {str(name): _fact(value) for name, value in episode.get("facts", {}).items()},
        [_call(call, texts) for call in episode["calls"]],
    ]


def message_text(message: Mapping[str, Any]) -> str:
    """Text of a message, with its calls of tools in the notation of replies."""
    calls = [json.dumps(call["function"]) for call in message.get("tool_calls", ())]
    return "\n".join(filter(None, [str(message["content"]), *map(call_text, calls)]))


def _call(call: Mapping[str, Any], texts: Texts) -> list[Any]:
    messages: list[int] = []
    for message in call.get("messages", ()):
        messages += [texts.add(str(message["role"])), texts.add(message_text(message))]
    return [
        texts.add(str(call["role"])),
        texts.add(str(call["agent"])),
        call.get("phase", 0),
        call.get("turn", 0),
        texts.add(str(call["reply"])),
        bool(call.get("strict")),
        bool(call.get("lenient")),
        _finite(call.get("role_score")),
        _finite(call.get("reward")),
        texts.add(str(call.get("finish", "stop"))),
        call.get("output_tokens"),
        messages,
        texts.add(str(call.get("policy", ""))),
        *([_finite(call["advantage"])] if "advantage" in call else []),
    ]


def _in_order(run: RunData) -> list[tuple[str, int, Path]]:
    evals, trains = run.transcript_files("eval"), run.transcript_files("train")
    scores = {row["step"]: row.get("eval/reward/mean", 0.0) for row in run.evaluations}
    scored = [step for step in evals if step in scores]
    chosen = [("eval", step) for step in (max(evals), min(evals))] if evals else []
    if scored:
        chosen.append(("eval", max(scored, key=lambda step: scores[step])))
    if trains:
        chosen += [("train", step) for step in (max(trains), min(trains))]
    rest = [("eval", step) for step in evals] + [("train", step) for step in trains]
    chosen += sorted(rest, key=lambda file: -file[1])
    files = {"eval": evals, "train": trains}
    return [(kind, step, files[kind][step]) for kind, step in dict.fromkeys(chosen)]


def _finite(value: Any) -> float | None:
    return round(float(value), 6) if is_finite(value) else None


def _fact(value: object) -> str | bool | float | None:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)):
        return _finite(value)
    if isinstance(value, Iterable):
        return shorten(json.dumps(value, default=str, sort_keys=True))
    return str(value)


# -- one problem before and after a run broke ------------------------------------------------------


def run_moment(role: str, run: RunData, before: int, after: int) -> Facts | None:
    """One problem at two evaluations: the one in which the team, then the role, lost the most.

    None if no problem lost anything, or if the episodes are missing.
    """
    files, steps = run.transcript_files("eval"), run.steps
    if not {steps[before], steps[after]} <= files.keys():
        return None
    first, last = (by_policy(run, read_episodes(files[steps[index]])) for index in (before, after))
    earlier_rows = {row["problem"]: row for row in first}
    losses: list[tuple[float, float, Episode, Episode]] = []
    for later in last:
        earlier = earlier_rows.get(later["problem"])
        if earlier is not None:
            loss = _role_score(earlier, role) - _role_score(later, role)
            fell = (earlier["score"] or 0.0) - (later["score"] or 0.0)
            if max(fell, loss) > 0 and fell >= 0:
                losses.append((fell, loss, earlier, later))
    if not losses:
        return None
    *_, earlier, later = max(losses, key=lambda row: row[:2])
    return {
        "problem": shorten(str(later["problem"] if run.pays else later.get("text", ""))),
        "gold": shorten(str(later.get("gold", ""))),
        "before": _episode(earlier),
        "after": _episode(later),
        "steps": [steps[before], steps[after]],
    }


def _role_score(episode: Episode, role: str) -> float:
    scores = [call.get("role_score") for _, call in role_calls([episode], role)]
    values = [float(score) for score in scores if isinstance(score, (int, float))]
    return mean(values) if values else 0.0


def _episode(episode: Episode) -> Facts:
    answer = episode.get("answer")
    return {
        "score": episode.get("score"),
        "answer": None if answer is None else shorten(str(answer)),
        "calls": [
            {
                "agent": str(call["agent"]), "role": str(call["role"]),
                "reply": shorten(str(call["reply"])), "role_score": call.get("role_score"),
            }
            for call in episode["calls"]
        ],
    }  # fmt: skip
