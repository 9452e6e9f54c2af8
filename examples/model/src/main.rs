//! The whole command line of fedanchor, with one more model:
//!
//!     cargo run --locked -p model -- run examples/model/plain3.toml

use fedanchor::engine::model::{Builder, IMAGES, Registration, Value, register};
use std::process::ExitCode;

fn main() -> ExitCode {
    let plain3 = Registration::new("plain3", "Three convolutions without shortcuts.", plain3);
    register(plain3).expect("the name is free");
    fedanchor_cli::main()
}

/// Describes the layers: training runs this list, and `export` writes it. Each name is that of the layer's tensors.
fn plain3(net: &mut Builder) -> Value {
    let mut x = IMAGES;
    for (stage, width) in [16, 32, 64].into_iter().enumerate() {
        if stage > 0 {
            net.end_stage(x); // `model.latent_stage` can name every stage
        }
        x = net.conv(&format!("conv{}", stage + 1), x, width, 3, 2);
        x = net.norm_relu(&format!("norm{}", stage + 1), x);
    }
    net.pool(x)
}
