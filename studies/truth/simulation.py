"""Runs whose truth is known: what the verdicts of this package are tested and calibrated on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from flowzoo.aliases import Floats
from flowzoo.baselines.diagnostics.cliff import LAST, find_cliff

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)


def course(drop: float, evaluations: int, accuracy: float = 0.6) -> Floats:
    """Expected accuracies of a run: (evaluations,).

    It rises to `accuracy` in its first half, stays, and has fallen by `drop` for the last quarter.
    """
    rise = np.linspace(accuracy - 0.2, accuracy, evaluations // 2)
    fallen = max(LAST, evaluations // 4)
    flat = np.full(evaluations - len(rise) - fallen, accuracy)
    return np.concatenate([rise, flat, np.full(fallen, accuracy - drop)])


def simulate(
    accuracy: npt.ArrayLike, items: int, rng: np.random.Generator, *, spread: float = 1.0
) -> Floats:
    """Scores of a run whose expected accuracy at each evaluation is given: (evaluations, items).

    An item's log-odds differ from the mean by a normal deviate of scale `spread`, the same at every
    evaluation; each score is then drawn independently.
    """
    return simulate_seeds([accuracy], items, rng, spread=spread)[0]


def simulate_seeds(
    accuracies: Sequence[npt.ArrayLike],
    items: int,
    rng: np.random.Generator,
    *,
    spread: float = 1.0,
) -> list[Floats]:
    """The same of several seeds on the same items, one expected course each."""
    difficulty = spread * rng.standard_normal(items)
    found: list[Floats] = []
    for accuracy in accuracies:
        odds = _odds(np.asarray(accuracy, np.float64), spread)
        chance = _logistic(odds[:, None] + difficulty)
        found.append((rng.random(chance.shape) < chance).astype(np.float64))
    return found


def _odds(accuracy: Floats, spread: float) -> Floats:
    """Log-odds whose logistic mean over normal deviates of scale `spread` is `accuracy`."""
    nodes, weights = spread * _NODES, _WEIGHTS / _WEIGHTS.sum()
    odds = np.log(accuracy / (1 - accuracy))
    for _ in range(8):  # Newton's method; the mean is increasing and nearly linear here
        chance = _logistic(odds[:, None] + nodes)
        slope = (chance * (1 - chance)) @ weights
        odds = odds - (chance @ weights - accuracy) / slope
    return odds


def _logistic(odds: Floats) -> Floats:
    return 1 / (1 + np.exp(-odds))


def power(
    drop: float,
    items: int,
    evaluations: int,
    *,
    simulations: int = 200,
    accuracy: float = 0.6,
    seeds: int = 1,
    seed: int = 0,
) -> float:
    """Share of simulated cells with a true fall of `drop` (see `course`) in which a cliff is found.

    A drop of 0 gives the false-positive rate of a run that rises and stays.
    """
    rng = np.random.default_rng(seed)
    truth = [course(drop, evaluations, accuracy)] * seeds
    found = 0
    for number in range(simulations):
        scores = simulate_seeds(truth, items, rng)
        verdict = find_cliff(scores, range(evaluations), resamples=400, seed=number)
        found += verdict.verdict == "cliff"
    return found / simulations


def simulate_gram(means: npt.ArrayLike, noise: float, blocks: int, rng: np.random.Generator,
                  size: int = 200) -> Floats:  # fmt: skip
    """A probe (`amplification`) of slots with given expected gradients, (slots, blocks, same).

    `means` is (slots, any), the expected gradients in their own coordinates; `noise` is the norm of
    the noise of a slot's mean gradient over all `blocks`, spread over `size` dimensions.
    """
    wanted = np.asarray(means, np.float64)
    slots, known = wanted.shape
    gradients = noise * math.sqrt(blocks / size) * rng.standard_normal((slots, blocks, size))
    gradients[:, :, :known] += wanted[:, None]
    flat = gradients.reshape(slots * blocks, size)
    return (flat @ flat.T).reshape(slots, blocks, slots, blocks)


class SimulatedRun(NamedTuple):
    """The arguments of `find_captures`, in order."""

    mass: dict[str, list[float]]
    tokens: dict[str, list[float]]
    steps: list[int]
    before: dict[str, Floats]
    after: dict[str, Floats]


def simulate_capture(
    excess: float,
    moved: float,
    rng: np.random.Generator,
    *,
    noise: float = 0.05,
    apart: float = 1.0,
    updates: int = 100,
    replies: int = 200,
    voters: int = 3,
) -> SimulatedRun:
    """Some `voters` (`generator`, three of them) and an aggregator under one policy.

    Gradients are noise of equal size per call, so three voters have sqrt(3) / (1 + sqrt(3)) = 0.63
    of the mass and 0.75 of the tokens. From a fifth of the run on their mass share is their token
    share + `excess` if that is not 0. Shares have noise of deviation `noise`, correlated over about
    ten updates. Aggregators' replies begin `apart` from the voters' (0: alike) and have moved by
    `moved` of the way to them.
    """
    steps = list(range(1, updates + 1))
    planted = (np.arange(updates) >= updates // 5) & (excess > 0)
    tokens, root = voters / (1 + voters), math.sqrt(voters)
    level = np.where(planted, tokens + excess, root / (1 + root))
    share = np.clip(level + noise * _slow_noise(updates, rng), 0, 1)
    form = np.array([0.9, 0.0, 0.0, 0.3, 3.0])
    start = form + apart * np.array([-0.7, 0.0, 0.0, -0.2, 1.0])
    end = start + moved * (form - start)
    return SimulatedRun(
        mass={"generator": share.tolist(), "aggregator": (1 - share).tolist()},
        tokens={"generator": [tokens] * updates, "aggregator": [1 - tokens] * updates},
        steps=steps,
        before={"generator": _replies(form, replies, rng),
                "aggregator": _replies(start, replies, rng)},
        after={"generator": _replies(form, replies, rng),
               "aggregator": _replies(end, replies, rng)},
    )  # fmt: skip


def _slow_noise(count: int, rng: np.random.Generator) -> Floats:
    """Normal deviates, each with a correlation of 0.9 to the one before."""
    found = rng.standard_normal(count)
    for place in range(1, count):
        found[place] = 0.9 * found[place - 1] + math.sqrt(1 - 0.81) * found[place]
    return found


def _replies(means: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Features (`forms.FEATURES`) of replies with these means: (count, 5)."""
    flags = rng.random((count, 4)) < means[:4]
    return np.column_stack([flags, means[4] + 0.3 * rng.standard_normal(count)]).astype(np.float64)


def simulate_team(
    problems: int,
    rng: np.random.Generator,
    *,
    voters: int = 3,
    skill: float = 0.5,
    alone: float = 0.0,
    place: int | None = None,
    constant: bool = False,
    copies: bool = False,
) -> list[dict[str, Any]]:
    """Saved episodes of `voters` generators and an aggregator, one of each problem.

    A generator is right with chance `skill`. The aggregator chooses at random, or always `place`
    (from 1); where no candidate is right it answers by itself, right with chance `alone`.
    `constant`: generators say the same to every problem; `copies`: the aggregator repeats the first
    one.
    """
    found: list[dict[str, Any]] = []
    for number in range(problems):
        right = rng.random(voters) < skill
        chosen = int(rng.integers(voters)) if place is None else place - 1
        score = float(right[chosen] if right.any() else rng.random() < alone)
        calls = [
            _said("generator", slot, 0, right[slot], "same" if constant else f"{number} {slot}")
            for slot in range(voters)
        ]
        text = calls[0]["reply"] if copies else f"choice {number}: {chosen + 1}"
        calls.append(_said("aggregator", 0, 1, score > 0, text))
        facts = {
            "any_correct": bool(right.any()),
            "contested": bool(right.any() and not right.all()),
            "chosen": chosen,
        }
        found.append({"problem": str(number), "score": score, "facts": facts, "calls": calls})
    return found


def _said(role: str, slot: int, phase: int, right: bool, reply: str) -> dict[str, Any]:
    """A saved call with what diagnostics read of it."""
    return {
        "role": role, "agent": f"{role}_{slot}", "slot": slot, "phase": phase, "turn": 0,
        "role_score": float(right), "reply": reply, "strict": True, "lenient": True,
    }  # fmt: skip
