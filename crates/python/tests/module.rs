//! The extension module loads into the Python that is there; `test_module.py` tests the package, with the packages that it
//! needs. This test also has cargo build the module.

use std::path::Path;
use std::process::Command;

#[test]
fn the_module_loads_and_knows_its_build() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("module");
    let libraries = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../libtorch/lib");
    let built = std::env::current_exe().unwrap().with_file_name("lib_native.so");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(built, folder.join("_native.abi3.so")).unwrap();
    let code = "import _native; print(_native.version); print(_native.resolve(None, '', [])[1])";
    let output = Command::new("python3")
        .args(["-c", code])
        .env("PYTHONPATH", &folder)
        .env("LD_LIBRARY_PATH", libraries)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text, format!("{}\n[]\n", env!("CARGO_PKG_VERSION")));
}
