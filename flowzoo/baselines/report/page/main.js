// Builds the page from its two blocks of JSON.

const block = (id) => JSON.parse(document.getElementById(id).textContent);

const lead = ({ run, matrix, evaluation, comparison }) => {
  if (run) return [run.settings.workflow, run.task, run.settings.algorithm, run.sharing.join(" "), `seed ${run.settings.seed}`].join(" · ");
  if (matrix) return counted(matrix.cells.length, "cell");
  const { protocol } = evaluation || comparison.sides[0];
  return protocol ? [evaluation ? protocol.workflow : null, protocol.task, protocol.split, counted(protocol.problems, "problem")].filter(Boolean).join(" · ") : "Evaluation";
};

const heading = (facts) => {
  document.getElementById("top").append(
    h("div", null, h("h1", null, bdi(facts.title)), h("div", { class: "lead" }, bdi(lead(facts))),
      facts.index ? h("a", { href: facts.index }, "‹ All runs") : null), themeButton());
};

const pageOf = ({ run, matrix, evaluation, comparison }) => {
  if (matrix) return matrixPage(matrix);
  const episodes = block("episodes");
  if (run) return runPage(run, episodes);
  return evaluation ? evaluationPage(evaluation, episodes) : comparisonPage(comparison, episodes);
};

const contents = () => {
  const links = sections.map(([id, title]) => h("a", { href: `#${id}` }, title));
  document.getElementById("contents").append(h("div", null, links));
  const inView = new Set();
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) inView[entry.isIntersecting ? "add" : "delete"](`#${entry.target.id}`);
    const first = links.find((link) => inView.has(link.hash));
    if (first) for (const link of links) link.toggleAttribute("aria-current", link === first);
  }, { rootMargin: "-20% 0px -70% 0px" });
  for (const [id] of sections) seen.observe(document.getElementById(id));
};

const facts = block("facts");
game.pays = Boolean(facts.run ? facts.run.pays : facts.matrix ? facts.matrix.pays : facts.evaluation ? facts.evaluation.pay : facts.comparison.sides[0].pay);
heading(facts);
document.getElementById("main").replaceChildren(...pageOf(facts).filter(Boolean));
contents();
document.getElementById("foot").append(`Made by flowzoo ${facts.version} on ${facts.made}. Charts by Chart.js 4.6.1 (MIT license). This page asks nothing of any network.`);
