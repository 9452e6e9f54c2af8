//! Times a trunk on pictures in memory, one core. Every line on standard input names a file of pixels, `[count, side,
//! side, 3]`: its pictures are encoded in one call, the seconds of which are printed, and the vectors are written beside
//! it, with the ending `vectors`. `benches/trunk.py` runs it beside the same network in PyTorch.

use fedanchor_engine::Device;
use fedanchor_engine::config::Unfreeze;
use fedanchor_engine::trunk::{Place, Trunk, TrunkFile};
use std::path::PathBuf;
use std::time::Instant;

#[allow(clippy::print_stdout)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = TrunkFile::read(&Place::by_name("efficientnet-lite0")?, None, None)?;
    let trunk = Trunk::load(&file, Unfreeze::None, Device::Cpu)?;
    for line in std::io::stdin().lines() {
        let path = PathBuf::from(line?);
        let pixels = std::fs::read(&path)?;
        let start = Instant::now();
        let vectors = trunk.encode(&pixels)?;
        let seconds = start.elapsed().as_secs_f64();
        std::fs::write(path.with_extension("vectors"), vectors)?;
        println!("{seconds}");
    }
    Ok(())
}
