// Filters the cards of the gallery by text, family, work and decoding state; the address keeps the choice.
"use strict";

const controls = document.getElementById("gallery-controls");
const cards = [...document.querySelectorAll(".gallery-card")];
const fields = ["text", "family", "work", "state"];

function show() {
  const chosen = Object.fromEntries(fields.map((name) => [name, controls.elements[name].value]));
  const words = chosen.text.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const card of cards) {
    const text = card.textContent.toLowerCase();
    const visible =
      words.every((word) => text.includes(word)) &&
      ["family", "work", "state"].every((name) => !chosen[name] || card.dataset[name] === chosen[name]);
    card.hidden = !visible;
    count += visible;
  }
  document.getElementById("gallery-count").textContent = `${count} of ${cards.length} designs`;
  const query = new URLSearchParams(Object.entries(chosen).filter(([, value]) => value)).toString();
  history.replaceState(null, "", query ? `?${query}` : location.pathname);
}

for (const [name, value] of new URLSearchParams(location.search)) {
  if (fields.includes(name)) controls.elements[name].value = value;
}
controls.addEventListener("input", show);
controls.addEventListener("submit", (event) => event.preventDefault());
show();
