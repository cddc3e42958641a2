// Episodes as records, and the search over them. Texts stand once in a table (see transcripts.py), so
// each is searched once however many episodes share it.

const unpack = (packed) => packed.episodes.map(([kind, step, problem, text, gold, answer, score, truncated, facts, calls], place) => ({
  place, kind: packed.texts[kind], step, problem, ...asked(packed.texts, text, gold), answer, score, truncated, facts,
  calls: calls.map(([role, agent, phase, turn, reply, strict, lenient, role_score, reward, finish, tokens, messages, policy, advantage]) => ({
    role: packed.texts[role], agent: packed.texts[agent], phase, turn, reply, strict, lenient, role_score, reward,
    cut: packed.texts[finish] === "length", tokens, messages, policy: packed.texts[policy], advantage,
  })),
}));

const FILTERS = {
  wrong: ["Wrong", "the team's score is below 1", (episode) => !(episode.score >= 1)],
  right: ["Right", "the team's score is 1", (episode) => episode.score >= 1],
  contested: ["Contested", "some candidates were right and some were not", (episode) => episode.facts.contested === true],
  rolewrong: ["Role wrong", "a role's own reply was wrong", null, (call) => known(call.role_score) && call.role_score < 1],
  parse: ["Parse failure", "the strict parser could not read a reply", null, (call) => !call.strict],
  cut: ["Truncated", "a reply ran into the length limit, or the episode was cut off", (episode, role) => (!role && episode.truncated) || callsOf(episode, role).some((call) => call.cut)],
};

const callsOf = (episode, role) => (role ? episode.calls.filter((call) => call.role === role) : episode.calls);

class Index {
  constructor(packed) {
    this.texts = packed.texts;
    this.total = packed.total;
    this.episodes = unpack(packed);
    this.roles = unique(this.episodes.flatMap((episode) => episode.calls.map((call) => call.role)));
    this.moments = unique(this.episodes.map((episode) => `${episode.kind} ${episode.step}`));
    this.low = [];
    this.prepare();
  }

  // Lower case of all texts, made while nothing else is to be done, so that the first search is fast.
  prepare() {
    const later = window.requestIdleCallback || ((work) => setTimeout(() => work({ timeRemaining: () => 10 }), 50));
    const work = (deadline) => {
      while (this.low.length < this.texts.length && deadline.timeRemaining() > 2) this.lower(200);
      if (this.low.length < this.texts.length) later(work);
    };
    later(work);
  }

  lower(count) {
    const end = Math.min(this.texts.length, this.low.length + count);
    for (let place = this.low.length; place < end; place += 1) this.low.push(this.texts[place].toLowerCase());
  }

  get size() { return this.episodes.length; }
  get filters() { return ofTruth(FILTERS, ["wrong", "right", "contested", "rolewrong"]); }
  get selects() { return [["Role", "role", "all roles", this.roles], ["Step", "moment", "all steps", this.moments]]; }
  head(place) { return episodeHead(this, this.episodes[place]); }
  view(place, query) { return episodeView(this, this.episodes[place], query, this.roles); }
  note() { return this.total > this.size ? `; ${number(this.total)} are saved` : ""; }

  // Places of the episodes that pass; `query` is looked for in problems, answers, replies and, with
  // `prompts`, in what the roles were asked.
  find({ query = "", filters = [], role = "", moment = "", prompts = false }) {
    const hits = query ? this.matching(query.toLowerCase()) : null;
    const tests = filters.map((name) => FILTERS[name]);
    const found = [];
    for (const episode of this.episodes) {
      if (moment && `${episode.kind} ${episode.step}` !== moment) continue;
      if (role && !episode.calls.some((call) => call.role === role)) continue;
      if (hits && !this.mentions(episode, hits, role, prompts)) continue;
      if (tests.every(([, , whole, one]) => (whole ? whole(episode, role) : callsOf(episode, role).some(one)))) found.push(episode.place);
    }
    return found;
  }

  matching(query) {
    this.lower(this.texts.length);
    const hits = new Uint8Array(this.low.length);
    for (let place = 0; place < hits.length; place += 1) if (this.low[place].includes(query)) hits[place] = 1;
    return hits;
  }

  mentions(episode, hits, role, prompts) {
    if (!role && (hits[episode.problem] || hits[episode.text] || hits[episode.gold] || (episode.answer !== null && hits[episode.answer]))) return true;
    for (const call of episode.calls) {
      if (role && call.role !== role) continue;
      if (hits[call.reply]) return true;
      if (prompts) for (let at = 1; at < call.messages.length; at += 2) if (hits[call.messages[at]]) return true;
    }
    return false;
  }
}
