// What the model knows: classes, the remembered examples of one, how good it is.

import { askAgain } from "/ask.js";
import { at, button, count, draw, grouped, make, percent, say, sentenceOf, state, trying } from "/page.js";
import { call, change, finished, request } from "/service.js";
import { nameIn } from "/teach.js";

const SHOWN = 60; // classes listed before "Show all"
const PAGE = 24; // examples of a class listed at once

let all = false; // classes are listed
let timer = null;
let opened = null; // label of the class whose examples are shown
let exemplars = [];
let selected = null; // one of them
let refresh = async () => {};

const path = (label) => `/classes/${encodeURIComponent(label)}`;

// ---- classes

export function showMemory() {
  const { memory: { exemplars: used, total, per_class: each }, classes } = state.model;
  const budget = total ?? each * classes;
  at("memory").setAttribute("aria-valuemax", budget);
  at("memory").setAttribute("aria-valuenow", used);
  at("memory").firstElementChild.style.width = `${(100 * used) / Math.max(budget, 1)}%`;
  at("memory-text").textContent = `Remembers ${count(used, "example")} and has room for ${grouped(budget)}. ${classes ? "Choose a class to see its examples." : ""}`;
}

export function showClasses() {
  const wanted = at("filter").value.trim().toLowerCase();
  const found = state.classes.filter(({ label }) => String(label).toLowerCase().includes(wanted));
  const shown = all ? found : found.slice(0, SHOWN);
  at("filter").hidden = state.classes.length <= 10;
  at("classes").replaceChildren(...shown.map(classRow));
  at("more").hidden = shown.length === found.length;
  at("more").textContent = `Show all ${grouped(found.length)}`;
  at("names").replaceChildren(...state.classes.slice(0, 500).map(({ label }) => make("option", { value: label })));
}

function classRow({ label, exemplars: number, seconds_to_undo: left }) {
  const leaving = left !== null;
  const name = leaving
    ? make("span", { class: "name leaving", title: label }, String(label))
    : button(String(label), () => trying(() => open(label)), { class: "name", title: `Examples of ${label}` });
  const note = !leaving ? String(number) : left > 0 ? `gone in ${Math.ceil(left)} s` : "forgetting …";
  const act = button(leaving ? "Undo" : "Forget", () => trying(() => (leaving ? undo(label) : forget(label))),
    { class: leaving ? "undo" : "forget", "aria-label": leaving ? `Undo: keep ${label}` : `Forget ${label}` });
  return make("li", {}, name, make("span", { class: "count", title: leaving ? "" : "examples remembered" }, note), ...(state.model.may_teach && left !== 0 ? [act] : []));
}

async function forget(label) {
  await call(path(label), { method: "DELETE" });
  say(`${label} will be forgotten in a few seconds. You can undo it.`);
  await relist(label);
  watch();
}

async function undo(label) {
  await call(`${path(label)}/undo`, { method: "POST" });
  say(`${label} is kept.`);
  await relist(label);
}

async function relist(label) {
  await refresh();
  const row = [...at("classes").children].find((one) => one.firstElementChild.textContent === String(label));
  row?.querySelector(".forget, .undo")?.focus();
}

/** Look every second, as long as classes are about to be forgotten. */
export function watch() {
  clearTimeout(timer);
  if (!state.classes.some((one) => one.seconds_to_undo !== null)) return;
  timer = setTimeout(async () => {
    const before = state.classes.length;
    const focused = document.activeElement?.getAttribute("aria-label");
    await trying(refresh);
    if (focused) document.querySelector(`#classes [aria-label="${CSS.escape(focused)}"]`)?.focus();
    if (state.classes.length < before) {
      say("It is forgotten.");
      await trying(askAgain);
    }
    watch();
  }, 1000);
}

// ---- the examples of a class

async function open(label) {
  opened = label;
  exemplars = [];
  at("class-problem").hidden = true;
  at("class-status").textContent = "";
  await listMore();
  if (!at("class").open) at("class").showModal();
}

async function listMore() {
  const page = await call(`/exemplars?label=${encodeURIComponent(opened)}&start=${exemplars.length}&count=${PAGE}`);
  exemplars.push(...page.exemplars);
  at("class-title").textContent = opened;
  at("rename").value = opened;
  at("class-count").textContent = `${count(page.total, "example")} remembered. ${page.total && state.model.may_teach ? "Choose one to move or delete it." : ""}`;
  at("exemplars").className = exemplars.some(({ text }) => text) ? "sentences" : "pictures";
  at("exemplars").replaceChildren(...exemplars.map(exemplarRow));
  at("more-exemplars").hidden = exemplars.length >= page.total;
  select(null);
}

function exemplarRow(one, place) {
  const choose = button("", () => select(one), { "aria-pressed": "false", "aria-label": `Example ${place + 1}: ${one.text ?? one.id}`, title: one.text ?? one.id });
  if (one.picture) choose.append(make("img", { src: one.picture, alt: "" }));
  else choose.append(one.text ?? String(one.id));
  return make("li", {}, choose);
}

function select(one) {
  selected = one;
  [...at("exemplars").querySelectorAll("button")].forEach((each, place) => each.setAttribute("aria-pressed", String(exemplars[place] === one)));
  at("exemplar").hidden = one === null;
  at("relabel").value = "";
  askToConfirm(false);
  if (one === null) return;
  at("exemplar-text").replaceChildren(...(one.text ? sentenceOf(one.text) : [`Example ${exemplars.indexOf(one) + 1}, id ${one.id}`]));
  at("exemplar").scrollIntoView({ block: "nearest" });
}

function askToConfirm(asked) {
  at("remove").textContent = asked ? "Delete it for good?" : "Delete this example";
  at("remove").dataset.asked = asked ? "yes" : "";
}

/** Make a change to the class that is shown, and show it as it is then, under this name. */
async function changed(request_, said, label = opened) {
  const { job } = await request_;
  at("class-status").textContent = "Saving …";
  await finished(job);
  await refresh();
  if (state.classes.some((one) => String(one.label) === String(label))) await open(label);
  else at("class").close();
  at("class-status").textContent = said;
  say(said);
  await askAgain();
}

async function rename() {
  const name = nameIn(at("rename"));
  await changed(change(`${path(opened)}?label=${encodeURIComponent(name)}`, { method: "PATCH" }), `It is called ${name} now.`, name);
}

async function relabel() {
  const name = nameIn(at("relabel"));
  await changed(change(`/exemplars/${selected.number}?label=${encodeURIComponent(name)}`, { method: "PATCH" }), `The example is one of ${name} now.`);
}

async function remove() {
  if (!at("remove").dataset.asked) return askToConfirm(true);
  await changed(change(`/exemplars/${selected.number}`, { method: "DELETE" }), "The example is deleted.");
}

// ---- the model as a file

async function download() {
  at("download").disabled = true;
  at("download").textContent = "Downloading …";
  try {
    const answer = await request("/model/download");
    const url = URL.createObjectURL(await answer.blob());
    make("a", { href: url, download: `${state.model.name}.zip` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60000);
  } finally {
    at("download").disabled = false;
    at("download").textContent = "Download the model";
  }
}

// ---- how good it is

export function showRecord() {
  const points = (key) => state.model.history.map((entry, lesson) => ({ right: entry[key], lesson })).filter(({ right }) => typeof right === "number");
  const [before, after] = [points("accuracy_before"), points("estimated_accuracy")];
  at("record").hidden = !before.length && !after.length;
  at("key-estimate").hidden = !after.length;
  at("key-known").hidden = !before.length;
  const drawn = Math.max(before.length, after.length) > 1;
  at("chart").replaceChildren(...(drawn ? [chart(before, after)] : []));
  at("chart-legend").hidden = !drawn;
  const estimate = after.length ? `Estimated now: ${percent(after.at(-1).right)}, on remembered examples that it was not trained on. ` : "";
  const known = before.length ? `Of the latest new examples of known classes, it got ${percent(before.at(-1).right)} right before it learned from them.` : "";
  at("record-text").textContent = estimate + known;
}

function chart(before, after) {
  const [width, height, left, top] = [320, 96, 44, 8];
  const span = Math.max(state.model.history.length - 1, 1);
  const x = (lesson) => left + ((width - left - 6) * lesson) / span;
  const y = (right) => top + (height - 2 * top) * (1 - right);
  const lines = [0, 0.5, 1].flatMap((share) => [
    draw("line", { class: "grid", x1: left, x2: width, y1: y(share), y2: y(share) }),
    draw("text", { x: left - 6, y: y(share) + 4, "text-anchor": "end" }, `${100 * share} %`),
  ]);
  const curve = (points, kind) => points.length ? [
    draw("polyline", { class: `curve ${kind}`, points: points.map(({ lesson, right }) => `${x(lesson)},${y(right)}`).join(" ") }),
    draw("circle", { class: kind, cx: x(points.at(-1).lesson), cy: y(points.at(-1).right), r: 3.5 }),
  ] : [];
  const list = (points) => points.map(({ right }) => percent(right)).join(", ");
  const label = `Accuracy, lesson by lesson. Estimated after it: ${list(after) || "not known"}. Before it, on new examples of known classes: ${list(before) || "not known"}.`;
  return draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...lines, ...curve(before, "known"), ...curve(after, "estimate"));
}

// ---- what the visitor does

export function listen(lookAnew) {
  refresh = lookAnew;
  at("filter").addEventListener("input", showClasses);
  at("more").addEventListener("click", () => {
    all = true;
    showClasses();
  });
  at("download").addEventListener("click", () => trying(download));
  at("more-exemplars").addEventListener("click", () => trying(listMore, "class-problem"));
  at("class-close").addEventListener("click", () => at("class").close());
  at("rename-form").addEventListener("submit", (event) => {
    event.preventDefault();
    trying(rename, "class-problem");
  });
  at("relabel-form").addEventListener("submit", (event) => {
    event.preventDefault();
    trying(relabel, "class-problem");
  });
  at("remove").addEventListener("click", () => trying(remove, "class-problem"));
  at("remove").addEventListener("blur", () => askToConfirm(false));
}
