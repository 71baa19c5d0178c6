//! One fuzzer for everything that comes from outside: an image, a container, a registry, a client. Which of the targets
//! it tries is in the variable `FUZZ_TARGET`. `scripts/fuzz` builds and runs it.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

/// Every target of every crate. A test replays what they found.
const TARGETS: &[&[(&str, fn(&[u8]))]] = &[
    pulselet_agent::fuzzing::TARGETS,
    pulselet_apiserver::fuzzing::TARGETS,
    pulselet_cri_server::fuzzing::TARGETS,
    pulselet_image::fuzzing::TARGETS,
    pulselet_probe::fuzzing::TARGETS,
    pulselet_runtime_oci::fuzzing::TARGETS,
    pulselet_shim::fuzzing::TARGETS,
    pulselet_shim_client::fuzzing::TARGETS,
    pulselet_streaming::fuzzing::TARGETS,
];

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let wanted = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let mut all = TARGETS.iter().copied().flatten();
    match all.find(|(name, _)| *name == wanted) {
        Some((_, target)) => *target,
        None => {
            let names: Vec<_> = TARGETS.iter().copied().flatten().map(|(name, _)| *name).collect();
            eprintln!("FUZZ_TARGET={wanted:?} is none of {}", names.join(" "));
            std::process::exit(2);
        }
    }
});

fuzz_target!(|bytes: &[u8]| TARGET(bytes));
