// Colours by rule, module, cost or error.

const HUES = [262, 150, 40, 330, 205, 95, 15, 295, 175, 65];
const hue = (index) => `oklch(var(--light) .15 ${HUES[index % HUES.length]})`;
const GREY = "var(--line)", RED = "var(--bad)";
const heat = (t) => `oklch(var(--light) .17 ${Math.round(150 - 125 * Math.min(1, Math.max(0, t)))})`;

let colourBy = "rule";
const opRows = opsBelow(tree);
const dearest = Math.max(1, ...opRows.map(costOf));
const numbers = { rule: ranked(opRows.map((each) => each.decision?.rule ?? -1)), module: ranked(opRows.map(outerModule)) };

// By value, its place by frequency: the common ones get colours of their own.
function ranked(values) {
  const found = new Map();
  for (const value of values) if (value !== -1 && value !== "") found.set(value, (found.get(value) ?? 0) + 1);
  return new Map([...found].sort((a, b) => b[1] - a[1]).map(([value], i) => [value, i]));
}

function outerModule(each) {
  const at = each.kind === "module" ? each.path : text(graphs[each.graph].stages[0].modules[each.nodes[0][0]]);
  return partsOf(at ?? "")[0] ?? "";
}

function colourOf(each) {
  if (each.decision?.kind === "blocked") return RED;
  if (colourBy === "module") {
    const op = each.kind === "module" ? each : pathOf(each).find((one) => one.kind === "op");
    return op && outerModule(op) ? hue(numbers.module.get(outerModule(op)) ?? 0) : GREY;
  }
  if (colourBy === "cost") return costColour(each);
  if (colourBy === "error") return errorColour(each);
  const rule = innermostRule(each);
  return rule === undefined ? GREY : ruleColour(rule);
}

function ruleColour(rule) {
  if (!numbers.rule.has(rule)) numbers.rule.set(rule, numbers.rule.size);
  return hue(numbers.rule.get(rule));
}

function innermostRule(each) {
  if (each.kind === "rule") return each.rule;
  if (each.kind === "call") return each.stage === 2 ? chainOf(each.graph, each.at).at(-1) : innermostRule(each.parent);
  if (each.decision?.kind !== "derived") return undefined;
  return each.decision.rule >= 0 ? each.decision.rule : each.nodes[2].map((node) => chainOf(each.graph, node)[0]).find((rule) => rule !== undefined);
}

// What a row costs in the model of the lowering; without one, how many calls it became.
function costOf(each) {
  if (data.cost === "calls" || each.kind === "rule" || each.kind === "call") return each.counts[2];
  if (each.kind === "module" || each.kind === "graph") return opsBelow(each).reduce((sum, one) => sum + costOf(one), 0);
  return each.decision?.used?.cost >= 0 ? each.decision.used.cost : 0;
}

function costColour(each) {
  const cost = costOf(each);
  return cost > 0 ? heat(Math.log1p(cost) / Math.log1p(dearest)) : GREY;
}

function errorColour(each) {
  const errors = each.kind === "module" ? opsBelow(each).map(errorOf).filter((one) => one !== null) : [errorOf(pathOf(each).find((one) => one.kind === "op") ?? each)];
  const worst = errors.length ? Math.max(...errors.map((one) => one ?? -1)) : -1;
  return worst < 0 ? GREY : heat(Math.log2(1 + worst) / 7);
}

// The share of each colour in the calls of a module, the largest first, at most eight.
function sharesOf(each, s) {
  const found = new Map();
  for (const op of opsBelow(each)) if (op.counts[s]) found.set(colourOf(op), (found.get(colourOf(op)) ?? 0) + op.counts[s]);
  return [...found].sort((a, b) => b[1] - a[1]).slice(0, 8);
}

function legend() {
  const swatch = (colour, name) => tag("span", {}, tag("i", { style: `background:${colour}` }), name);
  if (colourBy === "rule") {
    const rules = [...numbers.rule].filter(([rule]) => opRows.some((each) => each.decision?.rule === rule)).slice(0, 8);
    return [...rules.map(([rule, i]) => swatch(hue(i), data.rules[rule].name)), swatch(GREY, "kept")];
  }
  if (colourBy === "module") return [...numbers.module].slice(0, 10).map(([module, i]) => swatch(hue(i), module));
  const ends = colourBy === "cost" ? ["0", data.cost === "calls" ? count(dearest, "call") : `${+dearest.toPrecision(3)} (${data.cost})`] : ["0 ULP", "128 ULP or more"];
  const scale = `background:linear-gradient(90deg,${[0, .25, .5, .75, 1].map(heat).join(",")})`;
  return [tag("span", {}, ends[0], tag("i", { class: "scale", style: scale }), ends[1]), ...(colourBy === "error" ? [swatch(GREY, "not measured")] : [])];
}
