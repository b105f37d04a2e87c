// Runs in the tested page and reports its findings to the page around it.
// It runs completely in the load event, for which the outer page waits.
addEventListener("load", () => {
  const faults = [];
  const counts = { tables: 0, plots: 0, points: 0, switched: 0, choices: 0 };
  const check = (holds, what) => { if (!holds) faults.push(what); };
  const all = (within, what) => Array.from(within.querySelectorAll(what));
  const seen = (element) => { const box = element.getBoundingClientRect(); return box.width > 0 && box.height > 0; };
  const luminance = (colour) => {
    const parts = colour.match(/[\d.]+/g).slice(0, 3).map((part) => Number(part) / 255);
    const [r, g, b] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!/rgba\(.*, 0\)/.test(colour) && colour !== "transparent") return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const contrasts = (theme) => {
    for (const element of all(document.body, "h1, h2, p, li, a, caption, th, td, button, figcaption, label, select, footer, .plot text")) {
      const style = getComputedStyle(element);
      const [a, b] = [element.closest("svg") ? style.fill : style.color, behind(element)].map(luminance);
      const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      check(ratio >= 4.5, `contrast ${ratio.toFixed(2)} of ${element.tagName}.${element.className} (${theme})`);
    }
  };
  try {
    const width = document.documentElement.clientWidth;
    for (const details of all(document, "details")) {
      check(!details.open, "details are closed at first");
      const link = document.querySelector(`nav a[href="#${details.querySelector("h2").id}"]`);
      if (link) link.dispatchEvent(new MouseEvent("click", { cancelable: true }));
      check(details.open || !link, "a link opens its section");
      details.open = true;
    }
    check(document.documentElement.scrollWidth <= width, `${document.documentElement.scrollWidth} wide in ${width}: ${all(document.body, "*").filter((one) => !one.closest(".scroll *") && one.getBoundingClientRect().right > width).map((one) => one.tagName + "." + one.className).join(" ")}`);
    check(document.querySelectorAll("img, iframe, link, object, embed, script[src]").length === 0, "something to load");

    contrasts("light");
    document.getElementById("theme").click();
    check(document.documentElement.dataset.theme === "dark" && luminance(behind(document.body)) < 0.05, "theme");
    contrasts("dark");
    document.getElementById("theme").click();

    for (const choice of all(document, ".choice")) {
      counts.choices += 1;
      const options = all(choice, ".option");
      const select = choice.querySelector("select");
      check(options.filter(seen).length === 1 && seen(options[0]), "one option is shown");
      select.value = "1";
      select.dispatchEvent(new Event("change"));
      check(options.filter(seen).length === 1 && seen(options[1]), "the other option is shown");
      options.forEach((option) => { option.hidden = false; });
    }

    for (const plot of all(document, ".plot")) {
      counts.plots += 1;
      const points = all(plot, ".point");
      counts.points += points.length;
      check(seen(plot) && points.length > 0 && points.every(seen), `drawn: ${plot.getAttribute("aria-label")}`);
      const tip = document.getElementById("tip");
      const point = points[0];
      point.dispatchEvent(new PointerEvent("pointermove", { clientX: 50, clientY: 60 }));
      check(seen(tip) && tip.textContent === point.getAttribute("aria-label") && tip.textContent.length > 3, "tip");
      const box = tip.getBoundingClientRect();
      check(box.left >= 0 && box.right <= width, "tip is on the page");
      point.dispatchEvent(new PointerEvent("pointerleave"));
      check(!seen(tip), "tip goes");
      plot.focus();
      plot.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
      check(document.activeElement === points[0], "arrow keys go to points");
      const chart = plot.closest(".chart");
      for (const button of all(chart, ".legend button")) {
        const parts = all(plot, `[data-series="${button.dataset.series}"]`);
        const shown = parts.filter(seen).length;
        const places = () => parts.map((part) => Number(part.getAttribute("x")));
        const before = places();
        button.click();
        check(button.getAttribute("aria-pressed") === "false" && parts.filter(seen).length === 0, "series goes");
        button.click();
        check(button.getAttribute("aria-pressed") === "true" && parts.filter(seen).length === shown, "series comes back");
        const after = places();
        check(before.every((x, k) => Math.abs(x - after[k]) < 0.05), "bars as before");
        counts.switched += 1;
      }
      if (chart.classList.contains("bars")) {
        // A bar with a single part has no gap to close.
        const bar = all(plot, ".bar").map((one) => all(one, ".point")).find((parts) => parts.length > 1);
        if (bar) {
          const [first, second] = bar;
          const x = Number(second.getAttribute("x"));
          const button = chart.querySelector(`.legend button[data-series="${first.dataset.series}"]`);
          button.click();
          check(Number(second.getAttribute("x")) < x, "bars close up");
          button.click();
        }
      }
    }

    const caught = [];
    window.Blob = function (parts) { caught.push(parts.join("")); };
    URL.createObjectURL = () => "#";
    HTMLAnchorElement.prototype.click = () => {};
    for (const sheet of all(document, ".data")) {
      counts.tables += 1;
      const table = sheet.querySelector("table");
      const rows = () => Array.from(table.tBodies[0].rows);
      const value = (cell) => (cell.dataset.v === undefined ? cell.textContent : cell.dataset.v);
      check(table.caption && all(table, "thead th").every((head) => head.scope === "col"), "caption and scope");
      Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
        const button = head.querySelector("button");
        for (const [order, sign] of [["ascending", 1], ["descending", -1]]) {
          button.click();
          check(head.getAttribute("aria-sort") === order, `aria-sort ${order}`);
          const cells = rows().map((row) => value(row.cells[column]));
          const known = cells.filter((text) => text !== "");
          check(cells.slice(known.length).every((text) => text === ""), "what is missing is last");
          if (head.classList.contains("number")) {
            check(known.every((text, k) => k === 0 || sign * (Number(text) - Number(known[k - 1])) >= 0), `sorted by ${head.dataset.key}`);
          }
        }
      });
      sheet.querySelector(".csv").click();
      const text = caught.pop() || "";
      const quoted = (key) => (/[",\r\n]/.test(key) ? `"${key.replaceAll('"', '""')}"` : key);
      const keys = Array.from(table.tHead.rows[0].cells).map((head) => quoted(head.dataset.key)).join();
      check(text.startsWith(keys) && text.split("\n").length > rows().length, "CSV has the keys and all rows");
    }
    check(performance.getEntriesByType("resource").length === 0, "a request");
    check(window.pwned === undefined, "a name ran");
  } catch (error) {
    faults.push(`${error} ${error.stack}`);
  }
  faults.push(...early);
  parent.postMessage(JSON.stringify({ width: innerWidth, faults: faults.slice(0, 20), counts }), "*");
});
