//! The timeline as a page that explains itself on hover and can be zoomed.
//!
//! The page is the drawing of `svg` with every probe in it, and a script that moves what is there along the axis. It
//! loads nothing.

use super::Timeline;
use super::svg::{self, Detail, Escaped};

/// Draws a timeline as one HTML document.
pub fn html(timeline: &Timeline) -> String {
    let drawing = svg::draw(timeline, Detail::Zoomable);
    let script = SCRIPT
        .replace("@LEFT@", &svg::LEFT.to_string())
        .replace("@RIGHT@", &svg::RIGHT.to_string())
        .replace("@LABEL@", &svg::LABEL_HEIGHT.to_string())
        .replace("@LIFT@", &svg::LABEL_LIFT.to_string())
        .replace("@GAP@", &svg::LABEL_GAP.to_string())
        .replace("@END@", &timeline.end.as_micros().max(1_000_000).to_string())
        .replace("@STEPS@", &format!("{:?}", svg::AXIS_STEPS))
        .replace("@MAX_STEPS@", &svg::MAX_AXIS_STEPS.to_string());
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>{pod}</title>\n<style>{PAGE_STYLE}</style>\n</head>\n<body>\n\
         <main>\n<p class=\"help\">Wheel or + and - to zoom, drag or arrow keys to move, double click or 0 for all. \
         Hover for details.</p>\n{drawing}\n</main>\n<div id=\"tip\" role=\"tooltip\"></div>\n\
         <script>\n{script}</script>\n</body>\n</html>\n",
        pod = Escaped(&timeline.pod.to_string()),
    )
}

const PAGE_STYLE: &str = "\
:root{color-scheme:light dark}body{margin:0;background:#f6f8fa;font:13px system-ui,sans-serif;color:#24292f}\
main{max-width:1400px;margin:16px auto;padding:0 16px}svg{width:100%;height:auto;display:block;cursor:grab;\
border:1px solid #d0d7de;border-radius:6px;touch-action:none}svg.drag{cursor:grabbing}.help{color:#6e7781;margin:0 0 8px}\
#tip{position:fixed;display:none;max-width:420px;padding:5px 9px;border-radius:5px;background:#24292f;color:#fff;\
font-size:12px;pointer-events:none;white-space:pre-wrap;z-index:9}\
@media (prefers-color-scheme:dark){body{background:#010409;color:#e6edf3}svg{border-color:#30363d}\
#tip{background:#e6edf3;color:#0d1117}}";

/// Keeps a window of time and lays everything out for it: points by `data-t`, stretches by `data-a` and `data-b`.
const SCRIPT: &str = r##""use strict";
const LEFT = @LEFT@, RIGHT = @RIGHT@, LABEL = @LABEL@, LIFT = @LIFT@, GAP = @GAP@, END = @END@, STEPS = @STEPS@, MAX_STEPS = @MAX_STEPS@;
const SMALLEST = 10000;
const NS = "http://www.w3.org/2000/svg";
const svg = document.querySelector("svg");
const tip = document.getElementById("tip");
const axis = svg.querySelector("#axis");
const points = [...svg.querySelectorAll("g[data-t]:not(.tag)")];
const tags = [...svg.querySelectorAll("g.tag")];
const stretches = [...svg.querySelectorAll("rect[data-a]")];
const words = [...svg.querySelectorAll("text[data-a]")];
const rules = [...svg.querySelectorAll("line[data-v]")];
let from = 0, until = END;

// Native tooltips are slow; ours read the same text.
for (const title of [...svg.querySelectorAll("title")]) {
  title.parentNode.dataset.tip = title.textContent;
  title.remove();
}

const x = t => LEFT + (RIGHT - LEFT) * (t - from) / (until - from);
const show = (element, visible) => visible ? element.removeAttribute("display") : element.setAttribute("display", "none");
const inside = at => at >= LEFT - 0.5 && at <= RIGHT + 0.5;

function layout() {
  for (const point of points) {
    const at = x(+point.dataset.t);
    show(point, inside(at));
    if (inside(at)) point.setAttribute("transform", `translate(${at.toFixed(2)} ${point.dataset.y})`);
  }
  for (const stretch of stretches) {
    const a = Math.max(x(+stretch.dataset.a), LEFT), b = Math.min(x(+stretch.dataset.b), RIGHT);
    show(stretch, b >= LEFT && a <= RIGHT);
    stretch.setAttribute("x", a);
    stretch.setAttribute("width", Math.max(b - a, 0.8));
  }
  for (const word of words) {
    const a = Math.max(x(+word.dataset.a), LEFT), b = Math.min(x(+word.dataset.b), RIGHT);
    show(word, b - a > word.textContent.length * 6 + 8);
    word.setAttribute("x", a + 4);
  }
  for (const rule of rules) {
    const at = x(+rule.dataset.v);
    show(rule, inside(at));
    rule.setAttribute("x1", at);
    rule.setAttribute("x2", at);
  }
  layoutTags();
  layoutAxis();
}

function layoutTags() {
  const lanes = new Map();
  for (const tag of tags) {
    const at = x(+tag.dataset.t), y = +tag.dataset.y, width = +tag.dataset.w;
    if (!lanes.has(y)) lanes.set(y, new Array(+tag.dataset.rows).fill(-1e9));
    const ends = lanes.get(y);
    const leftwards = at + width + GAP > RIGHT;
    const left = leftwards ? at - width - GAP : at;
    const row = inside(at) ? ends.findIndex(end => end < left) : -1;
    show(tag, row >= 0);
    if (row < 0) continue;
    ends[row] = leftwards ? at : at + width + 2 * GAP;
    const textY = y - LIFT - row * LABEL, [line, text] = tag.children;
    line.setAttribute("x1", at);
    line.setAttribute("x2", at);
    line.setAttribute("y2", textY - 7);
    text.setAttribute("x", leftwards ? at - GAP : at + GAP);
    text.setAttribute("text-anchor", leftwards ? "end" : "start");
    text.setAttribute("y", textY);
  }
}

function label(ms) {
  if (ms === 0) return "0";
  const rest = ms % 60000;
  const h = Math.floor(ms / 3600000), m = Math.floor(ms / 60000) % 60;
  const s = rest ? `${+(rest / 1000).toFixed(3)}s` : "";
  return (h ? `${h}h` : "") + (m ? `${m}m` : "") + s;
}

function layoutAxis() {
  const top = +axis.dataset.top, y = +axis.dataset.y;
  while (axis.children.length > 1) axis.lastChild.remove();
  const range = (until - from) / 1000;
  const step = STEPS.find(s => range / s <= MAX_STEPS) || Math.ceil(range / MAX_STEPS / 86400000) * 86400000;
  for (let ms = Math.ceil(from / 1000 / step) * step; ms * 1000 <= until; ms += step) {
    const at = x(ms * 1000);
    const line = document.createElementNS(NS, "line");
    for (const [key, value] of Object.entries({class: "grid", x1: at, x2: at, y1: top, y2: y})) line.setAttribute(key, value);
    const text = document.createElementNS(NS, "text");
    for (const [key, value] of Object.entries({class: "dim", x: at, y: y + 14, "text-anchor": "middle"})) text.setAttribute(key, value);
    text.textContent = label(ms);
    axis.append(line, text);
  }
}

function view(a, b) {
  const range = Math.min(Math.max(b - a, SMALLEST), END);
  from = Math.min(Math.max(a, 0), END - range);
  until = from + range;
  layout();
}

function zoom(factor, at) {
  view(at - (at - from) * factor, at + (until - at) * factor);
}

function timeAt(event) {
  const box = svg.getBoundingClientRect();
  const user = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
  return from + (until - from) * Math.min(Math.max((user - LEFT) / (RIGHT - LEFT), 0), 1);
}

svg.addEventListener("wheel", event => {
  event.preventDefault();
  zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event));
}, {passive: false});
svg.addEventListener("dblclick", () => view(0, END));
let grip = null;
svg.addEventListener("pointerdown", event => {
  grip = timeAt(event);
  svg.setPointerCapture(event.pointerId);
  svg.classList.add("drag");
});
svg.addEventListener("pointerup", () => { grip = null; svg.classList.remove("drag"); });
svg.addEventListener("pointermove", event => {
  if (grip !== null) {
    const shift = grip - timeAt(event);
    view(from + shift, until + shift);
  }
  const target = document.elementFromPoint(event.clientX, event.clientY);
  const owner = target && target.closest("[data-tip]");
  tip.style.display = owner && grip === null ? "block" : "none";
  if (!owner) return;
  tip.textContent = owner.dataset.tip;
  tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8) + "px";
});
svg.addEventListener("pointerleave", () => { tip.style.display = "none"; });
addEventListener("keydown", event => {
  const range = until - from, middle = (from + until) / 2;
  if (event.key === "+" || event.key === "=") zoom(0.7, middle);
  else if (event.key === "-") zoom(1.4, middle);
  else if (event.key === "0") view(0, END);
  else if (event.key === "ArrowLeft") view(from - range * 0.2, until - range * 0.2);
  else if (event.key === "ArrowRight") view(from + range * 0.2, until + range * 0.2);
});
layout();
"##;
