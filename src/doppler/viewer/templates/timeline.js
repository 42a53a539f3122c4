const FONT = "12px system-ui, sans-serif";
let labelRoom = 100;
const DEVICE_ROW = 24, LINK_ROW = 11, GAP = 6, AXIS = 26;
const span = Math.max(...data.traces.map(t => t.makespan)) || 1e-9;
const view = {from: 0, to: span};
let colorBy = "kind", picked = null, hovered = null, withLinks = true;

const panels = [...document.querySelectorAll(".trace canvas")].map((canvas, i) => {
  const panel = {canvas, trace: data.traces[i], rows: []};
  let dragged = null;
  canvas.addEventListener("pointerdown", event => {
    dragged = event.clientX;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => { dragged = null; });
  canvas.addEventListener("pointercancel", () => { dragged = null; });
  canvas.addEventListener("pointerleave", () => { hovered = null; hideTip(); redraw(); });
  canvas.addEventListener("pointermove", event => {
    if (dragged !== null) {
      const shift = (dragged - event.clientX) / plotWidth(canvas) * (view.to - view.from);
      dragged = event.clientX;
      move(view.from + shift, view.to + shift);
      return;
    }
    hover(panel, event);
  });
  canvas.addEventListener("wheel", event => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(Math.exp(event.deltaY * 0.003), timeAt(canvas, event.clientX));
  }, {passive: false});
  canvas.addEventListener("dblclick", event => zoom(0.4, timeAt(canvas, event.clientX)));
  return panel;
});

function plotWidth(canvas) { return canvas.clientWidth - labelRoom - 8; }
function timeAt(canvas, x) {
  const inside = x - canvas.getBoundingClientRect().left - labelRoom;
  return view.from + inside / plotWidth(canvas) * (view.to - view.from);
}
function move(from, to) {
  const width = Math.min(span, Math.max(span * 1e-6, to - from));
  view.from = Math.min(Math.max(0, from), span - width);
  view.to = view.from + width;
  redraw();
}
function zoom(factor, center = (view.from + view.to) / 2) {
  move(center - (center - view.from) * factor, center + (view.to - center) * factor);
}

// All panels share one room for names, so that their time axes stand below each other.
function measureNames() {
  const pen = panels[0].canvas.getContext("2d");
  pen.font = FONT;
  const longest = Math.max(0, ...data.traces.flatMap(t => t.lanes.map(lane => pen.measureText(lane.name).width)));
  const widest = panels[0].canvas.clientWidth;
  labelRoom = Math.min(Math.max(80, longest + pen.measureText("100%").width + 26), widest * 0.38);
}
function layOut(panel) {
  panel.rows = [];
  let y = AXIS;
  for (const lane of panel.trace.lanes) {
    if (!lane.device && !withLinks) continue;
    const height = lane.device ? DEVICE_ROW : lane.rows === 1 ? LINK_ROW + 3 : LINK_ROW;
    panel.rows.push({lane, y, height});
    y += height * lane.rows + GAP;
  }
  panel.height = y + 4;
}
function axis(pen, width, left, height) {
  const range = view.to - view.from;
  const [scale, unit] = secondsUnit(view.to);
  const rough = range / scale / Math.max(2, width / 110);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map(m => m * power).find(s => s >= rough * (1 - 1e-9));
  const places = Math.max(0, Math.min(12, -Math.floor(Math.log10(step) + 1e-9) + (step / power === 2.5 ? 1 : 0)));
  pen.textAlign = "center";
  for (let i = Math.ceil(view.from / scale / step - 1e-9); i * step * scale <= view.to * (1 + 1e-12); i++) {
    const x = left + (i * step * scale - view.from) / range * width;
    pen.fillStyle = theme.grid;
    pen.fillRect(Math.round(x), AXIS - 5, 1, height - AXIS + 5);
    pen.fillStyle = theme.muted;
    const text = (i * step).toFixed(places) + " " + unit;
    const half = pen.measureText(text).width / 2;
    pen.fillText(text, Math.min(Math.max(x, left + half), left + width + 8 - half), 11);
  }
}
function paint(panel) {
  const {canvas, trace} = panel, left = labelRoom, width = plotWidth(canvas);
  layOut(panel);
  const pen = sharpen(canvas, canvas.clientWidth, panel.height);
  pen.font = FONT;
  pen.textBaseline = "middle";
  axis(pen, width, left, panel.height);
  const categories = data[colorBy], range = view.to - view.from;
  const toX = time => left + (time - view.from) / range * width;
  for (const row of panel.rows) {
    const {lane, y, height} = row, tall = height * lane.rows;
    pen.textAlign = "left";
    pen.fillStyle = lane.device ? theme.ink : theme.muted;
    const share = Math.round(lane.utilization * 100) + "%";
    const room = pen.measureText("100%").width + 12;
    pen.fillText(clip(pen, lane.name, left - room - 6), 0, y + tall / 2);
    pen.textAlign = "right";
    pen.fillStyle = theme.muted;
    pen.fillText(share, left - 10, y + tall / 2);
    pen.fillStyle = theme.soft;
    pen.fillRect(left, y, width, tall);
    pen.save();
    pen.beginPath();
    pen.rect(left, y, width, tall);
    pen.clip();
    pen.textAlign = "left";
    const reached = new Float64Array(lane.rows).fill(-1);
    for (let k = 0; k < lane.op.length; k++) {
      if (lane.start[k] > view.to) break;
      const end = lane.start[k] + lane.length[k];
      if (end < view.from) continue;
      const sub = lane.row[k], x0 = toX(lane.start[k]), x1 = toX(end);
      // Items narrower than a pixel share it: the first one drawn there stands for all.
      if (x1 <= reached[sub]) continue;
      const op = lane.op[k], group = categories.index[op];
      const box = Math.max(0.7, x1 - x0 - (x1 - x0 > 4 ? 1 : 0)), top = y + sub * height;
      reached[sub] = Math.max(x1, x0 + 0.7);
      const color = lane.device ? categories.colors[group] : data.transfer;
      pen.globalAlpha = picked !== null && picked !== group ? 0.12 : lane.device ? 1 : 0.9;
      pen.fillStyle = color;
      pen.fillRect(x0, top + 1, box, height - 2);
      if (lane.device && box > 26) {
        pen.fillStyle = inkOn(color);
        const shown = Math.max(x0, left);
        pen.fillText(clip(pen, data.names[op], Math.min(x1, left + width) - shown - 8), shown + 4, top + height / 2 + 0.5);
      }
    }
    if (hovered !== null) {
      pen.globalAlpha = 1;
      pen.strokeStyle = theme.ink;
      pen.lineWidth = 1.5;
      for (const k of lane.places.get(hovered) || [])
        pen.strokeRect(toX(lane.start[k]), y + lane.row[k] * height + 1.5,
          Math.max(1.5, toX(lane.start[k] + lane.length[k]) - toX(lane.start[k]) - 1), height - 3);
    }
    pen.restore();
  }
  pen.globalAlpha = 1;
}
function hover(panel, event) {
  const box = panel.canvas.getBoundingClientRect();
  const y = event.clientY - box.top, time = timeAt(panel.canvas, event.clientX);
  const row = panel.rows.find(r => y >= r.y && y < r.y + r.height * r.lane.rows);
  const found = row && event.clientX - box.left >= labelRoom ? nearest(row, Math.floor((y - row.y) / row.height), time, panel) : -1;
  const op = found < 0 ? null : row.lane.op[found];
  if (op !== hovered) { hovered = op; redraw(); }
  if (op === null) { hideTip(); return; }
  const lane = row.lane, start = lane.start[found], length = lane.length[found];
  const rows = [[lane.device ? "device" : "transfer", lane.device ? lane.name : lane.route[lane.routeOf[found]]],
    ["start", seconds(start)], ["duration", seconds(length)], ["end", seconds(start + length)],
    ["kind", data.kind.values[data.kind.index[op]]], ["meta-op", data.meta.values[data.meta.index[op]]]];
  if (!lane.device && !lane.route.includes(lane.name)) rows.splice(1, 0, ["channel", lane.name]);
  showTip(event, data.names[op], rows);
}
function nearest(row, sub, time, panel) {
  const {lane} = row, slack = (view.to - view.from) / plotWidth(panel.canvas) * 2;
  let best = -1, distance = slack;
  for (let k = 0; k < lane.op.length && lane.start[k] <= time + slack; k++) {
    if (lane.row[k] !== sub) continue;
    const off = Math.max(lane.start[k] - time, time - lane.start[k] - lane.length[k], 0);
    if (off === 0) { best = k; distance = 0; } else if (off < distance) { best = k; distance = off; }
  }
  return best;
}

let queued = false;
function redraw() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => { queued = false; panels.forEach(paint); });
}
function legend() { drawLegend(document.getElementById("legend"), data[colorBy], i => { picked = i; redraw(); }); }

for (const trace of data.traces) for (const lane of trace.lanes) {
  lane.places = new Map();
  lane.op.forEach((op, k) => lane.places.has(op) ? lane.places.get(op).push(k) : lane.places.set(op, [k]));
}
document.getElementById("color").addEventListener("change", event => { colorBy = event.target.value; picked = null; legend(); redraw(); });
document.getElementById("links").addEventListener("change", event => { withLinks = event.target.checked; redraw(); });
document.getElementById("in").addEventListener("click", () => zoom(0.5));
document.getElementById("out").addEventListener("click", () => zoom(2));
document.getElementById("fit").addEventListener("click", () => move(0, span));
addEventListener("resize", () => { measureNames(); redraw(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readTheme(); redraw(); });
legend();
measureNames();
panels.forEach(paint);
