// What a matrix is made to show: every failure with its remedies, and the moment at which it breaks.

const PART = { shows: ["the failure", "bad"], failed_remedies: ["no remedy", "warn"], remedies: ["remedy", "good"], comparisons: ["for comparison", "unknown"] };
const MOST_CALLS = 6;

const shape = (tag, attributes, ...children) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};

// One line a seed from 0 to 100 %; those in which the failure is there stand out.
const sparks = (row) => {
  const [width, height, last] = [132, 34, row.steps[row.steps.length - 1] || 1];
  const place = (step, value) => `${(2 + (width - 4) * step / last).toFixed(1)},${(height - 2 - (height - 4) * value).toFixed(1)}`;
  const lines = row.courses.map((course, at) => [row.there.includes(row.seeds[at]), course.map((value, n) => (known(value) ? place(row.steps[n], value) : null)).filter(Boolean)]);
  lines.sort(([one], [other]) => one - other);
  const ends = row.courses.map((course) => percent(course[course.length - 1], 0)).join(", ");
  return shape("svg", { class: "sparks", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `last values by seed: ${ends}` },
    ...[0, 0.5, 1].map((level) => shape("line", { class: "grid", x1: 0, x2: width, y1: height - 2 - (height - 4) * level, y2: height - 2 - (height - 4) * level })),
    ...lines.map(([there, points]) => shape("polyline", { class: there ? "there" : "", points: points.join(" ") })));
};

const ofSeeds = (seeds, all) => [`${seeds.length} of ${all}`, seeds.length && seeds.length < all ? h("small", null, `${seeds.length > 1 ? "seeds" : "seed"} ${seeds.join(", ")}`) : null];
const within = (one, other) => one.filter((seed) => other.includes(seed));

const failureTable = (failure) => table(`There: ${failure.rule}. Called: the run's own page says ${failure.called_by.map((sign) => `“${sign}”`).join(" or ")} (of the team or of the ${failure.role}). Clean: neither; of a remedy in five of six seeds or more, or it is marked. Course: ${failure.metric} over the steps, one line a seed, from 0 to 100 %; red where it is there.`, [
  ["cell", (row) => [bdi(row.label), h("small", null, badge(...PART[row.part]))], "cellname"],
  ["course", sparks, "left"],
  ["there", (row) => [ofSeeds(row.there, row.seeds.length), row.untold.length ? h("small", null, `cannot be told: ${row.untold.join(", ")}`) : null]],
  ["called, where there", (row) => (row.there.length ? ofSeeds(within(row.there, row.called), row.there.length) : "–")],
  ["called, where not", (row) => (row.seeds.length > row.there.length ? ofSeeds(row.called.filter((seed) => !row.there.includes(seed)), row.seeds.length - row.there.length) : "–")],
  ["clean", (row) => (row.part === "remedies" ? badge(`${row.clean.length} of ${row.seeds.length}`, row.clean.length * 6 >= row.seeds.length * 5 ? "good" : "bad") : ofSeeds(row.clean, row.seeds.length))],
], failure.cells);

const momentCall = (call, role) => h("div", { class: `said-by${call.role === role ? " culprit" : ""}` },
  h("small", { class: "muted" }, bdi(call.agent), " ", known(call.role_score) ? verdict(call.role_score, "right") : null),
  said(call.reply));

const momentHead = ({ problem, gold }) => h("p", null, bdi(problem), game.pays ? null : h("small", { class: "muted" }, " gold ", bdi(gold)));

const momentSide = (moment, side, at, role) => {
  const episode = moment[side];
  const calls = episode.calls.map((call) => momentCall(call, role));
  const rest = calls.slice(MOST_CALLS);
  return h("div", { class: "side" },
    h("h4", null, `step ${moment.steps[at]} `, verdict(episode.score, "team right", `team's score ${number(episode.score)}`), moment.values ? h("small", null, ` the figure of all problems: ${percent(moment.values[at], 0)}`) : null),
    calls.slice(0, MOST_CALLS), rest.length ? h("details", null, h("summary", null, `${counted(rest.length, "further call")}`), rest) : null);
};

const momentView = (failure) => {
  const moment = failure.moment;
  if (!moment) return null;
  return h("div", { class: "panel moment" },
    h("p", { class: "note" }, `The moment it breaks, by one problem of `, bdi(moment.run), `: the evaluation before, and the one from which on it stays there. Of all problems it is the one in which the ${failure.role} lost the most, the first where several are equal.`),
    momentHead(moment),
    h("div", { class: "sides" }, momentSide(moment, "before", 0, failure.role), momentSide(moment, "after", 1, failure.role)));
};

const failureSection = (matrix) => (matrix.failures.length ? section("failures", "Failures and their remedies", "What this matrix was made to show, by rules that stand in its file.",
  matrix.failures.map((failure) => h("article", { class: "failure", "data-failure": failure.name }, h("h3", null, bdi(`${failure.name}: ${failure.title}`)), failureTable(failure), momentView(failure)))) : null);
