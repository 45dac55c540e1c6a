// The grid explains itself: the cell that is pointed at, focused or tapped is named below it; arrow keys walk.
(() => {
  const cellOf = (event) => event.target.closest?.('.timeline [role="gridcell"]');

  const explain = (cell) => {
    const grid = cell.closest(".timeline");
    grid.querySelectorAll(".cell.chosen").forEach((other) => other.classList.remove("chosen"));
    cell.classList.add("chosen");
    grid.querySelector(".why").textContent = cell.getAttribute("aria-label");
  };

  const go = (from, to) => {
    if (!to) return;
    from.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  };

  const neighbour = (cell, key) => {
    const row = cell.parentElement;
    const cells = [...row.querySelectorAll('[role="gridcell"]')];
    const index = cells.indexOf(cell);
    const across = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: cells.length - 1 };
    if (key in across) return cells[across[key]];
    const other = key === "ArrowUp" ? row.previousElementSibling : key === "ArrowDown" ? row.nextElementSibling : null;
    return other?.querySelectorAll('[role="gridcell"]')[index];
  };

  for (const kind of ["mouseover", "focusin", "click"]) {
    document.addEventListener(kind, (event) => {
      const cell = cellOf(event);
      if (cell) explain(cell);
    });
  }
  document.addEventListener("keydown", (event) => {
    const cell = cellOf(event);
    if (!cell || !(event.key.startsWith("Arrow") || event.key === "Home" || event.key === "End")) return;
    event.preventDefault();
    go(cell, neighbour(cell, event.key));
  });
})();
