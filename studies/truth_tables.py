"""Error rates of the verdicts of `flowzoo.baselines.diagnostics` on runs of known truth.

    OMP_NUM_THREADS=1 python -m studies.truth_tables                  # all, some minutes
    OMP_NUM_THREADS=1 python -m studies.truth_tables --parts cliff --simulations 1000

`cliff`: cells of 20 evaluations. First without a fall, then with a true fall from 60 %; the last
rows have more than the noise of the items: seeds whose levels or falls differ (mean 0, standard
deviation given), and single runs whose true accuracy wobbles from evaluation to evaluation. In
these some cells truly fall and others do not, so every row is divided by what its cells truly lost,
the mean over seeds of true peak less true end: a call on one that lost less than 2.5 points, half
of the verdict's threshold, is a false alarm; one on 5 points or more is right; between them the
verdict may go either way. Columns: cells called, of those that lost less than 2.5 points, as a rate
and with the upper end of its exact 95 % interval (Clopper and Pearson, Biometrika 26 (1934) 404);
cells called of the others; cells without verdict, mean error of the
cross-fitted and of the naive peak against the true one with its standard error, the standard error
as reported and as found over the simulations, and how often the reported interval has the truth.

`amplification`: probes of 8 blocks, one or ten pooled; gradients of slots have the lengths given,
in directions of one cosine. Signal to noise is that of the root mean square of the slots. Columns:
the value expected, medians of the corrected and of the naive value, how often the 95 % interval has
the truth, how often it is bounded, its median width where it is; how often the interval of the sum
over that of orthogonal slots has its truth; the effective number of slots, and its median where the
interval is bounded. Rows `turned` pool probes of three runs, in each of which another slot is the
longest.

`capture`: 100 updates of three voters and an aggregator, 200 replies each at both ends, planted
with neither, one or both halves of the definition. Columns: runs in which the voters captured the
aggregator, with the bound as above; how often either half was found; captures the other way.

`falls`: single runs of few evaluations and few items: what is called (a cliff, falling, too few
evaluations or items, none), with the bound as above.

`watch`: runs of 24 evaluations that the watch follows as they come: rising, flat, noisy (true
levels with a normal deviate at every evaluation), dips that are over; then falls. Columns: runs
with an alarm, with the bound as above, and the median number of evaluations from the first that is
low to the alarm.

`checkers`: judges with true shares before training and at the end, over five evaluations; rows
without a collapse first. Columns: verdicts, with the bound as above. Then choosers.

`dead`: teams of 200 problems, of which a role loses its skill, says the same, copies, or is not
needed any more; `any` counts teams with any finding at all, which is the false alarm where nothing
is planted.

`spikes`: log-normal gradient norms of 100 steps (deviations 0.3, wide 0.6, very wide 1 of the
logarithm), of policies that learn or have solved everything, with planted spikes or none.
Columns: runs with a spike called, share of the planted ones found, and
runs with a step above five medians, which would be a spike without a look at the spread.

`blame`: scripted players on real workflows, 200 problems; skills before and now. Columns: who is
blamed, how often that is right, mean cost of the blamed role in points.

With --out, every table goes to a file of that folder too, as docs/data has them. The rules, and
what counts as a false alarm, were written before the tables were made.

Simulated verdicts take 200 resamples instead of 2000.
"""

from __future__ import annotations

from benchmarks.harness.record import write_results
from flowzoo.arguments import read_arguments
from studies.truth.common import Options
from studies.truth.courses import cliff_table, falls_table, watch_table
from studies.truth.gradients import amplification_table, capture_table, spikes_table
from studies.truth.roles import blame_table, checkers_table, dead_table

TABLES = {
    "cliff": (cliff_table, "truth-falls"), "falls": (falls_table, "truth-falls-2"),
    "watch": (watch_table, "truth-watch"),
    "checkers": (checkers_table, "truth-judges"), "dead": (dead_table, "truth-dead-roles"),
    "blame": (blame_table, "truth-blame"), "spikes": (spikes_table, "truth-spikes"),
    "amplification": (amplification_table, "truth-amplification"),
    "capture": (capture_table, "truth-capture"),
}  # fmt: skip
"""Lines of a part, and the file of docs/data that has them."""


def main(options: Options) -> None:
    """Simulate, print and write."""
    for part in options.parts:
        table, file = TABLES[part]
        lines: list[str] = []
        for line in table(options):
            print(line, flush=True)
            lines += line.split("\n")
        print()
        if options.out is not None:
            command = f"OMP_NUM_THREADS=1 python -m studies.truth_tables {arguments(options, part)}"
            write_results(options.out / f"{file}.json", {"command": command, "lines": lines})


def arguments(options: Options, part: str) -> str:
    """Arguments that make a part again."""
    if part == "blame":
        words = f"--parts blame --blames {options.blames}"
    else:
        words = f"--parts {part} --simulations {options.simulations}"
    if part in ("cliff", "falls", "watch", "dead"):
        words += f" --power-simulations {options.power_simulations}"
    if part == "cliff":
        words += f" --items {' '.join(map(str, options.items))}"
    return words + (f" --seed {options.seed}" if options.seed else "")


if __name__ == "__main__":
    main(read_arguments(Options))
