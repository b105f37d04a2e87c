// Sorts tables, exports CSV, hides series, shows tooltips and selections. The page is complete without this script.
"use strict";
(() => {
  const all = (within, what) => Array.from(within.querySelectorAll(what));

  // Light or dark: the system's setting until the button is pressed.
  const theme = document.getElementById("theme");
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme || (prefersDark.matches ? "dark" : "light")) === "dark";
  const nameTheme = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    nameTheme();
  });
  prefersDark.addEventListener("change", nameTheme);
  nameTheme();
  theme.hidden = false;

  // Tables: a click on a column's title sorts by it, a second click reverses the order; missing values stay at the end.
  const exact = (cell) => (cell.dataset.v === undefined ? cell.textContent : cell.dataset.v);
  const compare = (a, b, isNumber) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    return isNumber ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true });
  };
  const sort = (table, head, column) => {
    const down = head.getAttribute("aria-sort") === "ascending";
    const isNumber = head.classList.contains("number");
    const body = table.tBodies[0];
    const rows = Array.from(body.rows).map((row) => [exact(row.cells[column]), row]);
    rows.sort(([a], [b]) => (down && a !== "" && b !== "" ? -1 : 1) * compare(a, b, isNumber));
    body.append(...rows.map((pair) => pair[1]));
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
  };
  const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const csv = (table) => {
    const heads = Array.from(table.tHead.rows[0].cells).map((head) => head.dataset.key);
    const rows = Array.from(table.tBodies[0].rows).map((row) => Array.from(row.cells).map(exact));
    return [heads, ...rows].map((cells) => cells.map(quoted).join(",")).join("\n") + "\n";
  };
  const enhanceTable = (sheet) => {
    const table = sheet.querySelector("table");
    Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => sort(table, head, column));
    });
    const button = sheet.querySelector(".csv");
    button.addEventListener("click", () => {
      const link = document.createElement("a");
      link.download = table.caption.textContent.toLowerCase().replace(/[^a-z0-9]+/g, "-").slice(0, 60) + ".csv";
      link.href = URL.createObjectURL(new Blob([csv(table)], { type: "text/csv" }));
      link.click();
      URL.revokeObjectURL(link.href);
    });
  };

  // Tooltip of a point, next to the pointer or the focus.
  const tip = document.getElementById("tip");
  const show = (point, x, y) => {
    tip.textContent = point.getAttribute("aria-label");
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(x + 14, document.documentElement.clientWidth - box.width - 8);
    const above = y - box.height - 12;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${above < 8 ? y + 18 : above}px`;
  };
  const hide = () => { tip.hidden = true; };
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

  const enhanceChart = (chart) => {
    const plot = chart.querySelector(".plot");
    if (!plot) return;
    const points = all(plot, ".point");
    for (const point of points) {
      // The script's tooltip replaces the browser's.
      const title = point.querySelector("title");
      point.setAttribute("aria-label", title.textContent);
      point.setAttribute("role", "img");
      point.setAttribute("tabindex", "-1");
      title.remove();
      point.addEventListener("pointermove", (event) => show(point, event.clientX, event.clientY));
      point.addEventListener("pointerleave", hide);
      point.addEventListener("blur", hide);
      point.addEventListener("focus", () => {
        const box = point.getBoundingClientRect();
        show(point, box.x + box.width / 2, box.y);
      });
    }
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const seen = points.filter((point) => !point.closest(".off"));
      const at = seen.indexOf(document.activeElement);
      const next = at < 0 ? (step > 0 ? 0 : seen.length - 1) : (at + step + seen.length) % seen.length;
      if (seen[next]) seen[next].focus();
    });
    // The visible parts of a bar close the gap of hidden ones.
    const closeUp = () => {
      for (const bar of all(plot, ".bar")) {
        const parts = all(bar, ".point");
        if (parts.length === 0) continue;
        const ends = parts.map((part) => Number(part.getAttribute("x")));
        let x = Math.min(...ends);
        for (const part of parts) {
          part.setAttribute("x", x);
          if (!part.classList.contains("off")) x += Number(part.getAttribute("width"));
        }
        const sum = bar.querySelector(".sum");
        sum.setAttribute("x", x + 7);
        sum.classList.toggle("off", parts.some((part) => part.classList.contains("off")));
      }
    };
    for (const button of all(chart, ".legend button")) {
      button.addEventListener("click", () => {
        const shown = button.getAttribute("aria-pressed") === "false";
        button.setAttribute("aria-pressed", String(shown));
        for (const part of all(plot, `[data-series="${button.dataset.series}"]`)) part.classList.toggle("off", !shown);
        closeUp();
      });
    }
  };

  // Selection of one of several options.
  const enhanceChoice = (choice) => {
    const options = Array.from(choice.children).filter((child) => child.classList.contains("option"));
    const select = choice.querySelector("select");
    const pick = () => options.forEach((option, number) => { option.hidden = number !== Number(select.value); });
    select.addEventListener("change", pick);
    choice.querySelector(".chooser").hidden = false;
    pick();
  };

  // A hint under tables and pictures that are wider than the page.
  const hint = (box) => {
    const more = document.createElement("p");
    more.className = "more";
    more.textContent = "Scroll sideways for the rest.";
    box.after(more);
    const update = () => { more.hidden = box.scrollWidth <= box.clientWidth; };
    new ResizeObserver(update).observe(box);
    update();
  };
  // A link to a section opens it.
  for (const link of all(document, "nav a")) {
    link.addEventListener("click", () => {
      const heading = document.getElementById(link.hash.slice(1));
      const details = heading && heading.closest("details");
      if (details) details.open = true;
    });
  }

  const enhance = (content) => {
    all(content, ".data").forEach(enhanceTable);
    all(content, ".scroll").forEach(hint);
    all(content, ".chart").forEach(enhanceChart);
    all(content, ".choice").forEach(enhanceChoice);
  };
  enhance(document);
  // Content that a document receives later.
  document.addEventListener("content", (event) => enhance(event.detail));
})();
