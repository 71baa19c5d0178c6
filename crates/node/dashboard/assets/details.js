// One pod: its timeline, its containers, their logs, what happened, the manifest with its numbers, and what a change would mean.
import { bytes, clock, containersOf, duration, el, fill, say, stateOf, stateOfPod } from "./dom.js";
import { endOf, rangeChooser, story } from "./page.js";
import { Story, TimelineView, describe } from "./timeline.js";

const MAX_LOG_LINES = 2000;
const TABS = [["logs", "Logs"], ["happened", "What happened"], ["manifest", "Manifest and numbers"], ["change", "What if"]];

export class PodPage {
  constructor(name, tab, { model, now, legend }) {
    this.name = name;
    this.model = model;
    this.now = now;
    this.view = { span: model.view.span, end: model.view.end };
    this.chooser = rangeChooser(this.view, () => this.chooser.update());
    this.badge = el("span", { class: "badge" });
    this.facts = el("dl", { class: "facts" });
    this.containers = el("tbody");
    this.ends = el("div");
    this.timeline = new TimelineView(story(name), this.view, { now, changed: () => this.chooser.update(), title: `Timeline of ${name}` });
    this.panel = el("div", { role: "tabpanel", tabindex: "-1" });
    this.tabs = TABS.map(([key, label]) => el("button", { type: "button", role: "tab", id: `tab-${key}`, onclick: () => this.choose(key) }, label));
    const heads = ["Container", "State", "Restarts", "CPU", "Memory", "Image"].map((head) => el("th", { scope: "col" }, head));
    this.root = el("div", {},
      el("p", {}, el("a", { class: "back", href: "#/" }, "← All pods")),
      el("div", { class: "bar" }, el("h2", {}, name, " ", this.badge), this.chooser.root),
      el("section", { class: "card", "aria-label": "Timeline" }, this.facts, this.timeline.root, legend(), this.ends),
      el("section", { class: "card scroll", "aria-label": "Containers" }, el("table", {}, el("thead", {}, el("tr", {}, heads)), this.containers)),
      el("section", { class: "card", "aria-label": "Details" }, el("div", { role: "tablist", "aria-label": "Details", onkeydown: (event) => this.arrows(event) }, this.tabs), this.panel));
    this.choose(TABS.some(([key]) => key === tab) ? tab : "logs");
  }

  get pod() {
    return this.model.state?.pods.find((pod) => `${pod.namespace}/${pod.name}` === this.name);
  }

  update() {
    const { pod } = this;
    if (!pod) {
      this.badge.className = "badge";
      say(this.badge, "gone");
      return;
    }
    const [kind, words] = stateOfPod(pod);
    this.badge.className = `badge ${kind}`;
    say(this.badge, words);
    const facts = [["Address", pod.status?.podIP], [this.model.state.api ? "Created" : "Accepted", new Date(pod.acceptedAt).toLocaleString()], ["Ports", Object.values(pod.ports ?? {}).flat().join(", ")], ["Origin", this.model.state.api ? null : originOf(pod.origin)]];
    fill(this.facts, facts.filter(([, value]) => value).map(([term, value]) => el("div", {}, el("dt", {}, term), el("dd", {}, value))));
    this.timeline.story = story(this.name);
    const statuses = containersOf(pod);
    fill(this.containers, statuses.map((status) => this.row(pod, status)));
    fill(this.ends, statuses.map((status) => endOf(pod, status.name)));
    this.tab?.update?.(pod);
  }

  row(pod, status) {
    const [kind, words] = stateOf(pod, status);
    const usage = this.model.state.usage?.[`${this.name}/${status.name}`] ?? {};
    const cpu = usage.cpuNanoCores === null || usage.cpuNanoCores === undefined ? "–" : `${Math.ceil(usage.cpuNanoCores / 1e6)} m`;
    const message = status.state?.waiting?.message;
    return el("tr", {},
      el("td", {}, el("b", {}, status.name)),
      el("td", {}, el("span", { class: `badge ${kind}` }, words), message ? el("div", { class: "faint" }, message) : null),
      el("td", { class: "number" }, status.restartCount ?? 0),
      el("td", { class: "number" }, cpu),
      el("td", { class: "number" }, bytes(usage.memoryBytes)),
      el("td", {}, status.image));
  }

  choose(key) {
    this.tab?.close?.();
    this.tabs.forEach((button, index) => {
      const selected = TABS[index][0] === key;
      button.setAttribute("aria-selected", String(selected));
      button.tabIndex = selected ? 0 : -1;
    });
    this.panel.setAttribute("aria-labelledby", `tab-${key}`);
    const tabs = { logs: LogTab, happened: HappenedTab, manifest: ManifestTab, change: ChangeTab };
    this.tab = new tabs[key](this);
    fill(this.panel, this.tab.root);
    if (this.pod) this.tab.update?.(this.pod);
  }

  arrows(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = this.tabs.indexOf(document.activeElement);
    const next = (at + step + TABS.length) % TABS.length;
    this.choose(TABS[next][0]);
    this.tabs[next].focus();
  }

  told(lines) {
    this.tab?.told?.(lines.filter((line) => line.pod === this.name));
  }

  draw() {
    this.timeline.draw();
    this.tab?.draw?.();
  }

  close() {
    this.tab?.close?.();
  }
}

function originOf(origin) {
  if (typeof origin === "string") return origin;
  const [kind, value] = Object.entries(origin ?? {})[0] ?? [];
  return kind ? `${kind} ${typeof value === "string" ? value : Object.values(value ?? {}).join(" ")}`.trim() : "";
}

function chooserOf(names, label, changed) {
  const select = el("select", { "aria-label": label, onchange: () => changed(select.value) }, names.map((name) => el("option", { value: name }, name)));
  return select;
}

class LogTab {
  constructor(page) {
    this.page = page;
    this.log = el("div", { class: "log", role: "log", tabindex: "0", "aria-label": "Log", "aria-live": "off" });
    this.place = el("span");
    this.trouble = el("p", { class: "hint" });
    this.root = el("div", {}, el("div", { class: "bar" }, this.place), this.trouble, this.log);
  }

  update(pod) {
    const names = containersOf(pod).map((status) => status.name);
    if (this.names === names.join()) return;
    this.names = names.join();
    const select = chooserOf(names, "Container", (name) => this.follow(name));
    select.value = names.at(-1) ?? "";
    fill(this.place, el("label", { class: "faint" }, "Container ", select));
    if (names.length > 0) this.follow(select.value);
  }

  follow(container) {
    this.close();
    fill(this.log);
    this.life = null;
    const query = new URLSearchParams({ pod: this.page.name, container });
    this.events = new EventSource(`/api/logs?${query}`);
    this.events.addEventListener("open", () => { fill(this.log); this.life = null; });
    this.events.addEventListener("log", (event) => this.add(JSON.parse(event.data)));
    this.events.addEventListener("trouble", (event) => say(this.trouble, JSON.parse(event.data)));
  }

  add(lines) {
    say(this.trouble, "");
    const follows = this.log.scrollTop + this.log.clientHeight > this.log.scrollHeight - 40;
    for (const line of lines) {
      if (this.life !== null && this.life !== line.life) this.log.append(el("span", { class: "life" }, `restart ${line.life}`));
      this.life = line.life;
      const text = line.partial ? line.text : `${line.text}\n`;
      this.log.append(el("span", { class: line.stream }, el("time", { datetime: line.time }, clock(Date.parse(line.time))), text));
    }
    while (this.log.childNodes.length > MAX_LOG_LINES) this.log.firstChild.remove();
    if (follows) this.log.scrollTop = this.log.scrollHeight;
  }

  close() {
    this.events?.close();
    this.events = null;
  }
}

class HappenedTab {
  constructor(page) {
    this.page = page;
    this.list = el("ol", { class: "happened", tabindex: "0", "aria-label": "What happened, newest first" });
    this.root = el("div", {}, this.list);
    this.show();
  }

  told(lines) {
    if (lines.some((line) => line.type !== "probe" || line.outcome !== "success")) this.show();
  }

  show() {
    const all = story(this.page.name).lines.slice(-300).reverse();
    if (all.length === 0) {
      fill(this.list, el("li", {}, "Nothing but successful probes since this page follows the node."));
      return;
    }
    fill(this.list, all.map(({ at, line }) => {
      const kill = line.type === "killing" || line.type === "graceExceeded";
      return el("li", {}, el("time", { datetime: new Date(at).toISOString() }, clock(at)), el("span", { class: kill ? "kill" : "" }, line.container ? `${line.container}: ` : "", describe(line)));
    }));
  }
}

async function ask(address, options) {
  const answer = await fetch(address, options);
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer.json();
}

function numbersTable(probes, caption, others) {
  const heads = ["Container", "Probe", "Every", "Timeout", "Failures", "May take to start", "Notices a hang after", "Gone by", "Grace period"];
  const rows = probes.map((probe, index) => {
    const other = others?.[index];
    const cell = (value, before, text) => {
      const change = other === undefined || value === before || value === null || before === null ? "" : value < before ? "better" : "worse";
      return el("td", { class: `number ${change}` }, text);
    };
    const every = probe.periodAfterSeconds === probe.periodSeconds || probe.kind === "startup" ? duration(probe.periodSeconds) : `${duration(probe.periodSeconds)}, then ${duration(probe.periodAfterSeconds)}`;
    return el("tr", {},
      el("td", {}, probe.container), el("td", {}, probe.kind), el("td", { class: "number" }, every),
      el("td", { class: "number" }, duration(probe.timeoutSeconds)), el("td", { class: "number" }, probe.failureThreshold),
      cell(null, null, duration(probe.startupBudgetSeconds)),
      cell(probe.detectMaxSeconds, other?.detectMaxSeconds, `${duration(probe.detectMinSeconds)} to ${duration(probe.detectMaxSeconds)}`),
      cell(probe.goneBySeconds, other?.goneBySeconds, duration(probe.goneBySeconds)),
      cell(null, null, duration(probe.graceSeconds)));
  });
  return el("div", { class: "scroll" }, el("table", {}, el("caption", {}, caption), el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))), el("tbody", {}, rows)));
}

class ManifestTab {
  constructor(page) {
    this.page = page;
    this.root = el("div", { role: "status" }, el("p", { class: "hint" }, "…"));
    ask(`/api/pod?${new URLSearchParams({ pod: page.name })}`).then((told) => this.show(told), (error) => fill(this.root, el("p", { class: "hint alarm" }, error.message)));
  }

  show({ yaml, probes }) {
    const advice = probes.flatMap((probe) => probe.advice.map((text) => `${probe.container}, ${probe.kind}: ${text}`));
    fill(this.root,
      probes.length > 0 ? numbersTable(probes, `What the probes of this manifest imply, as \`pulselet explain\` computes it${this.page.model.state?.api ? " for a node with the usual settings" : ""}`) : el("p", { class: "hint" }, "No probes: containers count as started and ready while they run."),
      advice.length > 0 ? el("ul", { class: "hint" }, advice.map((text) => el("li", {}, text))) : null,
      el("pre", { class: "yaml", tabindex: "0", "aria-label": "Manifest" }, yaml));
  }
}

class ChangeTab {
  constructor(page) {
    this.page = page;
    this.form = el("form", { onsubmit: (event) => { event.preventDefault(); this.run(); } });
    this.result = el("div", { role: "status" });
    this.root = el("div", {}, el("p", { class: "hint" }, "Other numbers for a probe, tried on a virtual clock: the pod as it is and as it would be go through the same trouble, beside the last kill as it was."), this.form, this.result);
    ask(`/api/pod?${new URLSearchParams({ pod: page.name })}`).then(({ probes }) => this.offer(probes), (error) => fill(this.result, el("p", { class: "hint alarm" }, error.message)));
  }

  offer(probes) {
    this.probes = probes;
    if (probes.length === 0) {
      fill(this.form, el("p", { class: "hint" }, "This pod has no probes to change."));
      return;
    }
    const number = (name, label, value, min) => el("label", {}, label, el("input", { type: "number", name, value, min, step: 1, inputmode: "numeric" }));
    this.select = el("select", { name: "probe", onchange: () => this.prefill() }, probes.map((probe, index) => el("option", { value: index }, `${probe.container}, ${probe.kind}`)));
    const place = probes.findIndex((probe) => probe.kind === "liveness");
    this.select.value = String(Math.max(0, place));
    fill(this.form, el("fieldset", { class: "form" }, el("legend", { class: "unseen" }, "The change"),
      el("label", {}, "Probe", this.select), number("periodSeconds", "Every (s)", 10, 1), number("timeoutSeconds", "Timeout (s)", 1, 1),
      number("failureThreshold", "Failures", 3, 1), number("initialDelaySeconds", "Initial delay (s)", 0, 0), number("terminationGracePeriodSeconds", "Grace period (s)", 30, 0)),
    el("fieldset", { class: "form" }, el("legend", { class: "unseen" }, "The trouble"),
      number("startsAfter", "It starts after (s)", 0, 0), number("failsAt", "It hangs at the age of (s)", 30, 0), number("seconds", "Simulate (s)", 180, 10),
      el("label", { class: "check" }, el("input", { type: "checkbox", name: "ignoresSignal" }), "It ignores its stop signal"), el("button", {}, "Simulate")));
    this.prefill();
  }

  prefill() {
    const probe = this.probes[Number(this.select.value)];
    const end = this.page.model.state?.ends?.[`${this.page.name}/${probe.container}`];
    const set = (name, value) => { this.form.elements[name].value = String(Math.max(0, Math.round(value))); };
    set("periodSeconds", probe.periodSeconds);
    set("timeoutSeconds", Math.max(1, probe.timeoutSeconds));
    set("failureThreshold", probe.failureThreshold);
    set("initialDelaySeconds", probe.initialDelaySeconds);
    set("terminationGracePeriodSeconds", probe.graceSeconds ?? 30);
    this.form.elements.ignoresSignal.checked = Boolean(end?.text.includes("ignored"));
    const fails = end?.failedAtSeconds ?? 30;
    set("failsAt", fails);
    set("seconds", Math.min(3600, fails + 2 * (probe.goneBySeconds ?? probe.detectMaxSeconds) + 30));
  }

  async run() {
    const probe = this.probes[Number(this.select.value)];
    const value = (name) => Number(this.form.elements[name].value);
    const fields = Object.fromEntries(["periodSeconds", "timeoutSeconds", "failureThreshold", "initialDelaySeconds"].map((name) => [name, value(name)]));
    if (probe.graceSeconds !== null) fields.terminationGracePeriodSeconds = value("terminationGracePeriodSeconds");
    const trouble = { startsAfter: value("startsAfter"), failsAt: value("failsAt"), seconds: value("seconds"), ignoresSignal: this.form.elements.ignoresSignal.checked };
    const body = JSON.stringify({ pod: this.page.name, container: probe.container, kind: probe.kind, fields, trouble });
    try {
      this.show(await ask("/api/what-if", { method: "POST", headers: { "content-type": "application/json" }, body }));
    } catch (error) {
      this.views = [];
      fill(this.result, el("p", { class: "hint alarm" }, error.message));
    }
  }

  show({ before, after }) {
    const view = { span: before.seconds * 1000, end: before.seconds * 1000 };
    const was = this.asItWas(before.seconds * 1000);
    this.views = [[before, "As it is"], [after, "As it would be"]].map(([outcome, title]) => {
      const told = new Story();
      for (const line of outcome.lines) told.push(line, line.t * 1000);
      return new TimelineView(told, view, { now: () => before.seconds * 1000, follows: false, label: (at) => duration(at / 1000), title });
    });
    if (was) this.views.push(was.view);
    fill(this.result,
      was ? [el("h3", {}, "As it was"), el("p", { class: "hint" }, was.words), was.view.root] : null,
      el("h3", {}, "As it is"), el("p", { class: "hint" }, summary(before)), this.views[0].root,
      el("h3", {}, "As it would be"), el("p", { class: "hint" }, summary(after)), this.views[1].root,
      numbersTable(after.probes, "The numbers after the change", before.probes));
  }

  // The life that was killed last, as it really went, from its beginning on; null if nobody saw one.
  asItWas(span) {
    const { container } = this.probes[Number(this.select.value)];
    const end = this.page.model.state?.ends?.[`${this.page.name}/${container}`];
    if (!end?.killed || end.livedSeconds === null) return null;
    const began = Date.parse(end.time) - end.livedSeconds * 1000;
    const options = { now: this.page.now, follows: false, label: (at) => duration((at - began) / 1000), title: "As it was" };
    return { view: new TimelineView(story(this.page.name), { span, end: began + span }, options), words: `${container} ${end.text}.` };
  }

  draw() {
    for (const view of this.views ?? []) view.draw();
  }
}

// The first kill and what came of it, in a sentence.
function summary({ lines }) {
  const kill = lines.find((line) => line.type === "killing");
  if (!kill) return "Nothing is killed.";
  const exit = lines.find((line) => line.type === "exited" && line.t >= kill.t);
  const again = lines.find((line) => line.type === "running" && line.t > kill.t);
  const parts = [`Killed at ${duration(kill.t)}`, exit ? `gone at ${duration(exit.t)}` : null, again ? `running again at ${duration(again.t)}` : null];
  return `${parts.filter(Boolean).join(", ")}.`;
}
