//! Compiles `vmap`, and the C++ shim into a library of its own where libtorch's CUDA set is there: a build for the CPU
//! neither needs nor links it. `FEDANCHOR_CUDA_SET` names another CUDA set than `LIBTORCH`, for a package
//! that holds the library beside a program for any libtorch (`make wheel`).

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    println!("cargo:rerun-if-env-changed=FEDANCHOR_CUDA_SET");
    println!("cargo:rerun-if-changed=cpp");
    let folder =
        |name| std::env::var_os(name).and_then(|path| PathBuf::from(path).canonicalize().ok());
    let libtorch = folder("LIBTORCH");
    if let Some(libtorch) = &libtorch {
        // As in the core's build script: tests find libtorch by themselves.
        println!("cargo:rustc-link-arg=-Wl,-rpath,{}", libtorch.join("lib").display());
        compiler(libtorch).include("cpp/absent").file("cpp/vmap.cpp").compile("fedanchor_vmap");
    }
    let packaged = folder("FEDANCHOR_CUDA_SET");
    let (Some(set), Some(out)) = (packaged.as_ref().or(libtorch.as_ref()), folder("OUT_DIR"))
    else {
        return;
    };
    if !set.join("lib/libtorch_cuda.so").exists() {
        return;
    }
    let toolkit = set.join("../nvidia/cu13");
    if !toolkit.join("include/crt").is_dir() {
        println!("cargo:warning=no CUDA headers beside libtorch: run `make libtorch CUDA=1` again");
        return;
    }
    let library = out.join("libfedanchor_cuda.so");
    compile(set, &toolkit, &library, packaged.is_none());
    if packaged.is_none() {
        println!("cargo:rustc-env=FEDANCHOR_CUDA_SHIM={}", library.display());
    }
}

/// Compiles the shim; `stays` says whether CUDA stays where it is now.
fn compile(set: &Path, toolkit: &Path, library: &Path, stays: bool) {
    let mut build = compiler(set);
    build.include(toolkit.join("include")).include(toolkit.join("include/cccl"));
    let mut command = build.get_compiler().to_command();
    command.args(["-shared", "-o"]).arg(library).arg("cpp/shim.cpp");
    for folder in [set.join("lib"), toolkit.join("lib")] {
        command.arg("-L").arg(&folder);
        if stays {
            command.arg(format!("-Wl,-rpath,{}", folder.display()));
        }
    }
    // Nothing may be left open: it would be found missing on a GPU only.
    command.args([
        "-Wl,-z,defs",
        "-Wl,--no-as-needed",
        "-ltorch_cuda",
        "-lc10_cuda",
        "-l:libcudart.so.13",
    ]);
    command.args(["-Wl,--as-needed", "-ltorch_cpu", "-lc10"]);
    let outcome = command.status();
    assert!(
        outcome.as_ref().is_ok_and(|status| status.success()),
        "compiling the shim failed: {outcome:?}: {command:?}"
    );
}

/// A compiler of C++ against this libtorch.
fn compiler(libtorch: &Path) -> cc::Build {
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .pic(true)
        .warnings(false)
        .flag("-Wno-interference-size")
        // libtorch is built so, and some of its structs have further members without it.
        .define("NDEBUG", None)
        .include(libtorch.join("include"))
        .include(libtorch.join("include/torch/csrc/api/include"));
    build
}
