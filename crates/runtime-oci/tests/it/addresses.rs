//! Addresses that pods give back and others get.

use std::net::IpAddr;

use pulselet_runtime::{Runtime, SandboxId};

use crate::world::{World, can_run, on_bridge};

async fn addresses_of(world: &World, sandbox: &SandboxId) -> Vec<IpAddr> {
    let status = world.runtime.sandbox_status(sandbox).await;
    let addresses = status.expect("is there").addresses;
    assert!(
        addresses.len() == 2 || std::env::var_os("CI").is_none(),
        "this machine has no IPv6"
    );
    addresses
}

fn next(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let next = |address: &IpAddr| match address {
        IpAddr::V4(address) => IpAddr::V4((address.to_bits() + 1).into()),
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() + 1).into()),
    };
    addresses.iter().map(next).collect()
}

#[tokio::test]
async fn addresses_stay_and_are_given_in_turn() {
    if !can_run() {
        return;
    }
    let world = World::with(on_bridge()).await;
    let first = addresses_of(&world, &world.sandbox).await;
    let second = world.add_sandbox("second", on_bridge()).await;
    assert_eq!(addresses_of(&world, &second).await, next(&first));
    world.runtime.remove_sandbox(&second).await.expect("removes");
    let third = world.add_sandbox("third", on_bridge()).await;
    let expected = next(&next(&first));
    assert_eq!(addresses_of(&world, &third).await, expected);
    let world = world.reopen().await;
    assert_eq!(addresses_of(&world, &world.sandbox).await, first);
    assert_eq!(addresses_of(&world, &third).await, expected);
    let fourth = world.add_sandbox("fourth", on_bridge()).await;
    assert_eq!(
        addresses_of(&world, &fourth).await,
        next(&expected),
        "the next agent goes on after the last"
    );
    world.finish().await;
}
