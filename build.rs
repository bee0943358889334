//! Compiles the wire definitions in `proto/`, without any tool but Rust's own.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).open_files(["spark/connect/base.proto", "google/rpc/status.proto"])?;
    let known = std::path::Path::new(&std::env::var("OUT_DIR")?).join("messages.bin");
    std::fs::write(known, compiler.encode_file_descriptor_set())?;
    compiler.include_source_info(true);
    tonic_prost_build::configure().build_client(false).compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
