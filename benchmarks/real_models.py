"""Small pretrained models in the workflows: what can be read, what is right, does a team help.

    make models
    python benchmarks/real_models.py smollm2 readability
    python benchmarks/real_models.py qwen published readability teams pairs
    python benchmarks/real_models.py --tables    # writes docs/data/real-*.json

Needs vLLM (`make env-vllm`) and the public data sets of `DATA` in --data. One engine plays all
evaluations of a part, in bfloat16 where the CPU has it; each leaves a folder as `flowzoo eval
--out` does, and a part that was stopped goes on. Generated problems are of the split validation.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from flowzoo.agents.evaluation.evaluate import EvaluationDirectory, evaluate, read_episodes
from flowzoo.agents.evaluation.intervals import share_interval
from flowzoo.agents.evaluation.majority import cost_of, vote, votes_for
from flowzoo.agents.evaluation.protocol import protocol_of
from flowzoo.agents.policy import Sampling
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.problems import distinct_problems
from flowzoo.agents.prompt_style import make_styled
from flowzoo.agents.vllm.policy import VLLMPolicy
from flowzoo.agents.vllm.settings import EngineSettings
from flowzoo.baselines.matrix.file import load_matrix
from flowzoo.baselines.report.run_facts import run_facts
from flowzoo.baselines.run.reading import read_run
from flowzoo.envs import Workflow, make_workflow
from flowzoo.files import file_digest, write_json
from flowzoo.provenance import versions

ROOT = Path(__file__).resolve().parents[1]
MODELS = {
    "smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "qwen": "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
}
NAMES = {"smollm2": "SmolLM2-135M-Instruct", "qwen": "Qwen2.5-Coder-0.5B-Instruct"}
DATA = {
    "GSM8K": ("math", "gsm8k/test.jsonl"),
    "MATH-500": ("math", "math500/test.jsonl"),
    "HumanEval": ("code", "humaneval/HumanEval.jsonl"),
    "HumanEval+": ("code", "humanevalplus/HumanEvalPlus-OriginFmt.jsonl.gz"),
    "MBPP": ("code", "mbpp/sanitized-mbpp.json"),
}
PUBLISHED = {"HumanEval": "61.6 %", "HumanEval+": "57.3 %", "MBPP": "52.4 %"}
"""Qwen2.5-Coder-0.5B-Instruct by its makers, unquantized (arXiv 2409.12186)."""
FOUR = ("single", "voting", "eval_opt", "orch_workers")


class Evaluation(NamedTuple):
    """One evaluation."""

    name: str
    workflow: str
    task: str | None
    problems: int | None = None
    """The first ones of a generator or a file; None: all of the file."""
    data: str = ""
    """A key of `DATA`."""
    settings: Mapping[str, Any] = {}
    max_tokens: int = 512
    temperature: float = 0.7
    like: str = ""
    """The evaluation whose tokens are to be spent on votes."""
    most_level: int = 0
    """Highest level of the rows of the file; 0: all."""


def readability() -> list[Evaluation]:
    """The four general workflows on mathematics and code, generated and published."""
    sets = (("math", "", 50), ("math", "GSM8K", 50), ("code", "", 50), ("code", "HumanEval", 50))
    return [
        Evaluation(f"{workflow}-{data or task}", workflow, task, count, data)
        for workflow in FOUR
        for task, data, count in sets
    ]


def published() -> list[Evaluation]:
    """One reply to each problem of public sets, greedy, with no example and no text added."""
    bare = {"texts": "short", "examples": 0}
    rows = (("HumanEval", None, 512, 0), ("GSM8K", 300, 512, 0), ("MBPP", None, 512, 0),
            ("MATH-500", None, 768, 2))  # fmt: skip
    return [
        Evaluation(data, "single", DATA[data][0], count, data, bare, length, 0.0, most_level=level)
        for data, count, length, level in rows
    ]


def teams() -> list[Evaluation]:
    """Workflows beside as many tokens of votes, on two sets of 100 problems."""
    found = []
    for name, task, data, settings in (
        ("math 1–3", "math", "", {"level": "1-3"}),
        ("MBPP", "code", "MBPP", {}),
    ):
        for workflow in FOUR:
            found.append(Evaluation(f"{name}/{workflow}", workflow, task, 100, data, settings, 256))
        votes = partial(Evaluation, workflow="single", task=task, problems=100, data=data)
        for workflow in ("voting", "orch_workers"):  # eval_opt costs little more than one reply
            found.append(
                votes(f"{name}/votes-{workflow}", settings=settings, max_tokens=256,
                      like=f"{name}/{workflow}")
            )  # fmt: skip
    return found


def pairs() -> list[Evaluation]:
    """The workflows that pocket models cannot play."""
    rows = (("coder_tester", "code"), ("reasoner_tool", "math"), ("code_pair", "code"),
            ("search_team", "search"), ("writing_pair", "writing"))  # fmt: skip
    return [Evaluation(workflow, workflow, task, 40) for workflow, task in rows]


PARTS = {"readability": readability, "published": published, "teams": teams, "pairs": pairs}


# -- playing --------------------------------------------------------------------------------------


def play(model: str, part: str, options: argparse.Namespace) -> None:
    """Play what of a part is not in its folder yet."""
    path = options.models / MODELS[model]
    folder = options.out / model / part
    settings = EngineSettings(dtype="bfloat16", max_batch=64, kv_gib=2.0, max_context=6144)
    engine = VLLMPolicy.from_pretrained(path, name=NAMES[model], settings=settings)
    for one in PARTS[part]():
        place = folder / one.name
        if (place / "summary.json").is_file() or (options.only and one.name not in options.only):
            continue
        began, used = time.perf_counter(), time.process_time()
        summary = measure(one, engine, place, folder, options.data)
        times = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - used}
        about = {"model": path.name, "sha256": file_digest(path), "versions": versions()}
        write_json(place / "measured.json", {**times, **about})
        print(f"{part} {one.name}: {summary['accuracy']:.3f}, {times['seconds']:.0f} s", flush=True)
    asyncio.run(engine.close())


def measure(
    one: Evaluation, engine: VLLMPolicy, place: Path, folder: Path, data: Path
) -> dict[str, Any]:
    """The summary of an evaluation, which is written into its folder."""
    sampling = Sampling(one.temperature, max_tokens=one.max_tokens)
    policy = VLLMPolicy(engine.engine, name=engine.name, sampling=sampling)
    workflow, problems = problems_of(one, data)
    policy_map = PolicyMap.shared(policy, workflow.role_counts())
    settings = {"evaluation": [*one[:6], one.max_tokens, one.temperature]}
    store = EvaluationDirectory(place, settings, workflow.grading(), {"samples": 1})
    samples = 1
    if one.like:
        budget = json.loads((folder / one.like / "summary.json").read_text())
        _, first = evaluate(workflow, policy_map, problems, store=store)
        samples = votes_for(budget, "tokens", cost_of(first, "tokens"))
    records, summary = evaluate(workflow, policy_map, problems, samples=samples, store=store)
    protocol = protocol_of(workflow, policy_map, problems, samples=samples, seed=0)
    whole = {**summary, "protocol": protocol}
    if one.like:
        whole["majority"] = vote(workflow, problems, records)
    store.save_summary(whole)
    store.close()
    return whole


def problems_of(one: Evaluation, data: Path) -> tuple[Workflow, list[Any]]:
    """The workflow on its task, with the problems that are played."""
    settings: dict[str, Any] = dict(one.settings)
    if one.data:
        settings["data"] = str(plain_file(data, DATA[one.data][1]))
    make = partial(make_workflow, one.workflow, one.task)
    workflow, _ = make_styled(make, settings, ["hf:model"])  # a model that knows no workflow
    split = "all" if one.data else "validation"
    problems = distinct_problems(workflow.task, split, one.problems)
    if one.most_level:
        lines = (data / DATA[one.data][1]).read_text(encoding="utf-8").splitlines()
        levels = [int(json.loads(line)["level"]) for line in lines]
        problems = [p for p in problems if levels[p.meta["row"] - 1] <= one.most_level]
    return workflow, problems


def plain_file(data: Path, name: str) -> Path:
    """A file of the data folder; a compressed one is unpacked beside the results."""
    if not name.endswith(".gz"):
        return data / name
    plain = ROOT / "build" / Path(name).stem
    if not plain.is_file():
        plain.parent.mkdir(exist_ok=True)
        plain.write_bytes(gzip.decompress((data / name).read_bytes()))
    return plain


# -- tables ---------------------------------------------------------------------------------------


def percent(share: float) -> str:
    """A share in percent."""
    return f"{100 * share:.1f} %"


def between(ends: Sequence[float] | None) -> str:
    """The ends of an interval in percent."""
    if ends is None:
        return "–"
    return f"{100 * ends[0]:.1f}{' to ' if ends[0] < 0 else '–'}{100 * ends[1]:.1f}"


def summaries(folder: Path, part: str) -> Iterator[tuple[Evaluation, dict[str, Any], Path]]:
    """The evaluations of a part that are done."""
    for one in PARTS[part]():
        place = folder / part / one.name
        if (place / "measured.json").is_file():
            yield one, json.loads((place / "summary.json").read_text()), place


def readable_rows(out: Path, before: Mapping[str, Any]) -> list[list[str]]:
    """Role by role, what share of the replies is read; `before` has those of revision 28715cc."""
    rows = []
    for model, shown in NAMES.items():
        for one, summary, _ in summaries(out / model, "readability"):
            for role, values in sorted(summary["roles"].items()):
                earlier = before.get(f"{model}/{one.name}/{role}")
                first = "–" if earlier is None else f"{percent(earlier[0])} of {earlier[1]}"
                share, calls = values["strict"], int(values["calls"])
                rows.append(
                    [shown, one.workflow, one.data or f"{one.task}, generated", role, first,
                     f"{percent(share)} of {calls}", percent(values["truncated"])]
                )  # fmt: skip
    return rows


def score_rows(out: Path, model: str, part: str) -> list[list[str]]:
    """Accuracy, interval, tokens and minutes of a part's evaluations."""
    rows = []
    for one, summary, place in summaries(out / model, part):
        seconds = json.loads((place / "measured.json").read_text())["seconds"]
        accuracy, ends = summary["accuracy"], summary["intervals"].get("accuracy")
        votes = summary.get("majority")
        if votes:
            accuracy, ends = votes["accuracy"], votes["interval"]
        samples = votes["samples"] if votes else 1
        rows.append(
            [one.name, percent(accuracy), between(ends), str(samples),
             f"{samples * summary['tokens']:,.0f}", f"{seconds / 60:.0f}"]
        )  # fmt: skip
    return rows


def pair_rows(out: Path, model: str) -> list[list[str]]:
    """Accuracy of the workflows of two roles, and what of each role is read."""
    rows = []
    for one, summary, place in summaries(out / model, "pairs"):
        seconds = json.loads((place / "measured.json").read_text())["seconds"]
        read = ", ".join(
            f"{role} {percent(values['strict'])} of {int(values['calls'])}"
            for role, values in sorted(summary["roles"].items())
        )
        rows.append(
            [one.workflow, str(summary["problems"]), percent(summary["accuracy"]),
             between(summary["intervals"].get("accuracy")), f"{summary['tokens']:,.0f}", read,
             f"{seconds / 60:.0f}"]
        )  # fmt: skip
    return rows


def published_rows(out: Path, data: Path) -> list[list[str]]:
    """Public sets, what was read and cut off, beside the published figures."""
    rows = []
    for one, summary, place in summaries(out / "qwen", "published"):
        role = summary["roles"]["generator"]
        seconds = json.loads((place / "measured.json").read_text())["seconds"]
        name = f"{one.name}, levels 1 and 2" if one.most_level else one.name
        rows.append(
            [name, str(summary["problems"]), percent(summary["accuracy"]),
             between(summary["intervals"]["accuracy"]), PUBLISHED.get(one.name, "–"),
             percent(role["strict"]), percent(role["truncated"]), f"{role['tokens']:.0f}",
             f"{seconds / 60:.0f}"]
        )  # fmt: skip
        if one.name == "HumanEval":
            rows.append(regraded(place, data))
    return rows


def regraded(place: Path, data: Path) -> list[str]:
    """The replies to HumanEval, graded by the tests of HumanEval+."""
    records = read_episodes(place / "episodes.jsonl")
    file = str(plain_file(data, DATA["HumanEval+"][1]))
    task = make_workflow("single", "code", data=file, packages="numpy").task
    problems = [task.problem(int(record.problem.rpartition(":")[2]), "all") for record in records]
    grades = task.grade_batch(problems, [record.answer for record in records])
    share = sum(grade.score >= 1 for grade in grades) / len(grades)
    ends = share_interval(share, len(grades))
    return ["the same replies, HumanEval+", str(len(grades)), percent(share),
            between((ends.low, ends.high)), PUBLISHED["HumanEval+"], "", "", "", ""]  # fmt: skip


def learning_rows(runs: Path) -> list[list[str]]:
    """Held-out accuracy before and after, of finished runs of `flowzoo train`."""
    rows = []
    for folder in sorted(path.parent for path in runs.rglob("summary.json")):
        summary = json.loads((folder / "summary.json").read_text())
        settings = json.loads((folder / "run.json").read_text())["settings"]
        gain = summary["gain"]
        share = " ".join(settings["sharing"]) or "shared"
        share += f", LoRA {settings['lora_rank']}" if settings["lora_rank"] else ""
        rows.append(
            [f"{settings['workflow']}, {share}", started_from(settings["model"]),
             str(settings["seed"]), str(summary["steps"]), percent(summary["accuracy_before"]),
             percent(summary["accuracy_after"]),
             f"{100 * gain['mean']:+.1f} ({100 * gain['low']:+.1f} to {100 * gain['high']:+.1f})",
             f"{summary['minutes']:.0f}"]
        )  # fmt: skip
    return rows


def started_from(model: str) -> str:
    """Name of a run's starting model; of a warm start its own."""
    record = Path(model).parents[1] / "run.json" if len(Path(model).parents) > 2 else Path()
    if not record.is_file():
        return Path(model).stem
    settings = json.loads(record.read_text())["settings"]
    return f"{Path(settings['model']).stem} after {settings['n']} episodes"


def failure_rows(folder: Path) -> list[list[str]]:
    """Runs of `real_failures.toml`: whether the failure is there, and what the run's page says."""
    rows = []
    for failure in load_matrix(str(ROOT / "benchmarks" / "real_failures.toml")).failures:
        for name, label, _ in failure.cells:
            for path in sorted(file.parent for file in (folder / name).glob("seed-*/summary.json")):
                run = read_run(path, f"{name}-{path.name}")
                facts = run_facts(run)
                course = [row[failure.metric] for row in run.evaluations]
                diagnosis = facts["diagnosis"] or {}
                rows.append(
                    [label, str(run.settings["seed"]),
                     "yes" if failure.there(run.evaluations) else "no",
                     " ".join(f"{100 * value:.0f}" for value in course),
                     "; ".join(facts["alarms"][:2]) or "no Problem", diagnosis.get("role") or "–"]
                )  # fmt: skip
    return rows


TABLES: Mapping[str, tuple[tuple[str, ...], int]] = {
    "real-readable": (
        ("model", "workflow", "problems", "role", "before", "read", "cut off"), 4
    ),
    "real-roles": (("model", "workflow", "role", "before", "read"), 3),
    "real-published": (
        ("set", "problems", "accuracy", "95 % interval", "published", "read", "cut off", "tokens",
         "minutes"), 1
    ),
    "real-teams": (
        ("evaluation", "accuracy", "95 % interval", "votes", "tokens a problem", "minutes"), 1
    ),
    "real-pairs": (
        ("workflow", "problems", "accuracy", "95 % interval", "tokens a problem", "read by role",
         "minutes"), 1
    ),
    "real-learning": (
        ("workflow", "model", "seed", "steps", "before", "after", "gain, points", "minutes"), 4
    ),
    "real-failures": (
        ("cell", "seed", "there", "its figure, %", "Problems on the page", "role"), 2
    ),
}  # fmt: skip
"""Columns of each table, and how many of them name a row."""


READABILITY = "python benchmarks/real_models.py MODEL readability, then --tables"
COMMANDS = {
    "real-readable": READABILITY,
    "real-roles": READABILITY,
    "real-learning": "flowzoo matrix benchmarks/real_learning.toml, then "
    "python benchmarks/real_models.py --tables --runs FOLDER",
    "real-failures": "flowzoo matrix benchmarks/real_failures.toml --out FOLDER, then "
    "python benchmarks/real_models.py --tables --failures FOLDER",
}
"""Commands that make a table, of tables that are not a part's of Qwen."""


def write_tables(out: Path, data: Path, runs: Path | None, failures: Path | None) -> None:
    """Write what has been played and trained into docs/data/real-*.json.

    Rows that are in a file and were not measured again stay: the parts need not be played at once.
    """
    folder = ROOT / "docs" / "data"
    kept = {name: read_table(folder / f"{name}.json") for name in TABLES}
    before = kept["real-readable"]["before"]
    rows = {
        "real-readable": readable_rows(out, before),
        "real-published": published_rows(out, data),
        "real-teams": score_rows(out, "qwen", "teams"),
        "real-pairs": pair_rows(out, "qwen"),
        "real-learning": [] if runs is None else learning_rows(runs),
        "real-failures": [] if failures is None else failure_rows(failures),
    }

    def merged(name: str) -> list[Sequence[str]]:
        named = TABLES[name][1]
        both = [*kept[name].get("rows", []), *rows.get(name, [])]
        return list({tuple(row[:named]): row for row in both}.values())

    rows["real-roles"] = role_rows(merged("real-readable"))
    for name, new in rows.items():
        columns = TABLES[name][0]
        if not new:
            continue
        played = f"python benchmarks/real_models.py qwen {name[5:]}, then --tables"
        result = {
            "command": COMMANDS.get(name, played),
            "columns": columns,
            "rows": merged(name),
        }
        if name == "real-readable":
            result["before"] = before
        write_json(folder / f"{name}.json", result)


def role_rows(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """One row a role of the table of readable replies: its ranges over the sets of problems."""
    roles: dict[tuple[str, ...], list[Sequence[str]]] = {}
    for row in rows:
        roles.setdefault((row[0], row[1], row[3]), []).append(row)

    def share(cell: str) -> float:
        return float(cell.split(" %")[0]) if "%" in cell else 101.0

    short: list[list[str]] = []
    for key, cells in roles.items():
        ends = [[f(share(row[at]) for row in cells if "%" in row[at]) for f in (min, max)]
                for at in (4, 5)]  # fmt: skip
        texts = [f"{first:.1f} %" if first == last else f"{first:.1f}–{last:.1f} %"
                 for first, last in ends]  # fmt: skip
        short.append([*key, *texts])
    return short


def read_table(file: Path) -> dict[str, Any]:
    """A table of docs/data; empty where there is none yet."""
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", nargs="?", choices=MODELS)
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS))
    parser.add_argument("--only", nargs="*", help="names of evaluations; the default is all")
    parser.add_argument("--models", type=Path, default=ROOT / "models")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "real")
    parser.add_argument("--runs", type=Path, help="folder of runs for the table of learning")
    parser.add_argument("--failures", type=Path, help="runs of real_failures.toml")
    parser.add_argument("--tables", action="store_true")
    options = parser.parse_args()
    for part in options.parts:
        play(options.model, part, options)
    if options.tables:
        write_tables(options.out, options.data, options.runs, options.failures)


if __name__ == "__main__":
    main()
