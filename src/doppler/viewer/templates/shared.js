"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
let theme = {};
function readTheme() {
  for (const name of ["page", "card", "ink", "muted", "line", "soft", "accent", "grid"])
    theme[name] = css("--" + name);
}
readTheme();

// Dark text on light fills, light text on dark ones (relative luminance of WCAG 2.1).
const inkOn = (() => {
  const known = new Map();
  return color => {
    if (!known.has(color)) {
      const light = [1, 3, 5].map(i => parseInt(color.slice(i, i + 2), 16) / 255)
        .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
      const y = 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2];
      known.set(color, y > 0.2 ? "#10151c" : "#ffffff");
    }
    return known.get(color);
  };
})();

function figures(value, count = 4) {
  if (value === 0) return "0";
  const whole = Math.floor(Math.log10(Math.abs(value))) + 1;
  const rounded = Number(value.toPrecision(count));
  return rounded.toFixed(Math.min(12, Math.max(0, count - whole)));
}
function secondsUnit(largest) {
  for (const unit of [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]]) if (largest >= unit[0] * 0.99995) return unit;
  return largest > 0 ? [1e-9, "ns"] : [1, "s"];
}
function seconds(value) {
  if (value === null) return "cannot run";
  const [scale, unit] = secondsUnit(value);
  return figures(value / scale) + " " + unit;
}
function decimal(value, unit) {
  for (const [scale, prefix] of [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (value >= scale) return figures(value / scale, 3) + " " + prefix + unit;
  return figures(value, 3) + " " + unit;
}

const tip = document.getElementById("tip");
function showTip(event, title, rows) {
  const heading = document.createElement("b");
  heading.textContent = title;
  const list = document.createElement("dl");
  for (const [term, value] of rows) {
    list.append(Object.assign(document.createElement("dt"), {textContent: term}),
      Object.assign(document.createElement("dd"), {textContent: value}));
  }
  tip.replaceChildren(heading, list);
  tip.style.display = "block";
  const box = tip.getBoundingClientRect();
  const left = event.clientX + 14 + box.width > innerWidth ? event.clientX - 14 - box.width : event.clientX + 14;
  const top = event.clientY + 14 + box.height > innerHeight ? event.clientY - 14 - box.height : event.clientY + 14;
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = Math.max(4, top) + "px";
}
function hideTip() { tip.style.display = "none"; }

const LEGEND_LIMIT = 40;
function drawLegend(element, categories, onPick) {
  element.replaceChildren();
  categories.values.slice(0, LEGEND_LIMIT).forEach((value, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.title = value;
    const swatch = document.createElement("i");
    swatch.style.background = categories.colors[i];
    const name = Object.assign(document.createElement("span"), {textContent: value || "(none)"});
    const count = Object.assign(document.createElement("small"), {textContent: categories.counts[i]});
    button.append(swatch, name, count);
    button.addEventListener("mouseenter", () => onPick(i));
    button.addEventListener("mouseleave", () => onPick(null));
    button.addEventListener("focus", () => onPick(i));
    button.addEventListener("blur", () => onPick(null));
    element.append(button);
  });
  const more = categories.values.length - LEGEND_LIMIT;
  if (more > 0) element.append(Object.assign(document.createElement("span"),
    {className: "muted", textContent: `and ${more} more; colors repeat`}));
}
function sharpen(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = height + "px";
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return pen;
}
function clip(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pen.measureText(text.slice(0, middle) + "…").width <= width) low = middle; else high = middle - 1;
  }
  return low >= 5 ? text.slice(0, low) + "…" : "";  // fewer letters tell nothing
}
