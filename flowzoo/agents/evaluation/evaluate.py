"""Evaluating a workflow under given policies, resumable, with every episode saved."""

import asyncio
import json
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flowzoo.agents.evaluation.intervals import evaluation_intervals
from flowzoo.agents.evaluation.protocol import protocol_of
from flowzoo.agents.evaluation.summary import KIND, is_evaluation, summarize
from flowzoo.agents.evaluation.usage import Meter, Seconds, usage_summary
from flowzoo.agents.identity import compare_records
from flowzoo.agents.openai.policy import OpenAIPolicy
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout, append_row
from flowzoo.envs import Call, EpisodeRecord, Problem, Workflow
from flowzoo.envs.records import Judgment, Usage, json_line
from flowzoo.envs.script import TokenSpan
from flowzoo.errors import UsageError
from flowzoo.files import (
    lock_folder,
    read_json,
    read_rows,
    replace_text,
    unlock_folder,
    write_json,
    writing,
)
from flowzoo.provenance import describe_run


def call_from_json(row: Mapping[str, Any]) -> Call:
    """The inverse of `Call.to_json` after a round trip through JSON."""
    lists = ("messages", "prompt_ids", "output_ids", "logps")
    values: dict[str, Any] = {**row, **{name: tuple(row[name]) for name in lists}}
    if "tools" in row:
        values["tools"] = tuple(row["tools"])
    if "writers" in row:
        values["writers"] = tuple(TokenSpan(*span) for span in row["writers"])
    if row.get("usage") is not None:
        values["usage"] = Usage(**row["usage"])
    return Call(**values)


def record_from_json(row: Mapping[str, Any]) -> EpisodeRecord:
    """The inverse of `EpisodeRecord.to_json` after a round trip through JSON."""
    values: dict[str, Any] = {**row, "calls": tuple(map(call_from_json, row["calls"]))}
    if "judgments" in row:
        verdicts = (Judgment(**verdict) for verdict in row["judgments"])
        values["judgments"] = tuple(
            verdict._replace(messages=tuple(verdict.messages)) for verdict in verdicts
        )
    return EpisodeRecord(**values)


def read_episodes(path: Path) -> list[EpisodeRecord]:
    """The complete lines of an `episodes.jsonl`; a torn last line is dropped.

    Raises:
        DataError: another line is not an episode; the message names it.
    """
    return read_rows(path, record_from_json, "an episode")


ANSWERS = "answers.sqlite"
"""Answers of endpoints in the directory of an evaluation that is not finished."""


class EvaluationDirectory:
    """The output directory of an evaluation: settings, episodes, their latencies, summary."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, object],
        grading: Mapping[str, object] = MappingProxyType({}),
        grows: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Open or create `folder`.

        Args:
            folder: the directory.
            settings: what decides the numbers; a resumed evaluation must have the same.
            grading: what answers are graded with (`Workflow.grading`), for the record.
            grows: settings that may be larger than in the existing evaluation, each with its value
                for None.

        Raises:
            UsageError: it holds an evaluation with other settings, or something else; or another
                process is evaluating in it.
        """
        self.folder = folder
        self.path, self._latencies = folder / "episodes.jsonl", folder / "latencies.jsonl"
        if (folder / "run.json").exists() and not is_evaluation(folder):
            raise UsageError(
                f"{folder} holds no evaluation, but something else: choose another --out"
            )
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        # Before anything is read: another process may be writing. Unlocked as well when nothing
        # refers to this object any more: a notebook's cell may run twice.
        lock = lock_folder(folder, "evaluating")
        self._lock = weakref.finalize(self, unlock_folder, lock, os.getpid())
        try:
            self._settle(settings, grading, grows)
            self.finished = read_episodes(self.path)
            self.seconds: dict[str, Seconds] = dict(
                read_rows(self._latencies, read_latencies, "the latencies of an episode")
            )
            """Latencies of the calls of an episode, by episode."""
        except BaseException:
            self.close()
            raise
        rows = [json_line(record.to_json()) for record in self.finished]
        replace_text(self.path, "".join(rows))
        if self._latencies.exists():
            timed = self.seconds.items()
            rows = [json_line({"episode": key, "seconds": row}) for key, row in timed]
            replace_text(self._latencies, "".join(rows))

    def _settle(
        self,
        settings: Mapping[str, object],
        grading: Mapping[str, object],
        grows: Mapping[str, int],
    ) -> None:
        folder = self.folder
        plain = json.loads(json.dumps(dict(settings), default=str))
        path = folder / "run.json"
        if path.exists():
            before = read_json(path)["settings"]
            models, owner = before.pop("models", {}), f"the evaluation in {folder}"
            compare_records(models, plain.get("models", {}), owner)
            names = {*before, *plain} - {"models"}
            changed = sorted(k for k in names if before.get(k) != plain.get(k))
            for name in sorted(grows.keys() & {*changed}):
                old, new = (values.get(name) or grows[name] for values in (before, plain))
                if new < old:
                    raise UsageError(
                        f"{folder} holds an evaluation with {name} {old}, which is more than "
                        f"{new}: repeat it with {old} or more, or choose another --out"
                    )
                changed.remove(name)
            if changed:
                raise UsageError(
                    f"{folder} holds an evaluation with other settings ({', '.join(changed)}): "
                    "choose another --out, or repeat its settings to resume it"
                )
        record = {"kind": KIND, "settings": plain, "grading": dict(grading)}
        write_json(path, record | {"provenance": describe_run()})

    def close(self) -> None:
        """Let other processes write into the folder."""
        self._lock()

    def add(self, record: EpisodeRecord, seconds: Seconds = ()) -> None:
        """Append one episode, after the latencies of its calls if any was measured."""
        if any(second is not None for second in seconds):
            append_row(self._latencies, {"episode": record.episode, "seconds": seconds})
        self.finished.append(record)
        append_row(self.path, record.to_json())

    def save_summary(self, summary: Mapping[str, object]) -> None:
        """Write the summary; episodes may be added afterwards."""
        write_json(self.folder / "summary.json", summary)


def read_latencies(row: Mapping[str, Any]) -> tuple[str, Seconds]:
    """Episode and seconds of a line of `latencies.jsonl`."""
    return row["episode"], tuple(row["seconds"])


@contextmanager
def answers_kept(policy_map: PolicyMap, folder: Path | None) -> Iterator[None]:
    """Keep the answers of endpoints in `folder`: a stopped evaluation pays for none twice."""
    policies = [
        policy
        for policy in policy_map.policies.values()
        if folder and isinstance(policy, OpenAIPolicy) and policy.answers is None
    ]
    for policy in policies:
        policy.answers = folder and folder / ANSWERS
    try:
        yield
    finally:
        for policy in policies:
            policy.answers = None
            asyncio.run(policy.close())


def evaluate(
    workflow: Workflow,
    policy_map: PolicyMap,
    problems: Sequence[Problem],
    *,
    samples: int = 1,
    seed: int = 0,
    store: EvaluationDirectory | None = None,
    on_episode: Callable[[EpisodeRecord], None] = lambda record: None,
    meter: Meter | None = None,
) -> tuple[list[EpisodeRecord], dict[str, Any]]:
    """Play `samples` episodes of every problem; returns the records and their summary.

    Episodes with an unknown verdict are no records: the summary has their reasons as `unknown`, and
    a store has them played again by the next call. With a store the summary is written with its
    protocol; another call with more samples plays what is missing.

    Raises:
        UsageError: `samples` below 1.
        BudgetError: the `meter` has a budget, and it is used up.
    """
    if samples < 1:
        raise UsageError(f"`samples` must be >= 1, got {samples}")
    jobs = [EpisodeJob(problem, sample) for problem in problems for sample in range(samples)]
    done = {record.episode: record for record in store.finished} if store else {}
    for record in done.values():
        on_episode(record)
    meter = meter or Meter()
    seconds = store.seconds if store else {}

    def finished(record: EpisodeRecord) -> None:
        seconds[record.episode] = meter.seconds(record)
        if store is not None:
            store.add(record, seconds[record.episode])
        on_episode(record)

    rollout = Rollout(
        workflow,
        meter.watch(policy_map, list(done.values())),
        seed=seed,
        # The agents' batches decide: a judge's are of no consequence for their replies.
        deterministic=all(
            policy_map.policy(name).batching == "static" for name in policy_map.entries
        ),
        on_error="ungraded",
        failures=store.folder / "failures.jsonl" if store else None,
        on_episode=finished,
    )
    with answers_kept(policy_map, store.folder if store else None):
        for record in rollout.run([job for job in jobs if job.key not in done]):
            done[record.episode] = record
    records = [done[job.key] for job in jobs if job.key in done]
    summary = {
        **summarize(records),
        "intervals": evaluation_intervals(records),
        "usage": usage_summary(records, seconds, meter.prices, meter.judge_usage()),
    }
    unknown = {job.key: rollout.unknown[job.key] for job in jobs if job.key not in done}
    if unknown:
        summary["unknown"] = unknown
    if store is not None:
        if not unknown:
            (store.folder / ANSWERS).unlink(missing_ok=True)
        protocol = protocol_of(workflow, policy_map, problems, samples=samples, seed=seed)
        store.save_summary({**summary, "protocol": protocol})
    return records, summary
