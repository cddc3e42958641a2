"""Run directories with planted courses: real files, as a training run writes them, in moments."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowzoo.agents.evaluation.evaluate import read_episodes
from flowzoo.agents.evaluation.intervals import evaluation_intervals
from flowzoo.agents.evaluation.summary import summarize
from flowzoo.agents.evaluation.usage import usage_summary
from flowzoo.baselines.report.reading import read_runs
from flowzoo.baselines.run.directory import plain
from flowzoo.baselines.run.reading import RunData
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.cli import main
from flowzoo.envs.records import Call, EpisodeRecord
from studies.truth.simulation import simulate

STEADY = (0.45, 0.52, 0.58, 0.62, 0.64, 0.65, 0.65, 0.65)


@dataclass(frozen=True)
class Plan:
    """A planted run; accuracies are those of the team at each evaluation."""

    workflow: str = "voting"
    task: str = "math"
    sharing: tuple[str, ...] = ("shared",)
    algorithm: str = "grpo"
    seed: int = 0
    course: Sequence[float] = STEADY
    items: int = 200
    every: int = 10
    saved: int = 10**6
    """Episodes written per evaluation."""
    gradients: bool = False
    captured: bool = False
    """The generators take the gradient mass, and the aggregator comes to reply as they do."""
    unread: float = 0.0
    """Share of the generators' replies that cannot be read after the peak."""
    finished: bool = True
    aligned: float = 1.0
    """Cosine of the generators' expected gradients in probes."""
    replies: tuple[str, ...] = ()
    """Texts that replies are taken from in turn, instead of plain ones."""


@pytest.fixture(scope="session")
def make_run() -> Callable[..., Path]:
    """`make_run(folder, **plan)`: a run directory; returns the folder."""
    return plant


@pytest.fixture(scope="session")
def matrix_runs(
    make_run: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> list[RunData]:
    """Shared (steady) and isolated (falling) voting and a weaker single agent, three seeds each."""
    root = tmp_path_factory.mktemp("matrix")
    falling = (0.45, 0.60, 0.70, 0.70, 0.50, 0.42, 0.40, 0.40)
    for seed in range(3):
        common = {"seed": seed, "items": 150}
        make_run(root / "voting-shared" / f"seed-{seed}", gradients=True, **common)
        isolated = {"sharing": ("isolated",), "course": falling}
        make_run(root / "voting-isolated" / f"seed-{seed}", **isolated, **common)
        weak = (0.3,) * 6
        make_run(root / "single" / f"seed-{seed}", workflow="single", course=weak, **common)
    return read_runs([root])


@pytest.fixture(scope="session")
def make_evaluation() -> Callable[..., Path]:
    """`make_evaluation(folder, ...)`: the directory of an evaluation; returns the folder."""
    return plant_evaluation


def plant_evaluation(
    folder: Path,
    *,
    n: int = 30,
    samples: int = 1,
    accuracy: float = 0.6,
    replies: Sequence[str] = (),
    arguments: Sequence[str] = ("--options", "level=1-3"),
) -> Path:
    """A real evaluation of a script, with other texts, token counts and seconds.

    `replies` follow the script's own, one after the other. Every seventh reply of the generators is
    unreadable, every eleventh was cut off.
    """
    args = ["--policy", f"scripted:{accuracy}", "--n", str(n), "--samples", str(samples)]
    assert main(["eval", "voting", *args, *arguments, "--out", str(folder)]) == 0
    path, summary_path = folder / "episodes.jsonl", folder / "summary.json"
    episodes = [json.loads(line) for line in path.read_text().splitlines()]
    seconds = {}
    for number, episode in enumerate(episodes):
        for slot, call in enumerate(episode["calls"]):
            call["reply"] += "".join(f"\n{reply}" for reply in replies)
            generates = call["role"] == "generator"
            call |= {"strict": not (generates and (number + slot) % 7 == 0)}
            call |= {"finish": "length" if generates and (number + slot) % 11 == 0 else "stop"}
            call |= {"usage": {"prompt": 40 + slot, "output": 10 + (7 * number + slot) % 90}}
        seconds[episode["episode"]] = [0.25 * (slot + 1) for slot in range(len(episode["calls"]))]
    path.write_text("".join(json.dumps(episode) + "\n" for episode in episodes))
    rows = [json.dumps({"episode": name, "seconds": row}) for name, row in seconds.items()]
    (folder / "latencies.jsonl").write_text("\n".join(rows) + "\n")
    records = read_episodes(path)
    summary = json.loads(summary_path.read_text()) | summarize(records)
    summary |= {"intervals": evaluation_intervals(records)}
    summary |= {"usage": usage_summary(records, seconds, {})}
    summary_path.write_text(json.dumps(summary))
    return folder


def plant(folder: Path, **fields: Any) -> Path:
    plan = Plan(**fields)
    rng = np.random.default_rng(1000 + plan.seed)
    (folder / "transcripts").mkdir(parents=True)
    config = TrainConfig(
        workflow=plan.workflow, task=plan.task, sharing=plan.sharing, algorithm=plan.algorithm,
        seed=plan.seed, out=str(folder), steps=plan.every * (len(plan.course) - 1),
        eval_problems=plan.items, eval_every=plan.every, samples=8,
    )  # fmt: skip
    provenance = {"command": ["flowzoo", "train"], "python": "3.11", "versions": {"numpy": "2"}}
    record = {"settings": asdict(config), "grading": {"math": "sympy"}, "provenance": provenance}
    (folder / "run.json").write_text(json.dumps(record))
    scores = simulate(plan.course, plan.items, rng)
    rows = [_row(plan, step, scores, rng) for step in range(plan.every * (len(scores) - 1) + 1)]
    with (folder / "metrics.jsonl").open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    for place, level in enumerate(scores):
        _save(folder, "eval", place * plan.every, _episodes(plan, place, level, rng))
        if place:
            trained = _with_advantages(_episodes(plan, place, level[:16], rng))
            _save(folder, "train", place * plan.every, trained)
    if plan.finished:
        (folder / "summary.json").write_text(json.dumps(_summary(plan)))
    return folder


def _roles(plan: Plan) -> dict[str, int]:
    return {"solver": 1} if plan.workflow == "single" else {"generator": 3, "aggregator": 1}


def _summary(plan: Plan) -> dict[str, Any]:
    alone = plan.sharing == ("isolated",)
    protocol = {
        "split": "validation", "problems": plan.items, "samples": 1, "temperature": 1.0,
        "max_tokens": 64, "prompts": f"{plan.workflow}_v0@1:0123abcd",
    }  # fmt: skip
    policies = {role: role if alone else "shared" for role in _roles(plan)}
    steps = plan.every * (len(plan.course) - 1)
    updates = dict.fromkeys(policies.values(), steps)
    return {
        "workflow": f"{plan.workflow}_v0", "policies": policies, "protocol": protocol,
        "policy_updates": updates,
    }  # fmt: skip


def _policy(plan: Plan, role: str) -> str:
    return role if plan.sharing == ("isolated",) else "shared"


def _row(plan: Plan, step: int, scores: Any, rng: np.random.Generator) -> dict[str, Any]:
    """Metrics of one step; what is not planted is plausible."""
    place, rest = divmod(step, plan.every)
    level = float(np.interp(step, [plan.every * n for n in range(len(scores))], plan.course))
    row: dict[str, Any] = {"step": step, "tokens/total": 900 * step, "time/total": 2.5 * step}
    if not rest:
        row |= {"eval/reward/mean": float(scores[place].mean())}
        row |= {"eval/scores": scores[place].tolist(), "eval/fact/contested": 0.3}
        row |= {"eval/share/any_correct": level, "eval/share_of/any_correct": plan.items}
        row |= _role_row(plan, "eval/", level, place, rng)
    if step:
        noisy = float(np.clip(level + rng.normal(0, 0.06), 0, 1))
        row |= {"reward/mean": noisy, "group/count": 16, "group/zero_variance": 4}
        row |= _role_row(plan, "", noisy, place, rng)
        row |= {"learn/loss/shared": rng.normal(0, 0.05), "learn/grad_norm/shared": 0.4}
        row |= {"learn/entropy/shared": 1.2 - level, "perf/tok_s": 800.0, "learn/ess/shared": 0.99}
        row |= {f"version/{_policy(plan, role)}": step - 1 for role in _roles(plan)}
        row |= {f"grad/spike/{_policy(plan, role)}": 0.0 for role in _roles(plan)}
        if plan.gradients:
            row |= _gradients(plan, step, rng)
    return row


def _role_row(
    plan: Plan, start: str, level: float, place: int, rng: np.random.Generator
) -> dict[str, float]:
    row: dict[str, float] = {}
    for role, count in _roles(plan).items():
        row |= {
            f"{start}role_score/{role}": float(np.clip(level + rng.normal(0, 0.02), 0, 1)),
            f"{start}reward/{role}": level,
            f"{start}strict/{role}": 1 - plan.unread * _late(plan, place),
            f"{start}lenient/{role}": 1.0,
            f"{start}tokens/{role}": 12.0 + 4 * level,
            f"{start}truncated/{role}": 0.01,
            f"{start}calls/{role}": 128 * count,
        }
        if not start:
            row |= {f"mu_k/{role}": level, f"sigma_k/{role}": 0.4 - 0.2 * level}
            row |= {f"inflation/{role}": 1.1, f"shift/{role}": 0.05}
    return row


def _gradients(plan: Plan, step: int, rng: np.random.Generator) -> dict[str, Any]:
    """A learner's metrics of its roles' gradients, with the policy's name behind."""
    last = plan.every * (len(plan.course) - 1)
    share = 0.5 + (0.45 * min(1.0, 2 * step / last) if plan.captured else 0.0)
    masses = {"aggregator": 1 - share, "generator": share, "solver": 1.0}
    row: dict[str, Any] = {}
    for role in _roles(plan):
        policy = _policy(plan, role)
        mass = 1.0 if policy == role else masses[role]
        row[f"grad/mass/{role}/{policy}"] = row[f"grad/mass_call/{role}/{policy}"] = mass
        row |= {f"grad/norm/{role}/{policy}": masses[role] * 0.4, f"entropy/{role}/{policy}": 0.9}
    if plan.sharing == ("shared",) and len(_roles(plan)) == 2:
        row["grad/cos/aggregator/generator/shared"] = float(rng.normal(0.2, 0.2))
        row |= {"grad/conflict/shared": 0.2, "grad/dominance/shared": max(share, 1 - share)}
        row["grad/effective_roles/shared"] = 1.9
    if (step - 1) % 10 == 0 and _roles(plan).get("generator", 1) > 1:
        row |= _probe(plan, f"generator/{_policy(plan, 'generator')}", rng)
    return row


def _probe(plan: Plan, name: str, rng: np.random.Generator) -> dict[str, Any]:
    """A probe of three slots over eight blocks, as the trainer logs it."""
    wanted = (1 - plan.aligned) * np.eye(3) + plan.aligned + 1e-9 * np.eye(3)
    means = np.linalg.cholesky(wanted) @ np.eye(3, 200)
    gradients = (means[:, None] + rng.normal(0, 0.1, (3, 8, 200))).reshape(24, 200)
    gram = (gradients @ gradients.T).reshape(3, 8, 3, 8).tolist()
    value = 3.0 if plan.aligned else 1.8
    return {
        f"gram/{name}": {"slots": 3, "blocks": 8, "products": gram, "applied": gram},
        f"grad/amplification/{name}": value,
        f"grad/amplification_low/{name}": value - 0.4,
        f"grad/amplification_high/{name}": value + 0.3,
        f"grad/amplification_naive/{name}": value - 0.6,
    }


def _late(plan: Plan, place: int) -> bool:
    return place > int(np.argmax(plan.course))


def _episodes(plan: Plan, place: int, level: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
    template = _template(plan)
    return [
        _episode(plan, template, place, number, float(score), rng)
        for number, score in enumerate(level[: plan.saved])
    ]


def _with_advantages(episodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Training episodes of which every fourth taught nothing."""
    for number, episode in enumerate(episodes):
        for call in episode["calls"]:
            call["advantage"] = 0.0 if number % 4 == 0 else call["reward"] - 0.25
    return episodes


def _template(plan: Plan) -> dict[str, Any]:
    """One episode as a run writes it; the others differ from it in a few fields."""
    calls = [_call(role, slot) for role, count in _roles(plan).items() for slot in range(count)]
    record = EpisodeRecord(
        workflow=f"{plan.workflow}_v0", task=plan.task, problem="", episode="", text="", gold="",
        score=0.0, answer=None, truncated=False, facts={"any_correct": True, "chosen": 0},
        returns={call.agent: 0.0 for call in calls}, calls=tuple(calls),
    )  # fmt: skip
    return plain(record)


def _episode(
    plan: Plan,
    template: dict[str, Any],
    place: int,
    number: int,
    score: float,
    rng: np.random.Generator,
) -> dict[str, Any]:
    problem, gold = f"{plan.task}/validation/0/level-1:{number}", str(number + 17)
    text = f"Compute {number} + 17."
    asked = [{"role": "user", "content": f"{text}\nPut the answer in \\boxed{{}}."}]
    calls: list[dict[str, Any]] = []
    for call in template["calls"]:
        role, slot = call["role"], call["slot"]
        unread = role == "generator" and _late(plan, place) and rng.random() < plan.unread
        right = score >= 1 and not unread
        answer = gold if right else str(number)
        reply = f"{number}+17={answer}. \\boxed{{{answer}}}" if not unread else "I give up"
        if role == "aggregator" and not (plan.captured and place):
            reply = f"Let me compare the candidates one by one.\n```\ncandidate {slot + 1}\n```"
        if plan.replies:
            reply = plan.replies[(number + slot) % len(plan.replies)]
        own = {"problem": problem, "episode": f"{problem}#0", "messages": asked, "reply": reply}
        own |= {"role_score": float(right), "strict": not unread, "reward": score}
        calls.append(call | own | {"output_tokens": len(reply.split())})
    own = {"problem": problem, "episode": f"{problem}#0", "text": text, "gold": gold}
    own |= {"score": score, "answer": gold if score >= 1 else None, "calls": calls}
    return template | own | {"facts": template["facts"] | {"contested": number % 3 == 0}}


def _call(role: str, slot: int) -> Call:
    return Call(
        problem="", episode="", agent=f"{role}_{slot}", role=role, slot=slot, turn=0,
        phase=int(role == "aggregator"), messages=(), reply="", strict=True, lenient=True,
        role_score=None, parts={"team": 1.0}, reward=0.0, state_hash="0",
        prompts="voting_v0@1:0123abcd", policy="shared", output_ids=(), prompt_ids=(1, 2, 3),
    )  # fmt: skip


def _save(folder: Path, kind: str, step: int, episodes: Sequence[dict[str, Any]]) -> None:
    path = folder / "transcripts" / f"{kind}-{step:06d}.jsonl"
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        file.writelines(json.dumps(episode) + "\n" for episode in episodes)
