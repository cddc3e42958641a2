"""How often are the verdicts of `flowzoo.baselines.diagnostics` wrong, on runs of known truth?

    OMP_NUM_THREADS=1 python benchmarks/diagnostics_truth.py                  # all, some minutes
    OMP_NUM_THREADS=1 python benchmarks/diagnostics_truth.py --parts cliff --simulations 1000

`cliff`: cells of 20 evaluations. First without a fall (every cliff is a false positive), then with
a true fall from 60 %. Columns: cliffs called, their rate with the upper end of its exact 95 %
interval (Clopper and Pearson, Biometrika 26 (1934) 404), cells without verdict, mean error of the
cross-fitted and of the naive peak against the true one with its standard error, the standard error
as reported and as found over the simulations, and how often the reported interval has the truth.
The last rows have more than the noise of the items: seeds whose falls differ (mean 0, standard
deviation given), and single runs whose true accuracy wobbles from evaluation to evaluation.

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
evaluations or items, none), and `online`, runs in which `find_collapse` said so at some evaluation.

`checkers`: judges with true shares before training and at the end, over five evaluations; rows
without a collapse first. Columns: verdicts, with the bound as above. Then choosers.

`dead`: teams of 200 problems, of which a role loses its skill, says the same, copies, or is not
needed any more; `any` counts teams with any finding at all, which is the false alarm where nothing
is planted.

`spikes`: log-normal gradient norms of 100 steps, of policies that learn or have solved everything,
with planted spikes or none. Columns: runs with a spike called, share of the planted ones found.

`blame`: scripted players on real workflows, 200 problems; skills before and now. Columns: who is
blamed, how often that is right, mean cost of the blamed role in points.

Simulated verdicts take 200 resamples instead of 2000; `cliff` begins with what that changes.
"""

from __future__ import annotations

import tyro
from truth.common import Options
from truth.courses import cliff_table, falls_table
from truth.gradients import amplification_table, capture_table, spikes_table
from truth.roles import blame_table, checkers_table, dead_table


def main(options: Options) -> None:
    """Simulate and print."""
    tables = {
        "cliff": cliff_table,
        "falls": falls_table,
        "checkers": checkers_table,
        "dead": dead_table,
        "blame": blame_table,
        "spikes": spikes_table,
        "amplification": amplification_table,
        "capture": capture_table,
    }
    for part in options.parts:
        tables[part](options)


if __name__ == "__main__":
    main(tyro.cli(Options))
