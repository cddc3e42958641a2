// Training groups: what the replies of a role to one problem earned, and what they taught.

// Why a role's replies to a problem taught nothing; null: they taught, or it is not known.
const silence = (run, role, calls) => {
  const rewards = unique(calls.map((call) => call.reward));
  const { role_weights: weights, frozen } = run.settings;
  if (calls.every((call) => call.advantage === null)) return "left out of the batch";
  if ((weights || []).some((word) => word.startsWith(`${role}=`) && Number(word.split("=")[1]) === 0)) return "weight 0";
  if (calls.every((call) => (frozen || []).includes(call.policy))) return "frozen";
  if (run.settings.truncated === "mask" && calls.every((call) => call.cut)) return "cut off, and masked";
  if (calls.some((call) => call.advantage)) return null;
  if (calls.length === 1) return "alone, nothing to compare";
  if (rewards.length === 1) return `all rewards are ${number(rewards[0])}`;
  return calls[0].advantage === undefined ? null : "advantages are 0";
};

const replyButton = (episode, call) => {
  const words = [`reward ${number(call.reward)}`, known(call.advantage) ? `advantage ${signed(call.advantage)}` : null].filter(Boolean).join(", ");
  return h("button", { type: "button", class: `reply ${call.advantage > 0 ? "up" : call.advantage < 0 ? "down" : ""}`, title: `${call.agent}: ${words}`, "aria-label": `${call.agent}: ${words}; show the episode`, onclick: () => showEpisode(episode.place) },
    number(call.reward), known(call.advantage) ? h("small", null, signed(call.advantage)) : null);
};

// One row for each role and problem of a step: [problem, role, [[episode, call] ...]].
const groupRows = (index, step) => {
  const rows = new Map();
  for (const episode of index.episodes) {
    if (episode.kind !== "train" || episode.step !== step) continue;
    for (const call of episode.calls) {
      const key = `${episode.problem} ${call.role}`;
      if (!rows.has(key)) rows.set(key, [index.texts[episode.text] || index.texts[episode.problem], call.role, []]);
      rows.get(key)[2].push([episode, call]);
    }
  }
  return [...rows.values()].sort(([one], [other]) => (one < other ? -1 : one > other ? 1 : 0));
};

const groupTable = (run, index, step) => {
  const saved = index.episodes.some(({ kind, calls }) => kind === "train" && calls.some((call) => call.advantage !== undefined));
  return table(`The replies of step ${number(step)}, by problem and role: reward${saved ? " and, below it, advantage" : "; this run saved no advantages"}. A reply leads to its episode.${run.branches ? " Candidates that were not executed are not saved." : ""}`, [
    ["problem", ([text]) => bdi(flat(text).slice(0, 90)), "cellname"],
    ["role", ([, role]) => bdi(role), "left"],
    ["replies", ([, , replies]) => h("div", { class: "replies" }, replies.map(([episode, call]) => replyButton(episode, call))), "left"],
    ["no signal", ([, role, replies]) => {
      const reason = silence(run, role, replies.map(([, call]) => call));
      return reason ? badge(reason, "warn") : null;
    }, "left"],
  ], groupRows(index, step));
};

const trainingGroups = (run, index) => {
  const steps = index ? unique(index.episodes.filter(({ kind }) => kind === "train").map(({ step }) => step)) : [];
  if (!steps.length) return null;
  const holder = h("div", { class: "group-table" });
  const show = (step) => holder.replaceChildren(groupTable(run, index, step));
  show(steps[0]);
  const choose = h("select", { "aria-label": "Step of the groups", onchange: (event) => show(Number(event.target.value)) }, steps.map((step) => h("option", { value: step }, `step ${step}`)));
  return [h("h3", null, "Rewards and advantages of the saved steps ", steps.length > 1 ? choose : null), holder];
};
