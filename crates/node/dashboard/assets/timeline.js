// A pod's story, drawn: one lane per container with its states, its probes and what was done to it.
import { clock, duration, el } from "./dom.js";

const KINDS = ["startup", "liveness", "readiness"];
const MAX_PROBES = 6000;
const MAX_MARKS = 2000;
const STEPS = [100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 3e4, 6e4, 12e4, 3e5, 6e5, 18e5, 36e5, 72e5, 216e5, 864e5];

// What the lines of one container say.
class Lane {
  constructor(name) {
    this.name = name;
    this.segments = [];
    this.probes = { startup: [], liveness: [], readiness: [] };
    this.marks = [];
    this.stopping = false;
  }

  get open() {
    const last = this.segments.at(-1);
    return last && last.until === null ? last : null;
  }

  change(state, at) {
    const open = this.open;
    if (open) {
      if (open.state === state) return;
      open.until = Math.max(at, open.from);
    }
    if (state) this.segments.push({ state, from: at, until: null });
  }

  // What the status said was the state of now; the lines tell how it was before.
  correct(state) {
    const open = this.open;
    if (open?.seeded) Object.assign(open, { state, seeded: false });
  }

  mark(at, sort, label, detail) {
    this.marks.push({ at, sort, label, detail: detail ?? label });
    if (this.marks.length > MAX_MARKS) this.marks.shift();
  }

  push(line, at) {
    switch (line.type) {
      case "created":
        this.stopping = false;
        this.change("starting", at);
        break;
      case "running":
        this.stopping = false;
        this.change("starting", at);
        if (line.restartCount > 0) this.mark(at, "restart", `restart ${line.restartCount}`);
        break;
      case "started":
        this.correct("starting");
        if (!this.stopping) this.change("started", at);
        break;
      case "ready":
        this.correct("started");
        if (!this.stopping) this.change("ready", at);
        break;
      case "unready":
        if (!this.stopping && this.open?.state === "ready") this.change("started", at);
        break;
      case "probe":
        this.probe(line, at);
        break;
      case "killing":
        this.stopping = true;
        this.change("terminating", at);
        this.mark(at, "kill", killed(line.reason), `${killed(line.reason)}, grace period ${duration(line.gracePeriodSeconds)} (${line.graceFrom})`);
        break;
      case "signal":
        this.mark(at, "signal", line.signal);
        break;
      case "graceExceeded":
        this.mark(at, "kill", "SIGKILL", "SIGKILL: it still ran when the grace period was over");
        break;
      case "hook":
        this.mark(at, "hook", line.hook, `${line.hook} hook: ${line.outcome} after ${duration(line.seconds)}`);
        break;
      case "exited":
        this.change(null, at);
        this.mark(at, "exit", `exit ${line.exitCode}`, `exit code ${line.exitCode} (${line.reason})`);
        break;
      case "backoff":
        this.change("backoff", at);
        break;
      default:
    }
  }

  probe(line, at) {
    const list = this.probes[line.kind];
    if (!list) return;
    const result = line.outcome === "success" ? "ok" : line.outcome === "failure" && line.counted ? "bad" : "other";
    // Liveness is asked for only once a container has started, which the kept history of ends does not tell otherwise.
    if (line.kind === "liveness" && !line.look && !this.stopping && this.open?.state === "starting") this.change("started", at);
    list.push({ at, result, line });
    if (list.length > MAX_PROBES) list.shift();
  }
}

function killed(reason) {
  const words = {
    startupProbe: "killed by startup", livenessProbe: "killed by liveness", deleted: "deleted", stopped: "stopped", evicted: "evicted", nodeShutdown: "node shut down",
    restarted: "restart asked", allContainersRestarting: "all containers restart", imageChanged: "image changed", sandboxChanged: "sandbox changed", deadline: "past its deadline",
    postStartHook: "postStart failed", completed: "completed", nodeShutdown: "shutdown",
  };
  return words[reason] ?? reason;
}

// One line in words, for lists and screen readers.
export function describe(line) {
  switch (line.type) {
    case "probe": return `${line.kind} probe: ${line.outcome}${line.detail ? `: ${line.detail}` : ""}`;
    case "killing": return `${killed(line.reason)}, grace period ${duration(line.gracePeriodSeconds)}`;
    case "signal": return `${line.signal} sent`;
    case "graceExceeded": return "SIGKILL: still there when the grace period was over";
    case "hook": return `${line.hook} hook: ${line.outcome} after ${duration(line.seconds)}`;
    case "exited": return `exited with code ${line.exitCode} (${line.reason})`;
    case "backoff": return `waits ${duration(line.seconds)} before it starts again`;
    case "running": return line.restartCount > 0 ? `runs again, restart ${line.restartCount}` : "runs";
    case "phase": return `phase ${line.phase}`;
    case "warning": return line.message ?? "warning";
    case "agentRestarted": return "the agent was restarted";
    case "event": return `${line.reason}: ${line.message}`;
    default: return line.type;
  }
}

export class Story {
  constructor() {
    this.lanes = new Map();
    this.notes = [];
    this.lines = [];
    this.first = Infinity;
  }

  lane(name) {
    if (!this.lanes.has(name)) this.lanes.set(name, new Lane(name));
    return this.lanes.get(name);
  }

  push(line, at) {
    this.first = Math.min(this.first, at);
    if (line.container) this.lane(line.container).push(line, at);
    else if (line.type === "agentRestarted" || line.type === "warning") {
      this.notes.push({ at, label: line.type === "warning" ? "warning" : "agent", detail: describe(line) });
    }
    if (line.type !== "probe" || (line.outcome === "failure" && line.counted)) {
      this.lines.push({ at, line });
      if (this.lines.length > MAX_MARKS) this.lines.shift();
    }
  }

  // What the status says about containers of which no line has told.
  seed(container, state, since) {
    const lane = this.lane(container);
    if (lane.open || !["ready", "started", "starting"].includes(state)) return;
    const from = Math.max(since, lane.segments.at(-1)?.until ?? 0);
    lane.change(state, from);
    lane.open.seeded = true;
    this.first = Math.min(this.first, from);
  }
}

const HEAD = 15, BAR = 16, ROW = 11, GAP = 12, AXIS = 18;

// A canvas that shows a window of time. `view` says which: { span, end }, with end null while it follows the clock.
export class TimelineView {
  constructor(story, view, options = {}) {
    this.story = story;
    this.view = view;
    this.options = options;
    this.canvas = el("canvas", { role: "img", tabindex: "0" });
    this.tip = el("div", { class: "tip", hidden: true });
    this.root = el("div", { class: "timeline" }, this.canvas, this.tip);
    this.spots = [];
    this.listen();
  }

  get end() {
    return this.view.end ?? this.options.now();
  }

  listen() {
    const { canvas } = this;
    let dragged = null;
    canvas.addEventListener("pointerdown", (event) => {
      dragged = { x: event.clientX, end: this.end };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (dragged && Math.abs(event.clientX - dragged.x) > 3) {
        this.move(dragged.end - ((event.clientX - dragged.x) / this.plotWidth()) * this.view.span);
      }
      this.hover(event.offsetX, event.offsetY);
    });
    canvas.addEventListener("pointerup", () => { dragged = null; });
    canvas.addEventListener("pointercancel", () => { dragged = null; });
    canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoom(Math.exp(event.deltaY / 200));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const keys = {
        ArrowLeft: () => this.move(this.end - this.view.span / 8), ArrowRight: () => this.move(this.end + this.view.span / 8),
        "+": () => this.zoom(0.7), "=": () => this.zoom(0.7), "-": () => this.zoom(1.4),
        0: () => this.move(Infinity), End: () => this.move(Infinity), Home: () => this.move(this.story.first + this.view.span * 0.9),
      };
      const act = keys[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act();
    });
  }

  move(end) {
    const now = this.options.now();
    const follows = this.options.follows !== false;
    this.view.end = end >= now ? (follows ? null : now) : Math.max(end, (Number.isFinite(this.story.first) ? this.story.first : now) + this.view.span / 10);
    this.options.changed?.();
  }

  zoom(factor) {
    this.view.span = Math.min(7 * 864e5, Math.max(2e3, this.view.span * factor));
    this.options.changed?.();
  }

  left() {
    return this.canvas.clientWidth < 520 ? 8 : 92;
  }

  plotWidth() {
    return Math.max(50, this.canvas.clientWidth - this.left() - 8);
  }

  x(at) {
    return this.left() + ((at - (this.end - this.view.span)) / this.view.span) * this.plotWidth();
  }

  rows(lane) {
    return KINDS.filter((kind) => lane.probes[kind].length > 0);
  }

  draw() {
    const { canvas } = this;
    // A pod that has never run has nothing to draw.
    this.root.hidden = this.story.lanes.size === 0;
    const width = canvas.clientWidth;
    const box = canvas.getBoundingClientRect();
    if (width === 0 || box.bottom < -200 || box.top > innerHeight + 200) return;
    const lanes = [...this.story.lanes.values()];
    const narrow = width < 520;
    const height = lanes.reduce((sum, lane) => sum + HEAD + (narrow ? 12 : 0) + BAR + this.rows(lane).length * ROW + GAP, 0) + AXIS;
    const scale = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      canvas.style.height = `${height}px`;
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    this.spots = [];
    this.axis(pen, width, height);
    let y = 0;
    for (const lane of lanes) y = this.lane(pen, lane, y, narrow);
    this.label(lanes);
  }

  color(name) {
    return palette()[name];
  }

  axis(pen, width, height) {
    const from = this.end - this.view.span;
    const step = STEPS.find((step) => this.view.span / step <= Math.max(3, this.plotWidth() / 90)) ?? STEPS.at(-1);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "alphabetic";
    pen.textAlign = "center";
    for (let at = Math.ceil(from / step) * step; at <= this.end; at += step) {
      const x = Math.round(this.x(at)) + 0.5;
      pen.strokeStyle = this.color("grid");
      pen.beginPath();
      pen.moveTo(x, 0);
      pen.lineTo(x, height - AXIS + 2);
      pen.stroke();
      pen.fillStyle = this.color("soft");
      const label = this.options.label ? this.options.label(at) : clock(at);
      if (x > this.left() + 16 && x < width - 24) pen.fillText(label, x, height - 4);
    }
    for (const note of this.story.notes) {
      const x = this.x(note.at);
      if (x < this.left() || x > width - 8) continue;
      pen.strokeStyle = this.color("other");
      pen.setLineDash([3, 3]);
      pen.beginPath();
      pen.moveTo(x, 0);
      pen.lineTo(x, height - AXIS);
      pen.stroke();
      pen.setLineDash([]);
      this.spots.push({ x, y: 0, h: height, text: `${clock(note.at)}\n${note.detail}` });
    }
  }

  lane(pen, lane, top, narrow) {
    let y = top;
    pen.textAlign = "left";
    pen.fillStyle = this.color("ink");
    pen.font = "600 12px system-ui, sans-serif";
    if (narrow) {
      pen.fillText(lane.name, this.left(), y + 11);
      y += 12;
    } else {
      pen.fillText(fit(pen, lane.name, this.left() - 14), 2, y + HEAD + 12);
    }
    const bar = y + HEAD;
    this.segments(pen, lane, bar);
    this.marks(pen, lane, bar);
    y = bar + BAR + 2;
    for (const kind of this.rows(lane)) {
      if (!narrow) {
        pen.fillStyle = this.color("soft");
        pen.font = "10.5px system-ui, sans-serif";
        pen.textAlign = "left";
        pen.fillText(kind, 2, y + 8);
      }
      this.ticks(pen, lane.probes[kind], y);
      y += ROW;
    }
    return y + GAP - 2;
  }

  segments(pen, lane, y) {
    const [from, until] = [this.end - this.view.span, this.end];
    for (const segment of lane.segments) {
      const [a, b] = [Math.max(segment.from, from), Math.min(segment.until ?? until, until)];
      if (b <= a) continue;
      const [x, w] = [this.x(a), Math.max(1, this.x(b) - this.x(a))];
      pen.fillStyle = this.color(segment.state);
      pen.beginPath();
      pen.roundRect(x, y, w, BAR, Math.min(4, w / 2));
      pen.fill();
      if (w > 64) {
        pen.fillStyle = this.color("ink");
        pen.globalAlpha = 0.75;
        pen.font = "11px system-ui, sans-serif";
        pen.textAlign = "left";
        pen.fillText(segment.state === "backoff" ? "back-off" : segment.state, x + 7, y + 12);
        pen.globalAlpha = 1;
      }
      const lasted = duration(((segment.until ?? this.options.now()) - segment.from) / 1000);
      this.spots.push({ x, w, y, h: BAR, text: `${segment.state} for ${lasted}\nsince ${this.moment(segment.from)}` });
    }
  }

  moment(at) {
    return this.options.label ? this.options.label(at) : clock(at);
  }

  marks(pen, lane, y) {
    let free = -Infinity;
    pen.font = "10.5px system-ui, sans-serif";
    pen.textAlign = "left";
    const colors = { kill: "bad", signal: "warn", hook: "other", exit: "ink", restart: "accent" };
    for (const mark of lane.marks) {
      const x = this.x(mark.at);
      if (x < this.left() - 1 || x > this.left() + this.plotWidth() + 1) continue;
      pen.strokeStyle = this.color(colors[mark.sort]);
      pen.fillStyle = this.color(colors[mark.sort]);
      pen.lineWidth = mark.sort === "kill" ? 2 : 1.2;
      pen.beginPath();
      pen.moveTo(x, y - 3);
      pen.lineTo(x, y + BAR);
      pen.stroke();
      pen.lineWidth = 1;
      const wide = pen.measureText(mark.label).width;
      if (x > free + 4 && x + wide < this.canvas.clientWidth) {
        pen.fillText(mark.label, x - 1, y - 5);
        free = x + wide + 2;
      }
      this.spots.push({ x, y: y - HEAD, h: BAR + HEAD, text: `${this.moment(mark.at)}\n${mark.detail}` });
    }
  }

  ticks(pen, probes, y) {
    const [from, until] = [this.end - this.view.span, this.end];
    for (let index = probes.length - 1; index >= 0; index -= 1) {
      const { at, result, line } = probes[index];
      if (at > until) continue;
      if (at < from) break;
      const x = this.x(at);
      pen.strokeStyle = this.color(result === "ok" ? "ok" : result === "bad" ? "bad" : "other");
      pen.lineWidth = result === "bad" ? 2 : 1.3;
      pen.beginPath();
      if (result === "bad") {
        pen.moveTo(x - 3, y + 1.5);
        pen.lineTo(x + 3, y + 7.5);
        pen.moveTo(x + 3, y + 1.5);
        pen.lineTo(x - 3, y + 7.5);
      } else {
        pen.moveTo(x, y + (result === "ok" ? 1 : 4));
        pen.lineTo(x, y + 8);
      }
      pen.stroke();
      pen.lineWidth = 1;
      this.spots.push({ x, y, h: ROW, text: `${this.moment(at)}\n${describe(line)}${line.latencyMs ? ` (${duration(line.latencyMs / 1000)})` : ""}${line.look ? ", a look" : ""}` });
    }
  }

  hover(x, y) {
    let best = null;
    let distance = 7;
    for (const spot of this.spots) {
      if (y < spot.y || y > spot.y + spot.h) continue;
      const away = spot.w ? (x >= spot.x && x <= spot.x + spot.w ? 6 : Infinity) : Math.abs(spot.x - x);
      if (away < distance) [best, distance] = [spot, away];
    }
    this.tip.hidden = !best;
    if (!best) return;
    this.tip.textContent = best.text;
    const room = this.canvas.clientWidth - this.tip.offsetWidth - 4;
    this.tip.style.left = `${Math.max(0, Math.min(x + 12, room))}px`;
    this.tip.style.top = `${y + 16}px`;
  }

  // What a screen reader says instead of the drawing.
  label(lanes) {
    const states = lanes.map((lane) => {
      const kills = lane.marks.filter((mark) => mark.sort === "kill").length;
      return `${lane.name} ${lane.open?.state ?? "does not run"}${kills ? `, ${kills} kills` : ""}`;
    });
    const text = `${this.options.title ?? "Timeline"}, ${duration(this.view.span / 1000)}: ${states.join("; ")}`;
    if (this.canvas.getAttribute("aria-label") !== text) this.canvas.setAttribute("aria-label", text);
  }
}

let colors = null;

function palette() {
  if (!colors) {
    const style = getComputedStyle(document.documentElement);
    const names = ["ink", "soft", "grid", "accent", "ok", "bad", "warn", "other", "ready", "started", "starting", "terminating", "backoff", "ended", "card"];
    colors = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  }
  return colors;
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { colors = null; });

function fit(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let short = text;
  while (short.length > 1 && pen.measureText(`${short}…`).width > width) short = short.slice(0, -1);
  return `${short}…`;
}
