"""`flowzoo report`: HTML reports of runs and evaluations."""

from dataclasses import dataclass, field
from pathlib import Path

from flowzoo.agents.evaluation.summary import is_evaluation
from flowzoo.commands.progress.shown import to_stderr
from flowzoo.commands.shared import CodeOptions, check_folder
from flowzoo.errors import UsageError


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `flowzoo report`."""

    runs: tuple[str, ...] = field(metadata={"positional": "RUN [RUN ...]"})
    """Run directories, or directories of several runs, e.g. of a matrix; or one evaluation."""
    against: Path | None = None
    """Directory of another evaluation of the same problems, for a comparison."""
    out: str = ""
    """Output HTML file; empty: report.html in the directory (against-NAME.html with --against), or
    in the working directory for several runs."""
    png: str = ""
    """Also write the plots as PNG files to this directory."""
    episodes: int | None = None
    """Most episodes in a page's transcript browser (problems with --against); 0: none; default: all
    for an evaluation, 10,000 for a single run, else 1,000."""
    serve: bool = False
    """Serve the page of one run or evaluation at 127.0.0.1 instead of writing a file; the page of a
    run is updated during the run."""
    port: int = 0
    """Port of the server; 0: any free port."""
    overview: bool = False
    """Write only the comparison of several runs, without a page per run."""
    code: CodeOptions = field(default_factory=CodeOptions)

    @property
    def folders(self) -> list[Path]:
        """Directories of the report."""
        return [Path(name) for name in self.runs]


def run(options: Options) -> int:
    """Write the files and print their paths."""
    if options.episodes is not None and options.episodes < 0:
        raise UsageError(f"`episodes` must be at least 0, got {options.episodes}")
    evaluation = any(map(is_evaluation, options.folders))
    if evaluation:
        check_evaluation(options)
    elif options.against:
        raise UsageError("`against` compares two evaluations of `flowzoo eval --out`, not runs")
    if options.serve:
        return serve(options, evaluation)
    return report_evaluation(options) if evaluation else report_runs(options)


def check_evaluation(options: Options) -> None:
    """Check the options of a report of an evaluation."""
    if len(options.runs) > 1:
        raise UsageError(
            "a report is of one evaluation, got several directories: compare two with --against, "
            "rank several with `flowzoo leaderboard`"
        )
    if options.against and not is_evaluation(options.against):
        raise UsageError(
            f"`against` must be the directory of an evaluation (`flowzoo eval --out`), got "
            f"{options.against}"
        )
    if options.png or options.overview:
        raise UsageError("`png` and `overview` are for runs: leave them out for an evaluation")


def report_evaluation(options: Options) -> int:
    """Write the page of an evaluation, or of its comparison with another."""
    from flowzoo.baselines.report.evaluation.page import write_evaluation

    (folder,) = options.folders
    name = f"against-{options.against.resolve().name}.html" if options.against else "report.html"
    out = Path(options.out or folder / name)
    check_places(out, options)
    page, *beside = write_evaluation(
        folder, out, against=options.against, episodes=options.episodes
    )
    print(f"report  {page}")
    for transcripts in beside:
        print(f"        and its transcripts in {transcripts}")
    return 0


def report_runs(options: Options) -> int:
    """Write the pages of runs."""
    from flowzoo.baselines.report.reading import find_evaluations
    from flowzoo.baselines.report.write import write_report

    paths = options.folders
    several = len(paths) > 1
    out = Path(options.out or ("report.html" if several else paths[0] / "report.html"))
    check_places(out, options)
    if options.png:
        from flowzoo.baselines.report.plots import check_matplotlib

        check_matplotlib()  # before the work

    def tell(name: str) -> None:
        if several:  # a single run is read quickly
            to_stderr(f"reading {name}")

    page, *pages = write_report(
        paths, out, episodes=options.episodes, overview=options.overview, on_run=tell
    )
    if left_out := find_evaluations(paths):
        more = f" and {len(left_out) - 3} more" if len(left_out) > 3 else ""
        names = f"{', '.join(map(str, left_out[:3]))}{more}"
        to_stderr(f"note: left out evaluations, which are not training runs: {names}")
    print(f"report  {page}")
    if pages:
        print(f"        and {len(pages)} pages in {pages[0].parent}")
    if options.png:
        from flowzoo.baselines.report.plots import draw_plots

        for path in draw_plots(paths, Path(options.png)):
            print(f"plot    {path}")
    return 0


def serve(options: Options, evaluation: bool) -> int:
    """Serve the page of one run or evaluation until it is interrupted."""
    from flowzoo.baselines.report.evaluation.page import EvaluationServer
    from flowzoo.baselines.report.live import LivePage
    from flowzoo.baselines.report.reading import read_runs

    if options.out or options.png or options.overview:
        raise UsageError("`serve` writes no file: leave out --out, --png and --overview")
    paths = options.folders
    page: EvaluationServer | LivePage
    if evaluation:
        page = EvaluationServer(paths[0], options.against, options.port, options.episodes)
    elif len(read_runs(paths)) == 1:
        page = LivePage(paths[0], options.port, options.episodes)
    else:
        raise UsageError("`serve` follows one run, and there are several: name one directory")
    print(f"report  {page.url} (end with Ctrl-C)", flush=True)
    try:
        page.run()
    except KeyboardInterrupt:
        print()
    return 0


def check_places(out: Path, options: Options) -> None:
    """Check that the files can be written before reading runs."""
    if out.is_dir():
        raise UsageError(
            f"expected an output file, got the directory {out}: name a file with --out, e.g. --out "
            f"{out / 'report.html'}"
        )
    if options.out:
        check_folder("out", out.parent, options.out)
    if options.png:
        check_folder("png", options.png)
