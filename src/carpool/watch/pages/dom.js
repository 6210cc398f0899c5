// Elements out of code. Text is text, whatever is in it: nothing here makes HTML of a string.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function el(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function filled(made, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made && name !== "list") made[name] = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

// Set text only where it changes, so that nothing is read out twice.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// New children, with the focus where it was: at the element with the same data-focus.
export function refill(node, ...children) {
  const focused = node.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  node.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
  if (focused) node.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
}

export function meter(share, label) {
  const part = Math.min(1, Math.max(0, share || 0));
  const fill = el("i");
  fill.style.width = `${100 * part}%`;
  return el(
    "span",
    {
      class: part >= 0.9 ? "meter full" : "meter", role: "meter", "aria-label": label,
      "aria-valuemin": "0", "aria-valuemax": "100", "aria-valuenow": String(Math.round(100 * part)),
    },
    fill,
  );
}

// Bars of equal width, the largest as high as the picture. Values may be null: no data, no bar.
export function bars(values, label) {
  const top = Math.max(1, ...values.map((value) => value ?? 0));
  const step = 100 / Math.max(1, values.length);
  const drawn = values.map((value, number) => {
    const height = value ? Math.max(1, (100 * value) / top) : 0;
    return svg("rect", {
      x: number * step + step * 0.12, y: 100 - height, width: step * 0.76, height,
    });
  });
  return svg(
    "svg",
    { class: "bars", viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "aria-label": label },
    ...drawn,
  );
}

export function spark(values, label) {
  const known = values.filter((value) => value !== null && value !== undefined);
  if (known.length < 2) return el("span", { class: "muted small" }, "–");
  const top = Math.max(...known) || 1;
  const points = values
    .map((value, number) => [value, (100 * number) / (values.length - 1)])
    .filter(([value]) => value !== null && value !== undefined)
    .map(([value, x]) => `${x.toFixed(1)},${(22 - (20 * value) / top).toFixed(1)}`);
  return svg(
    "svg",
    { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", role: "img", "aria-label": label },
    svg("polyline", { points: points.join(" ") }),
  );
}
