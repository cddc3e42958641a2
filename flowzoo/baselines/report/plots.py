"""The report's main plots as PNG files, for papers (extra `report`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flowzoo.baselines.report.cells import CellFacts, cell_facts, group_cells
from flowzoo.baselines.report.findings import Facts
from flowzoo.baselines.report.gradients import gram_tables, role_series
from flowzoo.baselines.report.reading import read_runs
from flowzoo.baselines.report.run_facts import held_out
from flowzoo.baselines.report.write import page_names
from flowzoo.baselines.run.reading import RunData
from flowzoo.errors import missing_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 5.5, 3.2  # size in inches: one column of a paper
DPI = 200
COLORS = ("#1f5ebe", "#c9540f", "#0f7f5b", "#8a3db6", "#b3204f", "#6a6a00", "#00778f", "#7a4a21")


def check_matplotlib() -> None:
    """Raise `MissingExtraError` unless plots can be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise missing_extra("matplotlib", "report", "drawing plots as files") from error


def draw_plots(paths: Sequence[Path], out: Path) -> list[Path]:
    """Draw the figures of the runs at `paths` into the folder `out` and return the files."""
    check_matplotlib()
    runs = read_runs(paths)
    out.mkdir(parents=True, exist_ok=True)
    figures = _run_figures(runs[0]) if len(runs) == 1 else _matrix_figures(runs)
    files: list[Path] = []
    for name, figure in figures.items():
        files.append(out / f"{name}.png")
        figure.savefig(files[-1], dpi=DPI)
    return files


def _run_figures(run: RunData) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    if run.evaluations:
        figures["accuracy"] = _accuracy(run)
        metric, label = ("pay", "pay") if run.pays else ("role_score", "own accuracy")
        scores = {role: _series(run, f"eval/{metric}/{role}") for role in run.roles}
        scores = {role: series for role, series in scores.items() if series}
        if scores:
            figures["roles"] = _lines(scores, f"{label}, held out")
    measured = role_series(run, "mass")
    mass = {role: measured[(role,)] for role in run.roles if (role,) in measured}
    if mass:
        figures["gradient-mass"] = _stack(mass)
    for gram in gram_tables(run)[-1:]:
        figures["cosines"] = _gram(gram)
    return figures


def _matrix_figures(runs: Sequence[RunData]) -> dict[str, Figure]:
    cells = [cell_facts(cell, {}) for cell in group_cells(runs)]
    cells = [cell for cell in cells if cell["gain"] is not None]
    if not cells:
        return {}
    figures = {"gains": _gains(cells)}
    # Three or four evaluations have a verdict, but no terminal accuracy.
    judged = [cell for cell in cells if cell["cliff"]["verdict"] and cell["terminal"] is not None]
    if judged:
        figures["peak-terminal"] = _peaks(judged)
    for name, cell in zip(page_names([cell["name"] for cell in cells]), cells, strict=True):
        seeds = [f"seed {seed}" for seed in cell["seeds"]]
        courses = dict(zip(seeds, cell["courses"], strict=True))
        figures[f"course-{name.removesuffix('.html')}"] = _lines(courses, "accuracy, held out")
    return figures


def _figure(width: float = WIDTH, height: float = HEIGHT) -> tuple[Figure, Axes]:
    # without the global state of pyplot
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _accuracy(run: RunData) -> Figure:
    figure, axes = _figure()
    steps, levels, lows, highs = zip(*held_out(run), strict=True)
    axes.fill_between(steps, lows, highs, color=COLORS[0], alpha=0.2, linewidth=0)
    axes.plot(steps, levels, color=COLORS[0], marker="o", markersize=3, label="held out")
    reward = _series(run, "reward/mean")
    if reward:
        axes.plot(*zip(*reward, strict=True), color=COLORS[1], linewidth=0.8, label="training")
    items = run.scores.shape[1]
    axes.set(xlabel="step", ylabel=run.measure, title=f"95 % interval over {items} problems")
    axes.legend(frameon=False)
    return figure


def _lines(series: Mapping[str, Sequence[Sequence[float]]], label: str) -> Figure:
    figure, axes = _figure()
    for index, (name, points) in enumerate(series.items()):
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, color=COLORS[index % 8], marker="o", markersize=3, label=_text(name))
    axes.set(xlabel="step", ylabel=label)
    axes.legend(frameon=False)
    return figure


def _stack(mass: Mapping[str, Sequence[tuple[int, float]]]) -> Figure:
    # Shares are stacked over the steps that all roles have.
    figure, axes = _figure()
    tables = {name: dict(series) for name, series in mass.items()}
    steps = sorted(set.intersection(*(set(table) for table in tables.values())))
    levels = [[table[step] for step in steps] for table in tables.values()]
    colors = [COLORS[index % 8] for index in range(len(levels))]
    axes.stackplot(steps, levels, labels=[_text(name) for name in tables], colors=colors, alpha=0.8)
    axes.set(xlabel="step", ylabel="share of the gradient mass", ylim=(0, None))
    figure.legend(frameon=False, loc="outside upper center", ncols=4)
    return figure


def _gram(gram: Facts) -> Figure:
    roles = gram["roles"]
    figure, axes = _figure(1.6 + 0.8 * len(roles), 1.2 + 0.8 * len(roles))
    values = [[float("nan") if cell is None else cell for cell in line] for line in gram["cosines"]]
    axes.imshow(values, vmin=-1, vmax=1, cmap="RdBu")
    names = [_text(role) for role in roles]
    axes.set_xticks(range(len(roles)), names, rotation=30, ha="right")
    axes.set_yticks(range(len(roles)), names)
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            shade = "white" if abs(value) > 0.6 else "black"
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=shade)
    axes.set_title(f"cosines, steps {gram['from']} to {gram['to']}", fontsize=9)
    return figure


def _gains(cells: Sequence[CellFacts]) -> Figure:
    figure, axes = _cell_rows(cells, 1.2)
    for row, cell in enumerate(cells):
        gain = cell["gain"]
        axes.plot([100 * gain["low"], 100 * gain["high"]], [row, row], color=COLORS[0])
        axes.plot(100 * gain["mean"], row, "o", color=COLORS[0])
        values = cell["gain_seeds"]["values"]
        axes.plot([100 * value for value in values], [row] * len(values), "|", color="gray")
    axes.axvline(0, color="black", linewidth=0.6)
    axes.set_xlabel("gain over step 0 in points, 95 % interval over problems; ticks: seeds")
    return figure


def _peaks(cells: Sequence[CellFacts]) -> Figure:
    figure, axes = _cell_rows(cells, 1.4)
    for row, cell in enumerate(cells):
        peak, terminal = 100 * cell["cliff"]["peak"], 100 * cell["terminal"]
        axes.plot([terminal, peak], [row, row], color="gray", linewidth=2, zorder=1)
        for value, color, marker, label in (
            (100 * cell["base"], COLORS[6], "|", "before training"),
            (peak, COLORS[0], "o", "peak, cross-fitted"),
            (terminal, COLORS[1], "s", "terminal"),
        ):
            # matplotlib leaves labels with a leading underscore out of the legend.
            prefix = "_" if row else ""
            axes.plot(value, row, marker, color=color, label=prefix + label)
    axes.set_xlabel("accuracy, held out, in per cent")
    axes.legend(frameon=False, fontsize=8)
    return figure


def _cell_rows(cells: Sequence[CellFacts], margin: float) -> tuple[Figure, Axes]:
    # Axes with a row for every cell, the first one on top.
    figure, axes = _figure(WIDTH + 1.5, margin + 0.3 * len(cells))
    axes.set_yticks(range(len(cells)), [_text(cell["name"]) for cell in cells])
    axes.invert_yaxis()
    return figure, axes


def _series(run: RunData, metric: str) -> list[tuple[int, float]]:
    return [(row["step"], row[metric]) for row in run.rows if row.get(metric) is not None]


def _text(name: str) -> str:
    # A dollar sign starts mathematics in matplotlib.
    return name.replace("$", r"\$")
