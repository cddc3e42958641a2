"""`flowzoo bench`: speed, measured side by side, and what it was beside before."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro import conf

from flowzoo.errors import UsageError

if TYPE_CHECKING:
    from flowzoo.baselines.bench.record import Row


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `flowzoo bench`; what it does stands in `flowzoo.commands.line`."""

    names: Annotated[tuple[str, ...], conf.Positional, conf.arg(metavar="[NAME ...]")] = ()
    """Benches to run; without any, those that need no other package, environment or finished run:
    see --list."""
    list: bool = False
    """List the benches and end."""
    out: Path | None = None
    """JSON file that grows with every row. Benches in it that are not run now stay."""
    rounds: int = 7
    """Rounds in which everything takes its turn."""
    scale: float = 1.0
    """Share of the usual work of a round; with less than 1 figures are worth less."""
    wait: float = 60.0
    """Most seconds to wait before each bench for others to leave the machine alone."""
    data: Path | None = None
    """Folder with `math_cases.jsonl`, `math_hostile.jsonl`, `gsm8k/` and `math500/`, for `math`."""
    runs: Path | None = None
    """Folder of a finished matrix, for `learning`."""
    trl: Path | None = None
    """Python of an environment with TRL (`make env-trl`), for `learner`."""


def run(options: Options) -> int:
    """Measure, print and write; the exit status is 0.

    Raises:
        UsageError: an unknown name, or a number that is out of its range.
    """
    from flowzoo.baselines.bench.names import BENCHES, bench_named, check_names, usual_benches
    from flowzoo.baselines.bench.record import read_benches, run_bench, write_benches
    from flowzoo.baselines.bench.rounds import Plan

    if options.list:
        for name, what in BENCHES.items():
            print(f"{name:13s} {what}")
        return 0
    check_names(options.names)
    if options.rounds < 1 or not 0 < options.scale <= 1 or options.wait < 0:
        raise UsageError(
            "--rounds must be at least 1, --scale above 0 and at most 1, --wait at least 0; got "
            f"{options.rounds}, {options.scale:g}, {options.wait:g}"
        )
    paths = {
        name: None if path is None else str(path)
        for name in ("data", "runs", "trl")
        for path in [getattr(options, name)]
    }
    plan = Plan(options.rounds, options.scale, **paths)
    written = {} if options.out is None else read_benches(options.out)
    for name in options.names or usual_benches():

        def keep(found: dict[str, Any], name: str = name) -> None:
            if options.out is not None:
                write_benches(options.out, written | {name: found})

        print(f"== {name}: {BENCHES[name]}", flush=True)
        found = run_bench(name, bench_named(name), plan, options.wait, show, keep)
        written[name] = found
        print(busy(found), flush=True)
    return 0


def busy(found: dict[str, Any]) -> str:
    """How long it took, and what else the machine did."""
    before, during = found["others_before"], found.get("others_during")
    if before is None or during is None:
        return f"{found.get('seconds', 0):.0f} s"
    return (
        f"{found.get('seconds', 0):.0f} s; others used {before:.2f} cores before and "
        f"{during:.2f} while it ran, of {found['machine']['cores']}"
    )


def show(row: Row) -> None:
    """A row as a few lines."""
    print(row["case"], flush=True)
    for name, one in row.get("contenders", {}).items():
        beside = ""
        if "beside" in one:
            beside = (
                f"  {times(one['cpu_ratio'])} × {one['beside']} (wall {times(one['wall_ratio'])})"
            )
        cpu, wall = (one[clock]["median"] for clock in ("cpu_us", "wall_us"))
        print(f"  {name:28s} {cpu:12,.4g} µs CPU {wall:12,.4g} µs wall per {row['unit']}{beside}")
    for name, why in row.get("absent", {}).items():
        print(f"  {name:28s} {why}")
    rest = {
        key: value
        for key, value in row.items()
        if key not in ("case", "unit", "contenders", "absent")
    }
    for key, value in rest.items():
        print(f"  {key}: {value}")


def times(found: dict[str, float]) -> str:
    """A ratio with its quartiles."""
    return f"{found['median']:.3g} ({found['low']:.3g} to {found['high']:.3g})"
