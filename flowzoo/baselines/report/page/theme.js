// Dark and light: the system's choice unless the reader takes another.

const themes = ["system", "light", "dark"];
const system = matchMedia("(prefers-color-scheme: dark)");
const themed = []; // what is drawn anew when colors change

const readTheme = () => {
  try { return themes.includes(localStorage.theme) ? localStorage.theme : "system"; }
  catch { return "system"; } // storage is closed to some pages from disk
};
let theme = readTheme();

const applyTheme = () => {
  const dark = theme === "dark" || (theme === "system" && system.matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  for (const draw of themed) draw();
};

const themeButton = () => {
  const label = () => `Colors: ${theme}`;
  const button = h("button", { type: "button", id: "theme", onclick: () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    try { localStorage.theme = theme; } catch { /* the choice holds for this visit */ }
    button.textContent = label();
    applyTheme();
  } }, label());
  return button;
};

system.addEventListener("change", applyTheme);
applyTheme();

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const seriesColor = (place) => color(`s${place % 8}`);
// Background of a heat cell for a value in [-1, 1]: blue above 0, orange below, as strong as large.
const heat = (value) => `rgba(${color(value < 0 ? "down" : "up")}, ${(0.6 * Math.min(1, Math.abs(value))).toFixed(3)})`;
