//! Builds the C++ shim where libtorch's CUDA set is there, and nothing otherwise: a build for the CPU
//! neither needs nor links it.

use std::path::PathBuf;

fn main() {
    println!("cargo:rustc-check-cfg=cfg(fedanchor_cuda)");
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    println!("cargo:rerun-if-changed=cpp");
    let Some(libtorch) = std::env::var_os("LIBTORCH").map(PathBuf::from) else { return };
    let Ok(libtorch) = libtorch.canonicalize() else { return };
    // As in the core's build script: tests find libtorch by themselves.
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", libtorch.join("lib").display());
    if !libtorch.join("lib/libtorch_cuda.so").exists() {
        return;
    }
    let toolkit = libtorch.join("../nvidia/cu13");
    if !toolkit.join("include/crt").is_dir() {
        println!("cargo:warning=no CUDA headers beside libtorch: run `make libtorch CUDA=1` again");
        return;
    }
    println!("cargo:rustc-cfg=fedanchor_cuda");
    let toolkit_lib = toolkit.join("lib");
    for folder in [&libtorch.join("lib"), &toolkit_lib] {
        println!("cargo:rustc-link-search=native={}", folder.display());
    }
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", toolkit_lib.display());
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .pic(true)
        .warnings(false)
        .flag("-Wno-interference-size")
        // libtorch is built so, and some of its structs have further members without it.
        .define("NDEBUG", None)
        .include(libtorch.join("include"))
        .include(libtorch.join("include/torch/csrc/api/include"))
        .include(toolkit.join("include"))
        .include(toolkit.join("include/cccl"))
        .file("cpp/shim.cpp")
        .compile("fedanchor_shim");
    println!("cargo:rustc-link-lib=dylib=torch_cuda");
    println!("cargo:rustc-link-lib=dylib=c10_cuda");
    println!("cargo:rustc-link-lib=dylib:+verbatim=libcudart.so.13");
}
