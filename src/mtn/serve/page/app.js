"use strict";

const at = (id) => document.getElementById(id);
const state = { takes: "images", question: null, files: [], classes: [], all: false, timer: null };
const SHOWN = 60; // classes listed before "show all"
const TOGETHER = 48; // pictures of one request
const BYTES = 12e6;

// ---- the service

async function call(path, options = {}, tries = 1) {
  const token = sessionStorage.getItem("token");
  const headers = { ...options.headers, ...(token && { authorization: `Bearer ${token}` }) };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch {
    if (tries <= 1) throw new Error("The service does not answer.");
    await pause(1000);
    return call(path, options, tries - 1);
  }
  const content = await answer.json();
  if (answer.status === 401) at("token").hidden = false;
  if (!answer.ok) throw new Error(content.error);
  return content;
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

function key() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function say(text) {
  at("status").textContent = text;
}

async function trying(work) {
  at("problem").hidden = true;
  try {
    return await work();
  } catch (error) {
    at("problem").textContent = error.message;
    at("problem").hidden = false;
  }
}

// ---- small pieces

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function bar(share, kind = "") {
  const fill = make("i");
  fill.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return make("span", { class: `bar ${kind}`, "aria-hidden": "true" }, fill);
}

function percent(share) {
  if (share > 0.995 && share < 1) return ">\u00a099\u00a0%";
  return share < 0.005 ? "<\u00a01\u00a0%" : `${Math.round(100 * share)}\u00a0%`;
}

const grouped = (number) => number.toLocaleString("en").replaceAll(",", "\u00a0");
const count = (number, noun) => `${grouped(number)} ${noun}${number === 1 ? "" : noun.endsWith("s") ? "es" : "s"}`;

// ---- ask

function asked(picture) {
  return { body: picture, type: picture.type || "image/png", url: URL.createObjectURL(picture) };
}

function written(text) {
  const body = state.takes === "texts" ? { texts: [text] } : { vectors: [numbers(text)] };
  return { body: JSON.stringify(body), type: "application/json", url: null, text };
}

function numbers(text) {
  const found = text.replace(/[[\]]/g, " ").split(/[\s,;]+/).filter(Boolean).map(Number);
  if (!found.length || found.some(Number.isNaN)) throw new Error("Numbers are needed, separated by spaces or commas.");
  return found;
}

async function ask(question) {
  const options = { method: "POST", body: question.body, headers: { "content-type": question.type } };
  const [guesses, reasons] = await Promise.all([call("/predict", options), call("/explain", options)]);
  if (state.question?.url && state.question !== question) URL.revokeObjectURL(state.question.url);
  state.question = question;
  show(guesses.answers[0], reasons.answers[0].neighbours);
}

function show(guess, neighbours) {
  const { question } = state;
  at("asked").hidden = !question.url;
  if (question.url) at("asked").src = question.url;
  at("answer-lead").textContent = guess.unknown ? "Unknown" : "It is";
  at("answer-title").textContent = guess.unknown ? "Like nothing it knows" : guess.label;
  at("why-title").textContent = guess.unknown ? "The most alike it remembers" : "Because it remembers these";
  const likely = guess.top.filter(({ probability }, place) => place < 3 || probability > 0.01);
  at("shares").replaceChildren(...likely.map(shareRow));
  at("neighbours").replaceChildren(...neighbours.map((near) => neighbour(near, guess)));
  at("why").hidden = !neighbours.length;
  at("answer").hidden = false;
  say(`${guess.unknown ? "It is like nothing it knows. The nearest is" : "It is"} ${guess.label}, ${percent(guess.probability)}.`);
}

function shareRow({ label, probability }) {
  return make("li", {}, make("span", { title: label }, String(label)), bar(probability), make("span", {}, percent(probability)));
}

function neighbour(near, guess) {
  const same = near.label === guess.label;
  const blank = state.takes === "images" ? make("div", { class: "blank" }) : "";
  const picture = near.picture ? make("img", { src: near.picture, alt: "" }) : blank;
  const measures = [["at first sight", near.before, "before"], ["on a closer look", near.after, "after"]];
  const rows = measures.filter(([, value]) => value !== null).map(([name, value, kind]) =>
    make("span", { class: "measure" }, bar(value, kind), make("span", { "aria-label": `alike ${name}: ${value.toFixed(2)}` }, value.toFixed(2).replace("0.", "."))));
  return make("li", { class: same ? "same" : "" }, picture, make("strong", { title: near.label }, String(near.label)), ...rows);
}

async function showExamples() {
  const { examples } = await call("/examples");
  at("examples").hidden = !examples.length;
  at("examples").querySelector("ul").replaceChildren(...examples.map(({ label, picture }) => {
    const button = make("button", { type: "button", title: label }, make("img", { src: picture, alt: label }));
    button.addEventListener("click", () => trying(async () => ask(asked(blob(picture)))));
    return make("li", {}, button);
  }));
}

function blob(url) {
  const bytes = Uint8Array.from(atob(url.split(",")[1]), (letter) => letter.charCodeAt(0));
  return new Blob([bytes], { type: "image/png" });
}

// ---- teach

function choose(files) {
  state.files.push(...files);
  at("chosen").replaceChildren(...state.files.slice(0, 24).map((file) => {
    const image = make("img", { alt: "" });
    image.src = URL.createObjectURL(file);
    image.addEventListener("load", () => URL.revokeObjectURL(image.src));
    return make("li", {}, image);
  }));
  at("teach-hint").textContent = state.files.length ? `${count(state.files.length, "picture")} chosen` : "or drop them here; a handful is enough";
  if (!at("teach-name").value) at("teach-name").focus();
}

function groups(files) {
  const found = [[]];
  let bytes = 0;
  for (const file of files) {
    if (found.at(-1).length === TOGETHER || (bytes + file.size > BYTES && found.at(-1).length)) {
      found.push([]);
      bytes = 0;
    }
    found.at(-1).push(file);
    bytes += file.size;
  }
  return found;
}

function lessons(name) {
  if (state.takes === "images") {
    if (!state.files.length) throw new Error("Choose some pictures first.");
    return groups(state.files).map((files) => {
      const body = new FormData();
      files.forEach((file, number) => body.append("picture", file, String(number)));
      return { path: `/learn?label=${encodeURIComponent(name)}`, body, headers: {} };
    });
  }
  const lines = at("teach-text").value.split("\n").filter((line) => line.trim());
  if (!lines.length) throw new Error("Write at least one line first.");
  const samples = state.takes === "texts" ? { texts: lines } : { vectors: lines.map(numbers) };
  const body = JSON.stringify({ ...samples, labels: lines.map(() => name) });
  return [{ path: "/learn", body, headers: { "content-type": "application/json" } }];
}

async function teach(name) {
  const jobs = [];
  for (const { path, body, headers } of lessons(name)) {
    const options = { method: "POST", body, headers: { ...headers, "idempotency-key": key() } };
    jobs.push((await call(path, options, 3)).job);
  }
  const first = state.files[0];
  state.files = [];
  choose([]);
  at("teach-form").reset();
  await follow(jobs, name);
  await refresh();
  const question = state.question ?? (first && asked(first));
  if (question) await ask(question);
  say(`It knows ${name} now.`);
}

async function follow(jobs, name) {
  at("learning").hidden = false;
  say(`Learning ${name}.`);
  try {
    for (const job of jobs) await finished(job, name);
    at("learning-text").textContent = `It knows ${name} now.`;
    at("learning-bar").value = 1;
  } catch (error) {
    at("learning").hidden = true;
    throw error;
  }
}

async function finished(job, name) {
  for (;;) {
    const { state: how, doing, progress, error } = await call(`/jobs/${job}`, {}, 30);
    if (how === "done") return;
    if (how === "failed") throw new Error(`It could not learn ${name}: ${error}`);
    at("learning-text").textContent = how === "waiting" ? `${name} is next` : `Learning ${name}`;
    at("learning-bar").value = doing === "training" ? 0.1 + 0.85 * progress : 0.05;
    await pause(250);
  }
}

// ---- what it knows

async function refresh() {
  const [model, { classes }] = await Promise.all([call("/model"), call("/classes")]);
  state.takes = model.takes;
  state.classes = classes;
  for (const element of document.querySelectorAll("[data-takes]")) element.hidden = !element.dataset.takes.split(" ").includes(model.takes);
  at("summary").textContent = model.classes ? `Show it something. It knows ${count(model.classes, "class")} and keeps learning.` : "It knows nothing yet: teach it something.";
  showMemory(model.memory, model.classes);
  showClasses();
  showRecord(model.history);
  at("names").replaceChildren(...classes.slice(0, 500).map(({ label }) => make("option", { value: label })));
  at("token").hidden = true;
  at("columns").hidden = false;
}

function showMemory({ exemplars, total, per_class: each }, classes) {
  const budget = total ?? each * classes;
  at("memory").setAttribute("aria-valuemax", budget);
  at("memory").setAttribute("aria-valuenow", exemplars);
  at("memory").firstElementChild.style.width = `${(100 * exemplars) / Math.max(budget, 1)}%`;
  at("memory-text").textContent = `remembers ${count(exemplars, "example")}, has room for ${grouped(budget)}`;
}

function showClasses() {
  const wanted = at("filter").value.trim().toLowerCase();
  const found = state.classes.filter(({ label }) => String(label).toLowerCase().includes(wanted));
  const shown = state.all ? found : found.slice(0, SHOWN);
  at("filter").hidden = state.classes.length <= 10;
  at("classes").replaceChildren(...shown.map(classRow));
  at("more").hidden = shown.length === found.length;
  at("more").textContent = `Show all ${grouped(found.length)}`;
}

function classRow({ label, exemplars, seconds_to_undo: left }) {
  const leaving = left !== null;
  const button = make("button", { type: "button", class: leaving ? "undo" : "forget", "aria-label": `${leaving ? "Undo: keep" : "Forget"} ${label}` }, leaving ? "Undo" : "Forget");
  button.addEventListener("click", () => trying(() => (leaving ? undo(label) : forget(label))));
  const note = leaving ? `gone in ${Math.ceil(left)} s` : String(exemplars);
  return make("li", {}, make("span", { class: leaving ? "name leaving" : "name", title: label }, String(label)), make("span", { class: "count", title: leaving ? "" : "examples remembered" }, note), button);
}

async function forget(label) {
  await call(`/classes/${encodeURIComponent(label)}`, { method: "DELETE" });
  say(`${label} will be forgotten in a few seconds. You can undo it.`);
  await relist(label);
  watch();
}

async function undo(label) {
  await call(`/classes/${encodeURIComponent(label)}/undo`, { method: "POST" });
  say(`${label} is kept.`);
  await relist(label);
}

async function relist(label) {
  await refresh();
  const row = [...at("classes").children].find((one) => one.firstElementChild.textContent === String(label));
  row?.querySelector("button").focus();
}

function watch() {
  clearTimeout(state.timer);
  if (!state.classes.some((one) => one.seconds_to_undo !== null)) return;
  state.timer = setTimeout(async () => {
    const before = state.classes.length;
    const focused = document.activeElement?.getAttribute("aria-label");
    await trying(refresh);
    if (focused) document.querySelector(`#classes [aria-label="${CSS.escape(focused)}"]`)?.focus();
    if (state.classes.length < before) {
      say("It is forgotten.");
      if (state.question && state.classes.length) await trying(() => ask(state.question));
    }
    watch();
  }, 1000);
}

// ---- how well it knew

function showRecord(history) {
  const points = history.map(({ accuracy_before: right }, lesson) => ({ right, lesson })).filter(({ right }) => right !== null);
  at("record").hidden = points.length < 2;
  if (points.length < 2) return;
  at("chart").replaceChildren(chart(points));
  at("record-text").textContent = `Of new examples of classes it knew, it named ${percent(points.at(-1).right)} rightly before it learned from them.`;
}

function chart(points) {
  const [width, height, left, top] = [320, 96, 38, 8];
  const first = points[0].lesson;
  const span = Math.max(points.at(-1).lesson - first, 1);
  const x = (lesson) => left + ((width - left - 6) * (lesson - first)) / span;
  const y = (right) => top + (height - 2 * top) * (1 - right);
  const lines = [0, 0.5, 1].flatMap((share) => [
    draw("line", { class: "grid", x1: left, x2: width, y1: y(share), y2: y(share) }),
    draw("text", { x: left - 6, y: y(share) + 4, "text-anchor": "end" }, `${100 * share} %`),
  ]);
  const curve = draw("polyline", { class: "curve", points: points.map(({ lesson, right }) => `${x(lesson)},${y(right)}`).join(" ") });
  const last = draw("circle", { cx: x(points.at(-1).lesson), cy: y(points.at(-1).right), r: 3.5 });
  const label = `Share named rightly, lesson by lesson: ${points.map(({ right }) => percent(right)).join(", ")}`;
  return draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...lines, curve, last);
}

function draw(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// ---- what the visitor does

function pictures(list) {
  return [...list].filter((file) => file.type.startsWith("image/"));
}

function droppable(area, take) {
  area.addEventListener("dragover", (event) => {
    event.preventDefault();
    area.classList.add("over");
  });
  for (const end of ["dragleave", "drop"]) area.addEventListener(end, () => area.classList.remove("over"));
  area.addEventListener("drop", (event) => {
    event.preventDefault();
    take(pictures(event.dataTransfer.files));
  });
  area.querySelector("input").addEventListener("change", (event) => {
    take(pictures(event.target.files));
    event.target.value = "";
  });
}

const askFirst = (files) => files.length && trying(() => ask(asked(files[0])));

droppable(at("ask-drop"), askFirst);
droppable(at("teach-drop"), choose);
document.addEventListener("paste", (event) => {
  const files = pictures(event.clipboardData.files);
  if (state.takes !== "images" || !files.length) return;
  if (at("teach-form").contains(document.activeElement)) choose(files);
  else askFirst(files);
});
at("ask-form").addEventListener("submit", (event) => {
  event.preventDefault();
  trying(async () => ask(written(at("ask-text").value)));
});
at("teach-this").addEventListener("click", () => {
  if (state.takes === "images") choose([state.question.body]);
  else at("teach-text").value += `${state.question.text.trim()}\n`;
  at("teach-name").focus();
});
at("teach-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  at("teach-button").disabled = true;
  await trying(() => teach(at("teach-name").value.trim()));
  at("teach-button").disabled = false;
});
at("filter").addEventListener("input", showClasses);
at("more").addEventListener("click", () => {
  state.all = true;
  showClasses();
});
at("token").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", at("token-text").value.trim());
  trying(begin);
});

async function begin() {
  await refresh();
  watch();
  if (state.takes === "images") await showExamples();
}

trying(begin);
