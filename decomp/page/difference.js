// The page of a difference: the calls of the source by module, with what became of each before and after, and for what is
// selected the calls side by side. `data` is `DifferenceContents` (see differences.py).

const data = JSON.parse(document.getElementById("data").textContent);
const ROWS = byId("rows"), DETAILS = byId("details");
const AT_ONCE = 200;
let query = "", everything = false, selected = null;

// The tree of modules, each with the calls below it.

const folder = (label, path, parent) => ({ label, path, parent, open: false, inside: [], calls: [], folders: new Map() });

function grown() {
  const root = folder("", "", null);
  for (const call of data.calls) {
    let at = root;
    const parts = [...(call.graph ? [`graph ${call.graph}`] : []), ...partsOf(call.module)];
    for (const part of parts) {
      if (!at.folders.has(part)) {
        const made = folder(part, at.path ? `${at.path}.${part}` : part, at);
        at.folders.set(part, made);
        at.inside.push(made);
      }
      at = at.folders.get(part);
    }
    at.inside.push(call);
    call.parent = at;
    for (let above = at; above; above = above.parent) above.calls.push(call);
  }
  return root;
}

const isFolder = (each) => each.inside !== undefined;
const callsOf = (each) => (isFolder(each) ? each.calls : [each]);
const total = (calls, side) => calls.reduce((sum, call) => sum + (call[side]?.count ?? 0), 0);
const words = (call) => (call.words ??= [call.module, call.op, call.name, call.old?.how, call.new?.how].join(" ").toLowerCase());
const wanted = (call) => (everything || !call.alike) && (!query || words(call).includes(query));

function change(before, after) {
  if (before === after) return tag("span", { class: "dim" }, "±0");
  return tag("span", { class: `number ${after < before ? "less" : "more"}` }, `${after < before ? "−" : "+"}${Math.abs(after - before).toLocaleString("en")}`);
}

// Rows

function draw() {
  const list = tree.calls.some(wanted) ? rowsIn(tree, 0) : [tag("p", { class: "say dim", style: "padding:10px" }, query ? "Nothing matches." : "Every call became the same. What else changed is beside.")];
  ROWS.replaceChildren(...list);
}

function rowsIn(each, depth) {
  const shown = each.inside.filter((one) => callsOf(one).some(wanted)), most = each.most ?? AT_ONCE;
  const rows = shown.slice(0, most).flatMap((one) => (isFolder(one) ? folderRows(one, depth) : [callRow(one, depth)]));
  if (shown.length > most) rows.push(tag("div", { class: "row" }, tag("div", { class: "cell" }, button(`${(shown.length - most).toLocaleString("en")} more`, () => { each.most = most + AT_ONCE; draw(); }, { class: "link" }))));
  return rows;
}

function folderRows(each, depth) {
  // A module in which one call changed is that call.
  const inside = each.calls.filter(wanted);
  if (each.calls.length === 1) return [callRow(inside[0], depth, each.label)];
  const open = each.open || query !== "";
  return [line(each, depth, tag("span", { class: "label" }, each.label), "module", open), ...(open ? rowsIn(each, depth + 1) : [])];
}

function callRow(call, depth, module = "") {
  const beside = module || (call.name !== shortOp(call.op) ? `%${call.name}` : "");
  return line(call, depth, [tag("span", { class: "label" }, shortOp(call.op)), tag("span", { class: "dim rest" }, beside)], "op");
}

function line(each, depth, label, kind, open) {
  const calls = callsOf(each), before = total(calls, "old"), after = total(calls, "new"), same = calls.every((call) => call.alike);
  const cell = (inside, style) => tag("div", { class: "cell", style }, inside);
  const made = button([cell([tag("span", { class: "twist" }, isFolder(each) ? (open ? "▼" : "▶") : ""), label].flat(), `padding-left:${8 + 15 * depth}px`),
    cell(sideOf(each, "old", before)), cell(sideOf(each, "new", after)), cell(same ? tag("span", { class: "dim" }, "same") : change(before, after))],
  () => press(each), { class: `row ${kind} ${each === selected ? "selected" : ""} ${same ? "same" : ""}`, role: "treeitem", "aria-level": depth + 1, "aria-expanded": isFolder(each) ? String(open) : null, "aria-selected": String(each === selected) });
  return made;
}

function sideOf(each, side, calls) {
  if (isFolder(each)) return [tag("span", { class: "number" }, calls.toLocaleString("en"))];
  const found = each[side];
  if (!found) return [tag("span", { class: "dim" }, "not there")];
  return [tag("span", { class: "number" }, found.count.toLocaleString("en")), tag("span", { class: `how rest ${found.kind === "blocked" ? "bad" : "dim"}`, title: found.how }, ruleIn(found.how))];
}

function press(each) {
  if (isFolder(each)) each.open = !each.open;
  select(each);
}

function select(each) {
  selected = each;
  draw();
  explain();
  document.body.classList.add("opened");
}

function reveal(call) {
  for (let above = call.parent; above; above = above.parent) above.open = true;
  everything ||= call.alike;
  byId("all").checked = everything;
  select(call);
  ROWS.querySelector(".selected")?.scrollIntoView({ block: "nearest" });
}

// Details

const close = () => button("Close", () => document.body.classList.remove("opened"), { class: "close" });

function explain() {
  const made = selected === null ? overview() : isFolder(selected) ? ofModule(selected) : ofCall(selected);
  DETAILS.replaceChildren(close(), ...made.flat(Infinity).filter(Boolean));
  DETAILS.scrollTop = 0;
}

const TWO = data.old.name !== data.new.name ? [data.old.name, data.new.name] : data.old.target !== data.new.target ? [data.old.target, data.new.target] : ["before", "after"];
const GROUPS = [["op", "op"], ["uses", "n"], ["change", "n"], [TWO[0], ""], [TWO[1], ""]];
const FACTS = [["", "one"], [TWO[0], "wide"], [TWO[1], "wide"]];
const breakable = (name) => name.split(/(?<=[_.])/).flatMap((part, i) => (i ? [tag("wbr"), part] : [part]));
const ruleIn = (how) => how.replace(/ \([\w.]+\.py:\d+\)/g, "");

// Calls that changed in the same way are one row, the largest change first.
function grouped(calls) {
  const groups = new Map();
  for (const call of calls) {
    if (call.alike) continue;
    const key = JSON.stringify([call.op, call.old?.how, call.new?.how]);
    groups.set(key, [...(groups.get(key) ?? []), call]);
  }
  const moved = (uses) => Math.abs(total(uses, "new") - total(uses, "old"));
  const sorted = [...groups.values()].sort((a, b) => moved(b) - moved(a));
  const range = (counts) => (Math.min(...counts) === Math.max(...counts) ? counts[0] : `${Math.min(...counts)}–${Math.max(...counts)}`);
  const each = (uses, side) => (uses[0][side] ? [`${range(uses.map((call) => call[side].count))}  `, tag("span", { class: "dim" }, breakable(ruleIn(uses[0][side].how)))] : tag("span", { class: "dim" }, "not there"));
  return table(GROUPS, sorted.slice(0, 40).map((uses) => rowIn([tag("code", {}, breakable(shortOp(uses[0].op))), String(uses.length), change(total(uses, "old"), total(uses, "new")), each(uses, "old"), each(uses, "new")], GROUPS,
    { class: "press", tabindex: 0, onclick: () => reveal(uses[0]), onkeydown: (event) => event.key === "Enter" && reveal(uses[0]) })));
}

function overview() {
  const changed = data.calls.filter((call) => !call.alike);
  return [
    tag("h2", {}, changed.length ? `${count(changed.length, "call")} of ${data.calls.length.toLocaleString("en")} became something else` : "Every call became the same"),
    changed.length ? [heading("What changed most", "press a line to see where"), grouped(data.calls)] : null,
    data.changes.map(([kind, changes]) => [heading(kind[0].toUpperCase() + kind.slice(1), String(changes.length)), listed(changes)]),
    heading("The two lowerings"), table(FACTS, data.facts.map(([name, was, now]) => rowIn([name, was, tag("span", { class: was === now ? "dim" : "" }, now)], FACTS))),
  ];
}

function listed(changes) {
  const item = ([about, said]) => tag("li", {}, code(about), `: ${said}`);
  const [few, rest] = [changes.slice(0, 8), changes.slice(8)];
  return [tag("ul", { class: "changes" }, few.map(item)), rest.length ? tag("details", {}, tag("summary", {}, `${rest.length} more`), tag("ul", { class: "changes" }, rest.map(item))) : null];
}

function ofModule(each) {
  return [tag("h2", {}, code(each.path)), say(`${count(total(each.calls, "old"), "call")} before, ${total(each.calls, "new").toLocaleString("en")} after.`),
    each.calls.some((call) => !call.alike) ? [heading("What changed most"), grouped(each.calls)] : say("Nothing changed here.")];
}

function ofCall(call) {
  const pair = (name, shown) => rowIn([name, call.old ? shown(call.old) : "–", call.new ? shown(call.new) : "–"], FACTS);
  const cost = (side, unit) => (side.cost < 0 ? "–" : `${(+side.cost.toPrecision(6)).toLocaleString("en")}${unit === "calls" ? "" : ` (${unit})`}`);
  return [tag("h2", {}, code(shortOp(call.op))), say(code(`%${call.name}: ${call.type}`), call.module ? ` in ${call.module}` : ""), call.line ? say(code(call.line)) : null,
    table(FACTS, [pair("by", (side) => side.how), pair("calls", (side) => side.count.toLocaleString("en")),
      rowIn(["cost", call.old ? cost(call.old, data.old.cost) : "–", call.new ? cost(call.new, data.new.cost) : "–"], FACTS), pair("error", (side) => side.error || "–")]),
    call.alike ? say("Both became calls of the same ops, on operands of the same types, by the same rules.") : [heading("The calls, side by side"), sideBySide(call)]];
}

// Lines of both, aligned by the longest common subsequence of ops and types.
function sideBySide(call) {
  const lines = [call.old?.lines ?? [], call.new?.lines ?? []], keys = lines.map((each) => each.map(essence));
  const shown = (said) => said.replace(/^[^(]*/, shortOp).replaceAll(`%${call.name}_`, "%…");
  const cells = aligned(...keys).flatMap(([i, j]) => [
    tag("div", { class: i === null ? "" : j === null ? "gone" : "" }, i === null ? "" : shown(lines[0][i])),
    tag("div", { class: j === null ? "" : i === null ? "come" : "" }, j === null ? "" : shown(lines[1][j]))]);
  return tag("div", { class: "both" }, tag("div", { class: "head" }, call.old?.how ?? "not there"), tag("div", { class: "head" }, call.new?.how ?? "not there"), cells);
}

const essence = (said) => said.slice(0, said.indexOf("(")) + said.slice(said.lastIndexOf("):"));

function aligned(a, b) {
  const longest = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) for (let j = b.length - 1; j >= 0; j--) {
    longest[i][j] = a[i] === b[j] ? longest[i + 1][j + 1] + 1 : Math.max(longest[i + 1][j], longest[i][j + 1]);
  }
  const pairs = [];
  let i = 0, j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) pairs.push([i++, j++]);
    else if (j >= b.length || i < a.length && longest[i + 1][j] >= longest[i][j + 1]) pairs.push([i++, null]);
    else pairs.push([null, j++]);
  }
  return pairs;
}

// The head, and the first view

const tree = grown();
document.querySelector("h1").append(data.old.name, tag("span", { class: "to" }, `on ${data.old.target} →`), data.new.name, tag("span", { class: "to" }, `on ${data.new.target}`));
byId("headline").textContent = `${total(data.calls, "old").toLocaleString("en")} calls before, ${count(total(data.calls, "new"), "call")} after`;
byId("titles").append(...["Program", ...TWO, "change"].map((title) => tag("div", {}, tag("b", {}, title))));
byId("search").addEventListener("input", debounced((event) => {
  query = event.target.value.trim().toLowerCase();
  byId("found").textContent = query ? `${data.calls.filter(wanted).length} of ${count(data.calls.length, "call")}` : "";
  draw();
}, 120));
byId("all").addEventListener("change", (event) => { everything = event.target.checked; draw(); });
byId("overview").addEventListener("click", () => { selected = null; draw(); explain(); document.body.classList.add("opened"); });
addEventListener("keydown", (event) => {
  if (event.key === "/" && !/^(INPUT|SELECT)$/.test(event.target.tagName)) {
    byId("search").focus();
    event.preventDefault();
  }
  if (event.key === "Escape") document.body.classList.remove("opened");
});
tree.inside.filter(isFolder).forEach((each) => { each.open = tree.inside.length < 3; });
draw();
explain();
