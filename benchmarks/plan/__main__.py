"""`python -m benchmarks.plan`: what fits where, before anything is loaded."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.plan.memory import GIB
from benchmarks.plan.process import process_memory
from benchmarks.plan.sizes import SPARE, Layout, RunSizes, Training, layout_fits
from flowzoo.agents.vllm.settings import BYTES
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.file import load_config
from flowzoo.baselines.settings.policies import LearnerGroupPlan
from flowzoo.commands.line import parse_command
from flowzoo.commands.shared import quiet_transformers
from flowzoo.errors import FlowzooError, UsageError

COMMAND = "python -m benchmarks.plan"


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `python -m benchmarks.plan`."""

    settings: TrainConfig = field(default_factory=lambda: TrainConfig(workflow=""))
    config: str = ""
    """Settings from a file, as for `flowzoo train`."""
    gpus: int = 1
    """Number of GPUs; 0: the memory of one process that samples and learns on this CPU."""
    gpu_gib: float = 80.0
    """Memory of each in GiB."""
    json: bool = False
    """Print one JSON object, in bytes, instead of tables."""


def read_config(name: str) -> Options:
    """Options with the settings of a file, as defaults of the command line."""
    return Options(settings=load_config(name, workflow=""), config=name)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 0, or 2 after a user's mistake."""
    arguments = sys.argv[1:] if args is None else args
    purpose = "Estimate the memory of a run, from the arguments of `flowzoo train`."
    try:
        run(parse_command(COMMAND, purpose, Options, arguments, read_config).command)
    except FlowzooError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def run(options: Options) -> None:
    """Count, and print the result."""
    if not options.settings.workflow:
        raise UsageError(
            f"name a workflow, e.g. `{COMMAND} voting`, --env, or a file that does (--config)"
        )
    if options.gpus < 0 or not options.gpu_gib > 0:
        raise UsageError(
            "--gpus must be at least 0 and --gpu-gib above 0, got "
            f"{options.gpus} and {options.gpu_gib:g}"
        )
    quiet_transformers()
    if options.gpus:
        plan = collect(RunSizes(options.settings), options)
    else:
        plan = collect_process(RunSizes(options.settings, cpu=True))
    if options.json:
        print(json.dumps(plan))
    elif options.gpus:
        show(plan)
    else:
        show_process(plan)


def collect_process(sizes: RunSizes) -> dict[str, Any]:
    """Bytes of one process on this CPU, by part."""
    if sizes.config.engine_traits.own_weights:
        raise UsageError(
            "--gpus 0 counts a process that samples with transformers: leave out `engine`"
        )
    memory = process_memory(sizes)
    return {
        "workflow": sizes.plan.workflow.name, "gpus": 0, "held": dict(memory.held),
        "work": dict(memory.work), "peak": memory.peak,
    }  # fmt: skip


def show_process(plan: dict[str, Any]) -> None:
    """Print the parts of the memory of a process."""
    from rich.console import Console
    from rich.table import Table

    table = Table("one process on this CPU", "GiB")
    table.columns[1].justify = "right"
    for group in ("held", "work"):
        for name, size in plan[group].items():
            table.add_row(name, f"{size / GIB:,.2f}")
        table.add_section()
    table.add_row("most at a time", f"{plan['peak'] / GIB:,.2f}", style="bold")
    Console().print(table)


def collect(sizes: RunSizes, options: Options) -> dict[str, Any]:
    """Everything as plain numbers of bytes."""
    size = int(options.gpu_gib * GIB)
    room = int(size * (1 - SPARE))
    layouts = []
    for layout in sizes.layouts(options.gpus, size):
        layouts.append(
            {
                "training": layout.training, "ranks": layout.ranks, "shard": layout.shard,
                "learner_bytes": layout.learner, "bytes": dict(layout.needs),
                "fits": {column: layout_fits(layout, column, room) for column in layout.needs},
                "engine_gpus": layout.engine_gpus,
                "chosen": is_chosen(layout, options.settings, sizes.training),
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
    }


def group_numbers(sizes: RunSizes, group: LearnerGroupPlan, room: int) -> dict[str, Any]:
    """Numbers of a learner group; `room` is the usable memory of a GPU in bytes."""
    gpus, size = sizes.asked.learner_gpus, sizes.learner_group(group)
    counted = all(sizes.activations(name, sizes.training) is not None for name in group.policies)
    fits = (size <= gpus * room and (counted or None)) if gpus else None
    return {
        "policies": list(group.policies), "workers": group.workers, "gpus": gpus * group.workers,
        "learner_bytes": size, "fits": fits,
    }  # fmt: skip


def policy_numbers(sizes: RunSizes, name: str) -> dict[str, Any]:
    """Numbers of one policy in one process."""
    shape, model = sizes.shape(name), sizes.models[name]
    frozen = name in sizes.config.frozen
    kinds = ("full", "lora")
    numbers: dict[str, Any] = {
        "model": model,
        "frozen": frozen,
        "parameters": shape.parameters,
        "files_bytes": sizes.files[model] or None,
        "context": shape.context,
        "cache_bytes_per_token": shape.cache * BYTES[sizes.config.resolved_dtype],
        "longest_sequence": sizes.longest(name),
        "cache_bytes_of_a_longest_sequence": sizes.longest(name)
        * shape.cache
        * BYTES[sizes.config.resolved_dtype],
        "engine_weight_bytes": shape.parameters * BYTES[sizes.config.resolved_dtype],
    }
    if frozen:
        return numbers
    numbers |= {
        "adapter_parameters": shape.adapter(sizes.rank(name)),
        "adapter_rank": sizes.rank(name),
        "sync_bytes": sizes.sync_bytes(name),
    }
    for kind in kinds:
        memory, activations = sizes.learner(name, kind), sizes.activations(name, kind)
        numbers[kind] = {
            "held": dict(memory.held),
            "learning": dict(memory.learning),
            "optimizer_step": memory.step,
            "peak": memory.peak,
            "activation_bytes_per_token": activations and activations.kept(1, again=False),
            "checkpointed_bytes_per_token": activations and activations.kept(1, again=True),
        }
    return numbers


def is_chosen(layout: Layout, config: TrainConfig, training: Training) -> bool:
    """True if the settings name this layout."""
    if config.learner_workers != 0:  # they have another table
        return False
    ranks = config.ranks or 1
    return (layout.training, layout.ranks, layout.shard) == (training, ranks, config.shard)


def show(plan: dict[str, Any]) -> None:
    """Print the tables."""
    from rich.console import Console

    console = Console()
    alike: dict[str, list[str]] = {}
    for name, policy in plan["policies"].items():
        alike.setdefault(json.dumps(policy), []).append(name)
    for names in alike.values():
        console.print(policy_table(", ".join(names), plan["policies"][names[0]]))
    console.print(layout_table(plan))
    if plan["learner_groups"]:
        console.print(group_table(plan["learner_groups"]))
    for line in remarks(plan):
        console.print(line, highlight=False, soft_wrap=True)


def gib(size: float | None) -> str:
    """Bytes as GiB, or as MiB where that is little."""
    if size is None:
        return "-"
    return f"{size / GIB:,.2f} GiB" if size >= GIB / 10 else f"{size / 2**20:,.2f} MiB"


def short_gib(size: int) -> str:
    """Bytes in GiB without the unit, with a decimal where there is room for one."""
    return f"{size / GIB:,.{0 if size >= 100 * GIB else 1}f}"


def policy_table(names: str, policy: dict[str, Any]) -> Any:
    """The parts of the memory of policies that are alike."""
    from rich.table import Table

    kinds = [] if policy["frozen"] else ["full", "lora"]
    files = f", files {gib(policy['files_bytes'])}" if policy["files_bytes"] else ""
    table = Table(
        title=f"{names}: {policy['model']}, {policy['parameters']:,} weights{files}",
        title_justify="left",
    )
    table.add_column("in one process")
    titles = {"full": "all weights", "lora": f"LoRA, rank {policy['adapter_rank']}"}
    for kind in kinds:
        table.add_column(titles[kind], justify="right")
    if kinds:
        for name, texts in learner_rows(policy, kinds):
            table.add_row(name, *texts, style="bold" if name == "most at a time" else None)
            if name == "most at a time":
                table.add_section()
        table.add_section()
    longest = policy["longest_sequence"]
    for name, text in (
        ("weights in an engine", gib(policy["engine_weight_bytes"])),
        ("cache of a token", f"{policy['cache_bytes_per_token'] / 1024:,.0f} KiB"),
        (f"cache of {longest:,} tokens", gib(policy["cache_bytes_of_a_longest_sequence"])),
    ):
        table.add_row(name, *[text] * max(1, len(kinds)))
    return table


def learner_rows(policy: dict[str, Any], kinds: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Name of each part of a learner's memory, and its size for each kind of training."""
    trained = [policy[kind] for kind in kinds]
    groups = ("held", "learning")
    parts = dict.fromkeys((g, part) for sizes in trained for g in groups for part in sizes[g])
    for group, part in parts:
        yield part, [gib(sizes[group].get(part)) for sizes in trained]
    yield "optimizer's step", [gib(sizes["optimizer_step"]) for sizes in trained]
    yield "most at a time", [gib(sizes["peak"]) for sizes in trained]
    for key, name in (
        ("activation_bytes_per_token", "activations of a token"),
        ("checkpointed_bytes_per_token", "… with --gradient-checkpointing"),
    ):
        counts = [sizes[key] for sizes in trained]
        yield name, ["?" if n is None else f"{n / 1024:,.0f} KiB" for n in counts]
    yield "weights that a sync sends", [gib(policy["sync_bytes"][kind]) for kind in kinds]


def group_table(learner_groups: Sequence[dict[str, Any]]) -> Any:
    """Memory of each learner group."""
    from rich import box
    from rich.table import Table

    title, compact = "GiB of each learner worker", box.SIMPLE_HEAD
    table = Table(title=title, title_justify="left", box=compact, pad_edge=False)
    for name in ("policies", "workers", "GPUs", "learner"):
        table.add_column(name, justify="left" if name == "policies" else "right")
    for group in learner_groups:
        fits = {True: " yes", False: " no", None: ""}[group["fits"]]
        table.add_row(
            ", ".join(group["policies"]), str(group["workers"]), f"{group['gpus']:g}",
            f"{group['learner_bytes'] / GIB:,.1f}{fits}",
        )  # fmt: skip
    return table


def layout_table(plan: dict[str, Any]) -> Any:
    """Memory of the fullest GPU in every layout."""
    from rich import box
    from rich.table import Table

    places = {
        "transformers": "trans-\nformers", "colocated": "vllm\ncolocated", "split": "vllm\nsplit",
        "split, own GPUs": "vllm,\nown GPUs",
    }  # fmt: skip
    room, spare = plan["gpu_bytes"], plan["spare"]
    table = Table(
        title=f"GiB on the fullest of {plan['gpus']} GPUs of {room / GIB:g} GiB; fits below "
        f"{room / GIB * (1 - spare):.1f}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    for name in ("trained", "ranks", "shard"):
        table.add_column(name, no_wrap=True)
    for name in ("learner", *places.values()):
        table.add_column(name, justify="right", no_wrap=True)
    for layout in plan["layouts"]:
        cells = []
        for column in places:
            size = layout["bytes"].get(column)
            fits = layout["fits"].get(column)
            if size is None:
                cells.append("-")
                continue
            color, word = _WORDS[fits]
            spread = layout["engine_gpus"] if column == "split, own GPUs" else 1
            times = f"×{spread}" if spread > 1 else ""
            cells.append(f"[{color}]{short_gib(size)} {word}{times}[/]")
        mark = "* " if layout["chosen"] else ""
        table.add_row(
            mark + layout["training"], str(layout["ranks"]),
            layout["shard"] + _dagger(layout, plan),
            short_gib(layout["learner_bytes"]), *cells,
        )  # fmt: skip
    return table


_WORDS = {True: ("green", "yes"), False: ("red", "no"), None: ("yellow", "?")}


def _dagger(layout: dict[str, Any], plan: dict[str, Any]) -> str:
    return "†" if layout["shard"] == "full" and plan["shard_full_refused"] else ""


def remarks(plan: dict[str, Any]) -> list[str]:
    """Remarks below the tables."""
    chosen = any(layout["chosen"] for layout in plan["layouts"])
    lines = [
        ("* as the settings say. " if chosen else "")
        + "Not counted: CUDA's context, NCCL, graphs of the engine and gaps of the allocator, "
        f"for which {plan['spare']:.0%} of a GPU are left.",
    ]
    return lines + layout_remarks(plan)


def layout_remarks(plan: dict[str, Any]) -> list[str]:
    """Remarks on the table of layouts, as far as they concern this one."""
    lines = []
    layouts = plan["layouts"]
    if plan["shard_full_refused"] and any(layout["shard"] == "full" for layout in layouts):
        lines.append(f"† a run refuses it as the settings are: {plan['shard_full_refused']}")
    if any(layout["engine_gpus"] > 1 for layout in layouts):
        lines.append(
            "×N: every engine spread over N GPUs, with --backend ray --placement split and "
            "--rollout-gpus N times the engines"
        )
    for model, why in plan["activations_unknown"].items():
        lines.append(
            f"? without activations, which are unknown of {model} ({why}): it may fit or not"
        )
    for model in plan["tokenizer_unknown"]:
        lines.append(
            f"no tokenizer of {model} is here to say whether it thinks: replies are taken to be "
            "those of a model that does not, unless --max-tokens gives their length"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
