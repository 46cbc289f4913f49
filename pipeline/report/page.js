// Tooltips, filters, the sample browser. The page is whole without them: tables stay as they are,
// each mark of a figure has its words as a title, each sample its most harmful block.
// Text from data is only ever set as text.
"use strict";

const make = (name, attributes = {}, ...children) => {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
};

// ------------------------------------------------------------------ tables

// "98.4% [94.5, 99.6]" sorts as 98.4, "1,234" as 1234, a missing value last
const sortKey = (text) => {
  const found = /^[-−]?[\d,]+(\.\d+)?(e[-+]?\d+)?/.exec(text);
  if (text === "–") return "";
  return found && !/^\d+-/.test(text) ? found[0].replaceAll(",", "").replace("−", "-") : text;
};

for (const table of document.querySelectorAll("table.sortable")) {
  for (const header of table.tHead.rows[0].cells) {
    // the library sorts when a header is clicked; a button makes that reachable by the keyboard
    header.replaceChildren(make("button", { type: "button" }, header.textContent));
  }
  table.tHead.addEventListener("click", () => {
    for (const cell of table.querySelectorAll("tbody :is(td, th):not([data-sort])")) {
      cell.dataset.sort = sortKey(cell.textContent);
    }
  }, { once: true });
  const rows = table.tBodies[0].rows.length;
  if (rows < 9) continue;
  const input = make("input", { type: "search", autocomplete: "off" });
  const count = make("output", {}, `${rows} rows`);
  const label = make("label", {}, "Rows with ", input);
  table.closest(".scroll").before(make("div", { class: "tools" }, label, count));
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/);
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      const text = [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = shown === rows ? `${rows} rows` : `${shown} of ${rows} rows`;
  });
}

// ------------------------------------------------------------------ one model at a time

// Without scripts all are shown, one below the other. Each is drawn when it is first chosen.
for (const box of document.querySelectorAll(".switch")) {
  const places = [...box.querySelectorAll(":scope > noscript")];
  if (!places.length) continue;
  const shown = [box.firstElementChild, ...places.map(() => null)];
  const parse = (place) => new DOMParser().parseFromString(place.textContent, "text/html").body.firstElementChild;
  const parsed = places.map(parse);
  const names = [shown[0], ...parsed].map((each) => each.dataset.name);
  const select = make("select", {}, ...names.map((name, i) => make("option", { value: i }, name)));
  select.addEventListener("change", () => {
    const i = Number(select.value);
    shown[i] ??= box.appendChild(document.adoptNode(parsed[i - 1]));
    shown.forEach((each, at) => { if (each) each.hidden = at !== i; });
    for (const svg of shown[i].querySelectorAll(".plot > svg")) point(svg);
  });
  box.prepend(make("div", { class: "tools" }, make("label", {}, `${box.dataset.label} `, select)));
}

// ------------------------------------------------------------------ figures

const tip = make("div", { class: "tip", hidden: "" });
document.body.append(tip);
const REACH = 14; // points of the drawing between the pointer and the mark that it names

const gather = (svg) =>
  [...svg.querySelectorAll("title")].map((title) => {
    const box = title.parentNode.getBBox();
    const words = title.textContent;
    title.remove(); // else the browser's own tooltip would show too
    return { box, words };
  });

const pointed = new WeakSet();
const point = (svg) => {
  if (pointed.has(svg)) return;
  pointed.add(svg);
  let marks = null;
  const ring = document.createElementNS(svg.namespaceURI, "rect");
  ring.setAttribute("class", "ring");
  const hide = () => {
    tip.hidden = true;
    ring.remove();
  };
  const show = (event) => {
    marks ??= gather(svg);
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    let best = null;
    let nearest = REACH;
    for (const mark of marks) {
      const { x, y, width, height } = mark.box;
      const [dx, dy] = [Math.abs(at.x - x - width / 2), Math.abs(at.y - y - height / 2)];
      // a bar is met anywhere inside it, a small mark from beside it
      const inside = dx <= width / 2 && dy <= height / 2;
      const distance = inside && width * height > 200 ? 0 : Math.hypot(dx, dy);
      if (distance < nearest) [best, nearest] = [mark, distance];
    }
    if (!best) return hide();
    const { x, y, width, height } = best.box;
    const place = { x: x - 3, y: y - 3, width: width + 6, height: height + 6, rx: 4 };
    for (const [key, value] of Object.entries(place)) ring.setAttribute(key, value);
    svg.append(ring);
    tip.textContent = best.words;
    tip.hidden = false;
    const side = Math.min(event.clientX + 14, document.documentElement.clientWidth - tip.offsetWidth - 8);
    const below = event.clientY + 18;
    const fits = below + tip.offsetHeight < window.innerHeight;
    tip.style.left = `${Math.max(8, side)}px`;
    tip.style.top = `${fits ? below : event.clientY - tip.offsetHeight - 12}px`;
  };
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", hide);
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  document.addEventListener("scroll", hide, { passive: true });
};
document.querySelectorAll(".plot > svg").forEach(point);

// ------------------------------------------------------------------ keyboard

// only what scrolls sideways is worth a tab stop
const stops = () => {
  for (const each of document.querySelectorAll(".scroll")) {
    const scrolls = each.scrollWidth > each.clientWidth + 1 || each.scrollHeight > each.clientHeight + 1;
    each.toggleAttribute("tabindex", scrolls);
    if (scrolls) each.tabIndex = 0;
  }
};
window.addEventListener("resize", stops);
document.addEventListener("toggle", stops, true);
stops();

// ------------------------------------------------------------------ samples

// 0-based places as "3, 5–9", counted from 1
const places = (found) => {
  const runs = [];
  for (const place of found) {
    const last = runs.at(-1);
    if (last && last[1] === place) last[1] = place + 1;
    else runs.push([place + 1, place + 1]);
  }
  return runs.map(([a, b]) => (a === b ? `${a}` : `${a}–${b}`)).join(", ");
};

const result = (total, wrong) =>
  wrong.length ? `${total - wrong.length} of ${total} tokens right; wrong: ${places(wrong)}` : `all ${total} tokens right`;

const browse = (family, tools) => {
  const ids = Object.keys(family.words).length === 0;
  const word = (token) => (ids ? `${token}` : family.words[token] ?? `${token}`);
  const [model, intervention] = tools.querySelectorAll("select");
  const said = tools.querySelector("output");
  const samples = [...tools.parentNode.querySelectorAll("details.sample")];
  const worst = (each) =>
    family.blocks[model.value]
      .filter((name) => name in each)
      .reduce((a, b) => (a && Object.keys(each[b]).length <= Object.keys(each[a]).length ? a : b), "") || "baseline";
  const fill = (row, name, suffix, changes) => {
    const wrong = Object.keys(changes).map(Number);
    row.querySelector("dt").textContent = `${family.models[model.value]}, ${name}: ${result(suffix.length, wrong)}`;
    const tokens = suffix.flatMap((token, i) => {
      const text = i in changes ? make("mark", {}, word(changes[i])) : word(token);
      return ids && i ? [" ", text] : [text];
    });
    row.querySelector("dd").replaceChildren(...tokens);
  };
  const update = () => {
    const counts = new Map();
    for (const details of samples) {
      const sample = family.samples[details.dataset.sample];
      const each = sample.continuations[model.value];
      const [baseline, bypassed] = details.querySelectorAll(".continuation");
      baseline.hidden = bypassed.hidden = !each.baseline;
      if (!each.baseline) continue;
      fill(baseline, "baseline", sample.suffix, each.baseline);
      const name = intervention.value || worst(each);
      if (!each[name]) continue;
      fill(bypassed, name, sample.suffix, each[name]);
      const [whole, known] = counts.get(details.dataset.split) ?? [0, 0];
      const right = Object.keys(each[name]).length ? 0 : 1;
      counts.set(details.dataset.split, [whole + right, known + 1]);
    }
    const words = [...counts].map(([split, [whole, known]]) => `${whole} of ${known} ${split}`);
    said.textContent = `All tokens right: ${words.join(", ")}`;
  };
  const offer = () => {
    const names = new Set(samples.flatMap((details) =>
      Object.keys(family.samples[details.dataset.sample].continuations[model.value])));
    names.delete("baseline");
    const before = intervention.value;
    const options = [...names].map((name) => make("option", { value: name }, name));
    intervention.replaceChildren(make("option", { value: "" }, "the block that harms it most"), ...options);
    intervention.value = names.has(before) ? before : "";
    update();
    if (before && !names.has(before)) {
      said.textContent = `${family.models[model.value]} has no ${before}; now the block that harms each sample most. ${said.textContent}`;
    }
  };
  model.addEventListener("change", offer);
  intervention.addEventListener("change", update);
  tools.hidden = false;
  offer();
};

const stored = document.getElementById("samples-data");
if (stored) {
  const families = JSON.parse(stored.textContent);
  for (const tools of document.querySelectorAll("[data-family]")) {
    browse(families[tools.dataset.family], tools);
  }
}
