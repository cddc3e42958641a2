"""Advantages beside a straightforward Python grouping and beside pandas: one run, interleaved.

    pip install flowzoo[bench]
    OMP_NUM_THREADS=1 python benchmarks/advantages.py [--rows 10000 100000 1000000] [--rounds 7]

The batch is ragged: eight episodes of a problem, of two to six calls by two roles, ids as rollouts
make them, rewards 0 or 1. flowzoo stores such a batch as `CallColumns` while episodes come in (ids
as dictionary codes, rewards as floats); what that costs a call is printed. Timed is everything from
the columns as stored to the results, the encoding of the group keys included:

* flowzoo: `compute(columns, preset)`. It always returns advantages, group flags and counts, and
  Dr. MAS's F_k and b_k; nothing is cached from call to call.
* Python: rows appended to the list of their (problem, role) in a dict, then mean and deviation per
  list. It gets its columns as lists of str and float for nothing.
* pandas, twice: a DataFrame of the same lists of str, and one of categoricals made of our own
  codes, which is the best that pandas can be given. Building the frame is timed, and also left out.

Results are asserted equal. In the first race Python and pandas return F_k and b_k as well; in the
others they are let off. Times are CPU seconds of one thread, so that a busy machine disturbs less;
medians over the rounds, with the spread of the ratios. The bars, 20 times Python and 3 times pandas
at the largest size, are on the first two races. The last race starts from `Call` records: there the
reading of Python objects, which nobody can avoid, is most of everybody's work.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from flowzoo.baselines.advantages.compute import CallColumns, compute
from flowzoo.envs.records import Call

EPS = 1e-6
Work = Callable[[], Any]


class Batch(NamedTuple):
    """One batch in every form that a contender takes."""

    calls: list[Call]
    columns: CallColumns
    problem: list[str]
    episode: list[str]
    role: list[str]
    reward: list[float]


def make_batch(rows: int) -> Batch:
    """`rows` calls: eight episodes a problem, two to six calls an episode."""
    rng, calls = random.Random(0), []
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
                truth=None, parts=parts, reward=score, state_hash="", prompts="",
            )  # fmt: skip
            calls.append(call)
        episode += 1
    del calls[rows:]
    return Batch(
        calls,
        CallColumns(calls),
        [call.problem for call in calls],
        [call.episode for call in calls],
        [call.role for call in calls],
        [call.reward for call in calls],
    )


# -- dr_mas: mean and deviation per problem and role ---------------------------------------------


def scale(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample deviation of two values or more."""
    mean = sum(values) / len(values)
    return mean, (sum((x - mean) ** 2 for x in values) / (len(values) - 1)) ** 0.5


def python_dr_mas(problem: list[str], role: list[str], reward: list[float]) -> list[float]:
    """Advantages by lists of rows in a dict."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row, key in enumerate(zip(problem, role, strict=True)):
        groups[key].append(row)
    out = [0.0] * len(reward)
    for rows in groups.values():
        if len(rows) > 1:
            mean, deviation = scale([reward[row] for row in rows])
            for row in rows:
                out[row] = (reward[row] - mean) / (deviation + EPS)
    return out


def python_records(calls: list[Call]) -> list[float]:
    """The same, reading the records."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row, call in enumerate(calls):
        groups[call.problem, call.role].append(row)
    out = [0.0] * len(calls)
    for rows in groups.values():
        if len(rows) > 1:
            mean, deviation = scale([calls[row].reward for row in rows])
            for row in rows:
                out[row] = (calls[row].reward - mean) / (deviation + EPS)
    return out


def python_grpo(problem: list[str], episode: list[str], reward: list[float]) -> list[float]:
    """(R - mean) / deviation over the problem's episodes, each once."""
    groups: dict[str, dict[str, float]] = defaultdict(dict)
    for key, name, value in zip(problem, episode, reward, strict=True):
        groups[key][name] = value
    scales = {key: scale(list(found.values())) for key, found in groups.items() if len(found) > 1}
    out = [0.0] * len(reward)
    for row, (key, value) in enumerate(zip(problem, reward, strict=True)):
        if key in scales:
            mean, deviation = scales[key]
            out[row] = (value - mean) / (deviation + EPS)
    return out


def python_roles(batch: Batch) -> dict[tuple[str, str], tuple[float, float]]:
    """F_k and b_k per problem and role; NaN where all episodes of the problem are equal."""
    episodes: dict[str, dict[str, float]] = defaultdict(dict)
    roles: dict[tuple[str, str], list[float]] = defaultdict(list)
    columns = (batch.problem, batch.episode, batch.role, batch.reward)
    for problem, episode, role, value in zip(*columns, strict=True):
        episodes[problem][episode] = value
        roles[problem, role].append(value)
    found = {}
    for key, values in roles.items():
        every = list(episodes[key[0]].values())
        mu, mu_k = sum(every) / len(every), sum(values) / len(values)
        variance = sum((x - mu) ** 2 for x in every) / len(every)
        variance_k = sum((x - mu_k) ** 2 for x in values) / len(values)
        if variance > 0:
            found[key] = (variance_k + (mu_k - mu) ** 2) / variance, (mu_k - mu) / variance**0.5
        else:
            found[key] = float("nan"), float("nan")
    return found


def frame(batch: Batch, form: str, names: Sequence[str]) -> pd.DataFrame:
    """The columns as a DataFrame: `str` from lists, `category` from our codes."""
    if form == "str":
        columns: dict[str, Any] = {name: getattr(batch, name) for name in names}
    else:
        columns = {
            name: pd.Categorical.from_codes(
                batch.columns.codes(name), categories=batch.columns.ids(name)
            )
            for name in names
        }
    return pd.DataFrame(columns | {"reward": batch.columns.numbers("reward")})


def frame_of_records(calls: list[Call]) -> pd.DataFrame:
    """A DataFrame read out of the records."""
    rows = [(call.problem, call.role, call.reward) for call in calls]
    return pd.DataFrame(rows, columns=["problem", "role", "reward"])


def pandas_dr_mas(table: pd.DataFrame) -> np.ndarray:
    """Advantages by groupby and transform."""
    groups = table.groupby(["problem", "role"], sort=False, observed=True)["reward"]
    scaled = (table.reward - groups.transform("mean")) / (groups.transform("std") + EPS)
    return scaled.fillna(0.0).to_numpy()


def pandas_grpo(table: pd.DataFrame) -> np.ndarray:
    """The same over the problem's episodes, each once."""
    episodes = table.drop_duplicates(["problem", "episode"])
    found = episodes.groupby("problem", sort=False, observed=True)["reward"].agg(["mean", "std"])
    spread = table[["problem"]].merge(found, left_on="problem", right_index=True, how="left")
    scaled = (table.reward - spread["mean"]) / (spread["std"] + EPS)
    return scaled.fillna(0.0).to_numpy()


def pandas_roles(table: pd.DataFrame) -> pd.DataFrame:
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


# -- measuring ------------------------------------------------------------------------------------


def seconds(work: Work) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def race(works: dict[str, Work], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of every contender in every round, interleaved."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            times[name].append(seconds(work))
    return times


def report(rows: int, times: dict[str, list[float]], ours: str) -> dict[str, float]:
    """Print medians and ratios to `ours`; returns the median ratios."""
    ratios = {}
    for name, found in times.items():
        each = sorted(other / own for other, own in zip(found, times[ours], strict=True))
        ratios[name] = statistics.median(each)
        said = "" if name == ours else f"{ratios[name]:7.1f}x  [{each[0]:.1f} .. {each[-1]:.1f}]"
        print(f"{rows:9,d}  {name:42s} {1e3 * statistics.median(found):9.2f} ms {said}")
    return ratios


def check(batch: Batch) -> None:
    """All contenders come to the same results."""
    dr_mas, grpo = compute(batch.columns, "dr_mas"), compute(batch.columns, "grpo")
    lists = (batch.problem, batch.role, batch.reward)
    close: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-9}
    np.testing.assert_allclose(dr_mas.values, python_dr_mas(*lists), **close)
    np.testing.assert_allclose(dr_mas.values, python_records(batch.calls), **close)
    np.testing.assert_allclose(
        grpo.values, python_grpo(batch.problem, batch.episode, batch.reward), **close
    )
    figures = np.array(list(python_roles(batch).values()))
    np.testing.assert_allclose(dr_mas.roles.inflation, figures[:, 0], **close)
    np.testing.assert_allclose(dr_mas.roles.shift, figures[:, 1], **close)
    for form in ("str", "category"):
        table = frame(batch, form, ("problem", "episode", "role"))
        np.testing.assert_allclose(dr_mas.values, pandas_dr_mas(table), **close)
        np.testing.assert_allclose(grpo.values, pandas_grpo(table), **close)
        role = pandas_roles(table)
        keys = zip(role.problem.astype(str), role.role.astype(str), strict=True)
        assert list(keys) == [(stat.problem, stat.role) for stat in dr_mas.roles]
        np.testing.assert_allclose(dr_mas.roles.inflation, role.F, **close)
        np.testing.assert_allclose(dr_mas.roles.shift, role.b, **close)


def contenders(batch: Batch) -> dict[str, dict[str, Work]]:
    """Title of a race -> its contenders; the first is ours."""
    three, two = ("problem", "episode", "role"), ("problem", "role")
    lists = (batch.problem, batch.role, batch.reward)
    coded = frame(batch, "category", three)

    def ours(preset: str) -> dict[str, Work]:
        return {f"flowzoo {preset}": lambda: compute(batch.columns, preset)}

    def both(table: Callable[[], pd.DataFrame]) -> Work:
        def work() -> None:
            found = table()
            pandas_dr_mas(found)
            pandas_roles(found)

        return work

    return {
        "dr_mas, same results (advantages, F_k, b_k)": ours("dr_mas")
        | {
            "Python grouping": lambda: (python_dr_mas(*lists), python_roles(batch)),
            "pandas, str": both(lambda: frame(batch, "str", three)),
            "pandas, categorical": both(lambda: frame(batch, "category", three)),
            "pandas, categorical, frame ready": both(lambda: coded),
        },
        "dr_mas, the others without F_k and b_k": ours("dr_mas")
        | {
            "Python grouping": lambda: python_dr_mas(*lists),
            "pandas, str": lambda: pandas_dr_mas(frame(batch, "str", two)),
            "pandas, categorical": lambda: pandas_dr_mas(frame(batch, "category", two)),
            "pandas, categorical, frame ready": lambda: pandas_dr_mas(coded),
        },
        "grpo, the others without F_k and b_k": ours("grpo")
        | {
            "Python grouping": lambda: python_grpo(batch.problem, batch.episode, batch.reward),
            "pandas, str": lambda: pandas_grpo(frame(batch, "str", three[:2])),
            "pandas, categorical": lambda: pandas_grpo(frame(batch, "category", three[:2])),
            "pandas, categorical, frame ready": lambda: pandas_grpo(coded),
        },
        "dr_mas from Call records: reading them is most of the work": {
            "flowzoo dr_mas": lambda: compute(batch.calls, "dr_mas"),
            "Python grouping": lambda: python_records(batch.calls),
            "pandas, str": lambda: pandas_dr_mas(frame_of_records(batch.calls)),
        },
    }


def main() -> None:
    """Run every race at every size, then print the bars and the cost per row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print(f"numpy {np.__version__}, pandas {pd.__version__}; CPU time of one thread, medians")
    print("ratio to flowzoo [smallest .. largest over the rounds]")
    per_row: list[tuple[int, float]] = []
    bars: dict[str, dict[str, float]] = {}
    for rows in options.rows:
        batch = make_batch(rows)
        check(batch)
        storing = min(seconds(lambda batch=batch: CallColumns(batch.calls)) for _ in range(3))
        print(
            f"\n{rows:,d} rows; storing all 18 columns costs {1e6 * storing / rows:.2f} µs a call"
        )
        for title, works in contenders(batch).items():
            print(title)
            times = race(works, max(3, options.rounds if rows < 10**6 else options.rounds // 2))
            ratios = report(rows, times, next(iter(works)))
            if "records" not in title:
                bars[title] = ratios
            if "same results" in title:
                per_row.append((rows, 1e9 * statistics.median(next(iter(times.values()))) / rows))
    print("\nflowzoo's cost: " + ", ".join(f"{ns:.0f} ns a row at {n:,d}" for n, ns in per_row))
    for title, ratios in bars.items():
        python, frames = (
            ratios["Python grouping"],
            (ratios["pandas, str"], ratios["pandas, categorical"]),
        )
        print(f"{title}: {python:.1f}x Python, {min(frames):.1f}x pandas at its best")


if __name__ == "__main__":
    main()
