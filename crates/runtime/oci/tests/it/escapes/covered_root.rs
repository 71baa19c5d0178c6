//! What is below a container's root: on a machine whose root is the kernel's first one, the host's files. The class of
//! escapes from a changed root: by a directory that was opened before, by entering one's own mounts anew.

use std::fs;

use super::{SECRET, hide_secret, run_both_ways};
use crate::world::{World, can_run};

/// Whether the host's root cannot be exchanged, but only be covered.
fn is_covered() -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("reads");
    mounts.lines().any(|line| {
        let words: Vec<&str> = line.split(' ').take(5).collect();
        words[4] == "/" && words[0] == words[1]
    })
}

/// Leaves the root by the way that every tutorial has, takes it away, enters the mounts anew, and looks for a file.
const SCRIPT: &str = r#"cat > /tmp/out.py <<'END'
import ctypes, os, sys
libc, secret = ctypes.CDLL(None, use_errno=True), sys.argv[1]
def look(way):
    for path in (secret, "." + secret):
        try:
            print(way, open(path).read())
        except OSError as error:
            print(way, error.strerror)
os.makedirs("/tmp/cell", exist_ok=True)
mounts, root = os.open("/proc/self/ns/mnt", os.O_RDONLY), os.open("/", os.O_RDONLY)
try:
    os.chroot("/tmp/cell")
    os.fchdir(root)
    for _ in range(64):
        os.chdir("..")
    os.chroot(".")
except OSError as error:
    print("chroot", error.strerror)
look("climbed")
print("umount", libc.umount2(b"/", 2), libc.umount2(b".", 2))
look("uncovered")
print("setns", libc.setns(mounts, 0x20000))
look("entered")
print("tried")
END
exec python3 /tmp/out.py "#;

#[tokio::test]
async fn the_hosts_files_are_out_of_reach_below_a_containers_root() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let secret = hide_secret(&world);
    let script = format!("{SCRIPT}{secret}");
    let mut config = world.config("plain", "");
    for output in run_both_ways(&world, &script, &config).await {
        assert!(output.contains("tried"), "{output}");
        assert!(!output.contains(SECRET), "{output}");
    }
    // Who may take mounts away finds nothing below a root that was exchanged; what is only covered would be found.
    config.name = "capable".into();
    config.security.capabilities.add = vec!["SYS_ADMIN".into()];
    if is_covered() {
        for output in run_both_ways(&world, &script, &config).await {
            assert!(output.contains("set hostUsers to false"), "{output}");
        }
    }
    world.finish().await;
}
