// The page: the head, the controls, and the first selection.

function fillHead() {
  document.querySelector("h1").append(data.title, tag("span", { class: "to" }, "→"), data.target);
  byId("headline").textContent = data.headline;
  const blocked = opRows.filter((each) => each.decision?.kind === "blocked").length;
  byId("checks").append(
    ...(blocked ? [button(`✗ ${count(blocked, "call")} blocked`, () => select(tree), { class: "blocked" })] : []),
    ...data.checks.map(({ part, checked, text: said }) => button(`${checked ? "✓" : "–"} ${part}`, () => select(tree), { class: checked ? "yes" : "no", title: said, role: "listitem" })));
  byId("titles").append(...data.stages.map((stage) => tag("div", { title: stage.explanation }, tag("b", {}, stage.title), tag("span", { class: "number" }, stage.calls.toLocaleString("en")))));
  document.querySelector("main").classList.toggle("three", !hasSimplified);
}

function fillControls() {
  byId("search").addEventListener("input", debounced((event) => searchFor(event.target.value), 120));
  byId("colour").addEventListener("change", (event) => { colourBy = event.target.value; recolour(); });
  byId("fold").addEventListener("click", foldAll);
  byId("overview").addEventListener("click", () => { select(tree); document.body.classList.add("opened"); });
  byId("stage").append(...data.stages.slice(1).map((stage, s) => button(stage.title, () => showStage(s + 1))));
  showStage(Math.min(2, data.stages.length - 1));
  listenToRows();
  addEventListener("resize", render);
  addEventListener("keydown", onPageKey);
}

function onPageKey(event) {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "/" && !typing) {
    byId("search").focus();
    event.preventDefault();
  }
  if (event.key === "Escape") {
    if (query) searchFor("");
    else document.body.classList.remove("opened");
  }
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (step && !typing && !ROWS.contains(event.target) && document.querySelector(".steps")) stepper.go(step);
}

function foldAll() {
  const fold = (each) => (each.kids ?? []).forEach((kid) => { kid.open = false; fold(kid); });
  fold(tree);
  searchFor("");
}

function recolour() {
  byId("legend").replaceChildren(...legend());
  render();
  explain(selected, false);
}

// On a narrow screen one stage is shown beside the source.
function showStage(s) {
  const main = document.querySelector("main");
  main.classList.remove("show1", "show2", "show3");
  main.classList.add(`show${s}`);
  byId("stage").childNodes.forEach((each, i) => each.setAttribute("aria-pressed", String(i + 1 === s)));
}

// A small program opens its outer modules; a large one opens folded.
function openFirst() {
  const rows = children(tree).filter((each) => each.kind === "module");
  if (rows.length === 1 || opRows.length <= 40) rows.forEach((each) => { each.open = children(each).length <= 12 && opRows.length <= 40; });
}

fillHead();
fillControls();
openFirst();
byId("legend").replaceChildren(...legend());
const named = decodeURIComponent(location.hash.slice(1));
const first = opRows.find((each) => graphs[each.graph].stages[0].names[each.node] === named);
flatten();
if (first) reveal(first);
else select(tree);
