//! Compiles the wire definitions in `proto/`, without any tool but Rust's own.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["spark/connect/base.proto", "google/rpc/status.proto"], ["proto"])?;
    tonic_prost_build::configure().build_client(false).compile_fds(files)?;
    Ok(())
}
