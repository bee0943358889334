//! The command line.

mod cli;

use std::process::ExitCode;

/// Rows are many small allocations that come and go with an epoch, made by one thread and often freed by another. This
/// allocator bears that: a bulk load takes about two thirds of the time it takes with glibc's.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// jemalloc's settings. Huge pages, since most of the time that fresh memory costs is its first touch; what an epoch has
/// freed is given back by a thread of its own.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code, reason = "jemalloc looks its settings up under this name, as a pointer to a C string")]
#[unsafe(export_name = "_rjem_malloc_conf")]
static SETTINGS: &[u8; 34] = b"thp:always,background_thread:true\0";

fn main() -> ExitCode {
    cli::main()
}
