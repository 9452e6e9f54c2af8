//! Times a trunk on pictures in memory, one core: every line on standard input encodes a batch and prints its seconds.
//! `benches/trunk.py` runs it beside the same network in PyTorch.

use fedanchor_engine::config::Unfreeze;
use fedanchor_engine::trunk::{Place, Trunk, TrunkFile};
use fedanchor_engine::{Device, Error};
use std::time::Instant;

/// Pictures per call: one as it is and two views of each kind.
const PICTURES: usize = 5;

#[allow(clippy::print_stdout)]
fn main() -> Result<(), Error> {
    let file = TrunkFile::read(&Place::by_name("efficientnet-lite0")?, None, None)?;
    let trunk = Trunk::load(&file, Unfreeze::None, Device::Cpu)?;
    let pixels = vec![100; PICTURES * trunk.info.shape().bytes()];
    for _ in std::io::stdin().lines() {
        let start = Instant::now();
        trunk.encode(&pixels)?;
        println!("{}", start.elapsed().as_secs_f64());
    }
    Ok(())
}
