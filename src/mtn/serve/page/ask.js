// Ask, and see what the answer rests on.

import { at, bar, button, make, percent, say, sentenceOf, state, trying } from "/page.js";
import { call, forms, numbers } from "/service.js";

let turn = 0; // of the question that was asked last: answers to earlier ones are dropped
let answers = [];
let shown = 0; // which of them

export const shownQuestion = () => answers[shown].question;

// ---- questions

export const picture = (file) => ({ file, url: URL.createObjectURL(file) });
export const written = (text) => ({ text, url: null });

function requests(questions) {
  const post = (body, headers = {}) => ({ method: "POST", body, headers });
  if (state.model.takes === "images") return forms(questions.map(({ file }) => file)).map((form) => post(form));
  const texts = questions.map(({ text }) => text);
  const body = state.model.takes === "texts" ? { texts } : { vectors: texts.map(numbers) };
  return [post(JSON.stringify(body), { "content-type": "application/json" })];
}

/** Ask, and show the answers. The old ones go at once: they are not of this question. */
export async function ask(questions) {
  const mine = ++turn;
  at("answer").hidden = true;
  for (const old of state.questions) if (old.url && !questions.includes(old)) URL.revokeObjectURL(old.url);
  state.questions = questions;
  say("Asking.");
  const found = [];
  for (const options of requests(questions)) {
    const both = [call("/predict", options), call("/explain", options)];
    const [guesses, reasons] = await Promise.all(both);
    guesses.answers.forEach((guess, row) => found.push({ guess, reason: reasons.answers[row] }));
  }
  if (mine !== turn) return;
  answers = found.map((answer, row) => ({ ...answer, question: questions[row] }));
  showSeveral();
  show(0);
}

export const askAgain = async () => {
  if (state.questions.length && state.classes.length) await ask(state.questions);
};

// ---- answers

function showSeveral() {
  at("several").hidden = answers.length < 2;
  at("several").replaceChildren(...answers.map(({ question, guess }, row) => {
    const name = guess.unknown ? "unknown" : String(guess.label);
    const image = make("img", { src: question.url ?? "", alt: `Picture ${row + 1}` });
    const choose = button("", () => show(row), { title: name });
    choose.append(image, make("span", {}, name));
    return make("li", {}, choose);
  }));
}

function show(row) {
  shown = row;
  const { question, guess, reason } = answers[row];
  [...at("several").querySelectorAll("button")].forEach((one, place) => one.setAttribute("aria-pressed", String(place === row)));
  at("asked").hidden = !question.url;
  if (question.url) at("asked").src = question.url;
  at("asked-text").replaceChildren(...(state.model.takes === "texts" ? sentenceOf(question.text) : []));
  at("answer-lead").textContent = guess.unknown ? "Unknown" : "It is";
  at("answer-title").textContent = guess.unknown ? "It does not seem to know this" : guess.label;
  at("shares-lead").hidden = !guess.unknown;
  const likely = guess.top.filter(({ probability }, place) => place < 3 || probability > 0.01);
  at("shares").replaceChildren(...likely.map(shareRow));
  at("answer").hidden = false;
  showEvidence(reason);
  const several = answers.length > 1 ? `Picture ${row + 1} of ${answers.length}: ` : "";
  say(`${several}${guess.unknown ? "unknown; the nearest class is" : "it is"} ${guess.label}, ${percent(guess.probability)}. ${reason.agreement ?? ""}`);
}

function shareRow({ label, probability }) {
  return make("li", {}, make("span", { title: label }, String(label)), bar(probability), make("span", {}, percent(probability)));
}

// ---- evidence

function showEvidence(reason) {
  const { label, neighbours, own, agreement } = reason;
  at("why").hidden = !neighbours.length && !own.length && !Object.keys(reason.shares).length;
  at("near-part").hidden = !neighbours.length;
  at("agreement").hidden = !agreement;
  at("agreement").textContent = agreement ?? "";
  at("key-after").hidden = neighbours.every(({ after }) => after === null);
  for (const [id, found] of [["neighbours", neighbours], ["own", own]]) {
    at(id).className = found.some(({ text }) => text) ? "sentences" : "strip";
    at(id).replaceChildren(...found.map((near) => neighbour(near, label)));
  }
  at("own-part").hidden = !own.length;
  const which = neighbours.some((near) => near.label === label) ? "Further" : "Nearest"; // `own` are without the neighbours
  at("own-title").textContent = `${which} remembered examples of ${label}`;
  showParts(reason);
}

function neighbour(near, label) {
  const what = near.text ? make("p", {}, ...sentenceOf(near.text)) : image(near);
  const measures = [["similarity", near.before, "before"], ["similarity after the transformer", near.after, "after"]];
  const rows = measures.filter(([, value]) => value !== null).map(([name, value, kind]) =>
    make("span", { class: "measure" }, bar(value, kind), make("span", { "aria-label": `${name} ${value.toFixed(2)}` }, decimal(value).replace("0.", "."))));
  const name = make("strong", { title: near.label }, String(near.label));
  return make("li", { class: near.label === label ? "same" : "" }, what, name, make("div", { class: "measures" }, ...rows));
}

function image(near) {
  if (near.picture) return make("img", { src: near.picture, alt: "" });
  return state.model.takes === "images" ? make("div", { class: "blank" }) : "";
}

/** What each part of the method adds to the score, and to its lead over the second-best class. */
function showParts({ label, score, shares, runner_up: second, margins }) {
  const parts = Object.entries(shares);
  at("parts-part").hidden = !parts.length;
  const largest = Math.max(...parts.map(([, value]) => Math.abs(value)), 1e-9);
  at("parts").replaceChildren(...parts.map(([name, value]) =>
    make("li", {}, make("span", {}, name), bar(Math.abs(value) / largest, value < 0 ? "before" : ""), make("span", {}, signed(value)))));
  if (!parts.length) return;
  const sum = parts.length > 1 ? `They add up to its score, ${decimal(score)}.` : "";
  const lead = Object.values(margins).reduce((total, value) => total + value, 0);
  const by = Object.entries(margins).map(([name, value]) => `${name} ${signed(value)}`).join(", ");
  const ahead = second === null || !by ? "" : `It leads ${second} by ${lead.toFixed(2)}: ${by}.`;
  at("parts-title").textContent = `Where the score of ${label} comes from`;
  at("parts-text").textContent = `${sum} ${ahead}`.trim();
}

const decimal = (value) => value.toFixed(2).replace("-", "−");
const signed = (value) => (value < 0 ? decimal(value) : `+${decimal(value)}`);

// ---- something to try

export async function showExamples() {
  const { examples } = await call("/examples");
  const usable = examples.filter(({ picture: url, text }) => (state.model.takes === "images" ? url : text));
  const shown = state.model.takes === "texts" ? usable.slice(0, 6) : usable;
  at("examples").hidden = !shown.length;
  at("examples-list").className = state.model.takes;
  at("examples-list").replaceChildren(...shown.map(({ label, picture: url, text }) => {
    const offered = button(url ? "" : shortened(text), () => trying(() => ask([url ? picture(blob(url)) : written(text)])), { title: text ?? label });
    if (url) offered.append(make("img", { src: url, alt: `Remembered example of ${label}` }));
    return make("li", {}, offered);
  }));
}

const shortened = (text) => (text.length > 60 ? `${text.slice(0, 60).replace(/\s+\S*$/, "")} …` : text);

function blob(url) {
  const bytes = Uint8Array.from(atob(url.split(",")[1]), (letter) => letter.charCodeAt(0));
  return new Blob([bytes], { type: "image/png" });
}
