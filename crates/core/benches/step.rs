//! Times the client's training step on inputs that lie ready: the fix and the mix view of 32 images each, backward,
//! clipping, SGD. `benches/step.py` runs it beside the same step in PyTorch: every line on standard input runs one step and
//! prints its seconds.
//!
//!     cargo bench -p fedanchor --bench step -- MODEL THREADS SIDE CHANNELS

use fedanchor::engine::set_threads;
use fedanchor::engine::tensors::{Entry, Part};
use fedanchor::engine::training::losses::{cross_entropy, mix_loss};
use fedanchor::engine::training::{Context, Learner, Momentum};
use fedanchor::{Result, methods, resolve};
use fedanchor_data::{Normalisation, Shape};
use std::time::Instant;
use tch::{Device, Kind, Tensor};

const BATCH: i64 = 32;

#[allow(clippy::print_stdout)]
fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let [model, threads, side, channels] = &arguments[..] else {
        println!("usage: cargo bench -p fedanchor --bench step -- MODEL THREADS SIDE CHANNELS");
        return Ok(());
    };
    let number = |text: &String| text.parse::<usize>().unwrap_or(1);
    set_threads(number(threads) as i32);
    let settings = ["preset=paper".to_owned(), format!("model.name={model}")];
    let shape = Shape { side: number(side), channels: number(channels) };
    let numbers = |value| vec![value; shape.channels];
    let normalisation = Normalisation { mean: numbers(0.5), std: numbers(0.25) };
    let experiment = resolve("preset = \"paper\"", &settings)?;
    let settings = experiment.training(methods::build(&experiment.method)?.properties().heads)?;
    let context = Context::new(settings, shape, 10, &normalisation, true, Some(1))?;
    let options = (Kind::Float, Device::Cpu);
    let [side, channels] = [shape.side, shape.channels].map(|number| number as i64);
    let size = [BATCH, 1, side, side, channels];
    let images = || context.images.to_input(&Tensor::f_randn(size, options)?);
    let labels = || Tensor::f_randint(10, [1, BATCH], (Kind::Int64, Device::Cpu));
    let (fix, mix, fix_labels, mix_labels) = (images()?, images()?, labels()?, labels()?);
    let lambda = Tensor::f_rand([1, BATCH], options)?;
    let params = context.network.init(0, Device::Cpu)?;
    let trains = |entry: &Entry| entry.part != Part::Anchor;
    let mut learner = Learner::new(&context, "step", params, Momentum::default(), trains)?;
    for _ in std::io::stdin().lines() {
        let start = Instant::now();
        learner.step(1, 0.03, |pass| {
            let logits =
                |x: &Tensor| context.network.logits(&context.network.features(x, pass)?, pass);
            let (fix, mix) = (logits(&fix)?, logits(&mix)?);
            let mix = mix_loss(&mix, &fix_labels, &mix_labels, &lambda)?;
            Ok(vec![(1.0, cross_entropy(&fix, &fix_labels)?), (1.0, mix)].into())
        })?;
        println!("{}", start.elapsed().as_secs_f64());
    }
    Ok(())
}
