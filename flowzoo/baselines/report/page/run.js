// The sections of one run.

const heldOutWords = (run) => {
  const p = run.protocol;
  return `${number(p.problems)} ${p.split} problems, ${counted(p.samples, "attempt")} each, temperature ${p.temperature}, at most ${p.max_tokens} tokens a reply`;
};
const trainWords = (run) => `batches of ${run.settings.problems} training problems${run.settings.samples ? ` × ${run.settings.samples} samples` : ""}, temperature ${run.settings.temperature}`;

const points2d = (run, metric) => {
  const values = run.course.metrics[metric] || [];
  return run.course.steps.map((step, place) => [step, values[place]]).filter(([, value]) => known(value));
};

// One curve a role for a measure: held-out with dots, training light.
const roleSeries = (run, measure, evaluated = true) => run.roles.flatMap((role, place) => [
  { name: `${role}, held out`, place, dots: true, points: evaluated ? points2d(run, `eval/${measure}/${role}`) : [] },
  { name: evaluated ? `${role}, training` : role, place, light: evaluated, points: points2d(run, `${measure}/${role}`) },
]).filter((one) => one.points.length);

// Every metric below a prefix, one curve each.
const below = (run, prefix) => Object.keys(run.course.metrics).filter((name) => name.startsWith(prefix))
  .map((name, place) => ({ name: name.slice(prefix.length), metric: name.slice(prefix.length), place, points: points2d(run, name) })).filter((one) => one.points.length);

// The same, in the colors of the roles: `grad/mass/ROLE`, perhaps with a policy behind it.
const ofRoles = (run, prefix) => below(run, prefix).map((one) => {
  const [role, policy] = one.name.split("/"), place = run.roles.indexOf(role);
  return place < 0 ? one : { ...one, place, name: policy === run.policies[role] ? role : one.name };
});

// Amplification with its interval and, light, the value that was not corrected for noise.
const amplification = (run, kind) => {
  const part = (which, one) => points2d(run, `grad/${kind}_${which}/${one.metric}`);
  return ofRoles(run, `grad/${kind}/`).flatMap((one) => {
    const low = new Map(part("low", one)), naive = part("naive", one);
    const band = part("high", one).filter(([step]) => low.has(step)).map(([step, high]) => [step, low.get(step), high]);
    // Without an upper bound the value is of no meaning.
    const bounded = new Set(band.map(([step]) => step)), points = one.points.filter(([step]) => bounded.has(step));
    return [...(points.length ? [{ ...one, points, dots: true, band }] : []), ...(naive.length ? [{ name: `${one.name}, naive`, place: one.place, light: true, points: naive }] : [])];
  });
};

// Whether the sum is longer than that of orthogonal gradients of the same lengths.
const alignment = (row) => {
  const end = (value) => (known(value) ? value : Infinity);
  if (!known(row.over_low)) return ["not known", "unknown"];
  if (row.over_low > 1) return [end(row.high) >= row.slots ? "above orthogonal" : "above orthogonal, not aligned", "result"];
  return end(row.over_high) < 1 ? ["they cancel in part", "warn"] : ["cannot be told", "unknown"];
};
const hundredths = (value) => (known(value) ? value.toFixed(2) : "–");
// Without an upper bound the value is of no meaning.
const amplified = (row) => (known(row.high) ? hundredths(row.value) : "–");
const ends = (low, high) => (known(low) ? `${hundredths(low)} to ${known(high) ? hundredths(high) : "unbounded"}` : "–");
const amplifiedRange = (row) => ends(row.low, row.high);
const overRange = (row) => ends(row.over_low, row.over_high);
const effective = (row) => (known(row.high) ? row.effective.toFixed(1) : "–");
const PARTS = { whole: "whole run", first: "first third", last: "last third" };
const amplificationTable = (run) => (run.amplification.length ? table("Amplification of N parallel agents, the probes of each part pooled: N where their gradients point one way, √N where they are orthogonal and of one length. Corrected for noise, with its 95 % interval; over orthogonal: how much longer the sum is than that of orthogonal gradients of the same lengths; effective: how many agents count (noise pulls it to N); naive: of the sample itself; null: the middle 95 % of the naive value where agents are exchangeable.", [
  ["role", (row) => bdi(row.role)],
  ["of", (row) => (row.applied ? "applied update" : "gradient"), "left"],
  ["part", (row) => [PARTS[row.part], h("small", null, `${counted(row.probes, "probe")}, steps ${row.from} to ${row.to}`)], "left"],
  ["N", (row) => row.slots],
  ["corrected", (row) => [amplified(row), h("small", null, amplifiedRange(row))]],
  ["over orthogonal", (row) => [known(row.over_high) ? hundredths(row.over) : "–", h("small", null, overRange(row))]],
  ["effective", effective],
  ["naive", (row) => hundredths(row.naive)],
  ["null of naive", (row) => range(row.null_low, row.null_high, hundredths)],
  ["in words", (row) => badge(...alignment(row)), "left"],
], run.amplification) : null);

// A chart is an element, or {title, levels} where nothing in it changed over the run, or nothing.
const chart = (title, note, series, options = {}) => steady(title, series, options) || figure(title, note, series, options);
const maybe = (title, note, series, options) => (series.length ? chart(title, note, series, options) : null);
const drawn = (kind, list) => {
  const found = list.filter((one) => one instanceof Element);
  return found.length ? h("div", { class: `figures ${kind}` }, found) : null;
};
// A role's held-out and training curves under its name alone, where both are there.
const together = (names) => {
  const whose = (name) => name.replace(/, (held out|training)$/, "");
  return unique(names.map((name) => (names.filter((other) => whose(other) === whose(name)).length > 1 ? whose(name) : name)));
};
// What did not change, as text in the page, so that a search finds it where it is folded away.
const folded = (list) => {
  const found = list.filter((one) => one && one.levels);
  const said = ({ levels }) => levels.flatMap(([level, names], place) => [place ? "; " : " ",
    levels.length > 1 ? [bdi(together(names).join(", ")), " "] : null, h("b", null, `= ${level}`)]);
  return found.length ? h("details", { class: "panel steady" }, h("summary", null, `${counted(found.length, "chart")} that did not change`),
    h("ul", null, found.map((one) => h("li", null, bdi(one.title), one.levels.length > 1 ? ":" : null, said(one))))) : null;
};
const figures = (kind, list) => [drawn(kind, list), folded(list)];

// pass@k for the largest k, with its interval, where evaluations play a problem several times.
const passSeries = (run) => {
  const samples = run.protocol.samples, metric = `eval/pass@${samples}`;
  const low = new Map(points2d(run, `${metric}_low`)), high = new Map(points2d(run, `${metric}_high`));
  return samples < 2 ? [] : [{ name: `pass@${samples}, held out`, place: 2, dots: true, points: points2d(run, metric), band: [...low].map(([x, y]) => [x, y, high.get(x)]) }];
};

const accuracySection = (run) => {
  const trained = `training ${game.pays ? "score" : "reward"}`; // pay has a chart of its own
  const team = [
    { name: "held out", place: 0, dots: true, points: run.held_out.map(([x, y]) => [x, y]), band: run.held_out.map(([x, , low, high]) => [x, low, high]) },
    ...passSeries(run),
    { name: trained, place: 1, light: true, points: points2d(run, "reward/mean") },
  ].filter((one) => one.points.length);
  const [low, high] = run.protocol.score_range;
  return section("accuracy", titled(measure()), low === 0 && high === 1 ? null : `A score of ${number(low)} is 0 %, one of ${number(high)} is 100 %.`,
    drawn("wide", [team.length && figure(`${titled(measure())} of the team`, `Held out: ${heldOutWords(run)}; the band is a 95 % interval over problems, step by step. ${titled(trained)}: ${trainWords(run)}.`, team, { percent: true, least: 0 })]),
    run.accuracy.length ? table(`Held-out ${measure()} with its 95 % interval, and what it had cost.`, [
      ["", (row) => [row.name, row.note ? h("small", null, row.note) : null], "cellname"],
      ["step", (row) => number(row.step)],
      [measure(), (row) => [percent(row.accuracy), known(row.low) ? h("small", null, `${(100 * row.low).toFixed(1)} to ${percent(row.high)}`) : null]],
      ["tokens", (row) => [number(row.tokens), known(row.seconds) ? h("small", null, `${minutes(row.seconds)} min`) : null]],
    ], run.accuracy) : h("p", { class: "muted" }, "There is no evaluation yet."));
};

const MEASURES = {
  role_score: "own accuracy", opening: "… in its first reply", strict: "read strictly", lenient: "read leniently", truncated: "cut off", tokens: "tokens a reply",
  any_correct: "a candidate was right", picked: "team right where one was", first_correct: "first attempt right", kept: "stayed right", repaired: "became right",
};
const measured = (row, value) => (row.measure === "tokens" ? number(value) : percent(value));
const changed = (row, change) => {
  if (!known(change.mean)) return "–";
  const show = row.measure === "tokens" ? (value) => (value > 0 ? "+" : "") + number(value) : points;
  const told = known(change.low) && (change.low > 0 || change.high < 0);
  return [h("span", { class: told ? "told" : "" }, show(change.mean)), h("small", null, known(change.low) ? range(change.low, change.high, show) : `none of ${number(change.n)} differs`)];
};

// What every role of a game earned at the first and the last evaluation.
const paid = ([mean, low, high]) => [number(mean), known(low) ? h("small", null, range(low, high, number)) : null];
const payTable = (run) => (run.pay.length ? table(`Pay of each role before training and at step ${run.held_out[run.held_out.length - 1][0]}, with its 95 % interval over problems (none where all are equal); the difference is paired over problems, and bold where its interval excludes 0. Share: of the sum of the roles' mean pay, where none earned less than 0.`, [
  ["role", (row) => bdi(row.role)],
  ["before", (row) => paid(row.before)],
  ["end", (row) => paid(row.after)],
  ["end − before", ({ gain }) => (gain ? [h("span", { class: gain.low > 0 || gain.high < 0 ? "told" : "" }, number(gain.mean)), gain.low < gain.high ? h("small", null, range(gain.low, gain.high, number)) : null] : "–")],
  ["share before", ({ shares }) => (shares ? percent(shares[0]) : "–")],
  ["share at the end", ({ shares }) => (shares ? percent(shares[1]) : "–")],
], run.pay) : null);

const rolesSection = (run) => {
  const { changes } = run;
  const own = roleSeries(run, game.pays ? "pay" : "role_score");
  const forms = [["boxed", "Boxed answers"], ["fence", "Code blocks"], ["verdict", "Verdict tags"], ["terse", "Terse replies"], ["likeness", "Likeness of parallel replies"], ["bare_verdict", "Bare verdicts among verdicts"]];
  const sampled = ofRoles(run, "sampled_entropy/"), trained = ofRoles(run, "trained_entropy/");
  const entropy = trained.length ? trained : below(run, "learn/trained_entropy/");
  const basis = `Lines with dots: held out (${heldOutWords(run)}). Dotted: ${trainWords(run)}.`;
  return section("roles", "Roles", basis, payTable(run),
    changes.rows.length ? table(
      `Roles before training, at the peak, and over the last evaluations after it (steps ${changes.last.join(", ")}). The peak, step ${changes.peak}, is the best evaluation on one half of the ${number(changes.problems)} problems, looked at on the ${number(changes.looked)} of the other half, so that it is not high by choice. Differences are paired over the problems that have both; the intervals of all ${changes.compared} hold together with 95 %, and bold ones exclude 0. Points, or tokens.`, [
        ["role", (row) => (row.role ? bdi(row.role) : "the team")],
        ["measure", (row) => MEASURES[row.measure], "left"],
        ["before", (row) => measured(row, row.base)],
        ["peak", (row) => measured(row, row.peak)],
        ["end", (row) => measured(row, row.end)],
        ["end − before", (row) => changed(row, row.from_base)],
        ...(changes.rising ? [] : [["end − peak", (row) => changed(row, row.from_peak)]]),
      ], changes.rows) : h("p", { class: "muted" }, `Roles are not compared: ${changes.why}.`),
    run.swaps.length ? table("The policies of two roles exchanged on the held-out problems of the last evaluation: differences in points, paired over problems. A fall shows that the roles have specialised.", [
      ["exchanged", (row) => row.roles.map((role, place) => [place ? " and " : "", bdi(role)])],
      [measure(), (row) => percent(row.accuracy)],
      ["difference", (row) => h("span", { class: row.low > 0 || row.high < 0 ? "told" : "" }, points(row.mean))],
      ["95 % interval", (row) => range(row.low, row.high, points)],
      ["problems", (row) => number(row.n)],
    ], run.swaps) : null,
    figures("", [
      game.pays ? maybe("Pay", "Mean of the role's agents, in the unit of the game.", own)
        : maybe("Own accuracy", "What the role's own reply was worth, where the workflow can tell.", own, { percent: true, least: 0 }),
      maybe("Reward", null, roleSeries(run, "reward")),
      maybe("Spread of rewards", "Standard deviation over calls.", roleSeries(run, "reward_std"), { least: 0 }),
      maybe("Read by the strict parser", null, roleSeries(run, "strict"), { percent: true, most: 1 }),
      maybe("Read by the lenient parser", null, roleSeries(run, "lenient"), { percent: true, most: 1 }),
      maybe("Length of replies", "Mean tokens.", roleSeries(run, "tokens"), { least: 0 }),
      maybe("Length of long replies", "95th percentile, tokens.", roleSeries(run, "tokens_p95"), { least: 0 }),
      maybe("Cut off by the length limit", null, roleSeries(run, "truncated"), { percent: true, least: 0 }),
      maybe("Prompts shortened to their budget", null, roleSeries(run, "shortened"), { percent: true, least: 0 }),
      maybe("Entropy", "Of all sampled tokens, in nats.", sampled, { least: 0, legend: true }),
      sampled.length ? null : maybe("Entropy", "Of the trained tokens, in nats: per role where it was measured so, else per policy.", entropy, { least: 0, legend: true }),
      maybe("Divergence by an update", "KL of the weights before an update to those after it, per token, on a sample of the rows of each policy.", below(run, "learn/update_kl/"), { least: 0, legend: true }),
      maybe("Sampler and learner", "Mean difference of their log-probs before the first step, per trained token, of policies that reach 0.001.", below(run, "learn/logp_gap_mean/").filter((one) => one.points.some(([, value]) => value >= 0.001)), { least: 0, legend: true }),
      maybe("Tokens with a bounded weight", "Importance weights beyond the cap or the floor.", [...below(run, "learn/importance_capped/"), ...below(run, "learn/importance_masked/")], { percent: true, least: 0, legend: true }),
      maybe("Replies that are off policy", "Left out of the policy gradient.", below(run, "learn/off_policy_masked/"), { percent: true, least: 0, legend: true }),
      maybe("KL to the sampling policy", "Of the trained tokens.", ofRoles(run, "kl/"), { legend: true }),
      maybe("Clipped tokens", "Of the trained tokens.", ofRoles(run, "clip/"), { percent: true, least: 0, legend: true }),
      ...forms.map(([name, title]) => maybe(title, null, roleSeries(run, `form/${name}`), { percent: true, least: 0 })),
    ]));
};

const gramTable = (gram) => heatMap(
  `Cosines between the roles' gradients, mean over ${gram.steps} steps (${gram.from} to ${gram.to}). ${known(gram.conflict) ? percent(gram.conflict) + " of the single cosines are negative." : ""}`,
  "", gram.roles, gram.roles, (one, two) => {
    const value = gram.cosines[gram.roles.indexOf(one)][gram.roles.indexOf(two)];
    return { value, content: known(value) ? minus(value.toFixed(2)) : "–" };
  });

const gradientSection = (run) => {
  const mass = ofRoles(run, "grad/mass/"), norm = ofRoles(run, "grad/norm/");
  const several = (list) => list.filter((one) => Object.values(run.policies).filter((policy) => policy === one.name).length > 1);
  const alone = Object.values(run.policies).length === unique(Object.values(run.policies)).length;
  const tested = run.captures.filter((one) => one.pairs.length);
  return section("gradients", "Gradients of the roles", "Before clipping and before roles are added up. A role's mass is its share in the sum of the roles' norms; more rows or longer replies give more mass by themselves, so it is judged against the role's share of tokens.",
    mass.length ? figures("", [
      alone ? null : maybe("Gradient mass", "Shares in the sum of norms: what the loss weighs. Stacked.", mass, { stacked: true, percent: true, min: 0, max: 1, legend: true }),
      alone ? null : maybe("Gradient mass per call", "Shares in the sum of norms per call. Stacked.", ofRoles(run, "grad/mass_call/"), { stacked: true, percent: true, min: 0, max: 1, legend: true }),
      maybe("Gradient norms", null, norm, { least: 0, legend: true }),
      maybe("Effective roles", "exp of the entropy of the mass shares of a policy's roles.", several(below(run, "grad/effective_roles/")), { least: 1, legend: true }),
      maybe("Dominance", "The largest mass share of a policy's roles.", several(below(run, "grad/dominance/")), { percent: true, most: 1, legend: true }),
      maybe("Conflict", "Share of negative cosines between the roles of a policy.", several(below(run, "grad/conflict/")), { percent: true, min: 0, max: 1, legend: true }),
      maybe("Gradient spikes", "1 where the norm is above 5 times its running median and more than its spread explains.", below(run, "grad/spike/"), { min: 0, max: 1, legend: true }),
      maybe("Amplification of parallel agents", "N for N agents that push one way, √N for orthogonal ones of one length. Corrected for noise, with its 95 % interval; naive: of the sample itself, which also measures noise. One probe a point, where its interval is bounded.", amplification(run, "amplification"), { least: 0, legend: true }),
      maybe("Amplification of the applied update", "The same of the update that Adam makes of the gradient.", amplification(run, "amplification_applied"), { least: 0, legend: true }),
    ]) : h("p", { class: "muted" }, "The roles' gradients were not measured in this run: train with --role-gradients."),
    amplificationTable(run),
    run.grams.length ? h("div", { class: "grams" }, run.grams.map(gramTable)) : null,
    tested.map((one) => table(`Capture within policy ${one.policy}: over 10 steps the odds of the mass are 3 times those of the tokens and of the first steps, and replies that moved to the other's form by half or more (permutation test, p at most 0.05).`, [
      ["who by", (pair) => bdi(pair.by)],
      ["whom", (pair) => bdi(pair.of), "left"],
      ["mass at first", (pair) => percent(pair.mass_first)],
      ["mass at the end", (pair) => percent(pair.mass_last)],
      ["tokens at the end", (pair) => percent(pair.tokens_last)],
      ["dominant", (pair) => (pair.dominant ? `from step ${pair.from_step}` : "no")],
      ["distance of forms", (pair) => `${number(pair.distance_before)} → ${number(pair.distance_after)}`],
      ["p", (pair) => number(pair.p_value)],
      ["verdict", (pair) => badge(pair.captured ? "captured" : "no", pair.captured ? "bad" : "")],
    ], one.pairs)));
};

const groupSection = (run, index) => {
  const names = { "mu_k/": ["Mean return μₖ", {}], "sigma_k/": ["Spread of returns σₖ", { least: 0 }], "inflation/": ["Inflation Fₖ", { least: 0 }], "shift/": ["Shift bₖ", {}] };
  const rows = run.roles.filter((role) => points2d(run, `mu_k/${role}`).length);
  // Ten steps at each end, or half of fewer than 20, so that the ends share none.
  const counts = rows.flatMap((role) => Object.keys(names).map((prefix) => points2d(run, prefix + role).length));
  const most = Math.min(10, Math.floor(Math.max(...counts) / 2));
  const fewer = counts.some((count) => count < 2 * most) ? ", or over halves where fewer were measured" : "";
  const ends = (metric) => {
    const series = points2d(run, metric).map(([, value]) => value), size = Math.min(most, Math.floor(series.length / 2));
    const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
    return size ? `${number(mean(series.slice(0, size)))} → ${number(mean(series.slice(-size)))}` : series.length ? number(series[0]) : "–";
  };
  const flatGroups = run.course.steps.map((step, place) => [step, (run.course.metrics["group/zero_variance"] || [])[place] / (run.course.metrics["group/count"] || [])[place]]).filter(([, value]) => known(value));
  const solved = [["solve_none", "all wrong"], ["solve_partial", "partly right"], ["solve_all", "all right"]]
    .map(([name, text], place) => ({ name: text, place, points: points2d(run, `group/${name}`) })).filter((one) => one.points.length);
  const replies = trainingGroups(run, index);
  if (!rows.length && !flatGroups.length && !replies) return null;
  return section("groups", "Groups", "Returns within the groups that advantages are taken in, per role: mean μₖ and standard deviation σₖ, inflation Fₖ = (σₖ² + (μₖ − μ)²) / σ² and shift bₖ = (μₖ − μ) / σ against the pooled group (arXiv 2602.08847). Fₖ = 1 and bₖ = 0: the role loses nothing by sharing its statistics.",
    rows.length ? table(most > 1 ? `Mean over the first ${most} measured steps → over the last ${most}${fewer}.` : "The first measured step → the last.", [
      ["role", (role) => bdi(role)],
      ...Object.entries(names).map(([prefix, [title]]) => [title, (role) => ends(prefix + role)]),
    ], rows) : null,
    figures("", [
      ...Object.entries(names).map(([prefix, [title, options]]) => maybe(title, null, roleSeries(run, prefix.slice(0, -1), false), options)),
      flatGroups.length ? chart("Groups without variance", "Their advantage is 0: they teach nothing.", [{ name: "share of groups", place: 0, points: flatGroups }], { percent: true, min: 0 }) : null,
      maybe("Problems by their episodes", "Right: a score of 1.", solved, { percent: true, min: 0, max: 1, legend: true }),
      maybe("Rows in groups without variance", "Per role: these rows teach nothing.", roleSeries(run, "group/zero_variance", false), { percent: true, min: 0 }),
      maybe("Rows alone in their group", "Per role.", roleSeries(run, "group/singleton", false), { percent: true, min: 0 }),
    ]), replies);
};

const SHARES = {
  evaluator_tpr: "Right answers that the evaluator accepted", evaluator_tnr: "Wrong answers that the evaluator rejected", evaluator_abstained: "Verdicts that nobody could read",
  verifier_tpr: "Sufficient evidence that was accepted", verifier_tnr: "Insufficient evidence that was rejected", any_correct: "Episodes with a right candidate (oracle)", contested: "Contested episodes",
  aggregator_recovery: "Contested episodes that ended right", refinement_recovery: "Wrong first attempts that ended right", refinement_regression: "Right first attempts that ended wrong",
};
// Wilson's interval, as if the cases were independent.
const wilson = (share, cases) => {
  const z = 1.959964, center = (share + z * z / (2 * cases)) / (1 + z * z / cases);
  const half = z * Math.sqrt(share * (1 - share) / cases + z * z / (4 * cases * cases)) / (1 + z * z / cases);
  return [Math.max(0, center - half), Math.min(1, center + half)];
};
const shareFigures = (run) => Object.entries(run.shares).map(([name, rows], place) => {
  const cases = rows.map(([, , of]) => of), [least, most] = [Math.min(...cases), Math.max(...cases)];
  return chart(SHARES[name] || name, `${name}: of ${least === most ? number(most) : `${number(least)} to ${number(most)}`} cases.`, [{ name: "share", place, dots: true, points: rows.map(([x, y]) => [x, y]), band: rows.map(([x, y, of]) => [x, ...wilson(y, of)]) }], { percent: true, least: 0, bare: true });
});

const factSection = (run) => {
  const list = below(run, "eval/fact/"), shares = shareFigures(run);
  if (!list.length && !shares.length) return null;
  const facts = list.map((one) => chart(one.name, null, [{ ...one, place: 0, dots: true }], { bare: true, least: 0 }));
  return section("facts-of-episodes", "Facts of the episodes", `Means over held-out episodes (${heldOutWords(run)}).${game.pays ? "" : " any_correct is the oracle: some candidate was right. contested: some, not all; recovered: contested and yet the team answered right."}`,
    shares.length ? h("p", { class: "note" }, "Shares of the cases in which there was something to do, with a 95 % interval that takes the cases for independent:") : null,
    drawn("", shares), drawn("small", facts), folded([...shares, ...facts]));
};

const smallNumber = (value) => (known(value) ? value.toPrecision(2) : "–");
const distanceTable = (run) => (run.distances.length ? table("How far each policy moved in an iteration: KL of the weights before it to those after, nats per token, on a sample of its rows. The sum over iterations is no distance between the ends, since steps that cancel add up as well. With one optimizer step an iteration the KL to the sampling policy, the clipped tokens and the effective sample size are constants and say nothing of it.", [
  ["policy", (row) => bdi(row.policy)],
  ["iterations", (row) => number(row.updates)],
  ["median", (row) => smallNumber(row.median)],
  ["largest", (row) => [smallNumber(row.largest), h("small", null, `step ${row.step}`)]],
  ["sum", (row) => smallNumber(row.total)],
  ["largest change of a token's probability", (row) => (known(row.ratio) ? `× ${number(row.ratio)}` : "–")],
], run.distances) : run.settings.update_effect === false ? h("p", { class: "muted" }, "How far each policy moved in an iteration was not measured (--no-update-effect).") : null);

const learnerSection = (run) => section("learner", "Learner and speed", `From ${trainWords(run)}.`,
  distanceTable(run),
  figures("small", [["loss", "Loss"], ["grad_norm", "Gradient norm"], ["kl", "KL to the sampling policy"], ["clip_fraction", "Clipped tokens"], ["ess", "Effective sample size of ratios"], ["logp_gap_max", "Largest gap of log-probabilities"], ["lr", "Learning rate"]]
    .map(([name, title]) => maybe(title, null, below(run, `learn/${name}/`), { bare: true }))
    .concat([maybe("Tokens per second", null, [{ name: "tok/s", place: 0, points: points2d(run, "perf/tok_s") }].filter((one) => one.points.length), { bare: true, least: 0 })])));

// Any metric that was logged, so that nothing is out of reach.
const explorerSection = (run) => {
  const names = Object.keys(run.course.metrics).sort();
  const holder = h("div", { class: "figures wide" });
  const still = names.filter((name) => steady(name, [{ name, points: points2d(run, name) }], {}));
  const group = (label, part) => (part.length ? h("optgroup", { label }, part.map((name) => h("option", { value: name }, name))) : null);
  const choose = h("select", { "aria-label": "Metric", onchange: () => show() },
    group("changed over the run", names.filter((name) => !still.includes(name))), group("did not change", still));
  const show = () => holder.replaceChildren(figure(choose.value, null, [{ name: choose.value, place: 0, points: points2d(run, choose.value) }], {}));
  const element = section("metrics", "Any metric", `${names.length} metrics were logged; names are stable.`, choose, holder);
  if (names.includes("reward/mean")) choose.value = "reward/mean";
  if (names.length) show();
  return element;
};

const provenanceSection = (run) => section("provenance", "Protocol and provenance", null,
  h("p", null, `Held-out figures: ${heldOutWords(run)}, ${run.protocol.at.length ? `after steps ${run.protocol.at.join(", ")} and at both ends` : `every ${number(run.protocol.every)} steps`}${run.protocol.prompts ? `, prompts ${run.protocol.prompts}` : ""}. The same problems and the same sampling noise at every evaluation.`),
  [["Settings", run.settings], ["Grading", run.grading], ["Software and machine", run.provenance]].map(([title, object]) =>
    h("details", null, h("summary", null, title), Object.keys(object).length ? pairs(object) : h("p", { class: "muted" }, "Nothing was recorded."))));

const settingsNote = (title, rows) => (rows.length ? h("p", { class: "note" }, `${title}: `, rows.map(([name, value], place) => [place ? ", " : null, h("b", null, bdi(name)), " ", bdi(value)]), ".") : null);

// What happened, why, and one thing to try; then one problem before and after it.
const diagnosisSection = (run) => {
  const one = run.diagnosis;
  if (!one) return null;
  const { moment } = one;
  return section("diagnosis", "Diagnosis", null,
    h("div", { class: "panel diagnosis" },
      h("p", { class: "what" }, bdi(one.sentences.join(" "))),
      one.cause ? h("p", null, h("b", null, "Cause, by reruns: "), bdi(one.cause), ".") : null,
      one.suspects.length ? h("p", null, h("b", null, "Suspects, none of them tried: "), bdi(one.suspects.join("; ")), ".") : null,
      one.advice ? h("p", null, "To find the cause by reruns: ", h("code", null, one.advice)) : null,
      run.why ? h("details", null, h("summary", null, "What the reruns showed"), h("ul", null, run.why.lines.map((line) => h("li", null, bdi(line))))) : null,
      settingsNote("Settings that differ from the defaults", run.changed),
      settingsNote("Chosen by the run, unless given", run.resolved)),
    moment ? h("details", { class: "panel moment" },
      h("summary", null, `One problem at steps ${moment.steps[0]} and ${moment.steps[1]}, side by side`),
      momentHead(moment),
      h("div", { class: "sides" }, momentSide(moment, "before", 0, one.role), momentSide(moment, "after", 1, one.role))) : null);
};

const runPage = (run, episodes, index = episodes && episodes.episodes.length ? new Index(episodes) : null) => [
  diagnosisSection(run),
  h("div", { class: "first" }, section("verdict", "Findings", null, findings(run.findings)), accuracySection(run)),
  rolesSection(run), gradientSection(run), groupSection(run, index), factSection(run),
  browserSection(index), learnerSection(run), explorerSection(run), provenanceSection(run),
];
