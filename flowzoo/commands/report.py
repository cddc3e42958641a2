"""`flowzoo report`: one self-contained HTML page that says how runs went and which role broke."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from flowzoo.commands.shared import check_folder
from flowzoo.errors import UsageError


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `flowzoo report`."""

    runs: tuple[str, ...] = field(metadata={"positional": "RUN [RUN ...]"})
    """Run directories, or directories that hold some, e.g. that of a matrix."""
    out: str = ""
    """The HTML file; empty: report.html in the directory, or here if there are several."""
    png: str = ""
    """Also draw the plots as PNG files into this directory."""
    episodes: int | None = None
    """Most episodes in a page's transcript browser, 0: none; default: 10,000 for one run, else
    1,000."""
    serve: bool = False
    """Serve the page of one run on this machine (127.0.0.1) and renew it while the run goes on;
    write no file."""
    port: int = 0
    """Port to serve on; 0: any free one."""
    overview: bool = False
    """Write only the page that compares several runs, without a page for each."""


def run(options: Options) -> int:
    """Write the files and say where they are."""
    from flowzoo.baselines.report.reading import find_evaluations
    from flowzoo.baselines.report.write import write_report

    if options.episodes is not None and options.episodes < 0:
        raise UsageError(f"`episodes` must be at least 0, got {options.episodes}")
    paths = [Path(name) for name in options.runs]
    if options.serve:
        return serve(paths, options)
    several = len(paths) > 1
    out = Path(options.out or ("report.html" if several else paths[0] / "report.html"))
    check_places(out, options)
    if options.png:
        from flowzoo.baselines.report.plots import check_matplotlib

        check_matplotlib()  # before the work, not after it

    def tell(name: str) -> None:
        if several:  # a single run is read quickly
            print(f"reading {name}", file=sys.stderr)

    written = write_report(
        paths, out, episodes=options.episodes, overview=options.overview, on_run=tell
    )
    left_out = find_evaluations(paths)
    if left_out:
        more = f" and {len(left_out) - 3} more" if len(left_out) > 3 else ""
        names = ", ".join(map(str, left_out[:3]))
        print(f"note: no training runs, left out: evaluations {names}{more}", file=sys.stderr)
    print(f"report  {written[0]}")
    if len(written) > 1:
        print(f"        and {len(written) - 1} pages in {written[1].parent}")
    if options.png:
        from flowzoo.baselines.report.plots import draw_plots

        for path in draw_plots(paths, Path(options.png)):
            print(f"plot    {path}")
    return 0


def serve(paths: list[Path], options: Options) -> int:
    """Serve the page of one run until it is interrupted."""
    from flowzoo.baselines.report.live import LivePage
    from flowzoo.baselines.report.reading import read_runs

    if options.out or options.png or options.overview:
        raise UsageError("`serve` writes no file: leave out --out, --png and --overview")
    if len(read_runs(paths)) != 1:
        raise UsageError("`serve` follows one run, and there are several: name one directory")
    with LivePage(paths[0], options.port, options.episodes) as server:
        print(f"report  {server.url} (end with Ctrl-C)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0


def check_places(out: Path, options: Options) -> None:
    """Check that the files can be written, before runs are read."""
    if out.is_dir():
        raise UsageError(
            f"expected a file to write the page to, got the directory {out}: name a file with "
            f"--out, e.g. --out {out / 'report.html'}"
        )
    if options.out:
        check_folder("out", out.parent, options.out)
    if options.png:
        check_folder("png", options.png)
