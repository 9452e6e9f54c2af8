//! Times the client's training step on inputs that lie ready: WRN-28-2, the fix and the mix view of
//! 32 images each, backward, clipping, SGD. `benches/step.py` runs it beside the same step in
//! PyTorch: every line on standard input runs one step and prints its seconds.

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
    let settings = ["preset=paper".to_owned(), "model.name=wrn28x2".to_owned()];
    let normalisation = Normalisation { mean: vec![0.5; 3], std: vec![0.25; 3] };
    let shape = Shape { side: 32, channels: 3 };
    let experiment = resolve("preset = \"paper\"", &settings)?;
    let settings = experiment.training(methods::build(&experiment.method)?.properties().heads)?;
    let context = Context::new(settings, shape, 10, &normalisation, true, Some(1))?;
    let options = (Kind::Float, Device::Cpu);
    let images = || context.images.to_input(&Tensor::f_randn([BATCH, 1, 32, 32, 3], options)?);
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
