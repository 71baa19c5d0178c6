//! The class of CVE-2016-3697: an image's own files make a user that its pod names by a number into root.

use std::fs;

use super::{restricted, run_both_ways, start, volume};
use crate::world::{World, can_run};

#[tokio::test]
async fn a_number_is_not_the_name_of_another_user() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let users = "root:x:0:0::/root:/bin/sh\n1000:x:0:0::/:/bin/sh\nme:x:1000:1000::/:/bin/sh\n";
    fs::write(world.shared("passwd"), users).expect("writes");
    fs::write(world.shared("group"), "root:x:0:\n1001:x:0:\n").expect("writes");
    let mut config = restricted(&world, "main", "");
    config.mounts.push(volume(&world, "passwd", "/etc/passwd"));
    config.mounts.push(volume(&world, "group", "/etc/group"));
    config.security.run_as_user = Some(1000);
    for output in run_both_ways(&world, "id -u; id -g", &config).await {
        let ids: Vec<&str> = output
            .lines()
            .filter_map(|line| line.rsplit(' ').next())
            .collect();
        assert_eq!(ids, ["1000", "1000"], "{output}");
    }
    config.name = "group".into();
    config.security.run_as_user = None;
    config.security.run_as_username = Some("me:1001".into());
    for output in run_both_ways(&world, "id -g", &config).await {
        assert!(output.trim_end().ends_with("1001"), "{output}");
    }
    world.finish().await;
}

#[tokio::test]
async fn a_number_that_the_kernel_takes_for_none_is_refused() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    for (number, user) in ["4294967295", "4294967296", "2147483648", "1:4294967295"]
        .iter()
        .enumerate()
    {
        let mut config = restricted(&world, &format!("c{number}"), "id -u; id -g");
        config.security.run_as_username = Some((*user).into());
        let refused = start(&world, &config).await;
        let message = refused.expect_err(user);
        assert!(message.contains("2147483647"), "{user}: {message}");
    }
    world.finish().await;
}
