// The program as the page shows it: one tree of rows (graph, module, op, rule, call), made from the columns of
// `Contents` (see contents.py). A row holds the nodes of every stage that belong to it, so that the stages are
// synchronised by construction. Children are made when a row is first opened.

const INPUT = 0, CONSTANT = 1, HOST = 2, CALL = 3;

const data = JSON.parse(document.getElementById("data").textContent);
const text = (index) => (index < 0 ? "" : data.texts[index]);
const hasSimplified = data.stages.length > 3;

// Graphs: for each node the nodes of the next stage that come from it, and the nodes that read it.

function indexed(graph) {
  const stages = graph.stages.map((stage) => ({ ...stage, next: stage.names.map(() => []), users: stage.names.map(() => []) }));
  stages.forEach((stage, s) => {
    stage.operands.forEach((operands, node) => operands.forEach((each) => stage.users[each].push(node)));
    if (s > 0) stage.origins.forEach((origin, node) => origin >= 0 && stages[s - 1].next[origin].push(node));
  });
  lendChains(stages[2]);
  return { name: graph.name, stages };
}

// A constant has no rule of its own: it is shown with the call after it, for which the rule made it.
function lendChains(expanded) {
  for (let node = expanded.names.length - 2; node >= 0; node--) {
    const after = node + 1;
    if (expanded.chains[node] < 0 && expanded.kinds[node] === CONSTANT && expanded.origins[after] === expanded.origins[node]) {
      expanded.chains[node] = expanded.chains[after];
    }
  }
}

const graphs = data.graphs.map(indexed);
const chainOf = (graph, node) => {
  const index = graphs[graph].stages[2].chains[node];
  return index < 0 ? [] : data.chains[index];
};

// Rows

let lastId = 0;

// `nodes`: by stage, the nodes that the row stands for. `make`: makes its children.
function row(kind, parent, label, nodes, more = {}, make = null) {
  const graph = more.graph ?? parent?.graph ?? 0;
  const counts = nodes.map((each, s) => calls(graph, s, each));
  return { id: ++lastId, kind, parent, graph, depth: parent ? parent.depth + 1 : -1, label, nodes, counts, make, open: false, ...more };
}

const calls = (graph, s, nodes) => {
  const kinds = graphs[graph].stages[s]?.kinds;
  return nodes.reduce((sum, node) => sum + (kinds[node] === CALL), 0);
};

function children(each) {
  if (each.kids === undefined) each.kids = each.make ? each.make(each) : [];
  return each.kids;
}

const opens = (each) => Boolean(each.make);

// The nodes of the stages after `s` that come from some nodes of stage `s`.
function through(graph, s, nodes) {
  const found = [nodes];
  for (let at = s; at + 1 < data.stages.length; at++) {
    const { next } = graphs[graph].stages[at];
    found.push(found[found.length - 1].flatMap((node) => next[node]));
  }
  return found;
}

const nothing = () => data.stages.map(() => []);
const fromStage = (graph, s, nodes) => [...nothing().slice(0, s), ...through(graph, s, nodes)];
const everything = (graph) => graphs[graph].stages.map((stage) => stage.names.map((_, node) => node));

function root() {
  const all = row("root", null, data.title, everything(0), {}, (self) =>
    graphs.length === 1 ? topOf(0, self) : graphs.map((graph, g) =>
      row("graph", self, graph.name || "main graph", everything(g), { graph: g }, (own) => topOf(g, own))));
  // The bodies of higher-order ops count as well.
  all.counts = data.stages.map((stage) => stage.calls);
  all.open = true;
  return all;
}

// Inputs, the modules in the order of the program, and what belongs to no call of the source.
function topOf(graph, self) {
  const stages = graphs[graph].stages;
  const inputs = stages[0].kinds.flatMap((kind, node) => (kind === INPUT ? [node] : []));
  const folder = inputs.length ? [row("inputs", self, count(inputs.length, "input") + ", parameters and buffers", fromStage(graph, 0, inputs), {}, (own) =>
    inputs.map((node) => leaf(own, graph, 0, node)))] : [];
  return [...folder, ...modulesOf(graph, self), ...added(graph, self)];
}

function added(graph, self) {
  const found = nothing();
  graphs[graph].stages.forEach((stage, s) => s > 0 && stage.origins.forEach((origin, node) => {
    if (origin < 0 && stage.kinds[node] !== INPUT) found[s].push(node);
  }));
  if (found.every((nodes) => nodes.length === 0)) return [];
  return [row("inputs", self, "added: write-backs and constants", found, {}, (own) =>
    found.flatMap((nodes, s) => nodes.map((node) => leaf(own, graph, s, node))))];
}

function modulesOf(graph, self) {
  const { kinds, modules } = graphs[graph].stages[0];
  const top = { name: "", path: "", items: [] };
  let stack = [top];
  kinds.forEach((kind, node) => {
    if (kind === INPUT) return;
    const parts = partsOf(text(modules[node]));
    let shared = 0;
    while (shared < parts.length && stack[shared + 1]?.name === parts[shared]) shared++;
    stack = stack.slice(0, shared + 1);
    for (const name of parts.slice(shared)) {
      const parent = stack[stack.length - 1];
      const made = { name, path: parent.path ? `${parent.path}.${name}` : name, items: [] };
      parent.items.push(made);
      stack.push(made);
    }
    stack[stack.length - 1].items.push(node);
  });
  return rowsOf(top, graph, self);
}

const leavesOf = (item) => (typeof item === "number" ? [item] : item.items.flatMap(leavesOf));

// A module with a single call is shown as that call, with the name of the module beside it.
function rowsOf(module, graph, parent) {
  return module.items.map((item) => {
    if (typeof item === "number") return opRow(graph, item, parent);
    const nodes = leavesOf(item);
    if (nodes.length === 1) return opRow(graph, nodes[0], parent, item.path.slice(module.path && module.path.length + 1));
    return row("module", parent, item.name, through(graph, 0, nodes), { path: item.path }, (self) => rowsOf(item, graph, self));
  });
}

function opRow(graph, node, parent, module = "") {
  const stages = graphs[graph].stages;
  const nodes = through(graph, 0, [node]);
  const op = text(stages[0].ops[node]), decision = decisionOf(graph, nodes[1], op);
  const host = stages[0].kinds[node] !== CALL;
  const more = { graph, node, module, decision, host, fused: fusedInto(graph, node, nodes) };
  const simple = nodes[1].length <= 1 && nodes[2].length <= 1 && !nodes[2].some((each) => chainOf(graph, each).length);
  return row("op", parent, shortOp(op), nodes, more, simple ? null : kidsOfOp);
}

// The decision for the functional calls that came from a call. Several (in place, or on pairs of real numbers) were
// decided one by one: what is said of them together names no rule.
function decisionOf(graph, functional, op) {
  const { kinds, decisions } = graphs[graph].stages[1];
  const found = functional.filter((node) => decisions[node] >= 0).map((node) => ({ ...data.decisions[decisions[node]], counts: kinds[node] === CALL }));
  const first = (kind) => found.find((each) => each.kind === kind);
  const one = first("blocked") ?? first("derived") ?? found[0] ?? null;
  if (found.filter((each) => each.counts).length <= 1 || one.kind === "legal") return one;
  return { ...one, op: op.split(".").slice(0, 2).join("."), rule: -1, used: null, alternatives: [], measured: null, certified: null, several: true };
}

// The call of a pattern that this captured node became a part of; null for any other node.
function fusedInto(graph, node, nodes) {
  if (nodes[1].length) return null;
  const { fused, names } = graphs[graph].stages[1];
  const found = Object.entries(fused).find(([, members]) => members.includes(node));
  return found ? names[Number(found[0])] : null;
}

function kidsOfOp(self) {
  const [, functional, expanded] = self.nodes;
  if (functional.length <= 1) return ruleRows(self, expanded, skipped(self.graph, expanded));
  return functional.map((node) => {
    const nodes = fromStage(self.graph, 1, [node]);
    const { ops, decisions } = graphs[self.graph].stages[1];
    const decision = data.decisions[decisions[node]] ?? null;
    const simple = nodes[2].length <= 1 && !nodes[2].some((each) => chainOf(self.graph, each).length);
    return row("functional", self, shortOp(text(ops[node])) || graphs[self.graph].stages[1].names[node], nodes, { decision, at: node }, simple ? null : (own) => ruleRows(own, nodes[2], 0));
  });
}

// If one rule made everything, the row of the op names it, and its calls follow directly.
function skipped(graph, expanded) {
  const first = new Set(expanded.map((node) => chainOf(graph, node)[0]));
  return first.size === 1 && !first.has(undefined) ? 1 : 0;
}

// Calls that rules of the same chain made, one after the other, are folded to a row for the rule at `depth`.
function ruleRows(self, expanded, depth) {
  return runsOf(self.graph, expanded, depth).flatMap(({ rule, members }) =>
    rule === undefined ? members.flatMap((node) => callRows(self, node)) : [row("rule", self, data.rules[rule].name, fromStage(self.graph, 2, members), { rule, level: depth }, (own) => ruleRows(own, members, depth + 1))]);
}

function runsOf(graph, expanded, depth) {
  const runs = [];
  for (const node of expanded) {
    const rule = chainOf(graph, node)[depth];
    const last = runs[runs.length - 1];
    if (last && last.rule === rule) last.members.push(node);
    else runs.push({ rule, members: [node] });
  }
  return runs;
}

// A call and what simplification made of it; where that is several calls, each has a row.
function callRows(self, node) {
  const made = leaf(self, self.graph, 2, node);
  const [, , , simplified = []] = made.nodes;
  return [made, ...simplified.slice(1).map((each) => leaf(self, self.graph, 3, each))];
}

function leaf(parent, graph, stage, node) {
  return row("call", parent, graphs[graph].stages[stage].names[node], fromStage(graph, stage, [node]), { graph, stage, at: node });
}

// Facts about rows

const stageOf = (each) => (each.kind === "call" ? each.stage : each.kind === "functional" ? 1 : 0);
const pathOf = (each) => (each.parent ? [...pathOf(each.parent), each] : [each]);

function walk(each, visit) {
  for (const kid of children(each)) if (visit(kid) !== false) walk(kid, visit);
}

// The rows of the source's calls, in order; those of rules and calls are not made for this.
function opsBelow(each) {
  if (each.kind === "op") return [each];
  const found = [];
  walk(each, (kid) => {
    if (kid.kind === "op") found.push(kid);
    return kid.kind === "module" || kid.kind === "graph";
  });
  return found;
}

// The error that colours a row, in ULP: measured where it was run, else from the certificate.
function errorOf(each) {
  if (each.kind !== "op" && each.kind !== "functional") return null;
  const { measured, certified } = each.decision ?? {};
  return measured?.values ?? certified ?? null;
}

const ruleOf = (decision) => data.rules[decision.rule]?.name ?? "several rules";

const cheapestOf = (decision) => {
  if (!decision?.used) return null;
  const priced = decision.alternatives.filter((each) => each.cost >= 0 && each.cost < decision.used.cost);
  return priced.sort((a, b) => a.cost - b.cost)[0] ?? null;
};

const tree = root();
