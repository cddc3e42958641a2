"""Advantages of a batch, compared with a plain Python grouping and pandas.

The batch is ragged: eight episodes of a problem, of two to six calls by two roles, rewards 0 or 1.
flowzoo stores such a batch as `CallColumns` once (ids as codes, rewards as
floats). Timed is everything from the columns as stored to advantages, F_k and b_k of Dr. MAS:

* flowzoo: `compute(columns, "dr_mas")`, in NumPy; nothing is cached from call to call.
* Python: rows appended to the list of their (problem, role), then mean and deviation per list.
* pandas: a DataFrame of categoricals made of our own codes, the best that pandas can be given; a
  second one is built before the clock starts.

All results are compared before anything is timed.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness.record import Row
from benchmarks.harness.timing import Contender, Workload, race
from flowzoo.baselines.advantages.columns import CallColumns
from flowzoo.baselines.advantages.compute import compute
from flowzoo.envs.records import Call
from flowzoo.extras import is_installed

EPS = 1e-6
SIZES = (10_000, 100_000)


class GroupedBatch(NamedTuple):
    """One batch in every form that a contender takes."""

    columns: CallColumns
    problem: list[str]
    episode: list[str]
    role: list[str]
    reward: list[float]


def make_batch(rows: int) -> GroupedBatch:
    """`rows` calls: eight episodes a problem, two to six calls an episode."""
    rng, calls = random.Random(0), list[Call]()
    episode = 0
    while len(calls) < rows:
        problem, key = f"math/train/0/{episode // 8}", f"math/train/0/{episode // 8}#{episode}"
        score = float(rng.random() < 0.4)
        parts = {"team": score}
        for turn in range(rng.randint(2, 6)):
            role = ("generator", "evaluator")[turn % 2]
            call = Call(
                problem=problem, episode=key, agent=f"{role}_0", role=role, slot=0,
                turn=turn // 2, phase=turn, messages=(), reply="", strict=True, lenient=True,
                role_score=None, parts=parts, reward=score, state_hash="", prompts="",
            )  # fmt: skip
            calls.append(call)
        episode += 1
    del calls[rows:]
    names = ("problem", "episode", "role", "reward")
    lists = ([getattr(call, name) for call in calls] for name in names)
    return GroupedBatch(CallColumns(calls), *lists)


def scale(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample deviation of two values or more."""
    mean = sum(values) / len(values)
    return mean, (sum((x - mean) ** 2 for x in values) / (len(values) - 1)) ** 0.5


def python_values(batch: GroupedBatch) -> list[float]:
    """Advantages by lists of rows in a dict."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row, key in enumerate(zip(batch.problem, batch.role, strict=True)):
        groups[key].append(row)
    out = [0.0] * len(batch.reward)
    for rows in groups.values():
        if len(rows) > 1:
            mean, deviation = scale([batch.reward[row] for row in rows])
            for row in rows:
                out[row] = (batch.reward[row] - mean) / (deviation + EPS)
    return out


def python_roles(batch: GroupedBatch) -> list[tuple[float, float]]:
    """F_k and b_k per problem and role; NaN where all episodes of the problem are equal."""
    episodes: dict[str, dict[str, float]] = defaultdict(dict)
    roles: dict[tuple[str, str], list[float]] = defaultdict(list)
    for problem, episode, role, value in zip(*batch[1:], strict=True):
        episodes[problem][episode] = value
        roles[problem, role].append(value)
    found = []
    for key, values in roles.items():
        every = list(episodes[key[0]].values())
        mu, mu_k = sum(every) / len(every), sum(values) / len(values)
        variance = sum((x - mu) ** 2 for x in every) / len(every)
        variance_k = sum((x - mu_k) ** 2 for x in values) / len(values)
        inflation = (variance_k + (mu_k - mu) ** 2) / variance if variance else float("nan")
        found.append((inflation, (mu_k - mu) / variance**0.5 if variance else float("nan")))
    return found


def frame(batch: GroupedBatch) -> Any:
    """The columns as a DataFrame of categoricals."""
    import pandas

    from_codes: Any = pandas.Categorical.from_codes  # which takes more than its types say
    columns = {
        name: from_codes(batch.columns.codes(name), categories=batch.columns.ids(name))
        for name in ("problem", "episode", "role")
    }
    return pandas.DataFrame(columns | {"reward": batch.columns.numbers("reward")})


def pandas_values(table: Any) -> Any:
    """Advantages by groupby and transform."""
    groups = table.groupby(["problem", "role"], sort=False, observed=True)["reward"]
    scaled = (table.reward - groups.transform("mean")) / (groups.transform("std") + EPS)
    return scaled.fillna(0.0).to_numpy()


def pandas_roles(table: Any) -> Any:
    """F_k and b_k per problem and role."""
    episodes = table.drop_duplicates(["problem", "episode"])
    whole = episodes.groupby("problem", sort=False, observed=True)["reward"].agg(["mean", "var"])
    count = episodes.groupby("problem", sort=False, observed=True)["reward"].size()
    groups = table.groupby(["problem", "role"], sort=False, observed=True)["reward"]
    role = groups.agg(["mean", "var", "size"]).reset_index()
    mu = role.problem.map(whole["mean"]).astype(float)
    variance = role.problem.map(whole["var"] * (count - 1) / count).astype(float)
    variance = variance.where(variance > 0)
    variance_k = (role["var"] * (role["size"] - 1) / role["size"]).fillna(0.0)
    role["F"] = (variance_k + (role["mean"] - mu) ** 2) / variance
    role["b"] = (role["mean"] - mu) / variance**0.5
    return role


def check(batch: GroupedBatch) -> None:
    """All contenders come to the same results.

    Raises:
        AssertionError: they do not.
    """
    close: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-9}
    ours = compute(batch.columns, "dr_mas")
    figures = np.array(python_roles(batch))
    np.testing.assert_allclose(ours.values, python_values(batch), **close)
    np.testing.assert_allclose(ours.roles.inflation, figures[:, 0], **close)
    np.testing.assert_allclose(ours.roles.shift, figures[:, 1], **close)
    if is_installed("pandas"):
        table = frame(batch)
        np.testing.assert_allclose(ours.values, pandas_values(table), **close)
        np.testing.assert_allclose(ours.roles.inflation, pandas_roles(table).F, **close)


def measure(workload: Workload) -> Iterator[Row]:
    """A row a size."""
    for size in SIZES:
        rows = workload.scaled(size, 100)
        batch = make_batch(rows)
        check(batch)

        def counted(work: Callable[[], Any], rows: int = rows) -> Callable[[], int]:
            def run() -> int:
                work()
                return rows

            return run

        def python(batch: GroupedBatch = batch) -> None:
            python_values(batch)
            python_roles(batch)

        def grouped(table: Any) -> None:
            pandas_values(table)
            pandas_roles(table)

        works: dict[str, Callable[[], Any]] = {
            "flowzoo": lambda batch=batch: compute(batch.columns, "dr_mas"),
            "Python": python,
        }
        absent: dict[str, str] = {}
        if is_installed("pandas"):
            ready = frame(batch)
            works["pandas"] = lambda batch=batch: grouped(frame(batch))
            works["pandas, frame ready"] = lambda ready=ready: grouped(ready)
        else:
            absent["pandas"] = "not installed"
        found = race(
            [Contender(name, counted(work)) for name, work in works.items()], workload.rounds
        )
        yield {"case": f"{rows:,} calls", "unit": "call", "absent": absent, **found}
