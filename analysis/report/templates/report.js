"use strict";
// Tables: a click on a head sorts by it, a second click the other way round.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const numbers = head.classList.contains("num");
    const before = head.getAttribute("aria-sort");
    const down = before ? before === "ascending" : numbers;
    const key = row => {
      const cell = row.cells[column];
      return numbers ? Number(cell.dataset.v) : cell.textContent;
    };
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => {
      const x = key(a), y = key(b);
      const order = numbers ? x - y : x.localeCompare(y, "en", {numeric: true});
      return down ? -order : order;
    });
    heads.forEach(h => h.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    table.tBodies[0].append(...rows);
  }));
}

// Timeline: what happens under the pointer or the keyboard's cursor.
(() => {
  const figure = document.getElementById("timeline");
  const data = JSON.parse(document.getElementById("timeline-data").textContent);
  const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
  const first = bytes(data.first), second = bytes(data.second);
  const part = bytes(data.part), rest = bytes(data.rest);
  const text = new Uint16Array(bytes(data.text).buffer);
  const bubble = document.getElementById("bubble"), cursor = document.getElementById("cursor");
  const svg = figure.querySelector("svg");
  const lanes = data.lanes.length, ranks = data.ranks.length;
  let strip = 0, bin = 0;

  const hide = () => { bubble.hidden = true; cursor.hidden = true; };
  const phrase = (kind, share) => share > 0 ? `${data.labels[kind]} ${share} %` : "";

  function show() {
    const at = strip * data.bins + bin;
    const row = Math.floor(strip / lanes), lane = strip % lanes;
    const width = data.ms / data.bins, from = bin * width;
    const digits = Math.min(6, Math.max(0, Math.ceil(1 - Math.log10(width))));
    const name = text[at] === 65535 || !part[at] ? "" : data.texts[text[at]];
    const what = [phrase(first[at], part[at]), phrase(second[at], rest[at])].filter(Boolean);
    const head = document.createElement("b");
    head.textContent = `rank ${data.ranks[row]}, ${data.lanes[lane]}, ` +
      `${from.toFixed(digits)} to ${(from + width).toFixed(digits)} ms`;
    bubble.replaceChildren(head, `${what.join(", ") || "nothing"}${name ? ": mostly " + name : ""}`);
    const box = svg.getBoundingClientRect();
    const [left, top, wide, high] = data.box;
    const [begin, end] = data.bands[lane];
    const x = box.width * (left + wide * bin / data.bins);
    const y = box.height * (top + high * (row + begin) / ranks);
    cursor.style.left = `${x}px`;
    cursor.style.top = `${y}px`;
    cursor.style.width = `${Math.max(box.width * wide / data.bins, 3)}px`;
    cursor.style.height = `${Math.max(box.height * high * (end - begin) / ranks, 3)}px`;
    bubble.hidden = cursor.hidden = false;
    const edge = figure.scrollLeft + figure.clientWidth - bubble.offsetWidth - 4;
    bubble.style.left = `${Math.max(figure.scrollLeft, Math.min(x + 12, edge))}px`;
    const below = y + box.height * high * (end - begin) / ranks + 6;
    const fits = below + bubble.offsetHeight < box.height;
    bubble.style.top = `${fits ? below : Math.max(y - bubble.offsetHeight - 6, 0)}px`;
  }

  figure.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect();
    const [left, top, wide, high] = data.box;
    const x = ((event.clientX - box.left) / box.width - left) / wide;
    const y = ((event.clientY - box.top) / box.height - top) / high * ranks;
    if (x < 0 || x >= 1 || y < 0 || y >= ranks) { hide(); return; }
    const lane = data.bands.findIndex(([, end]) => y % 1 < end);
    if (lane < 0) { hide(); return; }
    strip = Math.floor(y) * lanes + lane;
    bin = Math.floor(x * data.bins);
    show();
  });
  figure.addEventListener("pointerleave", hide);
  figure.addEventListener("blur", hide);
  figure.addEventListener("keydown", event => {
    const jump = event.shiftKey ? 20 : 1;
    const moves = {ArrowLeft: [0, -jump], ArrowRight: [0, jump], ArrowUp: [-1, 0], ArrowDown: [1, 0]};
    if (event.key === "Escape") { hide(); return; }
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    strip = Math.min(Math.max(strip + move[0], 0), lanes * ranks - 1);
    bin = Math.min(Math.max(bin + move[1], 0), data.bins - 1);
    show();
  });
})();
