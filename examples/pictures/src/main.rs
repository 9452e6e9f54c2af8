//! The example as a program: `pictures FOLDER OUT [ROUNDS]`.

use fedanchor_data::pictures::find;
use std::path::Path;

/// Unlabelled pictures to classify.
const SHOWN: usize = 5;

#[allow(clippy::print_stdout, clippy::print_stderr)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (&[folder, out] | &[folder, out, _]) = &arguments.iter().collect::<Vec<_>>()[..] else {
        eprintln!("usage: pictures FOLDER OUT [ROUNDS]");
        std::process::exit(1);
    };
    let (folder, out) = (Path::new(folder), Path::new(out));
    let rounds = arguments.get(2).map_or(Ok(40), |rounds| rounds.parse())?;
    let summary = pictures::train(folder, out, rounds)?;
    println!("test accuracy: {:.1} %", summary.final_accuracy);
    let mut paths = find(&[pictures::unlabelled(folder)])?.pictures;
    paths.truncate(SHOWN);
    for (path, (class, confidence)) in paths.iter().zip(pictures::classify(out, &paths)?) {
        println!("{}: {class} ({:.0} %)", path.display(), 100.0 * confidence);
    }
    Ok(())
}
