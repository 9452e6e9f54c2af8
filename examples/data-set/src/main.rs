//! The whole command line of fedanchor, with one more data set:
//!
//!     cargo run --locked -p data-set -- run examples/data-set/stripes.toml

use fedanchor_data::stream::SERVER;
use fedanchor_data::{DataSet, ImageSet, Normalisation, Purpose, Result, Shape, Stream, formats};
use rand::RngExt;
use std::path::Path;
use std::process::ExitCode;

const SHAPE: Shape = Shape { side: 16, channels: 1 };
const CLASSES: [&str; 3] = ["horizontal", "vertical", "diagonal"];

fn main() -> ExitCode {
    formats::register("stripes", load).expect("the name is free");
    fedanchor_cli::main()
}

/// Makes the data set. One that is read from files finds them at `path`, which is `data.path` of the config.
fn load(_path: Option<&Path>) -> Result<DataSet> {
    let (train, test) = (images(600, 0), images(300, 1));
    Ok(DataSet {
        name: "stripes".to_owned(),
        normalisation: Normalisation::measure(&train),
        train,
        test,
        unlabelled: None,
        flip: false, // a mirrored diagonal falls in the other direction
        skipped: Vec::new(),
    })
}

/// Noisy stripes of a random phase and width.
fn images(count: usize, part: u32) -> ImageSet {
    let stream = Stream::new(0, Purpose::Shuffle, part, SERVER);
    let mut pixels = Vec::with_capacity(count * SHAPE.bytes());
    for image in 0..count {
        let mut rng = stream.at(image as u64);
        let (phase, width) = (rng.random_range(0..8), rng.random_range(2..5));
        for (y, x) in (0..SHAPE.side).flat_map(|y| (0..SHAPE.side).map(move |x| (y, x))) {
            let across = [y, x, y + x][image % CLASSES.len()];
            let bright = ((across + phase) / width).is_multiple_of(2);
            pixels.push(if bright { 160 } else { 0 } + rng.random_range(0..96));
        }
    }
    ImageSet {
        shape: SHAPE,
        pixels,
        labels: Some((0..count).map(|image| (image % CLASSES.len()) as u16).collect()),
        classes: CLASSES.map(str::to_owned).to_vec(),
    }
}
