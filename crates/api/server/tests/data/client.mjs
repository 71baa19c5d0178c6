// What a program does with a cluster, by the official JavaScript client. Any surprise is a failure.

import assert from "node:assert/strict";
import { Writable } from "node:stream";

const home = process.env.PULSELET_JAVASCRIPT;
const k8s = await import(`${home}/node_modules/@kubernetes/client-node/dist/index.js`);

const config = new k8s.KubeConfig();
config.loadFromDefault();
const core = config.makeApiClient(k8s.CoreV1Api);
const namespace = "default";

function configMap(name) {
  return { namespace, body: { metadata: { name }, data: { key: name } } };
}

// The next changes of config maps after a version.
async function watched(version, count) {
  const names = [];
  const path = `/api/v1/namespaces/${namespace}/configmaps`;
  let controller;
  await new Promise((resolve, reject) => {
    const seen = (type, object) => {
      names.push(`${type} ${object.metadata.name}`);
      if (names.length === count) resolve();
    };
    const ended = (error) => reject(error ?? new Error(`the watch ended after ${names}`));
    new k8s.Watch(config)
      .watch(path, { resourceVersion: version, timeoutSeconds: 60 }, seen, ended)
      .then((opened) => (controller = opened), reject);
  });
  controller?.abort();
  return names;
}

async function listsAndWatches() {
  const pods = await core.listNamespacedPod({ namespace });
  assert.deepEqual(pods.items.map((pod) => pod.metadata.name), ["web"]);
  const listed = await core.listNamespacedConfigMap({ namespace });
  await core.createNamespacedConfigMap(configMap("one"));
  await core.createNamespacedConfigMap(configMap("two"));
  await core.deleteNamespacedConfigMap({ namespace, name: "one" });
  const names = await watched(listed.metadata.resourceVersion, 3);
  assert.deepEqual(names, ["ADDED one", "ADDED two", "DELETED one"]);
}

async function creates() {
  const body = { metadata: { name: "made" }, spec: { containers: [{ name: "app", image: "app:1" }] } };
  const made = await core.createNamespacedPod({ namespace, body });
  assert.equal(made.spec.restartPolicy, "Always");
  assert.ok(made.metadata.creationTimestamp instanceof Date);
  await assert.rejects(core.createNamespacedPod({ namespace, body }), (error) => error.code === 409);
  const patch = [{ op: "add", path: "/metadata/labels", value: { a: "b" } }];
  const patched = await core.patchNamespacedPod({ namespace, name: "made", body: patch });
  assert.equal(patched.metadata.labels.a, "b");
}

async function executes() {
  let text = "";
  const out = new Writable({
    write(chunk, _encoding, done) {
      text += chunk;
      done();
    },
  });
  const status = await new Promise((resolve, reject) => {
    const exec = new k8s.Exec(config);
    exec.exec(namespace, "web", "app", ["exit", "3"], out, out, null, false, resolve).catch(reject);
  });
  assert.equal(status.status, "Failure");
  assert.equal(status.details.causes[0].message, "3");
  assert.deepEqual(text.split("\n").sort(), ["", "err", "out"]);
}

await listsAndWatches();
await creates();
await executes();
console.log("done");
process.exit(0);
