// What all parts of the page share: its state, elements, messages, numbers in words.

export const at = (id) => document.getElementById(id);

export const state = {
  model: null, // what GET /model says
  classes: [],
  questions: [], // what was asked last, to be asked again when something has changed
};

// ---- messages

export function say(text) {
  at("status").textContent = text;
}

/** Do some work; what goes wrong is shown in the element with this id. */
export async function trying(work, where = "problem") {
  const problem = at(where);
  problem.hidden = true;
  try {
    return await work();
  } catch (error) {
    problem.textContent = sentence(error.message);
    problem.hidden = false;
    problem.scrollIntoView({ block: "nearest" });
  }
}

/** The service's messages begin in lower case and have no full stop, for logs and terminals. */
function sentence(text) {
  const whole = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.?!]$/.test(whole) ? whole : `${whole}.`;
}

// ---- elements: all data are inserted as text

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function button(text, work, attributes = {}) {
  const element = make("button", { type: "button", ...attributes }, text);
  element.addEventListener("click", work);
  return element;
}

export function draw(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function bar(share, kind = "") {
  const fill = make("i");
  fill.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return make("span", { class: `bar ${kind}`, "aria-hidden": "true" }, fill);
}

const LETTERS = 110; // of a sentence that are shown at first

/** A sentence; of a long one the beginning, and the rest on demand. */
export function sentenceOf(text) {
  const shown = make("span", { class: "text" }, text);
  if (text.length <= LETTERS) return [shown];
  const cut = `${text.slice(0, LETTERS).replace(/\s+\S*$/, "")} …`;
  shown.textContent = cut;
  const more = button("Show all", () => {
    const open = more.getAttribute("aria-expanded") === "true";
    shown.textContent = open ? cut : text;
    more.textContent = open ? "Show all" : "Show less";
    more.setAttribute("aria-expanded", String(!open));
  }, { class: "link", "aria-expanded": "false" });
  return [shown, " ", more];
}

// ---- numbers in words

export function percent(share) {
  if (share > 0.995 && share < 1) return ">\u00a099\u00a0%";
  return share > 0 && share < 0.005 ? "<\u00a01\u00a0%" : `${Math.round(100 * share)}\u00a0%`;
}

export const grouped = (number) => number.toLocaleString("en").replaceAll(",", "\u00a0");
export const count = (number, noun) => `${grouped(number)} ${noun}${number === 1 ? "" : noun.endsWith("s") ? "es" : "s"}`;
