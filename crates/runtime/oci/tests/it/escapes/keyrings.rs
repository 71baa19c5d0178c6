//! The class of shared session keyrings: containers that keep the agent's see its keys and each other's.

use super::start;
use crate::world::{World, can_run};

/// Prints the number of the session keyring: the call is keyctl's, and asks for the keyring without making one.
const SHOW: &str = "python3 -c 'import ctypes, os; \
    call = {\"x86_64\": 250, \"aarch64\": 219}[os.uname().machine]; \
    print(\"ring\", ctypes.CDLL(None).syscall(call, 0, -3, 0))'";

fn ring(text: &str) -> String {
    let found = text.lines().find_map(|line| line.split_once("ring "));
    found
        .unwrap_or_else(|| panic!("no keyring in {text}"))
        .1
        .trim()
        .to_owned()
}

#[tokio::test]
async fn every_container_has_a_session_keyring_of_its_own() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let host = std::process::Command::new("sh")
        .args(["-c", SHOW])
        .output()
        .expect("runs");
    let mut rings = vec![ring(&String::from_utf8_lossy(&host.stdout))];
    for name in ["first", "second"] {
        let script = format!("{SHOW} > /shared/{name}; exec sleep 1000");
        let mut config = world.config(name, &script);
        config.security.run_as_user = Some(0);
        let id = start(&world, &config).await.expect("starts");
        let init = ring(&world.file(name).await);
        let (_, exec) = world.exec(&id, SHOW).await;
        assert_eq!(ring(&exec), init, "a command shares its container's");
        rings.push(init);
    }
    let different: std::collections::BTreeSet<&String> = rings.iter().collect();
    assert_eq!(different.len(), 3, "{rings:?}");
    world.finish().await;
}
