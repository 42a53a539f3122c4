const canvas = document.querySelector("#stage canvas"), stage = document.getElementById("stage");
const n = data.names.length, {x, y, src, dst} = data;
const columns = data.size[0] + 1, rows = data.size[1] + 1;
const MAX_X = 190, MAX_Y = 44, PAD = 24;
// Columns and rows have scales of their own, so that a deep or a tall graph fills the page too.
const view = {sx: 1, sy: 1, left: 0, top: 0, width: 0, height: 0};
let colorBy = data.first, picked = null, hovered = -1, matches = null, at = -1;

const inputs = Array.from({length: n}, () => []), outputs = Array.from({length: n}, () => []);
for (let e = 0; e < src.length; e++) { outputs[src[e]].push(dst[e]); inputs[dst[e]].push(src[e]); }
const byColumn = new Map();
for (let op = 0; op < n; op++) byColumn.has(x[op]) ? byColumn.get(x[op]).push(op) : byColumn.set(x[op], [op]);

const fitX = () => Math.min(MAX_X, (view.width - 2 * PAD) / columns);
const fitY = () => Math.min(MAX_Y, (view.height - 2 * PAD) / rows);
const screenX = column => (column + 0.5) * view.sx - view.left;
const screenY = row => (row + 0.5) * view.sy - view.top;

function fit() {
  view.sx = fitX();
  view.sy = fitY();
  view.left = -(view.width - columns * view.sx) / 2;
  view.top = -(view.height - rows * view.sy) / 2;
  redraw();
}
function zoom(factor, px = view.width / 2, py = view.height / 2) {
  const column = (px + view.left) / view.sx, row = (py + view.top) / view.sy;
  view.sx = Math.min(MAX_X, Math.max(fitX(), view.sx * factor));
  view.sy = Math.min(MAX_Y, Math.max(fitY(), view.sy * factor));
  view.left = column * view.sx - px;
  view.top = row * view.sy - py;
  keepInside();
  redraw();
}
function keepInside() {
  const wide = columns * view.sx, tall = rows * view.sy;
  view.left = wide <= view.width ? -(view.width - wide) / 2 : Math.min(Math.max(view.left, -PAD * 2), wide - view.width + PAD * 2);
  view.top = tall <= view.height ? -(view.height - tall) / 2 : Math.min(Math.max(view.top, -PAD * 2), tall - view.height + PAD * 2);
}
function boxSize() {
  return [Math.max(2, Math.min(150, view.sx * 0.72)), Math.max(2, Math.min(28, view.sy * 0.7))];
}
function edgePath(pen, e, half, curved) {
  const ax = screenX(x[src[e]]) + half, ay = screenY(y[src[e]]);
  const bx = screenX(x[dst[e]]) - half, by = screenY(y[dst[e]]);
  pen.moveTo(ax, ay);
  if (curved) {
    const bend = Math.max(8, Math.min(90, Math.abs(bx - ax) / 2));
    pen.bezierCurveTo(ax + bend, ay, bx - bend, by, bx, by);
  } else pen.lineTo(bx, by);
}
function paint() {
  const pen = sharpen(canvas, view.width, view.height);
  const [wide, tall] = boxSize(), half = wide / 2;
  pen.fillStyle = theme.page;
  pen.fillRect(0, 0, view.width, view.height);
  const shown = [];
  for (let e = 0; e < src.length; e++) {
    const ax = screenX(x[src[e]]), bx = screenX(x[dst[e]]), ay = screenY(y[src[e]]), by = screenY(y[dst[e]]);
    if (bx < 0 || ax > view.width || Math.max(ay, by) < 0 || Math.min(ay, by) > view.height) continue;
    shown.push(e);
  }
  const curved = shown.length < 4000;
  pen.strokeStyle = theme.muted;
  pen.globalAlpha = Math.max(0.12, Math.min(0.55, 900 / Math.max(1, shown.length)));
  pen.lineWidth = shown.length > 2000 ? 0.6 : 1;
  // Short paths: one stroke of many crossing segments is slow in every browser.
  for (let i = 0; i < shown.length; i += 500) {
    pen.beginPath();
    for (const e of shown.slice(i, i + 500)) edgePath(pen, e, half, curved);
    pen.stroke();
  }
  pen.globalAlpha = 1;
  if (hovered >= 0) {
    pen.strokeStyle = theme.accent;
    pen.lineWidth = 2;
    pen.beginPath();
    for (const e of shown) if (src[e] === hovered || dst[e] === hovered) edgePath(pen, e, half, true);
    pen.stroke();
  }
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  const groups = data.groups[colorBy], near = new Set(hovered < 0 ? [] : [hovered, ...inputs[hovered], ...outputs[hovered]]);
  const rounded = wide > 10 && tall > 8;
  for (let op = 0; op < n; op++) {
    const cx = screenX(x[op]), cy = screenY(y[op]);
    if (cx < -half || cx > view.width + half || cy < -tall || cy > view.height + tall) continue;
    const group = groups.index[op], color = groups.colors[group];
    const faint = (picked !== null && picked !== group) || (matches && !matches.has(op));
    pen.globalAlpha = faint ? 0.15 : 1;
    pen.fillStyle = color;
    pen.beginPath();
    if (rounded) pen.roundRect(cx - half, cy - tall / 2, wide, tall, 4); else pen.rect(cx - half, cy - tall / 2, wide, tall);
    pen.fill();
    if (near.has(op) || (matches && !faint)) {
      pen.strokeStyle = op === hovered || op === at ? theme.ink : theme.accent;
      pen.lineWidth = 2;
      pen.stroke();
    }
    if (wide > 44 && tall > 13) {
      pen.fillStyle = inkOn(color);
      pen.textAlign = "center";
      pen.fillText(clip(pen, data.names[op], wide - 10), cx, cy + 0.5);
    }
  }
  pen.globalAlpha = 1;
}
function opAt(px, py) {
  const [wide, tall] = boxSize(), column = (px + view.left) / view.sx - 0.5;
  const slackX = Math.max(wide, 8) / 2, slackY = Math.max(tall, 8) / 2;
  let best = -1, nearest = Infinity;
  for (let c = Math.ceil(column - slackX / view.sx); c <= column + slackX / view.sx; c++)
    for (const op of byColumn.get(c) || []) {
      const dx = Math.abs(screenX(x[op]) - px), dy = Math.abs(screenY(y[op]) - py);
      if (dx <= slackX && dy <= slackY && dx + dy < nearest) { best = op; nearest = dx + dy; }
    }
  return best;
}
function describe(op) {
  const facts = [["kind", data.groups.kind.values[data.groups.kind.index[op]]],
    ["meta-op", `${data.groups.meta.values[data.groups.meta.index[op]]}, shard ${data.shards[op]}`]];
  if (data.groups.device) facts.push(["device", data.groups.device.values[data.groups.device.index[op]]]);
  for (const cost of data.costs) {
    const value = cost.values[op];
    facts.push([cost.name, cost.unit === "s" ? seconds(value) : decimal(value, cost.unit)]);
  }
  facts.push(["depth", data.depth[op]], ["inputs", inputs[op].length], ["consumers", outputs[op].length], ["op", op]);
  return facts;
}

let dragged = null;
canvas.addEventListener("pointerdown", event => {
  dragged = [event.clientX, event.clientY];
  canvas.setPointerCapture(event.pointerId);
  canvas.classList.add("moving");
  hideTip();
});
for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { dragged = null; canvas.classList.remove("moving"); });
canvas.addEventListener("pointermove", event => {
  if (dragged) {
    view.left -= event.clientX - dragged[0];
    view.top -= event.clientY - dragged[1];
    dragged = [event.clientX, event.clientY];
    keepInside();
    redraw();
    return;
  }
  const box = canvas.getBoundingClientRect();
  const op = opAt(event.clientX - box.left, event.clientY - box.top);
  if (op !== hovered) { hovered = op; redraw(); }
  if (op < 0) hideTip(); else showTip(event, data.names[op], describe(op));
});
canvas.addEventListener("pointerleave", () => { hovered = -1; hideTip(); redraw(); });
canvas.addEventListener("wheel", event => {
  event.preventDefault();
  const box = canvas.getBoundingClientRect();
  zoom(Math.exp(-event.deltaY * 0.0015), event.clientX - box.left, event.clientY - box.top);
}, {passive: false});

const search = document.getElementById("search"), status = document.getElementById("found");
function find() {
  const wanted = search.value.trim().toLowerCase();
  matches = null;
  at = -1;
  if (wanted) {
    matches = new Set();
    for (let op = 0; op < n; op++) if (data.names[op].toLowerCase().includes(wanted)) matches.add(op);
  }
  status.textContent = matches ? `${matches.size} of ${n}` : "";
  redraw();
}
function next() {
  if (!matches || !matches.size) return;
  const all = [...matches];
  at = all[(all.indexOf(at) + 1) % all.length];
  status.textContent = `${all.indexOf(at) + 1} of ${all.length}`;
  view.sx = MAX_X;
  view.sy = MAX_Y;
  view.left = (x[at] + 0.5) * view.sx - view.width / 2;
  view.top = (y[at] + 0.5) * view.sy - view.height / 2;
  keepInside();
  redraw();
}
search.addEventListener("input", find);
search.addEventListener("keydown", event => { if (event.key === "Enter") next(); });

let queued = false;
function redraw() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => { queued = false; paint(); });
}
function measure() {
  view.width = stage.clientWidth;
  view.height = stage.clientHeight;
}
function legend() { drawLegend(document.getElementById("legend"), data.groups[colorBy], i => { picked = i; redraw(); }); }
const select = document.getElementById("color");
select.value = colorBy;
select.addEventListener("change", () => { colorBy = select.value; picked = null; legend(); redraw(); });
document.getElementById("in").addEventListener("click", () => zoom(1.6));
document.getElementById("out").addEventListener("click", () => zoom(1 / 1.6));
document.getElementById("fit").addEventListener("click", fit);
addEventListener("resize", () => {
  const whole = view.sx <= fitX() && view.sy <= fitY();
  measure();
  // Keeps what is being looked at, and at least fills the page.
  if (whole) fit(); else zoom(1);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readTheme(); redraw(); });
legend();
measure();
fit();
paint();
