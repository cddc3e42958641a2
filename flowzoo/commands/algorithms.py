"""`flowzoo algorithms`: the named algorithms and their settings."""

import json
from dataclasses import asdict, dataclass, field

from rich.console import Console
from rich.table import Table

from flowzoo.baselines.settings.algorithms import ALGORITHMS, Algorithm, algorithm_named


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `flowzoo algorithms`."""

    names: tuple[str, ...] = field(default=(), metadata={"positional": "[NAME ...]"})
    """Algorithms to describe in full, with source and differences."""
    json: bool = False
    """Print one JSON object per algorithm instead of a table."""


def run(options: Options) -> int:
    """Print the table or descriptions; the exit status is 0."""
    algorithms = [algorithm_named(name) for name in options.names or ALGORITHMS]
    if options.json:
        for algorithm in algorithms:
            print(json.dumps(asdict(algorithm)))
        return 0
    console = Console()
    if options.names:
        for algorithm in algorithms:
            console.print(page_of(algorithm))
    else:
        console.print(table_of(algorithms))
        console.print("flowzoo algorithms NAME: source, loss and differences", style="dim")
    return 0


def pool(kind: str, columns: tuple[str, ...], weight: str, between: str = " over ") -> str:
    """Describe a baseline or scale: its kind, weighting and group."""
    return "none" if kind == "none" else f"{kind}, by {weight}{between}{', '.join(columns)}"


def choices(algorithm: Algorithm, between: str = " over ") -> dict[str, str]:
    """Describe every setting of an algorithm; `between` precedes a group."""
    spec = algorithm.advantage
    gamma = f", gamma {spec.gamma:g}" if spec.target == "return_to_go" else ""
    decay = f" {spec.decay:g}" if spec.mean == "running" else ""
    low, high = algorithm.clip_low, algorithm.clip_high
    bounds = "/".join("-" if bound is None else f"{bound:g}" for bound in (low, high))
    of = "weight " if algorithm.clipping == "weight" else ""
    clip = "no clip" if low is None and high is None else f"{of}clip {bounds}"
    if algorithm.dual_clip is not None:
        clip += f", dual clip {algorithm.dual_clip:g}"
    ratio = {"token": "ratio", "sequence": "ratio of the reply", "none": "no ratio"}
    left = " of rest" if spec.std_of == "difference" else ""
    constant = f" / ({algorithm.constant})" if algorithm.constant else ""
    return {
        "target": spec.target + gamma,
        "baseline": pool(spec.mean + decay, spec.mean_group, spec.mean_weight, between),
        "scale": pool(spec.std + left, spec.std_group, spec.std_weight, between),
        "lone": spec.singleton,
        "sampling": algorithm.sampling,
        "policies": algorithm.sharing,
        "loss": f"{ratio[algorithm.ratio]}, {clip}, KL {algorithm.kl:g}, "
        f"{algorithm.aggregation}{constant}",
    }


def table_of(algorithms: list[Algorithm]) -> Table:
    """One row per algorithm: its advantages, sampling and policies."""
    table = Table(
        box=None,
        padding=(0, 1, 0, 0),
        caption="by episode, by call: unit of the average; lone: rule for a group of one",
        caption_justify="left",
    )
    table.add_column("algorithm", no_wrap=True, style="bold")
    for name in ("target", "baseline", "scale", "lone", "sampling"):
        table.add_column(name)
    for algorithm in algorithms:
        row = choices(algorithm, between="\n")
        table.add_row(algorithm.name, *(row[str(column.header)] for column in table.columns[1:]))
    return table


def page_of(algorithm: Algorithm) -> Table:
    """Full description of one algorithm."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="dim")
    table.add_column()
    table.add_row("algorithm", algorithm.name, style="bold")
    rows = {**choices(algorithm), "source": algorithm.source, "differs": algorithm.differs}
    for name, text in rows.items():
        table.add_row(name, text)
    table.add_row("")
    return table
