// The list of rows, a column for each stage. Only the rows on the screen exist as elements.

const ROWS = byId("rows"), SPACE = byId("space");
const AHEAD = 12;
let visible = [], selected = tree, query = "", keep = null;
let lit = { operands: new Set(), users: new Set() };

const rowHeight = () => parseInt(getComputedStyle(document.documentElement).getPropertyValue("--row"), 10) || 30;

function flatten() {
  visible = [];
  const add = (each) => {
    for (const kid of children(each)) {
      if (keep && !keep.has(kid) && !keep.has(each)) continue;
      visible.push(kid);
      if (kid.open) add(kid);
    }
  };
  add(tree);
  visible.forEach((each, i) => { each.place = i; });
}

let drawn = new Map(), room = 0, high = 30;
const rowOf = new WeakMap();

// Draw everything again, as after folding or selecting.
function render() {
  high = rowHeight();
  room = ROWS.clientHeight;
  drawn = new Map();
  SPACE.replaceChildren();
  SPACE.style.height = `${visible.length * high}px`;
  scrolled();
  ROWS.setAttribute("aria-activedescendant", `row${selected.id}`);
}

// Draw the rows that came into sight, and drop those that left it; the others are not touched.
function scrolled() {
  const top = ROWS.scrollTop, first = Math.max(0, Math.floor(top / high) - AHEAD);
  const wanted = visible.slice(first, Math.ceil((top + room) / high) + AHEAD), before = drawn;
  drawn = new Map(wanted.map((each, i) => [each.id, before.get(each.id) ?? rowElement(each, (first + i) * high)]));
  for (const [id, element] of before) if (!drawn.has(id)) element.remove();
  let at = SPACE.firstChild;
  for (const element of drawn.values()) {
    if (element === at) at = at.nextSibling;
    else SPACE.insertBefore(element, at);
  }
}

function rowElement(each, top) {
  const classes = ["row", each.kind, each.host && "host", each === selected && "selected", each.decision?.kind === "blocked" && "blocked",
    each.kind === "call" && lit.operands.has(each.at) && "operand", each.kind === "call" && lit.users.has(each.at) && "user"];
  const cells = [outlineCell(each), ...data.stages.slice(1).map((_, s) => cell(stageCell(each, s + 1)))];
  const made = tag("div", { class: classes.filter(Boolean).join(" "), id: `row${each.id}`, role: "row", style: `top:${top}px;--colour:${colourOf(each)}`,
    "data-key": keyOf(each), "aria-level": each.depth + 1, "aria-expanded": opens(each) ? String(each.open) : null, "aria-selected": String(each === selected) }, cells);
  rowOf.set(made, each);
  return made;
}

// One listener for all rows.
const onRow = (act) => (event) => {
  const element = event.target.closest?.(".row");
  if (element) act(rowOf.get(element), event);
};

function listenToRows() {
  ROWS.addEventListener("click", onRow(pressRow));
  ROWS.addEventListener("pointerover", onRow((each, event) => {
    light(keyOf(each), true);
    if (event.pointerType !== "touch") showHint(aboutRow(each), event);
  }));
  ROWS.addEventListener("pointerout", onRow((each) => {
    light(keyOf(each), false);
    hideHint();
  }));
  ROWS.addEventListener("pointermove", placeHint);
  ROWS.addEventListener("scroll", () => { hideHint(); requestAnimationFrame(scrolled); }, { passive: true });
  ROWS.addEventListener("keydown", onKey);
}

const cell = (inside) => tag("div", { class: "cell", role: "gridcell" }, inside);

function outlineCell(each) {
  const indent = Math.max(0, each.depth) * 15;
  return tag("div", { class: "cell", role: "gridcell", style: `padding-left:${8 + indent}px` },
    tag("span", { class: "twist" }, opens(each) ? (each.open ? "▼" : "▶") : ""), tag("span", { class: "stripe" }), outlineText(each));
}

function outlineText(each) {
  const label = tag("span", { class: "label" }, marked(each.label));
  if (each.kind === "op") {
    const { names, types } = graphs[each.graph].stages[0], name = names[each.node];
    const beside = [each.module, name !== each.label && !each.module ? `%${name}` : ""].filter(Boolean).join("  ");
    return [label, tag("span", { class: "rest dim" }, marked(beside)), tag("span", { class: "type" }, text(types[each.node]))];
  }
  if (each.kind === "rule") return [label, tag("span", { class: "rest dim" }, data.rules[each.rule].location)];
  if (each.kind === "call") return [tag("span", { class: "label" }, marked(inShort(each, `%${each.label}`))), tag("span", { class: "rest" }), tag("span", { class: "type" }, typeOf(each.graph, each.stage, each.at))];
  return [label, each.counts[0] ? tag("span", { class: "dim number" }, count(each.counts[0], "call")) : null];
}

// Nodes are named after the call that they come from: beside it, `%gelu_mul` is `%…mul`.
function inShort(each, shown) {
  const op = pathOf(each).find((one) => one.kind === "op");
  return op ? shown.replaceAll(`%${graphs[op.graph].stages[0].names[op.node]}_`, "%…") : shown;
}

// A text with what is searched for marked in it.
function marked(label) {
  const at = query ? label.toLowerCase().indexOf(query) : -1;
  return at < 0 ? [label] : [label.slice(0, at), tag("mark", {}, label.slice(at, at + query.length)), label.slice(at + query.length)];
}

// What a row shows in the column of a stage after the first.
function stageCell(each, s) {
  if (each.kind === "inputs") return [tag("span", { class: "dim" }, each.nodes[s].length ? String(each.nodes[s].length) : "–")];
  if (each.kind === "call") return nodeCell(each, s);
  if (s === 1) return functionalCell(each);
  if (each.kind === "op" && !opens(each)) return keptCell(each, s);
  const wide = Math.max(2, 84 * Math.sqrt(each.counts[s] / largest));
  const by = s === 2 && each.decision?.kind === "derived" && each.decision.rule >= 0 ? data.rules[each.decision.rule].name : "";
  return [barOf(each, s, wide), tag("span", { class: "number" }, each.counts[s].toLocaleString("en")), tag("span", { class: "dim rest" }, marked(by))];
}

const largest = Math.max(1, ...children(tree).map((each) => each.counts[2]));

// One colour for an op or a rule; for a module the colours of what is in it.
function barOf(each, s, wide) {
  const key = `${colourBy} ${s}`;
  each.shares ??= {};
  each.shares[key] ??= each.kind === "module" || each.kind === "graph" ? sharesOf(each, s) : [[colourOf(each), 1]];
  return tag("span", { class: "bar", style: `width:${wide}px` }, each.shares[key].map(([colour, share]) => tag("i", { style: `background:${colour};flex:${share}` })));
}

function functionalCell(each) {
  if (each.kind === "rule") return [];
  if (each.kind === "op" && each.fused) return [tag("span", { class: "dim" }, `in ${each.fused}`)];
  if (each.kind === "op" && each.nodes[1].length === 1) {
    const { ops } = graphs[each.graph].stages[1], op = shortOp(text(ops[each.nodes[1][0]]));
    return [tag("span", { class: "dim" }, op === each.label ? "same" : op)];
  }
  return [tag("span", { class: "number dim" }, String(each.counts[1] || each.nodes[1].length || "–"))];
}

// A call of the source that stays as it is, or for which nothing is needed.
function keptCell(each, s) {
  const node = each.nodes[s][0];
  if (each.decision?.kind === "blocked") return [tag("span", { class: "why" }, s === 2 ? `blocked: ${each.decision.reasons[0] ?? "no rule"}` : "stays")];
  if (node === undefined) return [tag("span", { class: "dim" }, s === 3 ? goneText(each.graph, each.nodes[2][0]) : each.fused ? "" : "not needed")];
  if (s === 2) return [tag("span", { class: "dim" }, each.host ? "copied" : "kept: the target has it")];
  return [tag("span", { class: "dim" }, changeText(each.graph, node))];
}

const goneText = (graph, node) => (node === undefined ? "" : text(graphs[graph].stages[2].gone[node] ?? -1) || "not needed");

function changeText(graph, node) {
  const why = text(graphs[graph].stages[3].why[node]);
  return why === "copied" ? "same" : why;
}

function nodeCell(each, s) {
  const [node] = each.nodes[s];
  const stage = graphs[each.graph].stages[s];
  if (s < each.stage) return [];
  if (node === undefined) return s === 3 && each.nodes[2].length ? [tag("span", { class: "gone" }, callLabel(each, 2)), tag("span", { class: "dim rest" }, goneText(each.graph, each.nodes[2][0]))] : [];
  const change = s === 3 ? changeText(each.graph, node) : "";
  if (change === "same" && sameText(each, node)) return [tag("span", { class: "dim" }, "same")];
  return [tag("span", { class: "text rest" }, inShort(each, (shortOp(text(stage.ops[node])) || `%${stage.names[node]}`) + stage.arguments[node])), change && change !== "same" ? tag("span", { class: "badge" }, change) : null];
}

function sameText(each, node) {
  const [before] = each.nodes[2], [expanded, simplified] = [graphs[each.graph].stages[2], graphs[each.graph].stages[3]];
  return before !== undefined && text(expanded.ops[before]) + expanded.arguments[before] === text(simplified.ops[node]) + simplified.arguments[node];
}

function aboutRow(each) {
  if (each.kind === "call") return aboutNode(each.graph, each.stage, each.at);
  if (each.kind === "rule") return [data.rules[each.rule].name, `for ${data.rules[each.rule].op}`, `${data.rules[each.rule].file}:${data.rules[each.rule].line}`, count(each.counts[2], "call")];
  if (each.kind === "op") {
    const { names, ops, arguments: args, types, why } = graphs[each.graph].stages[0];
    const became = each.decision?.kind === "derived" ? `${ruleOf(each.decision)}: ${count(each.counts[2], "call")}` : each.decision?.kind ?? "";
    return [`%${names[each.node]}`, text(ops[each.node]) + args[each.node], text(types[each.node]), text(why[each.node]), became];
  }
  return [each.path || each.label, each.counts.map((number, s) => `${data.stages[s].title.toLowerCase()} ${number}`).join(", ")];
}

// Folding, selecting, searching

function pressRow(each, event) {
  const onTwist = event.target.classList?.contains("twist");
  if (onTwist || each === selected) toggle(each, !each.open);
  else if (opens(each) && !each.open && each.kind !== "module" && each.kind !== "inputs") each.open = true;
  if (!onTwist) select(each);
  else refresh();
}

function toggle(each, open) {
  each.open = open && opens(each);
}

function refresh() {
  flatten();
  render();
}

// Show a row: open what it is in, scroll to it, and explain it.
function reveal(each) {
  for (const above of pathOf(each).slice(0, -1)) above.open = true;
  if (opens(each) && (each.kind === "op" || each.kind === "functional")) each.open = true;
  if (keep && !pathOf(each).some((one) => keep.has(one))) searchFor("");
  refresh();
  const top = each.place * high;
  if (top < ROWS.scrollTop || top > ROWS.scrollTop + ROWS.clientHeight - 3 * high) ROWS.scrollTop = Math.max(0, top - ROWS.clientHeight / 3);
  select(each);
}

function select(each, show = true) {
  selected = each;
  const stage = each.kind === "call" ? graphs[each.graph].stages[each.stage] : null;
  lit = { operands: new Set(stage?.operands[each.at]), users: new Set(stage?.users[each.at]) };
  name(each);
  refresh();
  explain(each, show);
}

// The address names the call. Browsers refuse to change it many times a second, as a held key would.
const name = debounced((each) => {
  const { names } = graphs[each.graph].stages[0];
  history.replaceState(null, "", each.kind === "op" ? `#${encodeURIComponent(names[each.node])}` : "#");
}, 250);

const haystack = (each) => {
  if (each.words === undefined) {
    const stages = graphs[each.graph].stages, rules = new Set(each.nodes[2].flatMap((node) => chainOf(each.graph, node)));
    const names = each.nodes.flatMap((nodes, s) => nodes.map((node) => `${stages[s].names[node]} ${text(stages[s].ops[node])}`));
    each.words = [text(stages[0].modules[each.node]), ...names, ...[...rules].map((rule) => `${data.rules[rule].name} ${data.rules[rule].location}`)].join(" ").toLowerCase();
  }
  return each.words;
};

function searchFor(value) {
  query = value.trim().toLowerCase();
  byId("search").value = query ? byId("search").value : "";
  if (!query) {
    keep = null;
    byId("found").textContent = "";
  } else {
    const hits = opRows.filter((each) => haystack(each).includes(query));
    keep = new Set(hits.flatMap(pathOf));
    keep.delete(tree);
    for (const each of keep) if (each.kind === "module" || each.kind === "graph") each.open = true;
    byId("found").textContent = `${hits.length} of ${count(opRows.length, "call")}`;
  }
  ROWS.scrollTop = 0;
  refresh();
}

const hidden = (each) => keep && !pathOf(each).some((one) => keep.has(one));

function onKey(event) {
  const at = visible.indexOf(selected), step = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -1e9, End: 1e9 }[event.key];
  if (step !== undefined && visible.length) {
    const next = visible[Math.min(visible.length - 1, Math.max(0, (at < 0 ? -1 : at) + step))];
    scrollTo(next);
    select(next, false);
  } else if (event.key === "ArrowRight" && at >= 0) {
    if (opens(selected) && !selected.open) toggle(selected, true);
    refresh();
  } else if (event.key === "ArrowLeft" && at >= 0) {
    if (selected.open) toggle(selected, false);
    else if (selected.parent && selected.parent !== tree) select(selected.parent, false);
    refresh();
  } else if (event.key === "Enter" && at >= 0) explain(selected, true);
  else return;
  event.preventDefault();
}

function scrollTo(each) {
  const top = each.place * high;
  if (top < ROWS.scrollTop) ROWS.scrollTop = top;
  if (top + high > ROWS.scrollTop + ROWS.clientHeight) ROWS.scrollTop = top + high - ROWS.clientHeight;
}
