// Elements from text only: nothing here, and nothing that uses it, makes markup of what came from a container.

export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key === "class" ? "class" : key, value === true ? "" : String(value));
  }
  fill(node, ...children);
  return node;
}

// Replaces the children of an element.
export function fill(node, ...children) {
  const all = children.flat(3).filter((child) => child !== null && child !== undefined && child !== false);
  node.replaceChildren(...all.map((child) => (child instanceof Node ? child : document.createTextNode(String(child)))));
  return node;
}

// Writes a text only where it is another one, so that selections and screen readers are left in peace.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const s = Math.max(0, seconds);
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 60) return `${Math.round(s * 10) / 10} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  if (count < 1024 * 1024) return `${Math.ceil(count / 1024)} KiB`;
  if (count < 1024 ** 3) return `${Math.round(count / 1024 / 1024)} MiB`;
  return `${(count / 1024 ** 3).toFixed(1)} GiB`;
}

export function clock(ms) {
  return new Date(ms).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
}

// The containers of a pod, with what the status says about each.
export function containersOf(pod) {
  const status = pod.status ?? {};
  return [...(status.initContainerStatuses ?? []), ...(status.containerStatuses ?? []), ...(status.ephemeralContainerStatuses ?? [])];
}

// State of a container: a class for its colour, and words.
export function stateOf(pod, status) {
  const state = status.state ?? {};
  if (state.running) {
    if (pod.deleting) return ["terminating", "terminating"];
    if (status.ready) return ["ready", "ready"];
    return status.started ? ["started", "started, not ready"] : ["starting", "starting"];
  }
  if (state.terminated) return ["ended", `${state.terminated.reason ?? "ended"} (${state.terminated.exitCode})`];
  const reason = state.waiting?.reason ?? "waiting";
  return [reason.includes("BackOff") || reason.startsWith("Err") ? "backoff" : "ended", reason];
}

export function stateOfPod(pod) {
  if (pod.stopped) return ["ended", "stopped"];
  if (pod.deleting) return ["terminating", "terminating"];
  const status = pod.status ?? {};
  const ready = (status.conditions ?? []).some((condition) => condition.type === "Ready" && condition.status === "True");
  if (ready) return ["ready", "ready"];
  return status.phase === "Running" ? ["started", "running, not ready"] : ["ended", (status.phase ?? "pending").toLowerCase()];
}
