"use strict";
// Exposes script errors in the page.
addEventListener("error", (event) => { document.documentElement.dataset.error = event.message; });

const card = document.getElementById("card");
const inside = card.querySelector(".inside");
const LINK = /^#trial-(\d+)$/;
let kept = null; // the trial whose card stays open
let from = null; // the element that opened it, which gets the focus back
let back = false; // true while the focus returns, which must not open a card

function fill(slot) {
  const template = document.getElementById(`card-${slot}`);
  if (!template) return false;
  if (card.dataset.trial !== slot) {
    const content = template.content.cloneNode(true);
    const place = content.querySelector("[data-picture]");
    place.append(document.getElementById(place.dataset.picture).content.cloneNode(true));
    inside.replaceChildren(content);
    inside.scrollTop = 0;
    card.dataset.trial = slot;
  }
  return true;
}

// The card is on the opposite side of the window from the pointer.
function show(slot, x) {
  if (!fill(slot)) return;
  card.classList.toggle("left", x > innerWidth / 2);
  card.classList.toggle("kept", kept !== null);
  card.hidden = false;
  mark(slot);
}

function mark(slot) {
  document.querySelectorAll(".shown").forEach((node) => node.classList.remove("shown"));
  if (slot === null) return;
  document.querySelectorAll(`a.point[href="#trial-${slot}"]`).forEach((node) => node.classList.add("shown"));
  document.getElementById(`row-${slot}`)?.classList.add("shown");
}

function hide() {
  card.hidden = true;
  mark(null);
}

function close() {
  if (kept === null) return;
  kept = null;
  history.replaceState(null, "", location.pathname + location.search);
  hide();
  back = true;
  from?.focus({ preventScroll: true });
  back = false;
}

function middle(node) {
  const box = node.getBoundingClientRect();
  return box.left + box.width / 2;
}

function slotOf(node) {
  const link = node.closest?.('a[href^="#trial-"]');
  return link ? [link, LINK.exec(link.getAttribute("href"))?.[1]] : [null, null];
}

for (const [over, out] of [["mouseover", "mouseout"], ["focusin", "focusout"]]) {
  document.addEventListener(over, (event) => {
    const [link, slot] = slotOf(event.target);
    if (link && kept === null && !back) show(slot, middle(link));
  });
  document.addEventListener(out, (event) => {
    if (slotOf(event.target)[0] && kept === null) hide();
  });
}

document.addEventListener("click", (event) => {
  const [link, slot] = slotOf(event.target);
  if (link) {
    event.preventDefault(); // prevents scrolling
    from = link;
    history.replaceState(null, "", `#trial-${slot}`);
    open();
  } else if (!card.contains(event.target)) {
    close();
  }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
card.querySelector(".close").addEventListener("click", close);

// A URL that ends in #trial-7 opens the card of trial 7.
function open() {
  const slot = LINK.exec(location.hash)?.[1];
  if (slot === undefined || !document.getElementById(`card-${slot}`)) return;
  kept = slot;
  show(slot, from ? middle(from) : 0);
}
addEventListener("hashchange", open);

function key(row, column) {
  const cell = row.cells[column];
  const text = cell.dataset.key;
  if (text === undefined) return null;
  return text !== "" && !Number.isNaN(Number(text)) ? Number(text) : text;
}

function sort(table, column, down) {
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [key(row, column), row]);
  rows.sort(([one], [other]) => {
    if (one === null || other === null) return (one === null) - (other === null); // unknown values come last
    const order = typeof one === typeof other && typeof one === "number" ? one - other : String(one).localeCompare(String(other));
    return down ? -order : order;
  });
  body.append(...rows.map(([, row]) => row));
}

for (const table of document.querySelectorAll("table.sorted")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const down = head.ariaSort === "ascending";
    heads.forEach((other) => { other.removeAttribute("aria-sort"); });
    head.ariaSort = down ? "descending" : "ascending";
    sort(table, column, down);
  }));
}

for (const input of document.querySelectorAll("input[aria-controls]")) {
  const rows = [...document.getElementById(input.getAttribute("aria-controls")).tBodies[0].rows];
  const count = input.closest(".filter").querySelector("output");
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    const left = rows.filter((row) => !row.hidden).length;
    count.textContent = left === rows.length ? "" : `${left} of ${rows.length}`;
  });
}

open();
