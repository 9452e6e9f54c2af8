//! Embeds Apache ECharts into the page of a report if `make echarts` has fetched it.

use std::path::Path;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(echarts)");
    println!("cargo::rerun-if-changed=build.rs"); // touched by `make echarts`
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let Ok(file) = root.join("echarts/echarts.min.js").canonicalize() else { return };
    println!("cargo::rerun-if-changed={}", file.display());
    println!("cargo::rustc-env=ECHARTS_FILE={}", file.display());
    println!("cargo::rustc-cfg=echarts");
}
