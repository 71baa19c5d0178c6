//! What a pod asks for arrives in its containers: volumes, users, limits, names. Over CRI it passes two conversions of ours,
//! to the wire and back, and has to come out the same.
//!
//! A container looks by itself and ends with an error where something is missing: its log says what.

use serde_json::{Value, json};

use super::harness::Ended;
use super::world::{World, e2e, with};

/// Runs a pod to its end with a container that looks at things: lines of a shell script, each of which has to succeed.
fn looks(world: &World, spec: &Value, container: &Value, checks: &[&str]) -> Ended {
    let script = checks.iter().fold(String::new(), |script, check| {
        let quoted = check.replace('\'', "'\\''");
        format!("{script}if ! ( {check} ); then echo 'not so: {quoted}'; exit 1; fi\n")
    });
    let mut app = with(world.container("app", &["sh", "-c", &script]), container.clone());
    let mounts = world.container("app", &[])["volumeMounts"].take();
    let mut all = mounts.as_array().cloned().expect("a list");
    all.extend(container["volumeMounts"].as_array().cloned().unwrap_or_default());
    app["volumeMounts"] = json!(all);
    let mut spec = with(json!({"restartPolicy": "Never"}), spec.clone());
    let own = spec["volumes"].as_array().cloned().unwrap_or_default();
    spec.as_object_mut().expect("an object").remove("volumes");
    spec["containers"] = json!([app]);
    let mut spec = world.with_volumes(&spec);
    spec["volumes"].as_array_mut().expect("a list").extend(own);
    world.run(&spec).finish()
}

/// All it looked at was there.
fn succeeds(world: &World, spec: &Value, container: &Value, checks: &[&str]) {
    let ended = looks(world, spec, container, checks);
    let log = std::fs::read_dir(world.data().join("logs")).into_iter().flatten();
    let log: Vec<_> = log.flatten().map(|entry| read_all(&entry.path())).collect();
    assert_eq!(
        ended.code,
        Some(0),
        "{}\n{}\n{log:#?}",
        ended.transcript(),
        ended.stderr
    );
    assert!(world.processes().is_empty());
}

/// Every file below a directory.
fn read_all(path: &std::path::Path) -> String {
    let Ok(entries) = std::fs::read_dir(path) else {
        return std::fs::read_to_string(path).unwrap_or_default();
    };
    entries.flatten().map(|entry| read_all(&entry.path())).collect()
}

e2e!(
    volumes_are_where_they_should_be,
    [Oci, Containerd, OwnCri],
    |world| {
        let spec = json!({
            "initContainers": [with(
                world.container("first", &["sh", "-c", "mkdir -p /data/deep/er && echo made > /data/deep/er/file"]),
                json!({"volumeMounts": [
                    {"name": "data", "mountPath": "/data"},
                    {"name": "usr", "mountPath": "/usr", "readOnly": true},
                ]}),
            )],
            "volumes": [
                {"name": "data", "emptyDir": {}},
                {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
                {"name": "names", "downwardAPI": {"items": [
                    {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}, "mode": 0o400},
                ]}},
            ],
            "securityContext": {"fsGroup": 4321},
        });
        let container = json!({"volumeMounts": [
            {"name": "data", "mountPath": "/all"},
            {"name": "data", "mountPath": "/part", "subPath": "deep/er"},
            {"name": "data", "mountPath": "/one", "subPath": "deep/er/file", "readOnly": true},
            {"name": "memory", "mountPath": "/memory"},
            {"name": "names", "mountPath": "/names"},
        ]});
        let checks = [
            "test \"$(cat /all/deep/er/file)\" = made",
            "test \"$(cat /part/file)\" = made && echo more >> /part/file",
            "grep -q more /one && ! echo x >> /one",
            "test \"$(stat -f -c %T /memory)\" = tmpfs && test \"$(stat -c %g /memory)\" = 4321",
            "test \"$(cat /names/name)\" = web && ! echo x > /names/name",
        ];
        succeeds(world, &spec, &container, &checks);
    }
);

e2e!(
    users_and_rights_are_what_the_pod_says,
    [Oci, Containerd, OwnCri],
    |world| {
        let spec = json!({"securityContext": {
            "runAsUser": 1234, "runAsGroup": 2345, "supplementalGroups": [3456], "runAsNonRoot": true,
            "seccompProfile": {"type": "RuntimeDefault"},
            "sysctls": [{"name": "net.ipv4.ip_local_port_range", "value": "20000 30000"}],
        }});
        let container = json!({"securityContext": {
            "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
        }});
        let checks = [
            "test \"$(id -u) $(id -g)\" = '1234 2345'",
            "id -G | tr ' ' '\\n' | grep -qx 3456",
            "grep -q '^CapEff:.0*$' /proc/self/status && grep -q '^CapBnd:.0*$' /proc/self/status",
            "grep -q '^Seccomp:.2$' /proc/self/status && grep -q '^NoNewPrivs:.1$' /proc/self/status",
            "! touch /new && ! touch /tmp/new",
            "test \"$(cat /proc/sys/net/ipv4/ip_local_port_range | tr '\\t' ' ')\" = '20000 30000'",
        ];
        succeeds(world, &spec, &container, &checks);
    }
);

e2e!(
    limits_are_the_kernels_limits,
    [Oci, Containerd, OwnCri],
    |world| {
        let container = json!({"resources": {
            "limits": {"memory": "64Mi", "cpu": "500m"}, "requests": {"memory": "32Mi", "cpu": "250m"},
        }});
        let first = |files: &str| format!("cat {files} 2> /dev/null");
        let memory = first("/sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max");
        let quota = first("/sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu.max");
        let checks = [
            format!("test \"$({memory})\" = 67108864"),
            format!("{quota} | grep -q '^50000'"),
        ];
        let checks = checks.each_ref().map(String::as_str);
        succeeds(world, &json!({}), &container, &checks);
    }
);

e2e!(
    names_and_addresses_are_the_pods_own,
    [Oci, Containerd, OwnCri],
    |world| {
        let spec = json!({
            "hostname": "host", "shareProcessNamespace": true,
            "hostAliases": [{"ip": "192.0.2.7", "hostnames": ["elsewhere.test"]}],
            "dnsPolicy": "None", "dnsConfig": {"nameservers": ["192.0.2.53"], "searches": ["corner.test"]},
        });
        let container = json!({"env": [
            {"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "GREETING", "value": "good day"},
        ]});
        let checks = [
            "test \"$(cat /proc/sys/kernel/hostname)\" = host",
            "grep -q '^192.0.2.7.*elsewhere.test' /etc/hosts && grep -q \"^$ADDRESS.*host\" /etc/hosts",
            "grep -q 192.0.2.53 /etc/resolv.conf && grep -q corner.test /etc/resolv.conf",
            "test \"$GREETING\" = 'good day'",
            "test $$ != 1 && test -d /proc/1",
        ];
        succeeds(world, &spec, &container, &checks);
    }
);

e2e!(a_pod_may_have_users_of_its_own, [Oci, OwnCri], |world| {
    let spec = json!({"hostUsers": false, "volumes": [{"name": "data", "emptyDir": {}}]});
    let container = json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]});
    let checks = [
        "test \"$(id -u)\" = 0",
        "read -r a b c < /proc/self/uid_map && test \"$a\" = 0 -a \"$b\" -ge 65536 -a \"$c\" = 65536",
        "read -r a b c < /proc/self/gid_map && test \"$a\" = 0 -a \"$b\" -ge 65536 -a \"$c\" = 65536",
        "touch /data/mine && test \"$(stat -c %u /data/mine)\" = 0",
        "test \"$(stat -c %u /usr/bin/env)\" = 0",
    ];
    succeeds(world, &spec, &container, &checks);
});

e2e!(
    memory_that_ran_out_is_the_reason,
    [Oci, Containerd, OwnCri],
    |world| {
        let app = with(
            world.container("app", &["tail", "/dev/zero"]),
            json!({"resources": {"limits": {"memory": "24Mi"}}}),
        );
        let ended = world
            .run(&json!({"containers": [app], "restartPolicy": "Never"}))
            .finish();
        let exit = ended.all("app", "exited").next().expect("it ended");
        assert_eq!(
            (&exit["exitCode"], &exit["reason"]),
            (&json!(137), &json!("OOMKilled")),
            "{}",
            ended.transcript()
        );
        assert!(world.processes().is_empty());
    }
);
