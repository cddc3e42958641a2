// The sections of an evaluation, and of two that are compared.

const share = (value, ends) => [percent(value), ends && known(ends[0]) ? h("small", null, `${(100 * ends[0]).toFixed(1)} to ${percent(ends[1])}`) : null];
const rate = (ends) => (ends ? share(ends[0], ends.slice(1)) : "–");
const dollars = (cost) => (known(cost) ? `$${cost.toLocaleString("en", { minimumFractionDigits: 4, maximumFractionDigits: 4 })}` : "–");
// Median seconds of a call, and below it the 95th percentile.
const latency = (usage) => (usage && usage.latency ? [usage.latency.median.toFixed(2), h("small", null, `95th percentile ${usage.latency.p95.toFixed(2)}`)] : "–");

// False for a cell without a measurement.
const hasValue = (cell) => [cell].flat()[0] !== "–";

// A mean and its interval on a line from 0 to 1.
const gauge = (value, ends) => {
  const bar = h("span", { class: "span" }), dot = h("span", { class: "dot" });
  const inside = (part) => 100 * Math.min(1, Math.max(0, part));
  const [low, high] = ends && known(ends[0]) ? ends.map(inside) : [inside(value), inside(value)];
  bar.style.left = `${low}%`;
  bar.style.width = `${high - low}%`;
  dot.style.left = `${inside(value)}%`;
  return h("div", { class: "gauge", "aria-hidden": "true" }, bar, dot);
};

// Pay of a role in a game, with its interval.
const payOf = (facts, role) => [number(facts.pay?.[role]), h("small", null, range(...(facts.intervals.pay?.[role] || []), number))];

// Measures of an evaluation as a whole: [name, cell].
const wholeRows = (facts) => {
  const { intervals, usage, majority } = facts;
  const passes = Object.keys(facts).filter((name) => !game.pays && /^pass@(?!1$)\d+$/.test(name));
  const part = (name, { share: value, of }) => [name.replaceAll("_", " "), [share(value, intervals.shares[name]), h("small", null, `of ${number(of)}`)]];
  return [
    ...(majority ? [[`accuracy of ${majority.samples} votes`, share(majority.accuracy, majority.interval)]] : []),
    [measure(), share(facts.accuracy, intervals.accuracy)],
    ...(game.pays ? facts.role_names.map((role) => [`pay of ${role}`, payOf(facts, role)]) : [["right", `${number(facts.right)} of ${number(facts.episodes)}`]]),
    ...passes.map((name) => [name, share(facts[name], intervals[name])]),
    ...Object.entries(facts.shares).map(([name, value]) => part(name, value)),
    ...(facts.judge.verdicts ? [["verdicts of the judge", [number(facts.judge.verdicts), h("small", null, `${number(facts.judge.unreadable)} unreadable`)]]] : []),
    ...(facts.judge.compared ? [["the judge agrees with the role score", [percent(facts.judge.agreement), h("small", null, `of ${number(facts.judge.compared)}`)]]] : []),
    ["calls an episode", number(facts.calls)],
    ["output tokens an episode", number(facts.tokens)],
    ["prompt tokens an episode", number(facts.prompt_tokens)],
    ...(facts.uncounted ? [["calls without token counts", number(facts.uncounted)]] : []),
    ...("cost" in usage ? [["cost", dollars(usage.cost)]] : []),
    ["seconds a call", latency(usage)],
  ];
};

const headline = (value, ends, words) => h("div", { class: "panel headline" }, h("b", null, value), ends ? h("span", null, `95 % interval ${ends}`) : null, h("span", { class: "muted" }, words));

const notes = (facts) => [
  facts.finished ? null : h("p", { class: "panel bad note" }, "This evaluation is not finished, or has grown: the figures are those of the episodes that are there."),
  facts.alarms && facts.alarms.length ? findings(facts.alarms.map(({ cause, text }) => ({ level: "warn", label: "Warning", title: cause.replace("/", ": "), text }))) : null,
  facts.unknown ? h("p", { class: "note" }, `Unknown, and not counted: ${Object.entries(facts.unknown).map(([name, reason]) => `${name} (${reason})`).join(", ")}.`) : null,
  facts.protocol_line ? h("p", { class: "note" }, bdi(facts.protocol_line)) : null,
];

const roleColumns = (facts) => {
  const ends = (role, name) => facts.intervals.roles[role]?.[name], usage = facts.usage.roles;
  const part = (name) => (role) => share(facts.roles[role][name], ends(role, name));
  return [
    ["role", (role) => bdi(role)],
    ["calls", (role) => number(facts.roles[role].calls)],
    game.pays ? ["pay", (role) => payOf(facts, role)] : ["own accuracy", part("role_score")],
    ["readable", part("strict")],
    ["… leniently", part("lenient")],
    ["cut off", part("truncated")],
    ["tokens", (role) => [number(facts.roles[role].tokens), known(facts.roles[role].tokens_p95) ? h("small", null, `95th percentile ${number(facts.roles[role].tokens_p95)}`) : null]],
    ["prompt tokens", (role) => (known(usage[role]?.prompt_tokens) ? number(usage[role].prompt_tokens / usage[role].calls) : "–")],
    ...("cost" in facts.usage ? [["cost", (role) => dollars(usage[role]?.cost)]] : []),
    ["seconds", (role) => latency(usage[role])],
  ];
};

// A level leads to its episodes.
const levelButton = ({ level }) => (level ? h("button", { type: "button", onclick: () => showLevel(level) }, bdi(level)) : "none");

const levelSection = (facts) => (facts.levels.length ? section("levels", "Levels of the problems", null,
  table(`Episodes by the level of their problem; ${measure()} with its 95 % interval over problems. A level shows its episodes.`, [
    ["level", levelButton],
    [measure(), (row) => share(row.accuracy, row.interval)],
    ["", (row) => gauge(row.accuracy, row.interval)],
    ["problems", (row) => number(row.problems)],
    ["episodes", (row) => number(row.episodes)],
    ["readable", (row) => percent(row.strict)],
    ["cut off", (row) => percent(row.truncated)],
    ["tokens", (row) => number(row.tokens)],
  ], facts.levels)) : null);

const lengthSection = (facts) => section("lengths", "Length of replies", null,
  table("Replies of each role in up to five bins by their length; with 95 % intervals over problems. Replies of one length share a bin, so bins differ in size; one of fewer than 5 replies joins its neighbor.", [
    ["role", (row) => bdi(row.role)],
    ["length", (row) => [row.low === row.high ? number(row.low) : range(row.low, row.high, number), h("small", null, row.unit)], "left"],
    ["replies", (row) => number(row.replies)],
    ...(game.pays ? [] : [["own accuracy", (row) => rate(row.rates.role_score)]]),
    [`${measure()} of the team`, (row) => rate(row.rates.score)],
    ["", (row) => gauge(row.rates.score[0], row.rates.score.slice(1))],
    ["readable", (row) => rate(row.rates.strict)],
    ["cut off", (row) => rate(row.rates.truncated)],
  ], facts.lengths));

const evaluationPage = (facts, packed) => [
  section("accuracy", titled(measure()), null,
    facts.majority ? headline(percent(facts.majority.accuracy), facts.majority.interval ? range(...facts.majority.interval, percent) : null, `${counted(facts.majority.samples, "vote")} a problem, ${number(facts.majority.right)} of ${counted(facts.majority.problems, "problem")} right`)
      : headline(percent(facts.accuracy), facts.intervals.accuracy ? range(...facts.intervals.accuracy, percent) : null, `${game.pays ? counted(facts.episodes, "episode") : `${number(facts.right)} of ${counted(facts.episodes, "episode")} right`}, ${counted(facts.problems, "problem")}`),
    notes(facts),
    h("div", { class: "narrow" }, table("All episodes; a mean with its 95 % interval over problems.", [["", ([name]) => bdi(name)], ["value", ([, cell]) => cell]], wholeRows(facts).filter(([, cell]) => hasValue(cell))))),
  section("roles", "Roles", null, table("Means over the calls of each role, with 95 % intervals over problems; tokens and seconds of a call.", roleColumns(facts).filter(([, cell]) => facts.role_names.some((role) => hasValue(cell(role)))), facts.role_names)),
  levelSection(facts), lengthSection(facts), episodesSection(packed),
];

const differenceRow = (row) => [
  h("span", { class: row.interval && (row.interval[0] > 0 || row.interval[1] < 0) ? "told" : "" }, points(row.difference)),
  row.interval ? h("small", null, range(...row.interval, points)) : null];

const comparisonPage = (facts, packed) => {
  const [a, b] = facts.sides, { paired } = facts;
  const sides = wholeRows(a).map(([name, cell]) => [name, cell, (wholeRows(b).find(([other]) => other === name) || [, "–"])[1]]).filter(([, ...cells]) => cells.some(hasValue));
  const names = unique(facts.sides.flatMap((side) => side.role_names));
  const roles = names.flatMap((role) => facts.sides.map((side, place) => ({ side, place, role }))).filter(({ side, role }) => role in side.roles);
  return [
    section("difference", "Difference", null,
      headline(`${points(paired.difference)} points`, paired.interval ? range(...paired.interval, points) : null, `A less B, paired over ${counted(paired.problems, "problem")}: ${number(paired.won)} won, ${number(paired.lost)} lost, ${number(paired.tied)} tied${paired.unpaired ? `; ${number(paired.unpaired)} without a pair` : ""}`),
      facts.sides.map((side, place) => [h("p", { class: "note" }, `${"AB"[place]}: `, h("b", null, bdi(side.name)), side.protocol_line ? [". ", bdi(side.protocol_line)] : null)]),
      a.majority || b.majority ? h("p", { class: "note" }, "A problem's score here is the mean over its episodes; flowzoo eval --against compares votes.") : null,
      h("div", { class: "narrow" }, table("Both evaluations; a mean with its 95 % interval over problems.", [["", ([name]) => bdi(name)], ["A", ([, one]) => one], ["B", ([, , other]) => other]], sides))),
    facts.levels.length ? section("levels", "Levels of the problems", null, table("A less B by the level of the problem, in points, with 95 % intervals; bold ones exclude 0. A level shows its problems.", [
      ["level", levelButton],
      ["difference", differenceRow],
      ["problems", (row) => number(row.problems)],
      ["won", (row) => number(row.won)],
      ["lost", (row) => number(row.lost)],
      ["tied", (row) => number(row.tied)],
    ], facts.levels)) : null,
    section("roles", "Roles", null, table("Means over the calls of each role, with 95 % intervals over problems; tokens and seconds of a call.",
      roleColumns(a).map(([heading, , kind], column) => [heading, ({ side, place, role }) => {
        const cell = (roleColumns(side).find(([name]) => name === heading) || [, () => "–"])[1](role);
        return column ? cell : [cell, ` ${"AB"[place]}`];
      }, kind]).filter(([, cell]) => roles.some((row) => hasValue(cell(row)))), roles)),
    episodesSection(packed),
  ];
};
