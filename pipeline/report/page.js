// Tooltips, filters, the choice of a block, the tokens of a sample. Without scripts the page still
// shows every figure and table, and the most informative samples.
// Text from data is set only as text, never as HTML.
"use strict";

const set = (element, attributes) => {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
};
const make = (name, attributes = {}, ...children) => {
  const element = set(document.createElement(name), attributes);
  element.append(...children);
  return element;
};

// ------------------------------------------------------------------ tables

// "98.4% [94.5, 99.6]" sorts as 98.4, "1,234" as 1234, a missing value last
const sortKey = (text) => {
  const found = /^[-−+]?[\d,]+(\.\d+)?(e[-+]?\d+)?/.exec(text);
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

// ------------------------------------------------------------------ the choice of a block

// One choice of model, edit, block and sample for the whole page, kept in its address.
const data = (id) => {
  const found = document.getElementById(id);
  return found ? JSON.parse(found.textContent) : null;
};
const explorer = document.getElementById("explorer");
const models = data("explorer-data") ?? [];
const address = new URLSearchParams(location.search);
const choice = {};
const followers = []; // called after each change of the choice

const own = () => models.find((each) => each.name === choice.model);
const single = () => own()?.edits[choice.edit]?.[choice.block]; // the intervention that is chosen

const choose = (change) => {
  const before = { ...choice };
  Object.assign(choice, change);
  if (!models.length) { // no block was edited alone: the samples alone follow
    followers.forEach((follow) => follow());
    return;
  }
  if (!own()) choice.model = models[0].name;
  const { edits, start } = own();
  if (!edits[choice.edit]) choice.edit = Object.keys(edits)[0];
  const lost = choice.block !== undefined && !(choice.block in (edits[choice.edit] ?? {}));
  if (lost || choice.block === undefined) choice.block = start;
  const dropped = lost && change.block === undefined ? before.block : change.block;
  const [model, edit, block] = explorer.querySelectorAll("select");
  model.value = choice.model;
  edit.replaceChildren(...Object.keys(edits).map((name) => make("option", {}, name)));
  edit.value = choice.edit;
  edit.parentNode.hidden = Object.keys(edits).length < 2;
  const blocks = Object.keys(edits[choice.edit] ?? {}).map(Number).sort((a, b) => a - b);
  block.replaceChildren(...blocks.map((name) => make("option", {}, name)));
  block.value = choice.block;
  for (const [key, value] of Object.entries(choice)) address.set(key, value);
  history.replaceState(null, "", `?${address}${location.hash}`);
  followers.forEach((follow) => follow());
  const said = own().said[choice.edit]?.[choice.block];
  explorer.querySelector("output").textContent =
    (lost ? `${choice.model} has no block ${dropped}; now block ${choice.block}. ` : "") +
    (said ?? "") + (choice.edit === "identity" ? "" : " (after figure 1, the figures show the bypass)");
};

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
  const show = () => {
    const i = Number(select.value);
    shown[i] ??= box.appendChild(document.adoptNode(parsed[i - 1]));
    shown.forEach((each, at) => { if (each) each.hidden = at !== i; });
    shown[i].querySelectorAll(".plot > svg").forEach(point);
  };
  select.addEventListener("change", () => {
    show();
    const name = names[select.value];
    const first = models.find((each) => [each.name, each.drawn, each.family].includes(name));
    if (first && own()?.family !== name) choose({ model: first.name });
  });
  followers.push(() => {
    const i = names.findIndex((name) => [choice.model, own()?.drawn, own()?.family].includes(name));
    if (i < 0) return;
    select.value = i;
    show();
  });
  box.prepend(make("div", { class: "tools" }, make("label", {}, `${box.dataset.label} `, select)));
}

// one more metric in the heatmaps of all models; by a rule, since most are drawn later
const others = [...document.querySelectorAll(".heat thead .other")];
if (others.length) {
  const rule = document.head.appendChild(make("style"));
  const options = others.map((each) => make("option", { value: each.classList[1] }, each.textContent));
  const select = make("select", {}, make("option", { value: "" }, "–"), ...options);
  select.addEventListener("change", () => {
    rule.textContent = select.value && `.heat .${select.value} { display: table-cell; }`;
  });
  document.querySelector(".heat").parentNode.before(make("div", { class: "tools" }, make("label", {}, "One more metric ", select)));
}

followers.push(() => {
  for (const row of document.querySelectorAll(".heat tbody tr")) {
    const model = row.closest(".heat").dataset.name;
    const same = [choice.model, own()?.drawn].includes(model);
    row.classList.toggle("at", same && row.cells[0].textContent === `block ${choice.block}`);
  }
});

// ------------------------------------------------------------------ figures

const tip = make("div", { class: "tip", hidden: "" });
document.body.append(tip);
const REACH = 14; // points of the drawing between the pointer and the mark that it names
const SAME = 0.6; // points between marks that lie on one another
const NAMED = 4; // marks that one tooltip names; the others at the same place are counted

const drawing = (svg, name, attributes) =>
  svg.appendChild(set(document.createElementNS(svg.namespaceURI, name), attributes));

// the marks of a figure: where each lies, what it is of, and its words
const gather = (svg) => {
  const script = svg.closest(".plot").parentNode.querySelector("script");
  if (!script) return [];
  const found = JSON.parse(script.textContent);
  return found.marks.map(([model, edit, measure, what, level, x, y, width = 0, height = 0]) => {
    const of = { model: found.models[model], edit: found.edits[edit], what };
    const words = [typeof what === "number" ? `block ${what}` : what, of.model, found.measures[measure]];
    return { ...of, x, y, width, height, words: `${words.filter(Boolean).join(", ")}: ${level}` };
  });
};

// one path around every mark of the chosen block, or of the quarter that it lies in
const outline = (svg, marks) => {
  svg.querySelector(".at")?.remove();
  if (!models.length) return;
  const { name, drawn, quartiles } = own();
  const around = marks
    .filter((mark) => [name, drawn].includes(mark.model) && mark.edit === choice.edit)
    .filter((mark) => mark.what === choice.block || (mark.what && mark.what === quartiles[choice.block]))
    .map(({ x, y, width, height }) =>
      width
        ? `M${x - width / 2 - 2} ${y - height / 2 - 2}h${width + 4}v${height + 4}h${-width - 4}z`
        : `M${x - 7} ${y}a7 7 0 1 0 14 0a7 7 0 1 0 -14 0`);
  if (around.length) drawing(svg, "path", { class: "at", d: around.join("") });
};

const pointed = new WeakSet();
const point = (svg) => {
  if (pointed.has(svg)) return;
  pointed.add(svg);
  const marks = gather(svg);
  if (!marks.length) return;
  followers.push(() => outline(svg, marks));
  if (choice.model) outline(svg, marks);
  let ring = null;
  const hide = () => {
    tip.hidden = true;
    ring?.remove();
    ring = null;
  };
  const show = (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    let best = null;
    let nearest = REACH;
    for (const mark of marks) {
      const [dx, dy] = [Math.abs(at.x - mark.x), Math.abs(at.y - mark.y)];
      // a bar is met anywhere inside it, a small mark from beside it
      const inside = mark.width && dx <= mark.width / 2 && dy <= mark.height / 2;
      const distance = inside ? 0 : Math.hypot(dx, dy);
      if (distance < nearest) [best, nearest] = [mark, distance];
    }
    hide();
    if (!best) return;
    const { x, y, width, height } = best;
    const side = { width: width + 12, height: height + 12, rx: 4 };
    ring = drawing(svg, "rect", { class: "ring", x: x - side.width / 2, y: y - side.height / 2, ...side });
    const here = marks.filter((mark) => Math.hypot(mark.x - x, mark.y - y) <= SAME).map((mark) => mark.words);
    const rest = here.length > NAMED ? [`and ${here.length - NAMED} more here`] : [];
    tip.textContent = [...here.slice(0, NAMED), ...rest].join("\n");
    tip.hidden = false;
    const right = Math.min(event.clientX + 14, document.documentElement.clientWidth - tip.offsetWidth - 8);
    const below = event.clientY + 18;
    const fits = below + tip.offsetHeight < window.innerHeight;
    tip.style.left = `${Math.max(8, right)}px`;
    tip.style.top = `${fits ? below : event.clientY - tip.offsetHeight - 12}px`;
  };
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", hide);
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  document.addEventListener("scroll", hide, { passive: true });
};
document.querySelectorAll(".plot > svg").forEach(point);

// the address of a figure, with the block that is chosen
for (const link of document.querySelectorAll(".copy")) {
  link.addEventListener("click", async () => {
    if (!navigator.clipboard) return; // on a page that is not served safely the link is one
    await navigator.clipboard.writeText(link.href.replace(/(\?[^#]*)?#/, `${location.search}#`));
    link.textContent = "copied";
  });
}

// ------------------------------------------------------------------ samples

const SIGNS = { right: "", "first error": "\u2717 ", wrong: "\u00d7 ", "right again": "\u21ba " };
const STATES = Object.keys(SIGNS);

const browse = (families) => {
  const box = document.getElementById("grid");
  const [picker, said] = [box.querySelector("select"), box.querySelector("output")];
  const [table, told] = [box.querySelector("table"), box.querySelector(".told")];
  let [family, sample, names, at] = [null, null, [], 0];
  const word = (token) => family.words[token] ?? `${token}`;
  const place = () => family.models.indexOf(choice.model);

  // continuation and, for each token, how it stands to the true one
  const read = (row) => {
    const first = row[2] ?? sample.suffix.length;
    const tokens = sample.suffix.map((token, i) => (i < first ? token : row[3 + i - first]));
    const states = tokens.map((token, i) =>
      STATES[token === sample.suffix[i] ? (i < first ? 0 : 3) : i === first ? 1 : 2]);
    return [tokens, states];
  };
  const text = (tokens, mark = () => false) => tokens.flatMap((token, i) => {
    const shown = mark(i) ? make("mark", {}, word(token)) : word(token);
    return i && !Object.keys(family.words).length ? [" ", shown] : [shown];
  });
  const row = (name) => sample.rows[place()]?.[family.interventions[place()].indexOf(name)];

  const tell = (name, i) => {
    at = i;
    const [tokens, states] = read(row(name));
    const line = (term, ...what) => make("div", {}, make("dt", {}, term), make("dd", {}, ...what));
    const [log, margin] = row(name);
    const packed = atob(sample.each[place()]?.[family.interventions[place()].indexOf(name)] ?? "");
    const [below, low, high, lead] = [0, 1, 2, 3].map((byte) => packed.charCodeAt(4 * i + byte));
    const most = (value, end, written) => (value === end ? `${written} or more` : written);
    const exact = packed
      ? `after the true tokens: log p −${most(below, 255, (below / 10).toFixed(1))} nats, ` +
        `rank ${most(low + 256 * high, 65535, low + 256 * high)}, the likeliest leads by ${most(lead, 255, (lead / 10).toFixed(1))}`
      : `true suffix: log p ${log} nats, smallest margin ${margin}`;
    told.replaceChildren(
      line(`token ${i + 1} of ${tokens.length} under ${name}: ${states[i]}`,
        make("q", {}, word(tokens[i])), ", in truth ", make("q", {}, word(sample.suffix[i])), ` (${exact})`),
      line("prefix" + (sample.cut ? ", its end" : ""), ...text(sample.prefix)),
      line("true suffix", ...text(sample.suffix)),
      line(name, ...text(tokens, (each) => tokens[each] !== sample.suffix[each])));
    for (const cell of table.querySelectorAll("td")) {
      const same = cell.dataset.name === name && Number(cell.dataset.at) === i;
      if (same) cell.setAttribute("aria-current", "true");
      else cell.removeAttribute("aria-current");
      cell.tabIndex = same ? 0 : -1;
    }
  };

  const fill = () => {
    const known = new Set(Object.values(own()?.edits[choice.edit] ?? {}));
    const other = new Set(Object.values(own()?.edits ?? {}).flatMap((each) => Object.values(each)));
    names = family.interventions[place()].filter((name) => row(name) && (known.has(name) || !other.has(name)));
    const heading = sample.suffix.map((token) => make("th", { scope: "col" }, word(token)));
    const lines = names.map((name) => {
      const [tokens, states] = read(row(name));
      const cells = tokens.map((token, i) => make("td", {
        class: states[i].replace(" ", "-"), "data-name": name, "data-at": i, tabindex: -1,
        "aria-label": `${states[i]}: ${word(token)}`,
      }, SIGNS[states[i]] + (states[i].startsWith("right") ? "" : word(token))));
      return make("tr", name === single() ? { class: "at" } : {}, make("th", { scope: "row", "data-name": name }, name), ...cells);
    });
    table.caption.textContent = `${family.name}, sample ${sample.id}, ${sample.why}, continued by ${choice.model}. Arrow keys move from token to token.`;
    table.tHead.replaceChildren(make("tr", {}, make("th", { scope: "col" }, "true suffix"), ...heading));
    table.tBodies[0].replaceChildren(...lines);
    const whole = names.filter((name) => row(name)[2] === undefined).length;
    const bypassed = Object.entries(own()?.edits[choice.edit] ?? {})
      .filter(([block, each]) => block !== "0" && names.includes(each) && row(each)[0] !== null)
      .map((each) => each[1]);
    const worst = bypassed.reduce((a, b) => (row(b)[0] < row(a)[0] ? b : a), bypassed[0]);
    const log = (each) => `${row(each)?.[0]} nats`.replace("-", "\u2212");
    const like = bypassed.filter((each) => each !== worst && row(each)[0] === row(worst)[0]).length;
    said.textContent = `${choice.model}: recited in ${whole} of ${names.length} rows` +
      (worst ? `; ${worst}${like ? `, like ${like} more,` : ""} harms it most (log p of the suffix ${log(worst)}, baseline ${log("baseline")}; excluding block 0)` : "");
    const name = names.includes(single()) ? single() : names[0];
    if (name) tell(name, row(name)[2] ?? Math.min(at, sample.suffix.length - 1));
  };

  const follow = () => {
    const before = family;
    family = families.find((each) => each.models.includes(choice.model));
    box.hidden = !family;
    if (!family) return;
    if (family !== before) {
      picker.replaceChildren(...family.samples.map(({ id, why }) => make("option", { value: id }, `${why}: sample ${id}`)));
    }
    sample = family.samples.find(({ id }) => `${id}` === `${choice.sample}`) ?? family.samples[0];
    picker.value = sample.id;
    fill();
  };
  picker.addEventListener("change", () => choose({ sample: picker.value }));
  table.addEventListener("click", ({ target }) => {
    const cell = target.closest("td, tbody th");
    if (!cell) return;
    const { name } = cell.dataset;
    at = Number(cell.dataset.at ?? row(name)[2] ?? at); // a row's label stands for its first error
    const i = at;
    const block = Object.entries(own()?.edits[choice.edit] ?? {}).find((each) => each[1] === name)?.[0];
    if (block !== undefined) choose({ block: Number(block) });
    tell(name, i);
    table.querySelector("[aria-current]").focus();
  });
  table.addEventListener("keydown", (event) => {
    const cell = event.target.closest("td");
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (!cell || !steps[event.key]) return;
    event.preventDefault();
    const [down, right] = steps[event.key];
    const next = table.tBodies[0].rows[cell.parentNode.sectionRowIndex + down]?.cells[cell.cellIndex + right];
    if (next?.matches("td")) next.click();
  });
  followers.push(follow);
};

const stored = data("samples-data");
if (stored) browse(stored);

if (explorer && models.length) {
  explorer.hidden = false;
  const [model, edit, block] = explorer.querySelectorAll("select");
  model.replaceChildren(...models.map(({ name }) => make("option", {}, name)));
  model.addEventListener("change", () => choose({ model: model.value }));
  edit.addEventListener("change", () => choose({ edit: edit.value }));
  block.addEventListener("change", () => choose({ block: Number(block.value) }));
  const asked = Object.fromEntries([...address].filter(([key]) => ["model", "edit", "block", "sample"].includes(key)));
  if (asked.block !== undefined) asked.block = Number(asked.block);
  choose(asked);
} else if (stored) choose({ model: stored[0].models[0] });
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
