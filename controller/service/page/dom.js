// Elements without markup. Text from jobs is untrusted: here it can only ever become text.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. Props: `onclick`-like listeners, `style` (an object of CSS properties), and
 * attributes; null, undefined and false leave one out. Children: nodes, text, arrays of them. */
export function h(tag, props, ...children) {
  return filled(document.createElement(tag), props, children);
}

/** An SVG element, likewise. */
export function s(tag, props, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

/** Put `children` in the place of what is in `parent`. */
export function fill(parent, ...children) {
  parent.replaceChildren(...flat(children));
  return parent;
}

/** Set text, without touching the page if it says so already: screen readers need not repeat. */
export function say(element, text) {
  const told = String(text);
  if (element.textContent !== told) element.textContent = told;
}

function filled(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") setStyle(element, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...flat(children));
  return element;
}

function setStyle(element, properties) {
  for (const [name, value] of Object.entries(properties)) element.style.setProperty(name, value);
}

function flat(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false);
}
