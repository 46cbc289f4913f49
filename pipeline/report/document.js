// The strip is one stop of the Tab key; arrows, Home and End move within it, Enter jumps.
for (const strip of document.querySelectorAll("nav#strip")) {
  const cells = [...strip.querySelectorAll("a")];
  const choose = (chosen) => cells.forEach((cell, i) => { cell.tabIndex = i === chosen ? 0 : -1; });
  choose(0);
  strip.addEventListener("focusin", (event) => choose(cells.indexOf(event.target)));
  strip.addEventListener("keydown", (event) => {
    const at = cells.indexOf(document.activeElement), last = cells.length - 1;
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    cells[Math.min(Math.max(to, 0), last)].focus();
  });
}
