// The transcript browser: a list that only holds the rows in view, and one episode beside it.

// Of a step in a chart and of a reply in a table; set where there are transcripts.
let showStep = () => {}, showEpisode = () => {};

const ROW = 60; // height of a row in CSS pixels, as in the style sheet

const scoreBadge = (score) => verdict(score, "right", score > 0 ? `score ${number(score)}` : "wrong");

// The two lines of an episode in the list.
const episodeHead = (index, episode) => [index.texts[episode.text] || index.texts[episode.problem], [
  scoreBadge(episode.score), `${episode.kind} ${episode.step}`, episode.facts.contested === true ? badge("contested") : null,
  episode.calls.some((call) => !call.strict) ? badge("parse", "warn") : null, episode.calls.some((call) => call.cut) ? badge("cut off", "warn") : null]];

const episodeRow = (index, place, at, chosen) => {
  const [title, sub] = index.head(place);
  const row = h("div", { class: "row", role: "option", id: `episode-${place}`, "aria-selected": String(chosen), "aria-posinset": at + 1 },
    h("div", null, bdi(flat(title))), h("div", { class: "sub" }, sub));
  row.style.transform = `translateY(${at * ROW}px)`;
  row.dataset.at = at;
  return row;
};

const callView = (index, call, query, colors) => {
  const messages = [];
  for (let at = 0; at < call.messages.length; at += 2) messages.push([index.texts[call.messages[at]], index.texts[call.messages[at + 1]]]);
  const asked = h("details", { ontoggle: () => {
    if (asked.open && asked.childElementCount === 1) asked.append(...messages.map(([who, text]) => h("div", null, h("small", { class: "muted" }, bdi(who)), said(text, query))));
  } }, h("summary", null, `What it was asked (${messages.length} ${messages.length === 1 ? "message" : "messages"})`));
  const element = h("article", { class: "call" },
    h("header", null, h("b", null, bdi(call.agent)), h("span", { class: "muted" }, `phase ${call.phase}, turn ${call.turn}, ${known(call.tokens) ? `${number(call.tokens)} tokens, ` : ""}policy `, bdi(call.policy || "–")),
      known(call.role_score) ? (game.pays ? badge(`pay ${number(call.role_score)}`) : verdict(call.role_score, "own answer 1", `own answer ${number(call.role_score)}`)) : null, badge(`reward ${number(call.reward)}`), known(call.advantage) ? badge(`advantage ${signed(call.advantage)}`) : null,
      call.strict ? null : badge("not read strictly", "warn"), call.lenient ? null : badge("not read leniently", "warn"), call.cut ? badge("cut off", "warn") : null),
    said(index.texts[call.reply], query), messages.length ? asked : null);
  element.style.borderLeftColor = seriesColor(colors.indexOf(call.role));
  return element;
};

const where = ({ kind, step }) => (kind === "sample" ? `sample ${step}` : `${kind} episode of step ${step}`);

const scored = (episode) => h("p", null, verdict(episode.score, "right"), `${game.pays ? " " : ` score ${number(episode.score)}, `}${where(episode)}${episode.truncated ? ", cut off by max_cycles" : ""}`);
const played = (index, episode, query, colors) => [
  Object.keys(episode.facts).length ? h("details", null, h("summary", null, "Facts"), pairs(episode.facts)) : [],
  episode.calls.map((call) => callView(index, call, query, colors)),
];
// [name, index of a text or null] ...; a game need not have an answer.
const texts = (index, query, ...rows) => h("dl", { class: "facts" }, rows.filter(([, text]) => index.texts[text] || (text === null && !game.pays)).map(([name, text]) => [h("dt", null, name), h("dd", null, text === null ? "none" : said(index.texts[text], query))]));
const question = (index, { text }, query) => (index.texts[text] ? said(index.texts[text], query) : []);

const episodeView = (index, episode, query, colors) => [
  h("h3", null, bdi(index.texts[episode.problem])), scored(episode), question(index, episode, query),
  texts(index, query, ["answer", episode.answer], ["gold", episode.gold]), played(index, episode, query, colors),
];
// The same in two parts, for episodes of one problem side by side.
const problemView = (index, item, query) => [
  h("h3", null, bdi(index.texts[item.problem])), question(index, item, query), texts(index, query, ["gold", item.gold])];
const playView = (index, episode, query, colors) => [scored(episode), texts(index, query, ["answer", episode.answer]), played(index, episode, query, colors)];

class Browser {
  constructor(index) {
    this.index = index;
    this.state = { query: "", filters: [], prompts: false };
    this.found = [];
    this.at = 0;
    this.build();
    this.search();
  }

  build() {
    const option = (value, text) => h("option", { value }, text);
    const select = ([label, key, first, values]) => [key, h("select", { "aria-label": label, onchange: (event) => { this.state[key] = event.target.value; this.search(); } }, option("", first), values.map((value) => option(value, value)))];
    this.selects = Object.fromEntries(this.index.selects.map(select));
    this.box = h("input", { type: "search", id: "search", placeholder: "Search replies, problems, answers", "aria-label": "Search episodes", autocomplete: "off", spellcheck: "false", oninput: () => { this.state.query = this.box.value; this.search(); } });
    this.chips = Object.entries(this.index.filters).map(([name, [label, title]]) => h("button", { type: "button", title, "data-filter": name, "aria-pressed": "false", onclick: (event) => this.toggle(name, event.currentTarget) }, label));
    const prompts = h("button", { type: "button", "aria-pressed": "false", title: "search what the roles were asked, too", onclick: () => { this.state.prompts = !this.state.prompts; prompts.setAttribute("aria-pressed", String(this.state.prompts)); this.search(); } }, "In prompts");
    this.count = h("div", { class: "count", role: "status", id: "count" });
    this.list = h("div", { class: "list", role: "listbox", tabindex: "0", id: "list", "aria-label": "Episodes", onscroll: () => this.paint(), onclick: (event) => this.clicked(event) });
    this.spacer = h("div");
    this.rows = h("div");
    this.list.append(this.spacer, this.rows);
    this.detail = h("div", { class: "detail", id: "detail", tabindex: "0", role: "region", "aria-label": "Episode" });
    this.back = h("button", { type: "button", class: "back", onclick: () => this.close() }, "‹ Episodes");
    this.previous = h("button", { type: "button", "aria-label": "Previous episode", onclick: () => this.move(this.at - 1) }, "‹");
    this.next = h("button", { type: "button", "aria-label": "Next episode", onclick: () => this.move(this.at + 1) }, "›");
    this.position = h("span", { class: "muted" });
    this.pager = [this.previous, this.position, this.next];
    this.root = h("div", { class: "panel browser" },
      h("div", { class: "left" }, h("div", { class: "tools" }, this.box, this.chips, prompts, Object.values(this.selects)), this.count, this.list),
      h("div", { class: "right" }, h("div", { class: "pager" }, this.back, this.pager), this.detail));
    new ResizeObserver(() => this.paint()).observe(this.list);
    document.addEventListener("keydown", (event) => this.key(event));
  }

  // Show the saved episodes nearest to a step: held-out ones if there are any.
  showStep(step) {
    const distance = (name) => Math.abs(Number(name.split(" ")[1]) - step) + (name.startsWith("eval") ? 0 : 1e-6);
    const moment = this.index.moments.reduce((one, other) => (distance(other) < distance(one) ? other : one));
    this.state.moment = this.selects.moment.value = moment;
    this.search();
    this.root.scrollIntoView();
  }

  // Show one episode among all of its step.
  showEpisode(place) {
    const { kind, step } = this.index.episodes[place];
    this.choose({ moment: `${kind} ${step}` });
    this.move(this.found.indexOf(place));
    this.open();
    this.root.scrollIntoView();
    this.detail.focus({ preventScroll: true });
  }

  // Only these choices of the selects, and neither filters nor a search.
  choose(state) {
    this.state = { query: "", filters: [], prompts: this.state.prompts, ...state };
    this.box.value = "";
    for (const [key, element] of Object.entries(this.selects)) element.value = state[key] || "";
    for (const chip of this.chips) chip.setAttribute("aria-pressed", "false");
    this.search();
  }

  toggle(name, chip) {
    const on = !this.state.filters.includes(name);
    this.state.filters = on ? [...this.state.filters, name] : this.state.filters.filter((other) => other !== name);
    chip.setAttribute("aria-pressed", String(on));
    this.search();
  }

  search() {
    const began = performance.now();
    this.found = this.index.find(this.state);
    this.at = 0;
    this.list.scrollTop = 0;
    this.spacer.style.height = `${this.found.length * ROW}px`;
    this.paint();
    this.show();
    this.root.dataset.ms = (performance.now() - began).toFixed(1);
    this.tell();
  }

  tell() { this.count.textContent = `${number(this.found.length)} of ${counted(this.index.size, this.index.noun || "episode")}${this.index.note()}`; }

  // More of what is searched has been read: the chosen episode stays.
  refresh() {
    const chosen = this.found[this.at];
    this.found = this.index.find(this.state);
    this.at = Math.max(0, this.found.indexOf(chosen));
    this.spacer.style.height = `${this.found.length * ROW}px`;
    this.paint();
    if (this.found[this.at] !== chosen) this.show();
    else this.place();
    this.tell();
  }

  place() {
    this.position.textContent = this.found.length ? `${number(this.at + 1)} of ${number(this.found.length)}` : "";
    this.previous.disabled = this.at <= 0;
    this.next.disabled = this.at >= this.found.length - 1;
  }

  paint() {
    const height = this.list.clientHeight || 600;
    const first = Math.max(0, Math.floor(this.list.scrollTop / ROW) - 4);
    const last = Math.min(this.found.length, Math.ceil((this.list.scrollTop + height) / ROW) + 4);
    const rows = [];
    for (let at = first; at < last; at += 1) rows.push(episodeRow(this.index, this.found[at], at, at === this.at));
    for (const row of rows) row.setAttribute("aria-setsize", this.found.length);
    this.rows.replaceChildren(...(rows.length ? rows : [h("p", { class: "empty" }, "No episode passes.")]));
    if (this.found.length) this.list.setAttribute("aria-activedescendant", `episode-${this.found[this.at]}`);
    else this.list.removeAttribute("aria-activedescendant");
  }

  show() {
    const place = this.found[this.at];
    const query = this.state.query.toLowerCase();
    this.place();
    this.detail.replaceChildren(...(place === undefined ? [h("p", { class: "empty" }, "No episode is chosen.")] : [this.index.view(place, query)].flat(Infinity)));
    this.detail.scrollTop = 0;
  }

  move(to) {
    if (!this.found.length) return;
    this.at = Math.max(0, Math.min(this.found.length - 1, to));
    const top = this.at * ROW;
    if (top < this.list.scrollTop) this.list.scrollTop = top;
    else if (top + ROW > this.list.scrollTop + this.list.clientHeight) this.list.scrollTop = top + ROW - this.list.clientHeight;
    this.paint();
    this.show();
  }

  clicked(event) {
    const row = event.target.closest(".row");
    if (row) { this.move(Number(row.dataset.at)); this.open(); }
  }

  // Where the screen is narrow the episode takes the place of the list.
  open() {
    this.root.classList.add("open");
    if (this.back.offsetParent) this.root.scrollIntoView();
  }

  close() {
    this.root.classList.remove("open");
    this.list.focus();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "Escape") return this.escape();
    if (typing && !(event.target === this.box && (event.key === "ArrowDown" || event.key === "Enter"))) return;
    const inList = event.target === this.list || event.target === this.box;
    const page = Math.max(1, Math.floor(this.list.clientHeight / ROW) - 1);
    const moves = { j: 1, k: -1, ...(inList ? { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity } : {}) };
    if (event.key === "/") { this.root.scrollIntoView({ block: "nearest" }); this.root.classList.remove("open"); this.box.focus(); this.box.select(); }
    else if (event.key === "Enter" && inList) { this.open(); this.detail.focus(); }
    else if (event.key in moves) { this.move(event.target === this.box ? this.at : this.at + moves[event.key]); if (inList) this.list.focus(); }
    else return;
    event.preventDefault();
  }

  // First out of the episode, then out of the search.
  escape() {
    if (this.root.classList.contains("open")) this.close();
    else if (this.box.value) { this.box.value = this.state.query = ""; this.search(); }
    else if (document.activeElement === this.box) this.list.focus();
  }
}

const BROWSER_KEYS = [["/", "search"], ["j", ""], ["k", "next, previous"], ["Esc", "clear the search"]];
const browserKeys = () => h("p", { class: "keys" }, BROWSER_KEYS.map(([key, does]) => [h("kbd", null, key), does ? h("span", null, does) : null]));

const browserSection = (index) => {
  if (!index) return section("transcripts", "Transcripts", null, h("p", { class: "muted" }, "This run has saved no episodes, or the page was made without them."));
  const browser = new Browser(index);
  showStep = (step) => browser.showStep(step);
  showEpisode = (place) => browser.showEpisode(place);
  return section("transcripts", "Transcripts", "Held-out and saved training episodes. With a role chosen, search and filters look at its replies alone. Characters that do not show are written by their code point.",
    browser.root, browserKeys());
};
