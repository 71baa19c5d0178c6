//! Pods as the kernel sees them: each in a cgroup of its own, below that of its class.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::harness::eventually;
use super::world::{Node, Runtime, World, e2e, with};

/// The hierarchies that limit CPU and memory, and the root of the node's cgroups in them.
struct Place {
    cpu: PathBuf,
    memory: PathBuf,
    is_v2: bool,
}

impl Place {
    fn of(world: &World) -> Self {
        let read = |file: &str| std::fs::read_to_string(world.data().join(file)).expect("is there");
        let root = if world.runtime == Runtime::Oci {
            let place: Value = serde_json::from_str(&read("oci/place.json")).expect("JSON");
            place["names"]["cgroup"].as_str().expect("a name").to_owned()
        } else {
            format!("pulselet-{}", read("cri/owner").trim_end())
        };
        let mount = Path::new("/sys/fs/cgroup");
        let is_v2 = mount.join("cgroup.controllers").exists();
        let of = |controller: &str| {
            let mount = if is_v2 {
                mount.to_owned()
            } else {
                mount.join(controller)
            };
            mount.join(&root)
        };
        Self {
            cpu: of("cpu"),
            memory: of("memory"),
            is_v2,
        }
    }

    /// Shares, quota and bytes that a cgroup has, as version 1 says them; `None` where it has no limit.
    fn limits(&self, path: &str) -> (u64, Option<i64>, Option<u64>) {
        let read = |file: PathBuf| {
            let text = std::fs::read_to_string(&file);
            let text = text.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            text.trim().to_owned()
        };
        let (cpu, memory) = (self.cpu.join(path), self.memory.join(path));
        if self.is_v2 {
            let weight: u64 = read(cpu.join("cpu.weight")).parse().expect("a number");
            let quota = read(cpu.join("cpu.max"));
            return (
                weight,
                quota.split(' ').next().and_then(|quota| quota.parse().ok()),
                read(memory.join("memory.max")).parse().ok(),
            );
        }
        let quota: i64 = read(cpu.join("cpu.cfs_quota_us")).parse().expect("a number");
        let bytes: u64 = read(memory.join("memory.limit_in_bytes"))
            .parse()
            .expect("a number");
        (
            read(cpu.join("cpu.shares")).parse().expect("a number"),
            (quota >= 0).then_some(quota),
            // Without a limit it is the largest number of pages.
            (bytes < 1 << 60).then_some(bytes),
        )
    }

    /// Shares of version 1, or the weight that stands for them.
    fn shares(&self, v1: u64, v2: u64) -> u64 {
        if self.is_v2 { v2 } else { v1 }
    }

    fn is_there(&self) -> bool {
        self.cpu.exists() || self.memory.exists()
    }
}

fn write_pods(world: &World, pods: &[(&str, Value)]) {
    std::fs::create_dir(world.path("manifests")).expect("is made");
    for (name, spec) in pods {
        let written = world.manifest(name, spec);
        std::fs::rename(written, world.path(&format!("manifests/{name}.json"))).expect("is moved");
    }
}

/// The uids of pods all of whose containers run, by their names.
fn running(world: &World, names: &[&str]) -> Vec<String> {
    eventually("running pods", || {
        let pods = world.pods()?;
        let uid = |name: &&str| {
            let pod = pods.iter().find(|pod| pod["name"] == **name)?;
            (pod["status"]["phase"] == "Running").then(|| pod["uid"].as_str().map(str::to_owned))?
        };
        names.iter().map(uid).collect()
    })
}

e2e!(
    pods_are_limited_as_a_whole_below_their_class,
    [Oci, OwnCri],
    |world| {
        let app = |resources: Value| {
            with(
                world.container("app", &["sleep", "1000"]),
                json!({"resources": resources}),
            )
        };
        let second = |mut app: Value| {
            app["name"] = json!("second");
            app
        };
        let full = json!({"limits": {"cpu": "500m", "memory": "64Mi"}});
        let part = json!({"limits": {"memory": "32Mi"}, "requests": {"cpu": "250m", "memory": "16Mi"}});
        write_pods(
            world,
            &[
                (
                    "full",
                    json!({"containers": [app(full.clone()), second(app(full))]}),
                ),
                (
                    "part",
                    json!({"containers": [app(part.clone()), second(app(part))]}),
                ),
                ("none", json!({"containers": [app(json!({}))]})),
            ],
        );
        let node = Node::start(world);
        let uids = running(world, &["full", "part", "none"]);
        let place = Place::of(world);
        let (one_cpu, half_cpu) = (place.shares(1024, 39), place.shares(512, 20));
        let least = place.shares(2, 1);
        assert_eq!(
            place.limits(&format!("pod{}", uids[0])),
            (one_cpu, Some(100_000), Some(128 << 20))
        );
        assert_eq!(
            place.limits(&format!("burstable/pod{}", uids[1])),
            (half_cpu, None, Some(64 << 20))
        );
        assert_eq!(
            place.limits(&format!("besteffort/pod{}", uids[2])),
            (least, None, None)
        );
        assert_eq!(place.limits("burstable"), (half_cpu, None, None));
        assert_eq!(place.limits("besteffort"), (least, None, None));
        // An agent that was killed finds all of it again, and the classes follow the pods that are left.
        drop(node);
        let node = Node::start(world);
        assert_eq!(running(world, &["full", "part", "none"]), uids);
        std::fs::remove_file(world.path("manifests/part.json")).expect("is removed");
        eventually("end of a class", || {
            (!place.cpu.join("burstable").exists() && !place.memory.join("burstable").exists()).then_some(())
        });
        assert_eq!(place.limits("besteffort"), (least, None, None));
        for name in ["full", "none"] {
            std::fs::remove_file(world.path(&format!("manifests/{name}.json"))).expect("is removed");
        }
        eventually("end of the last pod", || (!place.is_there()).then_some(()));
        drop(node);
    }
);

e2e!(
    a_container_without_a_limit_has_that_of_its_pod,
    [Oci, OwnCri],
    |world| {
        let app = world.container("app", &["tail", "/dev/zero"]);
        let spec = json!({
            "containers": [app], "restartPolicy": "Never", "resources": {"limits": {"memory": "24Mi"}},
        });
        let ended = world.run(&spec).finish();
        let exit = ended.all("app", "exited").next().expect("it ended");
        assert_eq!(
            (&exit["exitCode"], &exit["reason"]),
            (&json!(137), &json!("OOMKilled")),
            "{}",
            ended.transcript()
        );
        assert!(!Place::of(world).is_there());
    }
);
