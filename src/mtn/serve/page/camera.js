// Take pictures with a camera.

import { at, count, trying } from "/page.js";

const REASONS = {
  NotAllowedError: "The camera may not be used. Allow it for this page in the browser's settings.",
  NotFoundError: "No camera was found.",
  NotReadableError: "The camera is in use by another program.",
};

let take = null; // what is done with a picture; it returns whether another one may follow
let taken = 0;

/** Browsers lend the camera only to pages of this machine, and of others over HTTPS. */
export const hasCamera = () => Boolean(navigator.mediaDevices?.getUserMedia);

async function start(use) {
  [take, taken] = [use, 0];
  at("camera-status").textContent = "";
  at("snap").disabled = true;
  at("camera").showModal();
  try {
    at("video").srcObject = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    await at("video").play();
  } catch (error) {
    throw new Error(REASONS[error.name] ?? "The camera cannot be used.");
  }
  at("snap").disabled = false;
  at("snap").focus();
}

function stop() {
  for (const track of at("video").srcObject?.getTracks() ?? []) track.stop();
  at("video").srcObject = null;
}

async function snap() {
  const video = at("video");
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
  canvas.getContext("2d").drawImage(video, 0, 0);
  const picture = await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.92));
  taken += 1;
  at("camera-status").textContent = `${count(taken, "picture")} taken.`;
  if (!take(picture)) at("camera").close();
}

/** Let a button open the camera; `use` is given each picture, and returns whether another one may follow. */
export function offerCamera(id, use) {
  at(id).hidden = !hasCamera();
  at(id).addEventListener("click", () => trying(() => start(use), "camera-problem"));
}

export function listen() {
  at("snap").addEventListener("click", () => trying(snap, "camera-problem"));
  at("camera-close").addEventListener("click", () => at("camera").close());
  at("camera").addEventListener("close", stop);
}
