//! Compiles the protocol files, without `protoc`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = [
        "cri.proto",
        "cri_alpha.proto",
        "containerd.proto",
        "containerd_tasks.proto",
    ];
    let descriptors = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure()
        .btree_map(".")
        .build_transport(false)
        .generate_default_stubs(true)
        .compile_fds(descriptors)?;
    Ok(())
}
