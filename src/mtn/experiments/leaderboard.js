// Draws the tables and charts of a leaderboard from the JSON in the page. Texts are set as text, never as HTML.
"use strict";
const boards = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const largest = boards.reduce((best, board, index) => (board.rows.length > boards[best].rows.length ? index : best), 0);
const state = { board: largest, sort: "accuracy", chosen: null };
const PARTS = { floats: (row) => row.floats, seconds: (row) => row.seconds && row.seconds[0] };

function make(tag, content, attributes = {}) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...[content ?? []].flat());
  return node;
}

function shape(tag, attributes, content) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...[content ?? []].flat());
  return node;
}

function short(value) {
  if (value === null) return "–";
  for (const [unit, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= unit) return `${Number((value / unit).toPrecision(3))} ${letter}`;
  }
  return String(Number(value.toPrecision(value < 10 ? 2 : 3)));
}

const spread = ([, , text]) => text;
const label = (row) => row.method + (row.tuned ? " (tuned)" : "") + (row.values ? ` (${row.values})` : "");

// ---- the limits: a slider goes from the smallest number of all boards to the largest, on a logarithmic scale

const ranges = Object.fromEntries(Object.entries(PARTS).map(([name, part]) => {
  const values = boards.flatMap((board) => board.rows.map(part)).filter((value) => value > 0);
  return [name, values.length ? [Math.min(...values), Math.max(...values)] : [1, 1]];
}));

function limit(name) {
  const position = Number(at(name).value) / 100;
  const [low, high] = ranges[name];
  return position === 1 ? Infinity : low * (high / low) ** position * (1 + 1e-9);
}

function isWithin(row) {
  return Object.entries(PARTS).every(([name, part]) => limit(name) === Infinity || (part(row) !== null && part(row) <= limit(name)));
}

// ---- all boards

function drawMatrix() {
  const methods = [...new Set(boards.flatMap((board) => board.rows.map((row) => row.method)))];
  const cells = boards.map((board) => {
    const found = new Map();
    for (const row of board.rows.filter(isWithin)) if (!found.has(row.method)) found.set(row.method, row); // the best one
    return found;
  });
  const top = cells.map((found) => Math.max(...[...found.values()].filter((row) => !row.bound).map((row) => row.accuracy[0])));
  const place = (method) => {
    const gaps = cells.map((found, column) => found.has(method) ? top[column] - found.get(method).accuracy[0] : null).filter((gap) => gap !== null);
    return gaps.length ? gaps.reduce((sum, gap) => sum + gap, 0) / gaps.length : Infinity;
  };
  const header = make("tr", [make("th", "method"), ...boards.map((board, column) => {
    const button = make("button", [board.data, make("br"), board.stream], { type: "button" });
    button.onclick = () => { state.board = column; at("board").value = column; draw(); at("title").scrollIntoView(); };
    return make("th", button);
  })]);
  const rows = methods.sort((a, b) => place(a) - place(b)).filter((method) => place(method) < Infinity).map((method) =>
    make("tr", [make("th", method, { scope: "row" }), ...cells.map((found, column) => {
      const row = found.get(method);
      if (!row) return make("td", "–", { class: "faint" });
      const button = make("button", spread(row.accuracy), { type: "button", title: "command and runs" });
      button.onclick = () => choose(row, column);
      const first = !row.bound && row.accuracy[0] === top[column] ? "first " : "";
      return make("td", button, { class: first + (row === state.chosen ? "chosen" : "") });
    })]));
  at("matrix").replaceChildren(make("thead", header), make("tbody", rows));
}

function choose(row, column) {
  state.chosen = row;
  state.board = column;
  at("board").value = column;
  draw();
}

function drawCell() {
  const row = state.chosen;
  at("cell").hidden = row === null;
  if (row === null) return;
  const runs = `${row.runs.length} run${row.runs.length > 1 ? "s" : ""}: seed ${row.seeds.join(", ")}; class order ${row.orders.join(", ")}`;
  const close = make("button", "close", { type: "button" });
  close.onclick = () => { state.chosen = null; draw(); };
  at("cell").replaceChildren(
    close,
    make("b", label(row)),
    make("div", `${spread(row.accuracy)} %, ${short(row.floats)} floats, ${row.seconds ? short(row.seconds[0]) : "–"} s`),
    make("pre", row.command ?? "No shipped recipe leads there: config.json in the run folder has every value."),
    make("div", `${runs} (${row.runs.join(", ")})`, { class: "faint" }),
  );
}

// ---- one board

const COLUMNS = {
  accuracy: ["accuracy", (row) => row.accuracy[0], (row) => spread(row.accuracy), -1],
  last: ["last", (row) => row.last[0], (row) => spread(row.last), -1],
  forgetting: ["forgetting", (row) => row.forgetting[0] ?? Infinity, (row) => spread(row.forgetting), 1],
  floats: ["floats", PARTS.floats, (row) => short(row.floats), 1],
  seconds: ["seconds", (row) => PARTS.seconds(row) ?? Infinity, (row) => (row.seconds ? short(row.seconds[0]) : "–"), 1],
  runs: ["runs", (row) => row.runs.length, (row) => String(row.runs.length), -1],
};

function drawTable(rows, fronts) {
  const [, key, , direction] = COLUMNS[state.sort];
  const header = make("tr", [make("th", "method"), ...Object.entries(COLUMNS).map(([name, [title]]) => {
    const button = make("button", title, { type: "button" });
    button.onclick = () => { state.sort = name; draw(); };
    return make("th", button, state.sort === name ? { "aria-sort": COLUMNS[name][3] < 0 ? "descending" : "ascending" } : {});
  }), make("th", "front of")]);
  const body = [...rows].sort((a, b) => direction * (key(a) - key(b))).map((row) => {
    const button = make("button", label(row), { type: "button" });
    button.onclick = () => choose(row, state.board);
    const on = Object.keys(fronts).filter((name) => fronts[name].has(row)).join(", ");
    const cells = Object.values(COLUMNS).map(([, , text]) => make("td", text(row)));
    return make("tr", [make("td", button), ...cells, make("td", on)], row === state.chosen ? { class: "chosen" } : {});
  });
  at("table").replaceChildren(make("thead", header), make("tbody", body));
}

// Those that are better than everything that costs no more.
function paretoFront(rows, cost) {
  const front = new Set();
  let best = -Infinity;
  const ranked = rows.filter((row) => !row.bound && cost(row) !== null);
  for (const row of ranked.sort((a, b) => cost(a) - cost(b) || b.accuracy[0] - a.accuracy[0])) {
    if (row.accuracy[0] > best) { front.add(row); best = row.accuracy[0]; }
  }
  return front;
}

const BELOW_BEST = 10; // points; what is farther below is named under the chart
const WIDTH = 420, HEIGHT = 300, LEFT = 40, RIGHT = 12, TOP = 12, BOTTOM = 42;

function drawChart(figure, rows, name, front) {
  const cost = PARTS[name];
  const known = rows.filter((row) => cost(row) !== null);
  if (!known.length) return figure.replaceChildren(make("figcaption", `No run within the limits has its ${name}.`));
  const best = Math.max(...known.map((row) => row.accuracy[0]));
  const shown = known.filter((row) => row.accuracy[0] >= best - BELOW_BEST);
  const costs = shown.map((row) => Math.max(cost(row), 1e-3));
  const x0 = Math.log10(Math.min(...costs)) - 0.15, x1 = Math.log10(Math.max(...costs)) + 0.35;
  const low = Math.min(...shown.map((row) => row.accuracy[0] - (row.accuracy[1] ?? 0))) - 0.5;
  const high = Math.max(...shown.map((row) => row.accuracy[0] + (row.accuracy[1] ?? 0))) + 0.5;
  const x = (value) => LEFT + (Math.log10(Math.max(value, 1e-3)) - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM);
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `accuracy against ${name}` });
  drawAxes(svg, [x0, x1, x], [low, high, y], name);
  const steps = [...front].filter((row) => shown.includes(row)).sort((a, b) => cost(a) - cost(b));
  const corners = steps.flatMap((row, index) => [[cost(row), index ? steps[index - 1].accuracy[0] : row.accuracy[0]], [cost(row), row.accuracy[0]]]);
  svg.append(shape("polyline", { points: corners.map(([c, a]) => `${x(c)},${y(a)}`).join(" ") }));
  const labels = [];
  for (const row of [...shown].sort((a, b) => front.has(a) - front.has(b))) svg.append(point(row, x(cost(row)), y, front.has(row), labels));
  const below = known.filter((row) => !shown.includes(row)).map((row) => `${label(row)} ${spread(row.accuracy)}`);
  const caption = `accuracy against ${name}` + (below.length ? `; farther below: ${below.join(", ")}` : "");
  figure.replaceChildren(svg, make("figcaption", caption));
}

function drawAxes(svg, [x0, x1, x], [low, high, y], name) {
  const step = [0.5, 1, 2, 5, 10].find((size) => (high - low) / size <= 7) ?? 10;
  for (let value = Math.ceil(low / step) * step; value <= high; value += step) {
    svg.append(shape("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }));
    svg.append(shape("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end", class: "axis" }, String(value)));
  }
  const marks = x1 - x0 < 1.5 ? [1, 2, 5] : [1];
  for (let power = Math.floor(x0); power <= Math.ceil(x1); power += 1) {
    for (const value of marks.map((mark) => mark * 10 ** power).filter((mark) => Math.log10(mark) >= x0 && Math.log10(mark) <= x1)) {
      svg.append(shape("line", { x1: x(value), x2: x(value), y1: TOP, y2: HEIGHT - BOTTOM }));
      svg.append(shape("text", { x: x(value), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle", class: "axis" }, short(value)));
    }
  }
  svg.append(shape("text", { x: WIDTH - RIGHT, y: HEIGHT - 6, "text-anchor": "end", class: "axis" }, name));
}

function point(row, x, y, isFront, labels) {
  const [mean, std] = row.accuracy;
  const classes = ["point", isFront && "front", row.bound && "bound", row === state.chosen && "marked"].filter(Boolean).join(" ");
  const group = shape("g", { class: classes }, shape("title", {}, `${label(row)}: ${spread(row.accuracy)}`));
  if (std !== null) group.append(shape("line", { class: "bar", x1: x, x2: x, y1: y(mean - std), y2: y(mean + std), "stroke-width": 1.5 }));
  group.append(shape("circle", { cx: x, cy: y(mean), r: isFront ? 5 : 4 }));
  if (isFront || row === state.chosen) {
    const left = x > WIDTH - 110;
    let height = y(mean) - 8;
    while (labels.some((other) => Math.abs(other.height - height) < 13 && Math.abs(other.x - x) < 90)) height += 13;
    labels.push({ x, height });
    group.append(shape("text", { x: left ? x - 8 : x + 8, y: height, "text-anchor": left ? "end" : "start" }, row.method));
  }
  group.addEventListener("click", () => choose(row, state.board));
  return group;
}

function draw() {
  const board = boards[state.board];
  for (const name of Object.keys(PARTS)) at(`${name}-out`).value = limit(name) === Infinity ? "no limit" : short(limit(name));
  drawMatrix();
  drawCell();
  at("title").textContent = `${board.data}, ${board.stream}`;
  at("about").textContent = `${board.about}. Accuracy: ${board.metric}.`;
  const rows = board.rows.filter(isWithin);
  const fronts = Object.fromEntries(Object.entries(PARTS).map(([name, cost]) => [name, paretoFront(rows, cost)]));
  drawChart(at("by-floats"), rows, "floats", fronts.floats);
  drawChart(at("by-seconds"), rows, "seconds", fronts.seconds);
  drawTable(rows, fronts);
}

at("board").replaceChildren(...boards.map((board, index) => make("option", `${board.data}, ${board.stream}`, { value: index })));
at("board").value = state.board;
at("board").onchange = () => { state.board = Number(at("board").value); draw(); };
for (const name of Object.keys(PARTS)) at(name).oninput = draw;
draw();
