"use strict";
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

/* Sort: a click on a heading; numbers by data-value, empty ones last. */
all("table.all").forEach((table) => {
  const body = table.tBodies[0];
  all("th button", table.tHead).forEach((button, column) => {
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const down = head.getAttribute("aria-sort") === "ascending";
      all("th", table.tHead).forEach((th) => th.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const sign = down ? -1 : 1;
      const key = (row) => {
        const cell = row.cells[column];
        return head.classList.contains("num")
          ? (cell.dataset.value ? Number(cell.dataset.value) : null)
          : cell.textContent.trim();
      };
      const rows = all("tr", body).map((row) => [key(row), row]);
      rows.sort(([a], [b]) => {
        if (a === null || b === null) return (a === null) - (b === null);
        return sign * (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
      });
      body.append(...rows.map(([, row]) => row));
    });
  });
});

/* Filter: text anywhere in the row, and one verdict. */
all(".controls").forEach((controls) => {
  const table = document.getElementById(controls.dataset.table);
  const [text, verdict] = [controls.querySelector("input"), controls.querySelector("select")];
  const shown = controls.querySelector("output");
  const apply = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = all("tr", table.tBodies[0]);
    rows.forEach((row) => {
      const content = row.textContent.toLowerCase();
      row.hidden = !(words.every((word) => content.includes(word)) &&
        (!verdict.value || row.dataset.outcome === verdict.value));
    });
    shown.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
  };
  text.addEventListener("input", apply);
  verdict.addEventListener("change", apply);
});

/* Copy: the text beside the button. */
all(".command button").forEach((button) => {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
});

/* Save the results that this page carries. */
all("button.save").forEach((button) => {
  button.hidden = false;
  button.addEventListener("click", () => {
    const json = document.getElementById(button.dataset.source).textContent;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([json], { type: "application/json" }));
    link.download = "results.json";
    link.click();
    URL.revokeObjectURL(link.href);
  });
});

/* A link to a cell opens its details. */
const open = () => {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
  if (target && target.tagName === "DETAILS") target.querySelector("summary").focus();
};
addEventListener("hashchange", open);
open();
