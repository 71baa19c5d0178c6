//! What fuzzers call, and nobody else: these functions take what an image's files, a plugin and a profile say.

use crate::spec::{ContainerSpec, UserSpec};
use crate::{cni, seccomp, user};

/// A function with its name, by which fuzzers and their corpora know it.
type FuzzTarget = (&'static str, fn(&[u8]));

pub const TARGETS: &[FuzzTarget] = &[
    ("cni_result", read_cni_result),
    ("container_spec", read_spec),
    ("image_users", look_up_user),
    ("seccomp_profile", compile_profile),
];

/// Looks up a user. The pieces between zeros are the user, `/etc/passwd` and `/etc/group`.
pub fn look_up_user(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut pieces = text.splitn(3, '\0');
    let mut next = || pieces.next().unwrap_or_default();
    let (name, passwd, group) = (next(), next(), next());
    for strict_groups in [false, true] {
        let spec = UserSpec {
            user: name.to_owned(),
            group: None,
            supplemental_groups: vec![1000],
            strict_groups,
            id_count: None,
        };
        user::fuzz_look_up(&spec, passwd, group);
    }
}

/// Reads the result of a network plugin, its complaint, and the configuration that names it.
pub fn read_cni_result(bytes: &[u8]) {
    cni::fuzz_result(bytes);
}

/// Turns a profile into a filter, which the kernel has to take.
pub fn compile_profile(bytes: &[u8]) {
    seccomp::fuzz_profile(bytes);
}

/// Reads what a container is made from, as its shim does.
pub fn read_spec(bytes: &[u8]) {
    if let Ok(spec) = serde_json::from_slice::<ContainerSpec>(bytes) {
        let text = serde_json::to_vec(&spec).expect("a specification is JSON");
        let again = serde_json::from_slice(&text).ok();
        assert_eq!(again, Some(spec), "it reads back");
    }
}
