// The page: follows the node by server-sent events, keeps what it was told, and shows all pods or one.
import { bytes, containersOf, duration, el, fill, say, stateOf, stateOfPod } from "./dom.js";
import { PodPage } from "./details.js";
import { Story, TimelineView, describe } from "./timeline.js";

const RANGES = [[60e3, "1 min"], [300e3, "5 min"], [1800e3, "30 min"], [6 * 3600e3, "6 h"]];

// The secret in the address was for once.
if (location.search) history.replaceState(null, "", location.pathname + location.hash);

const model = { state: null, stories: new Map(), skew: 0, view: { span: 300e3, end: null } };
const now = () => Date.now() + model.skew;
const main = document.getElementById("main");
let shown = null;

export function story(pod) {
  if (!model.stories.has(pod)) model.stories.set(pod, new Story());
  return model.stories.get(pod);
}

const nameOf = (pod) => `${pod.namespace}/${pod.name}`;

function take(lines) {
  for (const line of lines) story(line.pod).push(line, Date.parse(line.time));
  const last = lines.at(-1);
  if (last && model.ready) announce(lines);
  shown?.told?.(lines);
}

// What a screen reader should hear without being asked: ends, and nothing else.
function announce(lines) {
  const ends = lines.filter((line) => line.type === "killing" || line.type === "exited");
  if (ends.length > 0) say(document.getElementById("news"), ends.map((line) => `${line.pod} ${line.container}: ${describe(line)}`).join(". "));
}

function receive(state) {
  model.state = state;
  for (const pod of state.pods) {
    for (const status of containersOf(pod)) {
      const since = Date.parse(status.state?.running?.startedAt ?? "");
      if (!Number.isNaN(since)) story(nameOf(pod)).seed(status.name, stateOf(pod, status)[0], since);
    }
  }
  head();
  shown?.update();
  model.ready = true;
}

function head() {
  const { node, api, trouble } = model.state;
  const link = document.getElementById("link");
  if (api) {
    const text = [`${api.server}`, `namespace ${api.namespace}`];
    if (api.silence) text.push(`its events cannot be read: ${api.silence}`);
    say(document.getElementById("node"), text.join("  ·  "));
  }
  if (node) {
    const pressure = Object.entries(model.state.pressure ?? {}).map(([name, share]) => `${name} ${share.toFixed(0)}%`);
    const text = [node.name, node.runtime, `${node.cpus} CPUs, ${bytes(node.memoryBytes)}`];
    if (pressure.length > 0) text.push(`waiting for: ${pressure.join(", ")}`);
    say(document.getElementById("node"), text.join("  ·  "));
  }
  link.className = trouble ? "lost" : "live";
  say(link, trouble ? (node ? `not ready: ${trouble}` : `the ${api ? "API" : "agent"} does not answer`) : "live");
}

function follow() {
  const events = new EventSource("/api/events");
  const link = document.getElementById("link");
  events.addEventListener("reset", () => {
    model.stories.clear();
    route();
  });
  events.addEventListener("lines", (event) => take(JSON.parse(event.data)));
  events.addEventListener("state", (event) => receive(JSON.parse(event.data)));
  events.addEventListener("error", () => {
    link.className = "lost";
    say(link, events.readyState === EventSource.CLOSED ? "ended: start `pulselet dashboard` again" : "reconnecting");
    if (events.readyState === EventSource.CLOSED) setTimeout(follow, 3000);
  });
}

export function rangeChooser(view, changed) {
  const buttons = RANGES.map(([span, label]) => el("button", { type: "button", onclick: () => { view.span = span; view.end = null; changed(); } }, label));
  const live = el("button", { type: "button", onclick: () => { view.end = view.end === null ? now() : null; changed(); } }, "Live");
  const update = () => {
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(view.span === RANGES[index][0])));
    live.setAttribute("aria-pressed", String(view.end === null));
  };
  update();
  return { root: el("span", { class: "bar" }, el("span", { class: "choices", role: "group", "aria-label": "Time shown" }, buttons), el("span", { class: "choices" }, live)), update };
}

// The sentence about a container's last end.
export function endOf(pod, container) {
  const end = model.state?.ends?.[`${nameOf(pod)}/${container}`];
  if (!end) return null;
  const ago = duration((now() - Date.parse(end.time)) / 1000);
  return el("p", { class: end.killed ? "end killed" : "end" }, el("b", {}, container), " ", end.text, el("span", { class: "faint" }, ` · ${ago} ago`));
}

class Card {
  constructor(pod, changed) {
    this.name = nameOf(pod);
    this.title = el("a", { href: `#/pod/${this.name}` }, this.name);
    this.badge = el("span", { class: "badge" });
    this.facts = el("span", { class: "faint" });
    this.ends = el("div");
    this.timeline = new TimelineView(story(this.name), model.view, { now, changed, title: `Timeline of ${this.name}` });
    this.root = el("article", { class: "card", "aria-label": this.name }, el("header", {}, el("h3", {}, this.title), this.badge, this.facts), this.timeline.root, this.ends);
  }

  update(pod) {
    const [kind, words] = stateOfPod(pod);
    this.badge.className = `badge ${kind}`;
    say(this.badge, words);
    const statuses = containersOf(pod);
    const restarts = statuses.reduce((sum, status) => sum + (status.restartCount ?? 0), 0);
    const images = [...new Set(statuses.map((status) => status.image))].filter(Boolean);
    const facts = [pod.status?.podIP, `${restarts} ${restarts === 1 ? "restart" : "restarts"}`, images.join(", ")];
    say(this.facts, facts.filter(Boolean).join("  ·  "));
    this.timeline.story = story(this.name);
    fill(this.ends, statuses.map((status) => endOf(pod, status.name)));
  }

  draw() {
    this.timeline.draw();
  }
}

class Overview {
  constructor() {
    this.cards = new Map();
    this.chooser = rangeChooser(model.view, () => this.chooser.update());
    this.list = el("div");
    this.nothing = el("p", { class: "hint" });
    this.title = el("h2", {}, "Pods");
    this.node = el("div");
    this.root = el("div", {}, el("div", { class: "bar" }, this.title, this.chooser.root), this.nothing, this.list, legend(), this.node);
  }

  update() {
    const { pods, trouble, node, api } = model.state;
    if (trouble && !node) {
      say(this.nothing, `${trouble}. The page goes on as soon as ${api ? "the API" : "an agent"} answers.`);
      if (pods.length === 0) return;
    }
    say(this.title, pods.length === 1 ? "1 pod" : `${pods.length} pods`);
    const none = api ? `No pods in the namespace ${api.namespace}.` : "No pod runs here yet: `pulselet run --detach pod.yaml` hands one to this node.";
    if (!trouble || node) say(this.nothing, pods.length === 0 ? none : "");
    const names = new Set(pods.map(nameOf));
    for (const [name, card] of this.cards) {
      if (!names.has(name)) {
        card.root.remove();
        this.cards.delete(name);
      }
    }
    for (const pod of pods) {
      const name = nameOf(pod);
      if (!this.cards.has(name)) {
        const card = new Card(pod, () => this.chooser.update());
        this.cards.set(name, card);
        this.list.append(card.root);
      }
      this.cards.get(name).update(pod);
    }
    this.showNode(node);
  }

  showNode(node) {
    if (!node || this.node.dataset.for === JSON.stringify(node)) return;
    this.node.dataset.for = JSON.stringify(node);
    const gates = Object.entries(node.gates).map(([name, on]) => el("tr", {}, el("td", {}, name), el("td", {}, on ? "on" : "off")));
    fill(this.node, el("details", { class: "card" }, el("summary", {}, "This node: gates and settings"),
      el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Feature gate"), el("th", { scope: "col" }, "State"))), el("tbody", {}, gates)))));
  }

  draw() {
    for (const card of this.cards.values()) card.draw();
  }
}

function legend() {
  const all = [["starting", "starting"], ["started", "started, not ready"], ["ready", "ready"], ["terminating", "being stopped"], ["backoff", "back-off"], ["ok", "probe succeeded"], ["bad", "probe failed"]];
  return el("p", { class: "legend", "aria-hidden": "true" }, all.map(([kind, words]) => el("span", { class: kind }, words)));
}

function route() {
  const match = /^#\/pod\/([^/]+)\/([^/]+)(?:\/([^/]+))?/.exec(decodeURI(location.hash));
  shown?.close?.();
  if (match) shown = new PodPage(`${match[1]}/${match[2]}`, match[3] ?? null, { model, now, legend });
  else shown = new Overview();
  fill(main, shown.root);
  if (model.state) shown.update();
}

const calm = matchMedia("(prefers-reduced-motion: reduce)");
let drawn = 0;

function frame(time) {
  // Thirty times a second is smooth enough for time; once a second where movement is not wanted.
  if (time - drawn > (calm.matches ? 1000 : 33)) {
    drawn = time;
    shown?.draw();
  }
  requestAnimationFrame(frame);
}

addEventListener("hashchange", () => {
  if (location.hash === "#main") return;
  route();
  main.focus();
  scrollTo(0, 0);
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && location.hash.startsWith("#/pod/")) location.hash = "#/";
});
route();
follow();
requestAnimationFrame(frame);
