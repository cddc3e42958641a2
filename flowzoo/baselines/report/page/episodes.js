// Episodes of an evaluation: an index in the page, transcripts in scripts beside it, which are loaded
// when they are needed (see evaluation/page.py).

let showLevel = () => {}; // set where there are transcripts

const REPLIED = 1, UNREAD = 2, CUT = 4, ROLE_WRONG = 8;
const flagged = (episode, role, flag) => (role < 0 ? episode.flags.some((one) => one & flag) : Boolean(episode.flags[role] & flag));
const scoreOf = (episodes) => episodes.reduce((sum, { score }) => sum + score, 0) / episodes.length;

// Filters of items: [label, what it means, test of [item, role]].
const EPISODE_FILTERS = {
  right: ["Right", "the score is 1", ({ all }) => all.some(({ score }) => score >= 1)],
  wrong: ["Wrong", "the score is below 1", ({ all }) => all.some(({ score }) => score < 1)],
};
const PAIR_FILTERS = {
  won: ["A won", "A has the higher score", ({ scores: [a, b] }) => a > b],
  lost: ["B won", "B has the higher score", ({ scores: [a, b] }) => a < b],
  bothright: ["Both right", "both have score 1", ({ scores: [a, b] }) => a >= 1 && b >= 1],
  bothwrong: ["Both wrong", "both have a score below 1", ({ scores: [a, b] }) => a < 1 && b < 1],
};
const REPLY_FILTERS = {
  parse: ["Unreadable", "the strict parser could not read a reply", ({ all }, role) => all.some((one) => flagged(one, role, UNREAD))],
  cut: ["Cut off", "a reply ran into the length limit, or the episode was cut off", ({ all }, role) => all.some((one) => (role < 0 && one.truncated) || flagged(one, role, CUT))],
  rolewrong: ["Role wrong", "a role's own reply was wrong", ({ all }, role) => all.some((one) => flagged(one, role, ROLE_WRONG))],
};

class EvaluationIndex {
  constructor(packed) {
    this.packed = packed;
    this.texts = packed.texts;
    this.low = packed.texts.map((text) => text.toLowerCase());
    this.items = packed.items.map(([problem, text, gold, level, file, first, sides]) => {
      const episodes = sides.map((side) => side.map(([sample, score, answer, truncated, flags]) => ({ sample, score, answer, truncated, flags })));
      return { problem, ...asked(this.texts, text, gold), level: this.texts[level], file, first, sides: episodes, all: episodes.flat(), scores: episodes.map(scoreOf) };
    });
    this.pair = packed.sides.length > 1;
    this.samples = this.items.some(({ all }) => all.some(({ sample }) => sample));
    this.noun = this.pair ? "problem" : "episode";
    this.filters = ofTruth({ ...(this.pair ? PAIR_FILTERS : EPISODE_FILTERS), ...REPLY_FILTERS }, ["right", "wrong", "bothright", "bothwrong", "rolewrong"]);
    this.levels = unique(this.items.map(({ level }) => level)).filter(Boolean).sort((one, other) => one.localeCompare(other, "en", { numeric: true }));
    this.read = new Map(); // number of a file -> its Index, once it is there
    this.asked = new Map(); // number of a file -> promise of it
    this.hits = new Map(); // number of a file -> places in it that the present search has found
    this.onread = () => {};
  }

  get size() { return this.items.length; }
  get selects() {
    return [["Role", "role", "all roles", this.packed.roles], ...(this.levels.length > 1 ? [["Level", "level", "all levels", this.levels]] : [])];
  }
  note() {
    const { total, files } = this.packed, shown = this.items.reduce((sum, { all }) => sum + all.length, 0);
    const left = this.searching && this.read.size < files ? `; searching the replies, ${percent(this.read.size / files, 0)}` : "";
    return left + (this.failed ? `; ${this.failed}` : "") + (total > shown ? `; ${number(total)} episodes are saved` : "");
  }

  head(place) {
    const item = this.items[place];
    const badges = this.pair ? ["A", "B"].map((name, side) => [`${name} `, item.sides[side].length ? scoreBadge(item.scores[side]) : "–"]) : [scoreBadge(item.all[0].score)];
    const words = [this.samples && !this.pair ? `sample ${item.all[0].sample}` : null, item.level ? `level ${item.level}` : null];
    return [this.texts[item.text] || this.texts[item.problem], [...badges, words.filter(Boolean).join(", "),
      item.all.some((one) => flagged(one, -1, UNREAD)) ? badge("unreadable", "warn") : null, item.all.some((one) => one.truncated || flagged(one, -1, CUT)) ? badge("cut off", "warn") : null]];
  }

  // A file of transcripts, which says its content by calling flowzooEpisodes.
  load(number) {
    if (!this.asked.has(number)) this.asked.set(number, new Promise((done, fail) => {
      const path = `${this.packed.folder}/${number}.js`;
      const refuse = (why) => { this.asked.delete(number); fail(new Error(`${decodeURIComponent(path)} ${why}`)); };
      const script = h("script", { src: path, onerror: () => refuse("cannot be read: keep it beside the page, or write the page again"),
        onload: () => { script.remove(); if (this.read.has(number)) done(); else refuse("belongs to another page: write the page again"); } });
      document.head.append(script);
    }));
    return this.asked.get(number);
  }

  take(stamp, number, content) {
    if (stamp === this.packed.stamp) this.read.set(number, new Index(content));
  }

  // All files, a few at a time; the search goes on as they come.
  async loadAll() {
    if (this.searching) return;
    this.searching = true;
    this.failed = "";
    let next = 0, told = performance.now();
    const work = async () => {
      while (next < this.packed.files) {
        const number = next++;
        if (this.read.has(number)) continue;
        try { await this.load(number); } catch (error) { this.failed = error.message; }
        if (performance.now() - told > 200) { this.onread(); told = performance.now(); }
      }
    };
    await Promise.all(Array.from({ length: 4 }, work));
    this.searching = this.read.size === this.packed.files;
    this.onread();
  }

  find({ query = "", filters = [], role = "", level = "", prompts = false }) {
    const tests = filters.map((name) => this.filters[name][2]), place = this.packed.roles.indexOf(role);
    const lines = query && !role ? this.low.map((text) => text.includes(query.toLowerCase())) : null;
    if (query) this.searchFiles({ query, role, prompts });
    const found = [];
    this.items.forEach((item, at) => {
      if (level && item.level !== level) return;
      if (role && !item.all.some((one) => flagged(one, place, REPLIED))) return;
      if (query && !(lines && this.inLine(item, lines)) && !this.inFile(item)) return;
      if (tests.every((test) => test(item, place))) found.push(at);
    });
    return found;
  }

  inLine(item, lines) {
    return lines[item.problem] || lines[item.text] || lines[item.gold] || item.all.some(({ answer }) => answer !== null && lines[answer]);
  }

  inFile({ file, first, all }) {
    const hits = this.hits.get(file);
    return Boolean(hits) && all.some((one, at) => hits.has(first + at));
  }

  // What has been read is searched at once, each file once a search; the rest is read for it.
  searchFiles(state) {
    const key = JSON.stringify(state);
    if (key !== this.key) { this.key = key; this.hits.clear(); }
    for (const [number, index] of this.read) if (!this.hits.has(number)) this.hits.set(number, new Set(index.find(state)));
    if (this.read.size < this.packed.files) this.loadAll();
  }

  view(place, query) {
    const item = this.items[place];
    if (this.read.has(item.file)) return this.transcripts(item, query);
    const holder = h("p", { class: "empty", role: "status" }, "The transcript is being read …");
    const show = (nodes) => holder.replaceWith(...[nodes].flat(Infinity));
    this.load(item.file).then(() => show(this.transcripts(item, query)), (error) => show(h("p", { class: "empty bad" }, error.message)));
    return holder;
  }

  transcripts(item, query) {
    const index = this.read.get(item.file);
    const episode = (at) => index.episodes[item.first + at];
    if (!this.pair) return episodeView(index, episode(0), query, this.packed.roles);
    const one = (at) => playView(index, episode(at), query, this.packed.roles);
    let first = 0;
    return [problemView(index, episode(0), query), h("div", { class: "sides" }, item.sides.map((episodes, side) => {
      const start = first;
      first += episodes.length;
      const body = h("div", null, episodes.length ? one(start) : h("p", { class: "muted" }, "It has no episode of this problem."));
      const choose = episodes.length > 1 ? h("select", { "aria-label": `Sample of ${"AB"[side]}`, onchange: (event) => body.replaceChildren(...one(start + Number(event.target.value)).flat(Infinity)) },
        episodes.map(({ sample, score }, at) => h("option", { value: at }, `sample ${sample}, score ${number(score)}`))) : null;
      return h("div", { class: "side" }, h("h4", null, `${"AB"[side]}: `, bdi(this.packed.sides[side]), " ", choose), body);
    }))];
  }
}

const episodesSection = (packed) => {
  if (!packed.items.length) return section("transcripts", "Transcripts", null, h("p", { class: "muted" }, "The page was made without them."));
  const index = new EvaluationIndex(packed);
  window.flowzooEpisodes = (...content) => index.take(...content);
  const browser = new Browser(index);
  index.onread = () => browser.refresh();
  showLevel = (level) => { browser.choose({ level }); browser.root.scrollIntoView(); };
  return section("transcripts", "Transcripts", "With a role chosen, search and filters look at its replies alone. Characters that do not show are written by their code point.", browser.root, browserKeys());
};
