// Teach a class, and see what changed.

import { ask, askAgain, picture } from "/ask.js";
import { at, button, count, grouped, make, percent, say, state } from "/page.js";
import { change, finished, forms, numbers } from "/service.js";

const HINT = "or drop them here; a handful is enough";
const SHOWN = 24; // of the chosen pictures
const RULES = {
  integer: ["The names of this model are whole numbers, such as 7.", /^-?\d+$/],
  number: ["The names of this model are numbers, such as 0.5.", /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i],
  boolean: ["The names of this model are True and False.", /^(True|False)$/],
};

let chosen = [];

// ---- names

export function showNameRule() {
  const rule = RULES[state.model.labels];
  at("name-hint").hidden = !rule;
  at("name-hint").textContent = rule ? rule[0] : "";
}

/** A name as this model has them. */
export function nameIn(field) {
  const name = field.value.trim();
  const rule = RULES[state.model.labels];
  if (!name) throw new Error("Enter a name.");
  if (rule && !rule[1].test(name)) throw new Error(`${rule[0]} “${name}” is not one.`);
  return name;
}

// ---- pictures

export function choose(files) {
  chosen = [...chosen, ...files];
  showChosen();
  if (files.length && !at("teach-name").value) at("teach-name").focus();
}

function showChosen() {
  at("chosen").replaceChildren(...chosen.slice(0, SHOWN).map((file, row) => {
    const image = make("img", { alt: "" });
    image.src = URL.createObjectURL(file);
    image.addEventListener("load", () => URL.revokeObjectURL(image.src));
    const name = `Leave out picture ${row + 1}`;
    const out = button("", () => {
      chosen = chosen.filter((one) => one !== file);
      showChosen();
    }, { "aria-label": name, title: name });
    out.append(image);
    return make("li", {}, out);
  }));
  at("teach-hint").textContent = chosen.length ? `${count(chosen.length, "picture")} chosen; click one to leave it out` : HINT;
}

/** Add what was asked to what is taught next. */
export function add({ file, text }) {
  if (file) choose([file]);
  else at("teach-text").value += `${text.trim()}\n`;
  at("teach-name").focus();
}

// ---- teach

function lessons(name) {
  if (state.model.takes === "images") {
    if (!chosen.length) throw new Error("Choose some pictures first.");
    return forms(chosen).map((body) => ({ path: `/learn?label=${encodeURIComponent(name)}`, body, headers: {} }));
  }
  const lines = at("teach-text").value.split("\n").filter((line) => line.trim());
  if (!lines.length) throw new Error("Write at least one line first.");
  const samples = state.model.takes === "texts" ? { texts: lines } : { vectors: lines.map(numbers) };
  const body = JSON.stringify({ ...samples, labels: lines.map(() => name) });
  return [{ path: "/learn", body, headers: { "content-type": "application/json" } }];
}

/** `refresh` looks at the model anew. */
export async function teach(refresh) {
  const name = nameIn(at("teach-name"));
  const before = state.model;
  at("changed").hidden = true;
  const jobs = [];
  for (const { path, body, headers } of lessons(name)) jobs.push((await change(path, { method: "POST", body, headers })).job);
  const [first] = chosen;
  chosen = [];
  showChosen();
  at("teach-form").reset();
  await follow(jobs, name, refresh);
  await refresh();
  showChange(before, state.model);
  if (state.questions.length) await askAgain();
  else if (first) await ask([picture(first)]);
  say(`It knows ${name} now. ${at("changed").textContent}`);
}

async function follow(jobs, name, refresh) {
  const before = JSON.stringify(state.classes);
  let looked = false;
  at("learning").hidden = false;
  at("learning-bar").hidden = false;
  say(`Learning ${name}.`);
  const show = async ({ state: how, doing, progress }) => {
    // Before it is trained the model answers with the new class already.
    const begun = how === "running" && doing !== "starting";
    if (begun && !looked) await refresh();
    looked ||= begun;
    const learning = JSON.stringify(state.classes) !== before ? `It answers with ${name} already, and is being trained …` : `Learning ${name} …`;
    at("learning-text").textContent = how === "waiting" ? `${name} is next.` : learning;
    at("learning-bar").value = doing === "training" ? 0.1 + 0.85 * progress : 0.05;
  };
  try {
    for (const job of jobs) await finished(job, show);
  } catch (error) {
    at("learning").hidden = true;
    throw new Error(`It could not learn ${name}: ${error.message}`);
  }
  at("learning-text").textContent = `It knows ${name} now.`;
  at("learning-bar").hidden = true;
}

function showChange(before, after) {
  const classes = before.classes === after.classes ? `${count(after.classes, "class")}, as before` : `${count(before.classes, "class")} → ${grouped(after.classes)}`;
  const { estimated_accuracy: all, estimated_accuracy_new: fresh } = after.history.at(-1) ?? {};
  const estimate = typeof all === "number" ? `; estimated accuracy ${percent(all)}` : "";
  const ofNew = typeof fresh === "number" && estimate ? `, on new classes ${percent(fresh)}` : "";
  at("changed").textContent = `${classes}${estimate}${ofNew}.`;
  at("changed").hidden = false;
}
