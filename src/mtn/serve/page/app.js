// The page of the service: ask, see why, teach, correct, forget.

import * as answer from "/ask.js";
import * as camera from "/camera.js";
import * as known from "/known.js";
import { at, count, state, trying } from "/page.js";
import { call, pictures } from "/service.js";
import * as lesson from "/teach.js";

const TAKES = {
  images: () => "pictures",
  texts: () => "sentences",
  vectors: (features) => `vectors of ${count(features, "number")}`,
};

let remembered = ""; // labels and numbers of examples, as they were when some were offered to try

async function refresh() {
  const [model, { classes }] = await Promise.all([call("/model"), call("/classes")]);
  Object.assign(state, { model, classes });
  for (const element of document.querySelectorAll("[data-takes]")) element.hidden = !element.dataset.takes.split(" ").includes(model.takes);
  for (const element of document.querySelectorAll("[data-teaches]")) element.hidden = !model.may_teach;
  document.title = `${model.name} · What is this?`;
  at("model-name").textContent = model.name;
  const knows = model.classes ? `It knows ${count(model.classes, "class")} and keeps learning.` : `It knows nothing yet${model.may_teach ? ": teach it something" : ""}.`;
  at("summary-text").textContent = ` takes ${TAKES[model.takes](model.features)}. ${knows}`;
  lesson.showNameRule();
  known.showMemory();
  known.showClasses();
  known.showRecord();
  at("token").hidden = true;
  at("columns").hidden = false;
  const now = JSON.stringify(classes.map(({ label, exemplars }) => [label, exemplars]));
  if (now === remembered) return;
  remembered = now;
  await answer.showExamples();
}

async function begin() {
  await refresh();
  known.watch();
}

// ---- what the visitor does

const TINY = 40; // pixels: characters keep their edges when they are enlarged, photographs are smoothed
document.addEventListener("load", ({ target }) => {
  if (target.tagName === "IMG") target.classList.toggle("tiny", target.naturalWidth <= TINY);
}, true);

const askPictures = (files) => trying(() => files.length && answer.ask(pictures(files).map(answer.picture)));
const choosePictures = (files) => trying(() => lesson.choose(pictures(files)));

function droppable(area, take) {
  area.addEventListener("dragover", (event) => {
    event.preventDefault();
    area.classList.add("over");
  });
  for (const end of ["dragleave", "drop"]) area.addEventListener(end, () => area.classList.remove("over"));
  area.addEventListener("drop", (event) => {
    event.preventDefault();
    take([...event.dataTransfer.files]);
  });
  area.querySelector("input").addEventListener("change", (event) => {
    take([...event.target.files]);
    event.target.value = "";
  });
}

droppable(at("ask-drop"), askPictures);
droppable(at("teach-drop"), choosePictures);
camera.listen();
camera.offerCamera("ask-camera", (file) => {
  askPictures([file]);
  return false;
});
camera.offerCamera("teach-camera", (file) => {
  lesson.choose([file]);
  return true;
});
document.addEventListener("paste", (event) => {
  const files = [...event.clipboardData.files];
  if (state.model?.takes !== "images" || !files.length) return;
  if (at("teach-form").contains(document.activeElement)) choosePictures(files);
  else askPictures(files);
});
at("ask-form").addEventListener("submit", (event) => {
  event.preventDefault();
  trying(() => answer.ask([answer.written(at("ask-text").value.trim())]));
});
at("ask-text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  at("ask-form").requestSubmit();
});
at("teach-this").addEventListener("click", () => lesson.add(answer.shownQuestion()));
at("teach-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  at("teach-button").disabled = true;
  await trying(() => lesson.teach(refresh));
  at("teach-button").disabled = false;
});
known.listen(refresh);
at("token").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", at("token-text").value.trim());
  trying(begin);
});

trying(begin);
