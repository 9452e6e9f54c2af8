//! The example as a program: `pictures FOLDER OUT`.

use std::path::{Path, PathBuf};

#[allow(clippy::print_stdout, clippy::print_stderr)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, out] = &arguments[..] else {
        eprintln!("usage: pictures FOLDER OUT");
        std::process::exit(1);
    };
    let summary = pictures::train(Path::new(folder), Path::new(out), &[])?;
    println!("test accuracy: {:.1} %", summary.final_accuracy);
    let unlabelled = std::fs::read_dir(Path::new(folder).join("unlabelled"))?;
    let paths: Vec<PathBuf> =
        unlabelled.take(5).map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    for (path, (class, confidence)) in paths.iter().zip(pictures::classify(Path::new(out), &paths)?)
    {
        println!("{}: {class} ({:.0} %)", path.display(), 100.0 * confidence);
    }
    Ok(())
}
