"use strict";

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function details(title, value) {
  return make("details", {}, make("summary", {}, title), make("pre", { tabindex: "0" }, JSON.stringify(value, null, 1)));
}

function resolved(value, schemas) {
  if (Array.isArray(value)) return value.map((one) => resolved(one, schemas));
  if (value === null || typeof value !== "object") return value;
  if (value.$ref) return resolved(schemas[value.$ref.split("/").at(-1)], schemas);
  return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, resolved(one, schemas)]));
}

function route(path, verb, { description, parameters, requestBody, responses }, schemas) {
  const parts = [make("h2", {}, make("code", {}, make("span", { class: "verb" }, verb.toUpperCase()), path)), make("p", {}, description ?? "")];
  if (parameters) parts.push(details("Parameters", resolved(parameters, schemas)));
  if (requestBody) parts.push(...Object.entries(requestBody.content).map(([kind, one]) => details(`Body, ${kind}`, resolved(one.schema, schemas))));
  for (const [status, { content }] of Object.entries(responses)) {
    const schema = content && Object.values(content)[0].schema;
    if (schema && status < 300) parts.push(details(`Answer, ${status}`, resolved(schema, schemas)));
  }
  const refusals = Object.keys(responses).filter((status) => status >= 400);
  if (refusals.length) parts.push(make("p", { class: "refusals" }, `Errors: ${refusals.join(", ")}`));
  return make("article", { class: "card" }, ...parts);
}

async function show() {
  const { paths, components } = await (await fetch("/openapi.json")).json();
  const found = Object.entries(paths).flatMap(([path, verbs]) => Object.entries(verbs).map(([verb, facts]) => route(path, verb, facts, components.schemas)));
  document.getElementById("routes").append(...found);
}

show();
