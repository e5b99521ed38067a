// Requests to the service.

import { at } from "/page.js";

const POLL = 250; // milliseconds between two looks at a job
const TOGETHER = 32; // pictures of one request
const BYTES = 12e6;
const LARGEST = 16; // megabytes
const PICTURE = /\.(png|jpe?g|bmp|gif|webp|tiff?|p[pg]m)$/i;

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/** The response to a request; an error with the service's own words if it is refused. */
export async function request(path, options = {}, tries = 1) {
  const token = sessionStorage.getItem("token");
  const headers = { ...options.headers, ...(token && { authorization: `Bearer ${token}` }) };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch {
    if (tries <= 1) throw new Error("The service does not answer.");
    await pause(1000);
    return request(path, options, tries - 1);
  }
  if (answer.ok) return answer;
  if (answer.status === 401) {
    at("token").hidden = false;
    at("token-text").focus();
    throw new Error(token ? "The service does not know this token." : "Enter your token to go on.");
  }
  throw new Error((await answer.json()).error);
}

export async function call(path, options = {}, tries = 1) {
  return (await request(path, options, tries)).json();
}

/** A change: the same however often it arrives. */
export function change(path, options) {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  const key = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return call(path, { ...options, headers: { ...options.headers, "idempotency-key": key } }, 3);
}

/** Wait until a job is done, and be told how far it is. */
export async function finished(job, progress = () => {}) {
  for (;;) {
    const found = await call(`/jobs/${job}`, {}, 30);
    if (found.state === "done") return;
    if (found.state === "failed") throw new Error(found.error);
    await progress(found);
    await pause(POLL);
  }
}

/** Files that are pictures; an error that names one that is none, or is too large. */
export function pictures(files) {
  for (const file of files) {
    if (!file.type.startsWith("image/") && !PICTURE.test(file.name)) {
      throw new Error(`“${file.name}” is not a picture. Choose PNG, JPEG, GIF, WebP, BMP or TIFF files.`);
    }
    if (file.size > LARGEST * 2 ** 20) {
      throw new Error(`“${file.name}” has ${Math.ceil(file.size / 2 ** 20)} MB. A picture may have at most ${LARGEST} MB.`);
    }
  }
  return [...files];
}

/** Pictures in groups that fit into one request each, as forms. */
export function forms(files) {
  const groups = [[]];
  let bytes = 0;
  for (const file of files) {
    if (groups.at(-1).length === TOGETHER || (bytes + file.size > BYTES && groups.at(-1).length)) {
      groups.push([]);
      bytes = 0;
    }
    groups.at(-1).push(file);
    bytes += file.size;
  }
  return groups.map((group) => {
    const form = new FormData();
    group.forEach((file, number) => form.append("picture", file, String(number)));
    return form;
  });
}

/** The numbers of a vector as somebody types or pastes them. */
export function numbers(text) {
  const found = text.replace(/[[\]]/g, " ").split(/[\s,;]+/).filter(Boolean).map(Number);
  if (!found.length || found.some(Number.isNaN)) throw new Error("Enter numbers, separated by spaces or commas.");
  return found;
}
