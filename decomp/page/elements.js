// Elements, made without markup: text is only ever text, so a module with a name like markup is harmless.

function tag(name, attributes = {}, ...inside) {
  return filled(document.createElement(name), attributes, inside);
}

function svg(name, attributes = {}, ...inside) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, inside);
}

function filled(element, attributes, inside) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...inside.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

const byId = (id) => document.getElementById(id);
const code = (value, attributes = {}) => tag("code", attributes, value);
const button = (label, act, attributes = {}) => tag("button", { type: "button", onclick: act, ...attributes }, label);

// How things are called on every page.

// `aten.mul.Tensor` is `mul`: lists and drawings leave the overload to the details.
const PREFIX = /^(aten|prims|torch|operator|_operator|Tensor)\.(nn\.functional\.|_C\._nn\.)?/;
const shortOp = (op) => (op.startsWith("self.") ? op : PREFIX.test(op) ? op.replace(PREFIX, "").replace(/^(\w+)\.\w+$/, "$1") : op);
const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
// `blocks.0.mlp.1` is blocks.0, mlp.1: a number belongs to the list before it.
const partsOf = (path) => (path ? path.split(/\.(?!\d)/) : []);

// A table of the details. `columns`: title and class of each.
function table(columns, rows) {
  const head = tag("thead", {}, tag("tr", {}, columns.map(([name, kind]) => tag("th", { class: kind }, name))));
  return tag("div", { class: "scroll" }, tag("table", {}, head, tag("tbody", {}, rows)));
}

const rowIn = (cells, columns, attributes = {}) => tag("tr", attributes, cells.map((inside, i) => tag("td", { class: columns[i][1] }, inside)));
const heading = (title, beside = "") => tag("h3", {}, title, beside ? tag("span", { class: "dim" }, `  ${beside}`) : null);
const say = (...parts) => tag("p", { class: "say" }, parts);

// A card beside the pointer. `lines`: the first is bold.
function hinting(element, lines) {
  element.addEventListener("pointerenter", (event) => event.pointerType !== "touch" && showHint(lines(), event));
  element.addEventListener("pointermove", placeHint);
  element.addEventListener("pointerleave", hideHint);
  return element;
}

function showHint([first, ...rest], event) {
  byId("hint").replaceChildren(tag("b", {}, first), ...rest.filter(Boolean).map((line) => tag("div", {}, line)));
  byId("hint").hidden = false;
  placeHint(event);
}

function placeHint(event) {
  if (byId("hint").hidden) return;
  const hint = byId("hint"), { width, height } = hint.getBoundingClientRect();
  hint.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
  hint.style.top = `${event.clientY + 18 + height > innerHeight ? Math.max(4, event.clientY - height - 12) : event.clientY + 18}px`;
}

// Where the same node is shown in the list and in the drawing, a pointer over one lights both.
const keyOf = (each) => (each.kind === "call" ? `${each.graph} ${each.stage} ${each.at}` : each.kind === "rule" ? `${each.graph} rule ${each.level} ${each.nodes[2][0]}` : `${each.kind} ${each.graph} ${each.nodes[0][0]}`);

const light = (key, on) => document.querySelectorAll(`[data-key="${key}"]`).forEach((each) => each.classList.toggle("lit", on));

const hideHint = () => { byId("hint").hidden = true; };

// What a pointer over a node shows.
function aboutNode(graph, s, node) {
  const stage = graphs[graph].stages[s], chain = s === 2 ? chainOf(graph, node) : [];
  const rules = chain.map((each) => `${data.rules[each].name} (${data.rules[each].location})`).join(" → ");
  const why = s === 2 && !chain.length ? "" : s === 2 ? rules : text(stage.why[node]);
  const what = text(stage.ops[node]) + stage.arguments[node];
  return [`%${stage.names[node]}`, what, text(stage.types[node]), why, s === 2 && stage.gone?.length ? text(stage.gone[node]) && `simplified: ${text(stage.gone[node])}` : ""];
}

const KEYWORDS = "def return if else elif for in is not and or None True False lambda while with as import from raise yield try except class assert pass".split(" ");
const TOKEN = new RegExp(`([rbuf]*"""[\\s\\S]*?"""|[rbuf]*'''[\\s\\S]*?''')|(#[^\\n]*)|([rbuf]*"(?:\\\\.|[^"\\\\\\n])*"|[rbuf]*'(?:\\\\.|[^'\\\\\\n])*')|\\b(${KEYWORDS.join("|")})\\b|(^\\s*@[\\w.]+)`, "gm");

// Python with its docstrings, comments, strings and keywords coloured.
function python(source) {
  const parts = [];
  let at = 0;
  for (const found of source.matchAll(TOKEN)) {
    parts.push(source.slice(at, found.index));
    const kind = found[1] || found[3] ? "doc" : found[2] ? "rem" : "key";
    parts.push(tag("span", { class: kind }, found[0]));
    at = found.index + found[0].length;
  }
  return tag("pre", {}, parts, source.slice(at));
}

// `act` with the last argument, once nothing has been asked for so many milliseconds.
function debounced(act, wait) {
  let waiting = 0;
  return (given) => {
    clearTimeout(waiting);
    waiting = setTimeout(act, wait, given);
  };
}
