//! Writes the place of libtorch into the binaries (also those of the command line, whose build
//! script calls this one), so that they run with no environment variable set by hand. `runpath`, not
//! `rpath`: LD_LIBRARY_PATH still wins, which a machine with its own libtorch needs. `FEDANCHOR_RUNPATH`
//! names another place, for an archive that brings libtorch along (`make dist`).

use std::path::PathBuf;

/// Also called by the command line's build script.
pub fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    println!("cargo:rerun-if-env-changed=FEDANCHOR_RUNPATH");
    if let Some(runpath) = std::env::var_os("FEDANCHOR_RUNPATH") {
        let runpath = runpath.to_string_lossy();
        println!("cargo:rustc-link-arg=-Wl,--enable-new-dtags,-rpath,{runpath}");
        return;
    }
    let Some(libtorch) = std::env::var_os("LIBTORCH").map(PathBuf::from) else {
        return; // torch-sys says what is missing
    };
    match libtorch.join("lib").canonicalize() {
        Ok(lib) => {
            println!("cargo:rustc-link-arg=-Wl,--enable-new-dtags,-rpath,{}", lib.display());
            // libcudart of the CUDA set.
            let toolkit = lib.join("../../nvidia/cu13/lib");
            if toolkit.is_dir() {
                println!("cargo:rustc-link-arg=-Wl,-rpath,{}", toolkit.display());
            }
        }
        Err(_) => {
            println!("cargo:warning=libtorch is not set up: run `make libtorch` first");
            std::process::exit(1);
        }
    }
}
