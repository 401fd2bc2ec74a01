// Drawings of graphs, laid out by dagre: the children of a module, or the calls of an op at each step of its rewrite.

const MOST_DRAWN = 260;

// One item a row of `rows`: a box for what can be opened, a plain rectangle for a call. `stage`: whose edges are drawn.
function itemsOf(rows, stage) {
  return rows.filter((each) => each.nodes[stage].length).map((each) => ({
    row: each, members: each.nodes[stage], label: each.kind === "call" ? callLabel(each, stage) : each.label,
    sub: subOf(each, stage), kind: each.kind === "call" ? "plain" : each.kind === "op" && !opens(each) ? "plain" : "box",
    colour: colourOf(each), blocked: each.decision?.kind === "blocked",
  }));
}

function callLabel(each, stage) {
  const { ops, names } = graphs[each.graph].stages[stage], node = each.nodes[stage][0];
  return shortOp(text(ops[node])) || names[node];
}

function subOf(each, stage) {
  if (each.kind === "call") return typeOf(each.graph, stage, each.nodes[stage][0]);
  if (each.kind === "rule") return count(each.counts[2], "call");
  if (each.kind === "op" && !opens(each)) return typeOf(each.graph, 0, each.node);
  return `${each.counts[0] ? count(each.counts[0], "call") + " → " : ""}${each.counts[data.stages.length - 1]}`;
}

const typeOf = (graph, stage, node) => text(graphs[graph].stages[stage].types[node]);

// Edges between items, and a pill for each value that comes from elsewhere.
function edgesOf(graph, stage, items) {
  const { operands, names, kinds, results } = graphs[graph].stages[stage];
  const owner = new Map(items.flatMap((item, i) => item.members.map((node) => [node, i])));
  const edges = new Map(), inputs = new Map(), returned = new Set(results);
  const many = items.length > 1 && items.some((item) => item.kind === "box" && item.row.kind !== "rule");
  items.forEach((item, i) => item.members.forEach((node) => {
    item.result ||= returned.has(node) || graphs[graph].stages[stage].users[node].some((user) => !owner.has(user));
    for (const operand of operands[node]) {
      const from = owner.get(operand);
      if (from !== undefined && from !== i) edges.set(`${from} ${i}`, [from, i]);
      const isWeight = kinds[operand] === INPUT && /^(p|b|c|obj)_/.test(names[operand]);
      if (from === undefined && !(many && isWeight)) inputs.set(operand, [...(inputs.get(operand) ?? []), i]);
    }
  }));
  const pills = [...inputs].map(([node, users]) => ({ kind: "input", label: names[node], sub: typeOf(graph, stage, node), members: [node], users: [...new Set(users)] }));
  return { edges: [...edges.values()], pills };
}

const WIDE = 7.3, HIGH = 40;
const widthOf = (item) => Math.max(54, Math.max(item.label.length * WIDE, item.sub.length * 6.5) + 22);
const cut = (label) => (label.length > 34 ? `${label.slice(0, 32)}…` : label);

function laidOut(items, edges, pills) {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "TB", nodesep: 16, ranksep: 26, marginx: 14, marginy: 14 });
  graph.setDefaultEdgeLabel(() => ({}));
  [...items, ...pills].forEach((item, i) => {
    item.label = cut(item.label);
    graph.setNode(String(i), { width: widthOf(item), height: item.kind === "input" ? 34 : HIGH });
  });
  edges.forEach(([from, to]) => graph.setEdge(String(from), String(to)));
  pills.forEach((pill, p) => pill.users.forEach((user) => graph.setEdge(String(items.length + p), String(user))));
  dagre.layout(graph);
  return graph;
}

// What the drawing covers: dagre 3.1.3 leaves edges out that pass beside the outermost node.
function extentOf(layout) {
  const boxes = layout.nodes().map((name) => layout.node(name)).map(({ x, y, width, height }) => [x - width / 2, y - height / 2, x + width / 2, y + height / 2]);
  const points = layout.edges().flatMap((edge) => layout.edge(edge).points.map(({ x, y }) => [x, y, x, y]));
  const all = [...boxes, ...points], least = (i) => all.reduce((best, each) => Math.min(best, each[i]), Infinity) - 14, most = (i) => all.reduce((best, each) => Math.max(best, each[i]), -Infinity) + 14;
  return { left: least(0), top: least(1), width: most(2) - least(0), height: most(3) - least(1) };
}

// The drawing of some rows at a stage. `fresh(row)`: whether it is new at this step; `press(row)`: on click.
function drawing(rows, stage, press, fresh = () => false) {
  const items = itemsOf(rows, stage), graph = rows[0]?.graph ?? 0;
  if (!items.length) return tag("p", { class: "dim", style: "padding:12px" }, "nothing is left of it at this stage");
  if (items.length > MOST_DRAWN) return tag("p", { class: "dim", style: "padding:12px" }, `${count(items.length, "call")}: too many to draw; open the rows in the list`);
  const { edges, pills } = edgesOf(graph, stage, items), all = [...items, ...pills];
  const layout = laidOut(items, edges, pills), { left, top, width, height } = extentOf(layout);
  const paths = layout.edges().map(({ v, w }) => svg("path", { class: "edge", d: curve(layout.edge(v, w).points), "marker-end": "url(#tip)", "data-from": v, "data-to": w }));
  const picture = svg("svg", { viewBox: `${left} ${top} ${width} ${height}`, width, height, role: "img", "aria-label": "dataflow" },
    svg("defs", {}, svg("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, svg("path", { d: "M0 0 8 4 0 8z" }))),
    paths, all.map((item, i) => nodeOf(item, layout.node(String(i)), stage, graph, press, fresh, paths, i)));
  return framed(picture, width, height);
}

function nodeOf(item, { x, y, width, height }, stage, graph, press, fresh, paths, index) {
  const kind = [item.kind, item.result && "result", item.blocked && "blocked", item.row && fresh(item.row) && "fresh"];
  const made = svg("g", { class: `node ${kind.filter(Boolean).join(" ")}`, transform: `translate(${x - width / 2} ${y - height / 2})`, style: item.colour ? `--colour:${item.colour}` : null, "data-key": item.row ? keyOf(item.row) : null, tabindex: item.row ? 0 : null, role: item.row ? "button" : null },
    svg("rect", { width, height }), svg("text", { x: width / 2, y: item.sub ? height / 2 - 2 : height / 2 + 4 }, item.label),
    svg("text", { class: "sub", x: width / 2, y: height / 2 + 12 }, item.sub));
  const lit = (on) => {
    paths.forEach((path) => path.classList.toggle("lit", on && [path.dataset.from, path.dataset.to].includes(String(index))));
    if (item.row) light(keyOf(item.row), on);
  };
  made.addEventListener("pointerenter", () => lit(true));
  made.addEventListener("pointerleave", () => lit(false));
  if (item.row) {
    made.addEventListener("click", () => press(item.row));
    made.addEventListener("keydown", (event) => event.key === "Enter" && press(item.row));
  }
  const about = () => (item.row && item.kind === "box" ? aboutRow(item.row) : aboutNode(graph, stage, item.members[0]));
  return hinting(made, about);
}

function curve(points) {
  const [first, ...rest] = points, middle = rest.slice(0, -1), last = rest[rest.length - 1];
  if (!middle.length) return `M${first.x} ${first.y}L${last.x} ${last.y}`;
  const parts = middle.map((point, i) => {
    const next = i + 1 < middle.length ? { x: (point.x + middle[i + 1].x) / 2, y: (point.y + middle[i + 1].y) / 2 } : last;
    return `Q${point.x} ${point.y} ${next.x} ${next.y}`;
  });
  return `M${first.x} ${first.y}${parts.join("")}`;
}

// The picture in a scrolling frame, as wide as that allows, with buttons to zoom.
function framed(picture, width, height) {
  const view = tag("div", { class: "view" }, picture);
  let scale = null;
  const zoom = (factor) => {
    const room = view.clientWidth || width;
    scale = factor === null ? Math.max(.4, Math.min(1, room / width)) : Math.min(2.5, Math.max(.15, scale * factor));
    picture.setAttribute("width", width * scale);
    picture.setAttribute("height", height * scale);
  };
  requestAnimationFrame(() => { zoom(null); view.scrollLeft = (width * scale - view.clientWidth) / 2; });
  const whole = () => { zoom(null); zoom(Math.min(1, (view.clientHeight - 4) / (height * scale))); };
  return tag("div", {}, view, tag("div", { class: "zoom" },
    button("−", () => zoom(1 / 1.3), { "aria-label": "zoom out" }), button("+", () => zoom(1.3), { "aria-label": "zoom in" }), button("fit", whole)));
}
