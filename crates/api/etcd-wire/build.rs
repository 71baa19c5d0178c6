//! Compiles the protocol file, without `protoc`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["etcd.proto"], ["proto"])?;
    tonic_prost_build::configure()
        // Values are passed on, never copied.
        .bytes(".")
        .build_transport(false)
        .build_server(false)
        .compile_fds(descriptors)?;
    Ok(())
}
