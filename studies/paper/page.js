// Sections of the study of arXiv 2605.24202: claims, where a team pays, amplification, sharing.

const VERDICTS = { shown: ["shown", "result"], "not shown": ["not shown", "result"], undecided: ["undecided", "unknown"] };
const claimSection = (matrix) => (matrix.study.claims.length ? section("claims", "Claims of the paper", "Of arXiv 2605.24202, each judged by a rule that was fixed before the runs were looked at.",
  h("div", { class: "panel" }, matrix.study.claims.map((one) => h("article", { class: "finding", "data-claim": one.name }, badge(...VERDICTS[one.verdict]),
    h("div", null, h("h3", null, one.claim), h("p", null, bdi(one.evidence)), h("p", { class: "rule" }, `Rule: ${one.rule}`)))))) : null);

// The cells of a matrix beside their controls: one row a cell, one column a budget made equal.
const PAYS = { pays: ["better than one call", "good"], "does not": ["not better than one call", "bad"], mixed: ["depends on what is equal", "result"], undecided: ["undecided", "unknown"] };
const teamSection = (matrix) => {
  if (!matrix.study.teams.length) return null;
  const equal = unique(matrix.study.teams.flatMap((team) => team.rows.map((row) => row.equal)));
  const name = (team) => (matrix.study.teams.filter((other) => other.cell === team.cell).length > 1 ? `${team.cell}, ${team.control}` : team.cell);
  const told = (row) => known(row.seed_low) && (row.seed_low > 0 || row.seed_high < 0);
  const largest = Math.max(0.01, ...matrix.study.teams.flatMap((team) => team.rows.filter(told).map((row) => Math.abs(row.mean))));
  return section("teams", "Where a team pays", "Every workflow beside the single agent: at equal training tokens, and beside votes of the single agent at equal calls, and at equal output tokens, of an answer.",
    heatMap(`Workflow minus single agent, in points, with its 95 % interval over seeds. Blue: the team is better, orange: worse; without a color the interval holds 0. The team is better if all three intervals lie above 0, not better if one lies below and none above.`,
      "workflow", matrix.study.teams.map(name), ["verdict", ...equal], (row, column) => {
        const team = matrix.study.teams.find((one) => name(one) === row);
        if (column === "verdict") return { value: null, content: badge(...PAYS[team.verdict]) };
        const found = team.rows.find((one) => one.equal === column);
        if (!found) return { value: null, content: "" };
        return { value: told(found) ? found.mean / largest : null, content: [h(told(found) ? "b" : "span", null, points(found.mean)), h("small", null, seedInterval(found)), h("small", null, `${percent(found.levels[1])} against ${percent(found.levels[0])}`), h("small", null, `${counted(found.seeds[1], "seed")}${known(found.votes) ? `, ${number(found.votes)} votes` : ""}`)] };
      }));
};

const amplificationMap = (matrix, applied) => {
  const mine = (cell) => matrix.study.amplified.filter((row) => row.cell === cell.name && row.applied === applied);
  return cellMap(matrix, `Amplification of parallel agents${applied ? " in the update that Adam makes" : ""}, probes of all seeds pooled: N if they push one way, √N if orthogonal and of one length. Intervals hold together with 95 % over the roles of all cells. Blue: longer than the sum of orthogonal gradients of the same lengths, orange: shorter.`,
    (cell) => {
      const told = (row) => known(row.over) && (row.over_low > 1 || (known(row.over_high) && row.over_high < 1));
      const shade = (row) => (row.over - 1) / (row.over > 1 ? Math.sqrt(row.slots) - 1 : 1);
      return mine(cell).filter(told).map(shade).sort((a, b) => Math.abs(b) - Math.abs(a))[0] ?? null;
    },
    (cell) => (mine(cell).length ? mine(cell).map((row) => [h("b", null, amplified(row)), h("small", null, `${amplifiedRange(row)}; naive ${hundredths(row.naive)}`), h("small", null, `over orthogonal ${overRange(row)}; effective ${effective(row)}`), h("small", null, bdi(row.role), ` × ${row.slots}, ${counted(row.probes, "probe")}`), h("small", null, alignment(row)[0])]) : h("small", null, "no parallel role probed")));
};
const amplificationSection = (matrix) => (matrix.study.amplified.length ? section("amplification", "Amplification", "N is what agents give that push one way, be their gradients long or short; fewer effective agents than N say that the team treats them unlike, as where an aggregator prefers a place. The naive value of one sample is pulled towards √N by noise alone.",
  amplificationMap(matrix, false), matrix.study.amplified.some((row) => row.applied) ? amplificationMap(matrix, true) : null) : null);

const sharingSection = (matrix) => section("sharing", "Shared against isolated policies", `Isolated minus shared, for cells that differ in nothing else. Terminal: mean of the last 3 evaluations. Nothing is claimed from fewer than ${matrix.study.fewest} seeds on a side; a claim is about the interval over seeds.`,
  matrix.study.sharing.length ? table("Differences in points. Peaks are cross-fitted run by run; their interval is over seeds and problems together. Cliffs: runs, of those judged by themselves. Captures: runs with shared policies, of those tested.", [
    ["workflow · task · model", (row) => bdi(row.axes.join(" · ")), "cellname"],
    ["peak", (row) => (row.peak ? both(row.peak.levels, percent) : "–")],
    ["difference", (row) => (row.peak ? [h("span", { class: row.peak.low > 0 || row.peak.high < 0 ? "told" : "" }, points(row.peak.mean)), h("small", null, range(row.peak.low, row.peak.high, points))] : "–")],
    ["terminal", (row) => [both(row.levels, percent), row.terminal ? null : h("small", null, "last evaluation")]],
    ["difference", difference],
    ["over seeds", seedInterval],
    ["seeds", (row) => `${row.seeds[1]} and ${row.seeds[0]}`],
    ["cliffs", (row) => both(row.cliffs, ([found, judged]) => `${found} of ${judged}`)],
    ["captures", (row) => (row.captures[1] ? `${row.captures[0]} of ${row.captures[1]}` : "not tested")],
    ["isolated end", (row) => row.claim, "prose"],
  ], matrix.study.sharing) : h("p", { class: "muted" }, "No two cells differ in the sharing of policies alone."));


extraSections.push((matrix) => [teamSection, claimSection, amplificationSection, sharingSection].map((make) => make(matrix)));
