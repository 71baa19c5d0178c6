//! Every door into a container: the processes that a probe, a hook, `kubectl exec` and `kubectl debug` start have no more
//! rights than its main process, and none of them gets out.

use std::fs;

use pulselet_testing::image_archive::{ImageArchive, busybox};
use serde_json::json;

use super::cluster::{Cluster, pod};

pub(super) const IMAGE: &str = "test/doors:1";
/// A file of the host that no container is shown, and its text.
const SECRET: &str = "only the host knows";

/// Tries what escapes are made of and prints a line for each thing that worked; the last line says that all was tried.
/// Processes on the way in are looked for while they are on their way: in `/proc`, again and again.
const ATTACK: &str = r#"
grep -q "only the host" "$SECRET" 2>/dev/null && echo ESCAPED: the file
for way in /proc/1/root /proc/1/cwd /proc/self/cwd/../../../../.. /proc/self/fd/3 /proc/self/fd/4 /proc/self/fd/5; do
    grep -q "only the host" "$way$SECRET" 2>/dev/null && echo "ESCAPED: $way"
done
round=0
while [ $round -lt 6 ]; do
    for process in /proc/[0-9]*; do
        grep -q "only the host" "$process/root$SECRET" 2>/dev/null && echo "ESCAPED: $process"
        rights=$(grep CapEff "$process/status" 2>/dev/null | cut -f2)
        case "$rights" in ""|0000000000000000|00000000a80425fb) ;; *) echo "ESCAPED: rights $rights";; esac
    done
    round=$((round + 1))
done
for file in /proc/sys/kernel/core_pattern /proc/sysrq-trigger /proc/sys/vm/drop_caches /sys/kernel/uevent_helper; do
    ( : >> $file ) 2>/dev/null && echo "ESCAPED: $file"
done
[ -n "$(head -c 1 /proc/kcore 2>/dev/null)" ] && echo ESCAPED: kcore
[ -n "$(head -c 1 /proc/keys 2>/dev/null)" ] && echo ESCAPED: keys
mount -t tmpfs t /mnt 2>/dev/null && echo ESCAPED: mount
mount -t proc p /mnt 2>/dev/null && echo ESCAPED: proc
for file in $(find /sys/fs/cgroup -name cgroup.procs -o -name release_agent -o -name devices.allow 2>/dev/null); do
    ( : >> $file ) 2>/dev/null && echo "ESCAPED: $file"
done
[ "$(ls /proc/self/fd | wc -l)" -gt 4 ] && echo ESCAPED: descriptors
grep -q "Seccomp:.2" /proc/self/status || echo ESCAPED: no filter
echo tried
"#;

pub(super) fn image() -> Option<Vec<u8>> {
    let programs = [
        "sh", "cat", "echo", "grep", "head", "cut", "ls", "wc", "mount", "find", "sleep", "true", "test",
        "touch", "mv",
    ];
    let archive = ImageArchive {
        name: IMAGE,
        program: "bin/busybox",
        links: programs
            .map(|program| (format!("bin/{program}"), "busybox".to_owned()))
            .into(),
        config: json!({"Env": ["PATH=/bin"], "Cmd": ["sleep", "1000000"]}),
    };
    Some(archive.pack(&busybox()?))
}

/// The attack by way of a shell, with its findings in a file of the volume.
fn attack(door: &str) -> serde_json::Value {
    let script = format!("{{ {ATTACK} }} > /out/{door}.new 2>&1; mv /out/{door}.new /out/{door}");
    json!(["sh", "-c", script])
}

#[test]
fn no_door_into_a_container_leads_out_of_it() {
    let Some(cluster) = image().and_then(|archive| Cluster::serve_containers(&archive)) else {
        return;
    };
    cluster.until_node_ready();
    let secret = cluster.data().join("secret");
    fs::write(&secret, SECRET).expect("writes");
    let out = cluster.path("out");
    fs::create_dir(&out).expect("makes");
    let mut attacked = pod(
        "attacked",
        &json!({
            "image": IMAGE, "imagePullPolicy": "Never",
            "command": ["sh", "-c", format!("{{ {ATTACK} }} > /out/main.new 2>&1; mv /out/main.new /out/main; exec sleep 1000000")],
            "env": [{"name": "SECRET", "value": secret}],
            "volumeMounts": [{"name": "out", "mountPath": "/out"}],
            "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true},
            "readinessProbe": {"exec": {"command": attack("probe")}, "periodSeconds": 5, "timeoutSeconds": 60},
            "lifecycle": {
                "postStart": {"exec": {"command": attack("post-start")}},
                "preStop": {"exec": {"command": attack("pre-stop")}},
            },
        }),
    );
    attacked["spec"]["hostNetwork"] = json!(true);
    attacked["spec"]["securityContext"] = json!({"seccompProfile": {"type": "RuntimeDefault"}});
    attacked["spec"]["terminationGracePeriodSeconds"] = json!(60);
    attacked["spec"]["volumes"] = json!([{"name": "out", "hostPath": {"path": out}}]);
    cluster.apply(&attacked);
    cluster.until_ready("attacked");
    let script = format!("export SECRET={}; {ATTACK}", secret.display());
    let exec = cluster.kubectl(&["exec", "attacked", "--", "sh", "-c", &script]);
    assert_harmless("kubectl exec", &exec);
    let terminal = cluster.kubectl(&["exec", "-i", "attacked", "--", "sh", "-c", &script]);
    assert_harmless("kubectl exec -i", &terminal);
    cluster.kubectl(&[
        "debug",
        "attacked",
        "--image",
        IMAGE,
        "--image-pull-policy=Never",
        "--container=debugger",
        "--profile=baseline",
        "--",
        "sh",
        "-c",
        &script,
    ]);
    let debug = cluster.until("what the debugger found", || {
        let log = cluster
            .try_kubectl(&["logs", "attacked", "-c", "debugger"], "")
            .ok()?;
        log.contains("tried").then_some(log)
    });
    assert_harmless("kubectl debug", &debug);
    cluster.kubectl(&["delete", "pod", "attacked", "--wait=true", "--timeout=120s"]);
    for door in ["main", "probe", "post-start", "pre-stop"] {
        let found = fs::read_to_string(out.join(door)).expect(door);
        assert_harmless(door, &found);
    }
}

#[track_caller]
fn assert_harmless(door: &str, found: &str) {
    assert!(found.trim_end().ends_with("tried"), "{door}: {found}");
    assert!(!found.contains("ESCAPED"), "{door}: {found}");
}
