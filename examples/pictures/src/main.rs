//! The example as a program: `pictures FOLDER OUT [KEY=VALUE...]`.

use fedanchor_data::pictures::find;
use std::path::Path;

/// Unlabelled pictures to classify.
const SHOWN: usize = 5;

#[allow(clippy::print_stdout, clippy::print_stderr)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, out, settings @ ..] = &arguments[..] else {
        eprintln!("usage: pictures FOLDER OUT [KEY=VALUE...]");
        std::process::exit(1);
    };
    let (folder, out) = (Path::new(folder), Path::new(out));
    let summary = pictures::train(folder, out, settings)?;
    println!("test accuracy: {:.1} %", summary.final_accuracy);
    let mut paths = find(&[folder.join("unlabelled")])?.pictures;
    paths.truncate(SHOWN);
    for (path, (class, confidence)) in paths.iter().zip(pictures::classify(out, &paths)?) {
        println!("{}: {class} ({:.0} %)", path.display(), 100.0 * confidence);
    }
    Ok(())
}
