// Building blocks: elements are made with text nodes only, so nothing that was said becomes markup.

const h = (tag, attributes, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
};

// Characters that would change how their neighbors look, or look like nothing at all.
const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}]/gu;
const code = (char) => "U+" + char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");

// `text` as nodes: hidden characters by their code point, occurrences of `query` marked.
const shownParts = (text, query) => {
  const nodes = [];
  const plain = (part) => {
    const low = part.toLowerCase();
    let from = 0;
    if (query && low.length === part.length) {
      for (let at = low.indexOf(query); at >= 0; at = low.indexOf(query, from)) {
        if (at > from) nodes.push(document.createTextNode(part.slice(from, at)));
        nodes.push(h("mark", null, part.slice(at, at + query.length)));
        from = at + query.length;
      }
    }
    if (from < part.length) nodes.push(document.createTextNode(part.slice(from)));
  };
  let from = 0;
  for (const found of text.matchAll(HIDDEN)) {
    if (found[0] === "\n" || found[0] === "\t") continue;
    plain(text.slice(from, found.index));
    nodes.push(h("span", { class: "ctl", title: "a character that does not show" }, code(found[0])));
    from = found.index + found[0].length;
  }
  plain(text.slice(from));
  return nodes;
};

const FIRST = 4000; // characters of a long text that are shown at first

// What somebody said, isolated from the direction of the text around it.
const said = (text, query) => {
  const block = h("bdi", { class: "said", dir: "auto" });
  if (text.length <= FIRST + 500) {
    block.append(...shownParts(text, query));
    return block;
  }
  block.append(...shownParts(text.slice(0, FIRST), query));
  const rest = h("button", { type: "button", onclick: () => {
    block.replaceChildren(...shownParts(text, query));
    rest.remove();
  } }, `Show all ${text.length.toLocaleString("en")} characters`);
  return h("div", null, block, rest);
};

const bdi = (text, query) => h("bdi", null, shownParts(text, query));
const flat = (text) => text.replace(/\s+/g, " ").slice(0, 300);

// Whether scores are pay: then no reply is right or wrong, and a mean score is no accuracy.
const game = { pays: false };
// The question of a problem and its gold answer: of a game, whose pay no answer decides, neither.
const asked = (texts, text, gold) => (game.pays && texts[gold] ? {} : { text, gold });
const measure = () => (game.pays ? "score" : "accuracy");
const titled = (text) => text[0].toUpperCase() + text.slice(1);
const ofTruth = (filters, names) => (game.pays ? Object.fromEntries(Object.entries(filters).filter(([name]) => !names.includes(name))) : filters);

// Numbers for people.
const known = (value) => typeof value === "number" && Number.isFinite(value);
const minus = (text) => (/^-0\.?0*$/.test(text) ? text.slice(1) : text.replace("-", "−"));
const percent = (value, digits = 1) => (known(value) ? minus((100 * value).toFixed(digits)) + "\u00a0%" : "–");
const points = (value, digits = 1) =>
  known(value) ? (value > 0 ? "+" : "") + minus((100 * value).toFixed(digits)) : "–";
const number = (value, digits = 3) => {
  if (!known(value)) return "–";
  if (Number.isInteger(value)) return minus(value.toLocaleString("en"));
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return minus(value.toExponential(2));
  return minus(value.toLocaleString("en", { maximumSignificantDigits: size >= 100 ? 4 : digits }));
};
const signed = (value) => (value > 0 ? "+" : "") + minus(value.toFixed(2));
const counted = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
const minutes = (seconds) => (known(seconds) ? (seconds / 60).toFixed(1) : "–");
const range = (low, high, show) => (known(low) && known(high) ? `${show(low)} to ${show(high)}` : "–");

const badge = (text, kind) => h("span", { class: `badge ${kind || ""}` }, text);
// What a score says of a reply or an episode; `right` and `rest` are the words where it is truth.
const verdict = (score, right, rest = "wrong") => (game.pays ? badge(`score ${number(score)}`) : badge(score >= 1 ? right : rest, score >= 1 ? "good" : "bad"));

const sections = [];
const section = (id, title, note, ...children) => {
  const element = h("section", { id, "aria-labelledby": `${id}-title` },
    h("h2", { id: `${id}-title` }, title), note ? h("p", { class: "note" }, note) : null, children);
  sections.push([id, title]);
  return element;
};

// The first sentence of a finding; the rest, with its statistics, behind a fold.
const findings = (list) => h("div", { class: "panel", id: "findings" }, list.map((one) => {
  const [first, ...rest] = one.text.split(/(?<=[.:;]) (?=[A-Z])/);
  return h("article", { class: "finding" }, badge(one.label, one.level),
    h("div", null, h("h3", null, bdi(one.title)), h("p", null, bdi(first)),
      rest.length ? h("details", null, h("summary", null, "Statistics"), h("p", null, bdi(rest.join(" ")))) : null));
}));
