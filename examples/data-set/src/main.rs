//! The whole command line of fedanchor, with one more data set:
//!
//!     cargo run --locked -p data-set -- run examples/data-set/stripes.toml

use fedanchor_data::{DataSet, ImageSet, Result, Shape, formats};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use std::path::Path;
use std::process::ExitCode;

const SHAPE: Shape = Shape { side: 16, channels: 1 };
const CLASSES: [&str; 3] = ["horizontal", "vertical", "diagonal"];

fn main() -> ExitCode {
    formats::register("stripes", load).expect("the name is free");
    fedanchor_cli::main()
}

/// Makes the data set. A data set in files would read them from `path`, which is `data.path` of the config.
fn load(_path: Option<&Path>) -> Result<DataSet> {
    let data = DataSet::new("stripes", images(600, 0), images(300, 1));
    Ok(DataSet { flip: false, ..data }) // a mirrored diagonal falls in the other direction
}

/// Noisy stripes of a random phase and width.
fn images(count: usize, seed: u64) -> ImageSet {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let labels: Vec<u16> = (0..count).map(|image| (image % CLASSES.len()) as u16).collect();
    let mut pixels = Vec::with_capacity(count * SHAPE.bytes());
    for &label in &labels {
        let (phase, width) = (rng.random_range(0..8), rng.random_range(2..5));
        for (y, x) in (0..SHAPE.side).flat_map(|y| (0..SHAPE.side).map(move |x| (y, x))) {
            let across = [y, x, y + x][usize::from(label)];
            let bright = ((across + phase) / width).is_multiple_of(2);
            pixels.push(if bright { 160 } else { 0 } + rng.random_range(0..96));
        }
    }
    let classes = CLASSES.map(str::to_owned).to_vec();
    ImageSet::new(SHAPE, pixels, Some(labels), classes)
}
