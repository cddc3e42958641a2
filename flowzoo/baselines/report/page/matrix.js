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

const seedLinks = (cell) => Object.entries(cell.pages).map(([seed, page]) => [h("a", { href: page }, `seed ${seed}`), " "]);

const gainMap = (matrix) => {
  const largest = Math.max(0.01, ...matrix.cells.filter((cell) => cell.gain).map((cell) => Math.abs(cell.gain.mean)));
  return cellMap(matrix, "Gain of the last evaluation over step 0, in points, with its 95 % interval over problems (paired bootstrap, these seeds held fixed; one cell by itself). Blue: up, orange: down; bold: the interval excludes 0.",
    (cell) => cell.gain.mean / largest,
    (cell) => [h(cell.gain.low > 0 || cell.gain.high < 0 ? "b" : "span", null, points(cell.gain.mean)), h("small", null, range(cell.gain.low, cell.gain.high, points)), h("small", null, `${counted(cell.seeds.length, "seed")}, ${number(cell.items)} problems`)]);
};

const CLIFF = { cliff: ["cliff", "bad"], "no cliff": ["none found", "good"], "not enough items": ["not enough items", "unknown"] };
const cliffMap = (matrix) => cellMap(matrix, `Cliffs: drop from the cross-fitted peak to the mean of the last 3 evaluations, in points, with its 95 % interval, and the smallest drop found with probability 0.8. Marked ✓: stays with the false-discovery rate over ${matrix.judged} judged cells held at ${percent(matrix.rate, 0)}.`,
  (cell) => (cell.cliff.verdict === "cliff" ? -Math.min(1, cell.cliff.drop / 0.2) : null),
  (cell) => {
    const cliff = cell.cliff;
    if (!cliff.verdict) return [badge("no verdict", "unknown"), h("small", { class: "cellname" }, cliff.why)];
    const [words, kind] = CLIFF[cliff.verdict];
    return [badge(words + (cliff.discovery ? " ✓" : ""), kind), h("small", null, `${points(cliff.drop)} (${range(cliff.low, cliff.high, points)})`), h("small", null, `detects ${points(cliff.detectable)}${cliff.cliff_step === null ? "" : `; step ${cliff.cliff_step}`}`)];
  });

const captureMap = (matrix) => cellMap(matrix, "Capture of one role by another under a shared policy: runs in which it was found, of those tested.",
  (cell) => { const worst = Math.max(0, ...cell.captures.map((pair) => pair.captured / pair.tested)); return worst ? -worst : null; },
  (cell) => {
    const caught = cell.captures.filter((pair) => pair.captured);
    if (!cell.captures.length) return h("small", null, cell.shares ? "not tested" : "no policy is shared");
    if (!caught.length) return [badge("none found", "good"), h("small", null, `${counted(cell.captures.length, "pair")}, ${counted(cell.captures[0].tested, "run")}`)];
    return caught.map((pair) => [badge(`${pair.by} → ${pair.of}`, "bad"), h("small", null, `${pair.captured} of ${counted(pair.tested, "run")}`)]);
  });

const peaksSection = (matrix) => {
  const cells = matrix.cells.filter((cell) => cell.gain);
  const judged = cells.filter((cell) => known(cell.cliff.peak));
  return section("peaks", "Peak and terminal", "The peak is cross-fitted: chosen on one half of the problems, scored on the other. The best evaluation of a run is higher by chance alone.",
    judged.length ? figures("wide", [spans("From peak to terminal", "Terminal: mean of the last 3 evaluations. Mean over seeds.", judged.map((cell) => ({ name: cell.name, base: cell.base, peak: cell.cliff.peak, terminal: cell.terminal })))]) : null,
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
  return section("courses", "Courses", "Held-out accuracy over steps, one line a seed. The scales are the same in all figures.",
    figures("small", cells.map((cell) => figure(cell.name, null, cell.courses.map((course, place) => ({ name: `seed ${cell.seeds[place]}`, place, points: course })), { percent: true, min: 0, max: 1, bare: true }))));
};

const difference = (row) => [h("span", { class: row.low > 0 || row.high < 0 ? "told" : "" }, points(row.mean)), h("small", null, row.paired ? range(row.low, row.high, points) : "problems not known to be the same")];
const seedInterval = (row) => (known(row.seed_low) ? range(row.seed_low, row.seed_high, points) : "one seed on a side");

const controlSection = (matrix) => {
  const note = "The last evaluation of every workflow beside that of the single agent on the same task from the same weights. Look at the tokens: a comparison is fair only at equal budgets, and this table does not make them equal.";
  return section("control", "Against the single-agent control", note, matrix.controls.length ? table("Difference in points: paired over problems (these seeds held fixed), and as a t interval over seeds.", [
    ["workflow", (row) => bdi(row.other), "cellname"],
    ["control", (row) => bdi(row.one), "left cellname"],
    ["accuracy", (row) => [percent(row.levels[1]), h("small", null, `control ${percent(row.levels[0])}`)]],
    ["difference", difference],
    ["over seeds", seedInterval],
    ["seeds", (row) => `${row.seeds[1]} and ${row.seeds[0]}`],
    ["training tokens", (row) => [number(Math.round(row.tokens[1])), h("small", null, `control ${number(Math.round(row.tokens[0]))}`)]],
    ["minutes", (row) => [number(row.minutes[1]), h("small", null, `control ${number(row.minutes[0])}`)]],
    ["claim", (row) => row.claim, "prose"],
  ], matrix.controls) : h("p", { class: "muted" }, "No finished run of the workflow single on the same task and from the same weights is here."));
};

const sharingSection = (matrix) => section("sharing", "Shared against isolated policies", `Terminal accuracy (mean of the last 3 evaluations), isolated minus shared, for cells that differ in nothing else. Nothing is claimed from fewer than ${matrix.fewest} seeds on a side; a claim is about the interval over seeds.`,
  matrix.sharing.length ? table("Difference in points.", [
    ["isolated", (row) => bdi(row.other), "cellname"],
    ["shared", (row) => percent(row.levels[0])],
    ["isolated", (row) => percent(row.levels[1])],
    ["difference", difference],
    ["over seeds", seedInterval],
    ["seeds", (row) => `${row.seeds[1]} and ${row.seeds[0]}`],
    ["isolated is", (row) => row.claim, "prose"],
  ], matrix.sharing) : h("p", { class: "muted" }, "No two cells differ in the sharing of policies alone."));

const runsSection = (matrix) => section("runs", "Runs", `Every run has its own page with its roles, gradients and transcripts. Protocol: ${matrix.protocols.join("; and ")}.${matrix.protocols.length > 1 ? " Cells of different protocols are not comparable." : ""}`,
  table("Cells and their runs.", [
    ["cell", (cell) => bdi(cell.name), "cellname"],
    ["runs", seedLinks, "left"],
    ["not finished", (cell) => number(cell.unfinished)],
  ], matrix.cells));

const matrixPage = (matrix) => {
  const some = matrix.cells.some((cell) => cell.gain);
  return [
    section("verdict", "Verdict", null, findings(matrix.findings)),
    ...(some ? [
      section("gains", "Gains", null, gainMap(matrix)),
      section("cliffs", "Cliffs", null, cliffMap(matrix)),
      section("captures", "Captures", null, captureMap(matrix)),
      peaksSection(matrix), controlSection(matrix), sharingSection(matrix), coursesSection(matrix),
    ] : []),
    runsSection(matrix),
  ];
};
