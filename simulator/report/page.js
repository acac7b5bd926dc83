// What lies under the pointer, in words: the text of the nearest data-t.
const tip = document.createElement("div");
tip.id = "tip";
tip.hidden = true;
tip.setAttribute("aria-hidden", "true"); // the tables say the same
document.body.append(tip);
function point(event) {
  const found = event.target.closest ? event.target.closest("[data-t]") : null;
  tip.hidden = !found;
  if (!found) return;
  tip.textContent = found.dataset.t;
  const box = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, innerWidth - box.width - 6);
  const below = event.clientY + 18 + box.height < innerHeight;
  tip.style.left = Math.max(6, left) + "px";
  tip.style.top = (below ? event.clientY + 18 : event.clientY - box.height - 10) + "px";
}
document.addEventListener("pointermove", point);
document.addEventListener("pointerdown", point);
document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
