"""`flowzoo plan`: what fits where, before anything is loaded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.file import load_config
from flowzoo.commands.shared import check_named, quiet_transformers
from flowzoo.errors import UsageError

if TYPE_CHECKING:
    from flowzoo.baselines.settings.learner_groups import LearnerGroupPlan
    from flowzoo.baselines.sizing.layouts import Layout, RunSizes

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `flowzoo plan`; what it does stands in `flowzoo.commands.line`."""

    settings: TrainConfig = field(default_factory=lambda: TrainConfig(workflow=""))
    config: str = ""
    """Settings from a file, as for `flowzoo train`."""
    gpus: int = 1
    """Number of GPUs."""
    gpu_gib: float = 80.0
    """Memory of each in GiB."""
    measured: tuple[Path, ...] = ()
    """Files that benchmarks/gpu/rollout.py and learner.py wrote with --json on such a GPU: their
    rates are what hours are counted with. Without them hours are unknown."""
    json: bool = False
    """Print one JSON object, in bytes, instead of tables."""


def read_config(name: str) -> Options:
    """Options with the settings of a file, as defaults of the command line."""
    return Options(settings=load_config(name, workflow=""), config=name)


def run(options: Options) -> int:
    """Count, and print what came of it; the exit status is 0.

    Raises:
        UsageError: settings that a run would refuse, or a model whose shape is not here.
    """
    check_named("plan", options.settings.workflow)
    if options.gpus < 1 or not options.gpu_gib > 0:
        raise UsageError(
            f"--gpus and --gpu-gib must be above 0, got {options.gpus} and {options.gpu_gib:g}"
        )
    quiet_transformers()
    from flowzoo.baselines.sizing.layouts import RunSizes

    found = collect(RunSizes(options.settings), options)
    if options.json:
        print(json.dumps(found))
    else:
        show(found)
    return 0


def collect(sizes: RunSizes, options: Options) -> dict[str, Any]:
    """Everything as plain numbers: bytes, tokens and hours."""
    from flowzoo.baselines.sizing.hours import hours, read_rates, run_tokens
    from flowzoo.baselines.sizing.layouts import SPARE

    size = int(options.gpu_gib * GIB)
    room = int(size * (1 - SPARE))
    rates = read_rates(options.measured, sizes.plan.workflow.name)
    tokens = run_tokens(sizes)
    layouts = []
    thinner = sizes.layouts(options.gpus, size, role_gradients=False)
    for one, less in zip(sizes.layouts(options.gpus, size), thinner, strict=True):
        sampling, learning = hours(tokens, rates, one.ranks)
        layouts.append(
            {
                "training": one.training, "ranks": one.ranks, "shard": one.shard,
                "learner_bytes": one.learner, "bytes": dict(one.needs),
                "fits": {place: one.fits(place, room) for place in one.needs},
                "fits_without_role_gradients": {
                    place: less.fits(place, room) for place in less.needs
                },
                "engine_gpus": one.engine_gpus,
                "sampling_hours": sampling, "learning_hours": learning,
                "chosen": is_chosen(one, options.settings),
            }
        )  # fmt: skip
    return {
        "workflow": sizes.plan.workflow.name,
        "gpus": options.gpus,
        "gpu_bytes": size,
        "spare": SPARE,
        "policies": {name: policy_numbers(sizes, name) for name in sizes.plan.names},
        "layouts": layouts,
        "shard_full_refused": sizes.unsharded or None,
        "activations_unknown": dict(sizes.uncounted),
        "tokenizer_unknown": sorted(sizes.lent),
        "learner_groups": [group_numbers(sizes, group, room) for group in sizes.learner_groups],
        "tokens": tokens._asdict(),
        "reply_tokens": sizes.plan.budgets.reply,
        "rates": rates._asdict(),
    }


def group_numbers(sizes: RunSizes, group: LearnerGroupPlan, room: int) -> dict[str, Any]:
    """What there is to say of learner workers; `room` are the bytes of a GPU that may be used."""
    gpus, size = sizes.learner_gpus, sizes.learner_group(group)
    counted = all(sizes.activations(one, sizes.training) is not None for one in group.policies)
    fits = (size <= gpus * room and (counted or None)) if gpus else None
    return {
        "policies": list(group.policies), "workers": group.workers, "gpus": gpus * group.workers,
        "learner_bytes": size, "fits": fits,
    }  # fmt: skip


def policy_numbers(sizes: RunSizes, name: str) -> dict[str, Any]:
    """What there is to say of one policy in one process."""
    from flowzoo.agents.vllm.cache import BYTES

    shape, model = sizes.shape(name), sizes.models[name]
    frozen = name in sizes.config.frozen
    kinds = ("full", "lora")
    numbers: dict[str, Any] = {
        "model": model,
        "frozen": frozen,
        "parameters": shape.parameters,
        "files_bytes": sizes.files[model] or None,
        "context": shape.context,
        "cache_bytes_per_token": shape.cache * BYTES[sizes.config.settled_dtype],
        "longest_sequence": sizes.longest(name),
        "cache_bytes_of_a_longest_sequence": sizes.longest(name)
        * shape.cache
        * BYTES[sizes.config.settled_dtype],
        "engine_weight_bytes": shape.parameters * BYTES[sizes.config.settled_dtype],
    }
    if frozen:
        return numbers
    numbers |= {
        "adapter_parameters": shape.adapter(sizes.rank),
        "adapter_rank": sizes.rank,
        "sync_bytes": sizes.sync_bytes(name),
    }
    for kind in kinds:
        memory, kept = sizes.learner(name, kind), sizes.activations(name, kind)
        numbers[kind] = {
            "held": dict(memory.held),
            "learning": dict(memory.learning),
            "optimiser_step": memory.step,
            "peak": memory.peak,
            "activation_bytes_per_token": kept and kept.kept(1, again=False),
            "checkpointed_bytes_per_token": kept and kept.kept(1, again=True),
        }
    return numbers


def is_chosen(layout: Layout, config: TrainConfig) -> bool:
    """Whether the settings name this layout."""
    if config.learner_workers != 0:  # they have a table of their own
        return False
    training = "lora" if config.lora_rank else "full"
    ranks = config.ranks or 1
    return (layout.training, layout.ranks, layout.shard) == (training, ranks, config.shard)


def show(found: dict[str, Any]) -> None:
    """Print the tables."""
    from rich.console import Console

    console = Console()
    alike: dict[str, list[str]] = {}
    for name, one in found["policies"].items():
        alike.setdefault(json.dumps(one), []).append(name)
    for names in alike.values():
        console.print(policy_table(", ".join(names), found["policies"][names[0]]))
    console.print(layout_table(found))
    if found["learner_groups"]:
        console.print(group_table(found["learner_groups"]))
    for line in remarks(found):
        console.print(line, highlight=False, soft_wrap=True)


def gib(size: float | None) -> str:
    """Bytes as GiB, or as MiB where that is little."""
    if size is None:
        return "-"
    return f"{size / GIB:,.2f} GiB" if size >= GIB / 10 else f"{size / 2**20:,.2f} MiB"


def short_gib(size: int) -> str:
    """Bytes in GiB without the unit, with a decimal where there is room for one."""
    return f"{size / GIB:,.{0 if size >= 100 * GIB else 1}f}"


def policy_table(names: str, one: dict[str, Any]) -> Any:
    """The parts of the memory of policies that are alike."""
    from rich.table import Table

    kinds = [] if one["frozen"] else ["full", "lora"]
    files = f", files {gib(one['files_bytes'])}" if one["files_bytes"] else ""
    table = Table(
        title=f"{names}: {one['model']}, {one['parameters']:,} weights{files}",
        title_justify="left",
    )
    table.add_column("in one process")
    for kind in kinds:
        rank = f"LoRA, rank {one['adapter_rank']}"
        table.add_column("all weights" if kind == "full" else rank, justify="right")
    parts = list(
        dict.fromkeys(
            (group, part)
            for kind in kinds
            for group in ("held", "learning")
            for part in one[kind][group]
        )
    )
    for group, part in parts:
        table.add_row(part, *(gib(one[kind][group].get(part)) for kind in kinds))
    if kinds:
        table.add_row("optimiser's step", *(gib(one[kind]["optimiser_step"]) for kind in kinds))
        table.add_row("most at a time", *(gib(one[kind]["peak"]) for kind in kinds), style="bold")
        table.add_section()
        for key, what in (
            ("activation_bytes_per_token", "activations of a token"),
            ("checkpointed_bytes_per_token", "… with --gradient-checkpointing"),
        ):
            counts = [one[kind][key] for kind in kinds]
            table.add_row(what, *("?" if n is None else f"{n / 1024:,.0f} KiB" for n in counts))
        table.add_row(
            "weights that a sync sends", *(gib(one["sync_bytes"][kind]) for kind in kinds)
        )
    table.add_section()
    wide = max(1, len(kinds))
    for what, said in (
        ("weights in an engine", gib(one["engine_weight_bytes"])),
        ("cache of a token", f"{one['cache_bytes_per_token'] / 1024:,.0f} KiB"),
        (
            f"cache of {one['longest_sequence']:,} tokens",
            gib(one["cache_bytes_of_a_longest_sequence"]),
        ),
    ):
        table.add_row(what, *[said] * wide)
    return table


def group_table(learner_groups: Sequence[dict[str, Any]]) -> Any:
    """What each learner group holds."""
    from rich import box
    from rich.table import Table

    title, compact = "GiB of each learner worker", box.SIMPLE_HEAD
    table = Table(title=title, title_justify="left", box=compact, pad_edge=False)
    for name in ("policies", "workers", "GPUs", "learner"):
        table.add_column(name, justify="left" if name == "policies" else "right")
    for one in learner_groups:
        fits = {True: " yes", False: " no", None: ""}[one["fits"]]
        table.add_row(
            ", ".join(one["policies"]), str(one["workers"]), f"{one['gpus']:g}",
            f"{one['learner_bytes'] / GIB:,.1f}{fits}",
        )  # fmt: skip
    return table


def layout_table(found: dict[str, Any]) -> Any:
    """What the fullest GPU has to hold in every layout."""
    from rich import box
    from rich.table import Table

    places = {
        "transformers": "trans-\nformers", "colocated": "vllm\ncolocated", "split": "vllm\nsplit",
        "split, own GPUs": "vllm,\nown GPUs",
    }  # fmt: skip
    room, spare = found["gpu_bytes"], found["spare"]
    table = Table(
        title=f"GiB on the fullest of {found['gpus']} GPUs of {room / GIB:g} GiB; fits below "
        f"{room / GIB * (1 - spare):.1f}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    for name in ("trained", "ranks", "shard"):
        table.add_column(name, no_wrap=True)
    for name in ("learner", *places.values(), "hours"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in found["layouts"]:
        cells = []
        for place in places:
            size = one["bytes"].get(place)
            fits = one["fits"].get(place)
            if size is None:
                cells.append("-")
                continue
            color, word = _WORDS[fits]
            spread = one["engine_gpus"] if place == "split, own GPUs" else 1
            times = f"×{spread}" if spread > 1 else ""
            cells.append(f"[{color}]{short_gib(size)} {word}{times}[/]")
        parts = (one["sampling_hours"], one["learning_hours"])
        hours = "?" if None in parts else f"{sum(parts):,.1f}"
        mark = "* " if one["chosen"] else ""
        table.add_row(
            mark + one["training"], str(one["ranks"]), one["shard"] + _dagger(one, found),
            short_gib(one["learner_bytes"]), *cells, hours,
        )  # fmt: skip
    return table


_WORDS = {True: ("green", "yes"), False: ("red", "no"), None: ("yellow", "?")}


def _dagger(layout: dict[str, Any], found: dict[str, Any]) -> str:
    return "†" if layout["shard"] == "full" and found["shard_full_refused"] else ""


def remarks(found: dict[str, Any]) -> list[str]:
    """What the tables do not say."""
    tokens, rates = found["tokens"], found["rates"]
    chosen = any(one["chosen"] for one in found["layouts"])
    said = [
        ("* as the settings say. " if chosen else "")
        + "Not counted: CUDA's context, NCCL, graphs of the engine and gaps of the allocator, "
        f"for which {found['spare']:.0%} of a GPU are left.",
        f"tokens at most: {tokens['sampled']:,} of replies in training, {tokens['evaluated']:,} in "
        f"evaluations (one call of every agent, each of {found['reply_tokens']:,} tokens)"
        + (f", {tokens['read']:,} of prompts" if tokens["read"] else "; prompts are unknown"),
    ]
    for what in ("generated", "trained"):
        if rates[what] is None:
            script = "rollout" if what == "generated" else "learner"
            said.append(
                f"tokens {what} per second: unknown; benchmarks/gpu/{script}.py --json FILE "
                "measures it, and --measured FILE takes it"
            )
    return said + layout_remarks(found) + [f"measured: {line}" for line in rates["said"]]


def layout_remarks(found: dict[str, Any]) -> list[str]:
    """Remarks on the table of layouts, as far as they concern this one."""
    said = []
    layouts = found["layouts"]
    if found["shard_full_refused"] and any(one["shard"] == "full" for one in layouts):
        said.append(f"† a run refuses it as the settings are: {found['shard_full_refused']}")
    if any(one["engine_gpus"] > 1 for one in layouts):
        said.append(
            "×N: every engine spread over N GPUs, with --backend ray --placement split and "
            "--rollout-gpus N times the engines"
        )
    for model, why in found["activations_unknown"].items():
        said.append(
            f"? without activations, which are unknown of {model} ({why}): it may fit or not"
        )
    fewer = [one for one in layouts if one["fits_without_role_gradients"] != one["fits"]]
    if fewer:
        names = ", ".join(
            f"{one['training']} on {one['ranks']} ranks, shard {one['shard']}" for one in fewer
        )
        said.append(
            "with --no-role-gradients, which keeps no gradient of each role, more places fit: "
            + names
        )
    for model in found["tokenizer_unknown"]:
        said.append(
            f"no tokenizer of {model} is here to say whether it thinks: replies are taken to be "
            "those of a model that does not, unless --max-tokens gives their length"
        )
    return said
