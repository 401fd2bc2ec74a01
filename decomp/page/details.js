// The panel beside the list: for what is selected, what became of it and why, what would be cheaper, a drawing, the text
// of its rules, and what was measured of them.

const DETAILS = byId("details");

function explain(each, show) {
  document.body.classList.toggle("opened", show && each !== tree || document.body.classList.contains("opened"));
  const made = { root: overview, graph: ofModule, module: ofModule, inputs: ofInputs, op: ofOp, functional: ofOp, rule: ofRule, call: ofCall }[each.kind](each);
  DETAILS.replaceChildren(button("Close", () => document.body.classList.remove("opened"), { class: "close" }), crumbs(each), ...made.flat(Infinity).filter(Boolean));
  DETAILS.scrollTop = 0;
}

function crumbs(each) {
  const links = pathOf(each).slice(0, -1).flatMap((one) => [button(one.label, () => reveal(one)), "›"]);
  return tag("div", { class: "crumbs" }, each === tree ? [] : links);
}

// Numbers of calls by stage: 1 → 26 → 24.
function flow(each) {
  const shown = data.stages.map((stage, s) => [stage.title, each.counts[s]]);
  return tag("div", { class: "flow" }, shown.flatMap(([title, number], s) => [s ? tag("i", {}, "→") : null, tag("div", { title: data.stages[s].explanation }, tag("b", {}, number.toLocaleString("en")), tag("span", {}, title.toLowerCase()))]));
}

// The whole program

function overview() {
  const ops = opRows.filter((each) => !each.host && each.decision), derived = ops.filter((each) => each.decision.kind === "derived");
  const blocked = ops.filter((each) => each.decision.kind === "blocked");
  const last = data.stages.length - 1;
  return [
    tag("h2", {}, "What became of the program"), flow(tree),
    say(tag("b", {}, `${data.target} has ${ops.length - derived.length - blocked.length} of the ${count(tree.counts[0], "call")}`), ` of ${data.title}. `,
      derived.length ? `The other ${derived.length} are computed by rules: expanded, the program makes ${count(tree.counts[2], "call")}` : "No rule was needed",
      hasSimplified ? `; simplified, ${tree.counts[last].toLocaleString("en")}. ` : ". ", derived.length ? "Press a line to see why, and what would be cheaper." : ""),
    blocked.length ? blockedList(blocked) : null,
    derived.length ? [heading("Where the calls come from", "the costliest first"), sources(derived)] : null,
    heading("Its modules"), moduleGraph(tree),
    heading("What was verified"), ticks(),
    data.invariants.length ? tag("details", {}, tag("summary", {}, `all ${data.invariants.length} invariants`), tag("ul", {}, data.invariants.map((each) => tag("li", {}, each)))) : null,
    heading("This lowering"), tag("dl", {}, data.facts.flatMap(([name, value]) => [tag("dt", {}, name), tag("dd", {}, value)])),
  ];
}

function blockedList(blocked) {
  return tag("div", { class: "alarm" }, tag("b", {}, `${count(blocked.length, "call")} cannot be lowered`), tag("ul", {}, blocked.slice(0, 12).map((each) =>
    tag("li", {}, button(`${each.decision.op} at ${graphs[each.graph].stages[0].names[each.node]}`, () => reveal(each), { class: "link" }), `: ${each.decision.reasons.join("; ")}`))),
  blocked.length > 12 ? `and ${blocked.length - 12} more` : null);
}

const COSTS = [["op"], ["uses × each", "n"], ["calls", "one"], ["cheaper", "one"]];

function sources(derived) {
  const groups = new Map();
  for (const each of derived) {
    const key = `${each.decision.op} ${each.decision.rule}`;
    groups.set(key, [...(groups.get(key) ?? []), each]);
  }
  const sum = (uses) => uses.reduce((all, each) => all + each.counts[2], 0);
  const sorted = [...groups.values()].sort((a, b) => sum(b) - sum(a)), top = sum(sorted[0]);
  return table(COSTS, sorted.slice(0, 14).map((uses) => {
    const [first] = uses, all = sum(uses), each = all % uses.length ? `${Math.min(...uses.map((one) => one.counts[2]))}–${Math.max(...uses.map((one) => one.counts[2]))}` : all / uses.length;
    const bar = [tag("span", { class: "inbar", style: `width:${Math.max(2, 70 * all / top)}px;--colour:${colourOf(first)}` }), all.toLocaleString("en")];
    return rowIn([[code(shortOp(first.decision.op)), tag("div", { class: "dim" }, ruleOf(first.decision))], `${uses.length} × ${each}`, bar, saving(first.decision)], COSTS, { class: "press", tabindex: 0, onclick: () => reveal(first), onkeydown: (event) => event.key === "Enter" && reveal(first) });
  }));
}

function saving(decision) {
  const cheaper = cheapestOf(decision);
  return cheaper ? tag("span", { class: "badge save" }, `${cheaper.calls} at ${cheaper.level}`) : tag("span", { class: "dim" }, "–");
}

function ticks() {
  return tag("div", { class: "ticks" }, data.checks.flatMap(({ part, checked, text: said }) =>
    [tag("span", { class: checked ? "good" : "dim" }, checked ? "✓" : "–"), tag("b", {}, part), tag("span", { class: checked ? "" : "dim" }, said)]));
}

function moduleGraph(each) {
  const rows = children(each).filter((kid) => kid.kind !== "inputs");
  if (rows.length && rows[0].kind === "graph") return tag("div", {}, rows.map((kid) => [button(kid.label, () => reveal(kid)), " "]));
  // The rest of the page is shown before the drawing is laid out.
  const place = tag("div", { class: "drawing", style: "min-height:80px" });
  requestAnimationFrame(() => setTimeout(() => place.append(drawing(rows, 0, reveal))));
  return place;
}

// A module

function ofModule(each) {
  const derived = opsBelow(each).filter((one) => one.decision?.kind === "derived");
  const blocked = opsBelow(each).filter((one) => one.decision?.kind === "blocked");
  return [tag("h2", {}, code(each.path || each.label)), flow(each), blocked.length ? blockedList(blocked) : null, heading("What it computes", "press a box to open it"), moduleGraph(each),
    derived.length ? [heading("Where the calls come from"), sources(derived)] : null];
}

function ofInputs(each) {
  return [tag("h2", {}, each.label), say("Inputs, parameters and buffers keep their names, shapes and dtypes.")];
}

// A call of the source

function ofOp(each) {
  const { decision } = each, stage = each.kind === "op" ? 0 : 1, node = each.kind === "op" ? each.node : each.at;
  const { names, ops, arguments: args, types, why } = graphs[each.graph].stages[stage];
  const facts = [["call", code(text(ops[node]) + args[node])], ["result", code(`%${names[node]}: ${text(types[node])}`)], ["your line", stage === 0 && text(why[node]) ? code(text(why[node])) : null]];
  return [tag("h2", {}, code(each.label), titleOf(each)), each.counts[0] || each.kind === "functional" ? flow(each) : null, reasonFor(each), cheaperTip(decision),
    decision?.used || decision?.alternatives.length ? [heading("Alternatives", `for ${decision.op} on ${data.target}`), alternatives(decision)] : null,
    each.nodes[2].length ? [heading("The rewrite, step by step", "← → keys"), stepper(each)] : null,
    decision?.rule >= 0 ? ruleParts(decision.rule, decision) : null,
    heading("The call"), tag("dl", {}, facts.filter(([, value]) => value).flatMap(([name, value]) => [tag("dt", {}, name), tag("dd", {}, value)]))];
}

const titleOf = (each) => (each.decision?.kind === "derived" && each.counts[2] !== 1 ? ` became ${count(each.counts[2], "call")}` : "");

function reasonFor(each) {
  const { decision } = each;
  if (each.fused) return say("A pattern fused it with other calls into ", code(each.fused), ".");
  if (decision?.kind === "blocked") return tag("div", { class: "alarm" }, tag("b", {}, `${decision.op} cannot be lowered to ${data.target}. `), decision.reasons.join("; "));
  if (decision?.several) return say("Made functional, and in the dtypes of the target, it is ", tag("b", {}, count(each.counts[1], "call")), ", each of which was decided for itself: open the row and select one.");
  if (decision?.kind === "derived") return derivedReason(each);
  if (decision?.kind === "proved") return say("An assertion that shapes and dtypes prove: it is dropped.");
  return say(each.host ? "No tensor op: it is copied." : tag("span", {}, tag("b", {}, `${data.target} has ${decision?.op ?? "it"}`), ", so the call stays as it is."));
}

function derivedReason({ decision, counts, graph, nodes }) {
  const rule = data.rules[decision.rule], passed = merged(decision.alternatives).length;
  const inside = [...new Set(nodes[2].flatMap((node) => chainOf(graph, node).slice(1)))].map((each) => data.rules[each].name);
  return say(tag("b", {}, `${data.target} does not have ${decision.op}`), ", so the rule ", code(rule.name), ` computes it from ops that it has: ${count(counts[2], "call")}`,
    inside.length ? [" (inside it the rules ", code(inside.slice(0, 5).join(", ") + (inside.length > 5 ? ", …" : "")), " were needed as well)"] : "",
    hasSimplified && counts[3] !== counts[2] ? `, of which ${counts[3]} are left when the program is simplified` : "", ". ",
    passed ? `There ${passed === 1 ? "is" : "are"} ${count(passed, "alternative")}: the table has what each costs, or why it is not used.` : "It is the only rule for this op.");
}

// What to write to get the cheapest alternative.
function cheaperTip(decision) {
  const cheaper = cheapestOf(decision);
  if (!cheaper) return null;
  const op = decision.op.split(".").pop();
  return tag("div", { class: "tip" }, tag("b", {}, `Cheaper: ${count(cheaper.calls, "call")} instead of ${decision.used.calls}`), ` by ${cheaper.rule.split(" ")[0]}${cheaper.error ? `, at ${cheaper.error}` : ""}. Lower it with `, code(`accuracy={"${op}": "${cheaper.level}", ...: "${mainLevel()}"}`));
}

function mainLevel() {
  const levels = ["exact", "standard", "fast"], said = Object.fromEntries(data.facts).accuracy ?? "standard";
  return levels.find((level) => said.endsWith(level)) ?? "standard";
}

const WAYS = [["rule"], ["calls", "n"], ["error", "one"], ["", "wide"]];

function alternatives(decision) {
  const { used } = decision, priced = data.cost !== "calls" && used;
  const columns = priced ? [WAYS[0], WAYS[1], ["cost", "n"], ...WAYS.slice(2)] : WAYS;
  const line = (each, state, kind) => rowIn([linkTo(each.rule), each.calls < 0 ? "" : each.calls, ...(priced ? [each.cost < 0 ? "" : +each.cost.toPrecision(4)] : []), errorText(each.error), state], columns, { class: kind });
  const passed = (each) => tag("tr", { class: "off" }, tag("td", {}, linkTo(each.rule)), tag("td", { colspan: columns.length - 1 }, each.why));
  const others = merged(decision.alternatives).map((each) => (each.level ? line(each, [tag("span", { class: "badge" }, each.level), " ", difference(each, used), each.why ? tag("div", { class: "dim" }, each.why) : null], "") : passed(each)));
  return table(columns, [used ? line(used, tag("span", { class: "badge here" }, `used, ${used.level}`), "used") : null, others]);
}

// A rule that was passed over and is used at another level has one line; the cheapest come first.
function merged(found) {
  const passed = new Map(found.filter((each) => !each.level).map((each) => [each.rule, each.why]));
  const priced = found.filter((each) => each.level).map((each) => ({ ...each, why: passed.get(each.rule) ?? "" })).sort((a, b) => a.calls - b.calls);
  const named = new Set(priced.map((each) => each.rule));
  return [...priced, ...found.filter((each) => !each.level && !named.has(each.rule))];
}

const errorText = (said) => (said === "PyTorch's own error" ? tag("span", { title: "no larger than the error of PyTorch's own kernel on the same inputs" }, "as PyTorch") : said);

function difference(each, used) {
  const fewer = used.calls - each.calls;
  return fewer > 0 ? tag("span", { class: "badge save" }, `${count(fewer, "call")} fewer`) : fewer < 0 ? tag("span", { class: "dim" }, `${count(-fewer, "call")} more`) : null;
}

// The name of a rule, which shows its text if the page has it.
function linkTo(name) {
  const index = data.rules.findIndex((each) => `${each.name} (${each.location})` === name);
  const [short] = name.split(" (");
  if (index < 0) return code(name);
  return button(tag("code", {}, short), () => showRule(index), { class: "link", title: `${data.rules[index].file}:${data.rules[index].line}` });
}

function showRule(index) {
  const place = byId("text") ?? DETAILS.appendChild(tag("div", { id: "text" }));
  place.replaceChildren(...ruleText(index).flat(Infinity).filter(Boolean));
  place.scrollIntoView({ block: "nearest", behavior: "smooth" });
}

// Rules

const ruleParts = (index, decision) => [tag("div", { id: "text" }, ruleText(index)), measuredPart(decision)];

function ruleText(index) {
  const rule = data.rules[index];
  const where = rule.file ? `${rule.file}:${rule.line}` : rule.location;
  return [heading(`The rule ${rule.name}`, `${where}${rule.level ? `, level ${rule.level}` : ""}`), rule.text ? python(rule.text) : tag("p", { class: "dim" }, "It has no Python source."), certificatePart(rule.certificate)];
}

function certificatePart(certificate) {
  if (!certificate) return tag("p", { class: "dim say" }, "No certificate is committed for it.");
  const columns = certificate.columns.map((name, i) => [name, i === 2 || i === 3 ? "n" : ""]);
  return tag("details", {}, tag("summary", {}, "Certificate: ", tag("span", { class: certificate.good ? "good" : "bad" }, certificate.good ? "✓ " : "✗ ", certificate.verdict), `; ${certificate.implementations.map(([title]) => title).join(", ")}`),
    certificate.implementations.map(([title, rows]) => [heading(title), table(columns, rows.map((cells) => rowIn(cells.slice(), columns)))]), tag("p", { class: "dim say" }, `Measured on ${certificate.measured_on}.`));
}

function measuredPart(decision) {
  const found = decision?.measured;
  if (!found) return null;
  if (found.values === null) return [heading("Measured in this program"), tag("p", { class: "dim" }, `not run: ${found.reason}`)];
  const number = (value) => (value === null ? "–" : `${+value.toPrecision(3)} ULP`);
  return [heading("Measured in this program", found.inputs.join(", ")), tag("dl", {}, [["values", number(found.values)], ["gradients", number(found.gradients)], ["allowed by its certificate", number(found.allowed)]].flatMap(([name, value]) => [tag("dt", {}, name), tag("dd", {}, value)]))];
}

function ofRule(each) {
  const rows = children(each);
  return [tag("h2", {}, code(each.label), ` became ${count(each.counts[2], "call")}`), say("It computes ", code(data.rules[each.rule].op), ", which the rule around it calls and the target does not have."),
    heading("What it recorded"), tag("div", { class: "drawing" }, drawing(rows, 2, reveal)), ruleText(each.rule)];
}

// A call of a later stage

function ofCall(each) {
  const [shown, stage] = [graphs[each.graph].stages[each.stage], each.stage], node = each.at, chain = stage === 2 ? chainOf(each.graph, node) : [];
  const gone = stage === 2 && hasSimplified && !each.nodes[3].length ? goneText(each.graph, node) : "";
  const links = (nodes) => nodes.map((one) => [button(code(`%${shown.names[one]}`), () => revealNode(each.graph, stage, one), { class: "link" }), " "]);
  const facts = [["stage", data.stages[stage].title], ["call", code(text(shown.ops[node]) + shown.arguments[node])], ["shape and dtype", code(text(shown.types[node]))],
    ["reads", links(shown.operands[node])], ["read by", links(shown.users[node])], ["simplified", gone || (stage === 2 && hasSimplified && each.nodes[3].length ? changeText(each.graph, each.nodes[3][0]) : null)],
    ["why", stage === 0 || !chain.length ? text(shown.why[node]) : null], ["your line", sourceLine(each)]];
  return [tag("h2", {}, code(`%${shown.names[node]}`)), tag("dl", {}, facts.filter(([, value]) => value && value.length !== 0).flatMap(([name, value]) => [tag("dt", {}, name), tag("dd", {}, value)])),
    chain.length ? [heading("Made by"), tag("p", {}, chain.map((rule, i) => [i ? " → " : "", linkTo(`${data.rules[rule].name} (${data.rules[rule].location})`)])), tag("div", { id: "text" }, ruleText(chain[chain.length - 1]))] : null];
}

function sourceLine(each) {
  const op = pathOf(each).find((one) => one.kind === "op");
  return op ? text(graphs[op.graph].stages[0].why[op.node]) : null;
}

// The row of a node, wherever it is in the tree.
function revealNode(graph, stage, node) {
  let at = node;
  for (let s = stage; s > 0; s--) at = graphs[graph].stages[s].origins[at] ?? -1;
  const op = opRows.find((each) => each.graph === graph && each.node === at);
  let found = null;
  walk(op ?? tree, (each) => { found ??= each.kind === "call" && each.stage === stage && each.at === node ? each : null; return !found; });
  const rowFound = found ?? op;
  if (rowFound) reveal(rowFound);
}

// The steps of a rewrite: the source's call, what its rule recorded, what the rules inside recorded, and what is left.

function stepsOf(each) {
  const [captured, functional, expanded, simplified] = each.nodes, steps = [];
  if (each.kind === "op") steps.push({ title: each.label, stage: 0, rows: [each], say: "The call in the source." });
  if (functional.length > 1 || each.kind === "functional") steps.push({ title: "functional", stage: 1, rows: functional.map((node) => leaf(each, each.graph, 1, node)), say: "Without mutation, and in the target's dtypes." });
  const deepest = Math.max(0, ...expanded.map((node) => chainOf(each.graph, node).length));
  let rows = ruleRows(each, expanded, 0);
  for (let depth = 1; depth <= deepest; depth++) {
    const taken = [...new Set(rows.filter((one) => one.kind === "rule").map((one) => one.label))];
    rows = rows.flatMap((one) => (one.kind === "rule" ? children(one) : [one]));
    steps.push({ title: titleOfStep(taken), stage: 2, rows, depth, say: saidOfStep(taken, rows) });
  }
  if (!deepest && expanded.length) steps.push({ title: "expanded", stage: 2, rows, say: "The call is copied." });
  if (hasSimplified) steps.push({ title: "simplified", stage: 3, rows: simplified.map((node) => leaf(each, each.graph, 3, node)), say: saidOfSimplified(each) });
  return steps;
}

const titleOfStep = (rules) => (rules.length > 2 ? `${rules.slice(0, 2).join(", ")}, +${rules.length - 2}` : rules.join(", "));

function saidOfStep(rules, rows) {
  const open = rows.filter((one) => one.kind === "rule"), made = rows.length - open.length;
  return `${rules.length > 3 ? count(rules.length, "rule") : rules.join(", ")} replaced by what ${rules.length === 1 ? "it" : "they"} recorded: ${count(made, "call")}${open.length ? `, and ${open.length} that ${data.target} does not have either (the boxes)` : ", all of which the target has"}.`;
}

function saidOfSimplified({ counts }) {
  const fewer = counts[2] - counts[3];
  return fewer ? `Simplification removed ${count(fewer, "call")}.` : "Simplification left every call.";
}

function stepper(each) {
  const steps = stepsOf(each), place = tag("div", { class: "drawing" }), chips = tag("div", { class: "steps" });
  let at = Math.min(steps.length - 1, steps.findIndex((step) => step.depth === 1) < 0 ? steps.length - 1 : steps.findIndex((step) => step.depth === 1));
  const go = (to) => {
    at = Math.min(steps.length - 1, Math.max(0, to));
    const { stage, rows, depth, say: said } = steps[at];
    chips.replaceChildren(button("◀", () => go(at - 1), { "aria-label": "previous step" }), ...steps.map((step, i) => button(`${i + 1} ${step.title}`, () => go(i), { "aria-current": i === at ? "step" : null })), button("▶", () => go(at + 1), { "aria-label": "next step" }));
    const fresh = (one) => depth !== undefined && one.kind === "call" && chainOf(one.graph, one.at).length === depth;
    place.replaceChildren(tag("div", { class: "title" }, said), drawing(rows, stage, (one) => pressItem(each, one, () => go(at + 1)), fresh));
  };
  stepper.go = (by) => go(at + by);
  go(at);
  return [chips, place];
}

// A box of the drawing opens the next step; a call is shown in the list.
function pressItem(each, item, next) {
  if (item.kind === "rule" || item === each) next();
  else revealNode(item.graph, item.stage, item.at);
}
