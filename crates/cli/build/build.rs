//! The build script of the command line: where libtorch is, as for the engine, since this package links it too; and the
//! commit that the program is built from, which it hands to all other crates when it starts. Only this crate is compiled
//! again after a commit.

mod commit;
#[path = "../../engine/build.rs"]
mod libtorch;

use commit::Source;
use std::path::Path;

/// Names the commit where there is no checkout. The program is given the answer under the same name.
const VARIABLE: &str = "FEDANCHOR_COMMIT";

fn main() {
    libtorch::main();
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=../engine/build.rs");
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    let given = std::env::var(VARIABLE).ok();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let Source { commit, changed, depends_on } = Source::find("git", &root, given.as_deref());
    println!("cargo::rustc-env={VARIABLE}={commit}");
    println!("cargo::rustc-env=FEDANCHOR_CHANGED={changed}");
    for path in depends_on {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}
