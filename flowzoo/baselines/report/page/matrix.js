// The sections of several runs.

const rowOf = (cell) => [cell.axes.workflow, cell.axes.task, cell.axes.model].join(" · ");
const columnOf = (cell) => [cell.axes.sharing, cell.axes.algorithm].join(" · ");
const unique = (list) => [...new Set(list)];

// A map with one entry a cell; cells that share a place stand below one another.
const cellMap = (matrix, caption, value, content) => {
  const cells = matrix.cells.filter((cell) => cell.gain);
  return heatMap(caption, "workflow · task · model", unique(cells.map(rowOf)), unique(cells.map(columnOf)), (row, column) => {
    const here = cells.filter((cell) => rowOf(cell) === row && columnOf(cell) === column);
    return { value: here.length === 1 ? value(here[0]) : null, content: here.length ? here.map((cell) => h("div", null, here.length > 1 ? h("small", null, bdi(cell.name)) : null, content(cell))) : "" };
  });
};

const seedLinks = (cell) => Object.entries(cell.pages).map(([seed, page]) => [page ? h("a", { href: page }, `seed ${seed}`) : `seed ${seed}`, " "]);

const gainMap = (matrix) => {
  const largest = Math.max(0.01, ...matrix.cells.filter((cell) => cell.gain).map((cell) => Math.abs(cell.gain.mean)));
  return cellMap(matrix, "Gain of the last evaluation over step 0, in points, with its 95 % interval over problems (paired bootstrap, these seeds held fixed; one cell by itself). Blue: up, orange: down; bold: the interval excludes 0.",
    (cell) => cell.gain.mean / largest,
    (cell) => [h(cell.gain.low > 0 || cell.gain.high < 0 ? "b" : "span", null, points(cell.gain.mean)), h("small", null, range(cell.gain.low, cell.gain.high, points)), h("small", null, `${counted(cell.seeds.length, "seed")}, ${number(cell.items)} problems`)]);
};

const CLIFF = { cliff: ["cliff", "bad"], falling: ["falling at the end", "bad"], "not enough evaluations": ["too few evaluations", "unknown"], "no cliff": ["none found", "good"], "not enough items": ["not enough items", "unknown"], "not enough seeds": ["seeds differ too much", "unknown"] };
const cliffMap = (matrix) => cellMap(matrix, `Cliffs: drop from the cross-fitted peak of each run to its last evaluations after it (3; in a fall in progress the last 2 or 1), mean over runs, in points, with its 95 % interval, the smallest drop found with probability 0.8, and how many runs fell, each judged by itself. Marked ✓: stays with the false-discovery rate over ${matrix.judged} judged cells held at ${percent(matrix.rate, 0)}.`,
  (cell) => (["cliff", "falling"].includes(cell.cliff.verdict) ? -Math.min(1, cell.cliff.drop / 0.2) : null),
  (cell) => {
    const cliff = cell.cliff;
    if (!cliff.verdict) return [badge("no verdict", "unknown"), h("small", { class: "cellname" }, cliff.why)];
    const [words, kind] = CLIFF[cliff.verdict];
    return [badge(words + (cliff.discovery ? " ✓" : ""), kind), h("small", null, `${points(cliff.drop)} (${range(cliff.low, cliff.high, points)})`), h("small", null, `detects ${points(cliff.detectable)}${cliff.cliff_step === null ? "" : `; step ${cliff.cliff_step}`}`), cell.fell.of > 1 ? h("small", null, `${cell.fell.runs} of ${cell.fell.of} runs fell`) : null];
  });

const captureMap = (matrix) => cellMap(matrix, "Capture of one role by another under a shared policy: runs in which it was found, of those tested.",
  (cell) => { const worst = Math.max(0, ...cell.captures.map((pair) => pair.captured / pair.tested)); return worst ? -worst : null; },
  (cell) => {
    const caught = cell.captures.filter((pair) => pair.captured);
    if (!cell.captures.length) return h("small", null, cell.shares ? "not tested" : "no policy is shared");
    if (!caught.length) return [badge("none found", "good"), h("small", null, `${counted(cell.captures.length, "pair")}, ${counted(cell.captures[0].tested, "run")}`)];
    return caught.map((pair) => [badge(`${pair.by} → ${pair.of}`, "bad"), h("small", null, `${pair.captured} of ${counted(pair.tested, "run")}`)]);
  });

const scatterOf = (judged) => {
  const styles = ["circle", "triangle", "rect", "star"];
  return unique(judged.map((cell) => cell.axes.sharing)).map((sharing, place) => ({ name: sharing, place, style: styles[place % 4],
    points: judged.filter((cell) => cell.axes.sharing === sharing).map((cell) => ({ x: cell.cliff.peak, y: cell.terminal, label: cell.name })) }));
};

const peaksSection = (matrix) => {
  const cells = matrix.cells.filter((cell) => cell.gain);
  const judged = cells.filter((cell) => known(cell.cliff.peak) && known(cell.terminal));
  return section("peaks", "Peak and terminal", "The peak is cross-fitted: chosen on one half of the problems, scored on the other. The best evaluation of a run is higher by chance alone.",
    judged.length ? figures("wide", [
      scatter("Terminal against peak", "A cell below the diagonal has fallen from its peak. Mean over seeds.", ["peak, cross-fitted", "terminal"], scatterOf(judged)),
      spans("From peak to terminal", "Terminal: mean of the last 3 evaluations. Mean over seeds.", judged.map((cell) => ({ name: cell.name, base: cell.base, peak: cell.cliff.peak, terminal: cell.terminal })))]) : null,
    table("All cells, mean over seeds. Gain: last evaluation over step 0, in points.", [
      ["cell", (cell) => [h("span", null, bdi(cell.name)), h("small", null, seedLinks(cell))], "cellname"],
      ["before", (cell) => percent(cell.base)],
      ["peak", (cell) => [percent(cell.cliff.peak), cell.cliff.peak_step === undefined ? null : h("small", null, `best: step ${cell.cliff.peak_step}`)]],
      ["terminal", (cell) => percent(cell.terminal)],
      ["last", (cell) => percent(cell.last)],
      ["gain", (cell) => [points(cell.gain.mean), h("small", null, range(cell.gain.low, cell.gain.high, points))]],
      ["over seeds", (cell) => (known(cell.gain_seeds.low) ? range(cell.gain_seeds.low, cell.gain_seeds.high, points) : "one seed")],
      ["problems", (cell) => number(cell.items)],
      ["evaluations", (cell) => number(cell.evaluations)],
      ["tokens", (cell) => number(Math.round(cell.tokens))],
      ["minutes", (cell) => number(cell.minutes)],
    ], cells));
};

const coursesSection = (matrix) => {
  const cells = matrix.cells.filter((cell) => cell.gain);
  return section("courses", "Courses", `Held-out ${measure()} over steps, one line a seed. The scales are the same in all figures.`,
    figures("small", cells.map((cell) => figure(cell.name, null, cell.courses.map((course, place) => ({ name: `seed ${cell.seeds[place]}`, place, points: course })), { percent: true, min: 0, max: 1, bare: true }))));
};

const difference = (row) => [h("span", { class: row.low > 0 || row.high < 0 ? "told" : "" }, points(row.mean)), h("small", null, row.paired ? range(row.low, row.high, points) : "problems not known to be the same")];
const seedInterval = (row) => (known(row.seed_low) ? range(row.seed_low, row.seed_high, points) : "one seed on a side");

const both = (pair, show) => [show(pair[1]), h("small", null, `against ${show(pair[0])}`)];
const whole = (value) => number(Math.round(value));

const controlSection = (matrix) => section("control", "Against the single-agent control", "The last evaluation of every workflow beside the single agent on the same task from the same weights: at its first evaluation after as many training tokens, and as a majority vote of its last policy that costs as many calls, or tokens, as an answer of the workflow.",
  matrix.controls.length ? table("Workflow minus control, in points: paired over problems (these seeds held fixed), and as a t interval over seeds.", [
    ["workflow", (row) => bdi(row.other), "cellname"],
    ["control", (row) => bdi(row.one), "left cellname"],
    ["equal", (row) => [row.equal === "nothing" ? "nothing: the control had fewer tokens" : row.equal, known(row.votes) ? h("small", null, `${number(row.votes)} votes`) : null], "prose"],
    [measure(), (row) => both(row.levels, percent)],
    ["difference", difference],
    ["over seeds", seedInterval],
    ["seeds", (row) => `${row.seeds[1]} and ${row.seeds[0]}`],
    ["workflow is", (row) => row.claim, "prose"],
  ], matrix.controls) : h("p", { class: "muted" }, "No finished run of the workflow single on the same task and from the same weights is here."));

// What compared cells had cost; the first cell is the one with shared policies, or the control.
const budgetSection = (matrix) => {
  const rows = matrix.budgets;
  const ratio = (row, index, name) => [h("span", { class: row.flags.includes(name) ? "told" : "" }, number(row.ratios[index])), row.flags.includes(name) ? h("small", null, "beyond 5 %") : null];
  return rows.length ? section("budgets", "Budgets", "Of cells that are compared: training tokens and optimizer steps per policy, means over the seeds that both have. A control is looked at when it has had the workflow's tokens or more.", table("Ratios are first over second.", [
    ["first", (row) => bdi(row.one), "cellname"],
    ["second", (row) => bdi(row.other), "left cellname"],
    ["tokens", (row) => `${whole(row.tokens[0])} and ${whole(row.tokens[1])}`],
    ["ratio", (row) => ratio(row, 0, "tokens")],
    ["steps per policy", (row) => `${whole(row.updates[0])} and ${whole(row.updates[1])}`],
    ["ratio", (row) => ratio(row, 1, "optimizer steps")],
  ], rows)) : null;
};

const runsSection = (matrix) => section("runs", "Runs", `${matrix.cells.some((cell) => Object.values(cell.pages).some(Boolean)) ? "Every run has its own page with its roles, gradients and transcripts. " : ""}Protocol: ${matrix.protocols.join("; and ")}.${matrix.protocols.length > 1 ? " Cells of different protocols are not comparable." : ""}`,
  table("Cells and their runs.", [
    ["cell", (cell) => bdi(cell.name), "cellname"],
    ["runs", seedLinks, "left"],
    ["not finished", (cell) => number(cell.unfinished)],
  ], matrix.cells));

// What the pages of single runs found to be bad, by cell.
const brokenSection = (matrix) => {
  const cells = matrix.cells.filter((cell) => cell.alarms.of);
  return cells.length ? section("broken", "What broke", null, table("The worst findings of every run's own page, counted over the seeds of a cell; a run without any is clean.", [
    ["cell", (cell) => bdi(cell.name), "cellname"],
    ["clean runs", (cell) => badge(`${cell.alarms.clean} of ${cell.alarms.of}`, cell.alarms.clean === cell.alarms.of ? "good" : cell.alarms.clean ? "unknown" : "bad")],
    ["findings", (cell) => (cell.alarms.broken.length ? h("ul", null, cell.alarms.broken.map((one) => h("li", null, bdi(one.title), h("small", null, ` ${one.seeds.length} of ${cell.alarms.of} (${one.seeds.length > 1 ? "seeds" : "seed"} ${one.seeds.join(", ")})`)))) : "–"), "left"],
  ], cells)) : null;
};

// Functions of a matrix that return further sections; a study's script adds its own.
const extraSections = [];

const matrixPage = (matrix) => {
  const some = matrix.cells.some((cell) => cell.gain);
  return [
    section("verdict", "Verdict", null, findings(matrix.findings)),
    failureSection(matrix),
    ...extraSections.flatMap((make) => make(matrix)),
    brokenSection(matrix),
    ...(some ? [
      section("gains", "Gains", null, gainMap(matrix)),
      section("cliffs", "Cliffs", null, cliffMap(matrix)),
      section("captures", "Captures", null, captureMap(matrix)),
      controlSection(matrix), budgetSection(matrix),
      peaksSection(matrix), coursesSection(matrix),
    ] : []),
    runsSection(matrix),
  ];
};
