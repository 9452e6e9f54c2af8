//! Times the client's training step on inputs that lie ready: WRN-28-2, the fix and the mix view of
//! 32 images each, backward, clipping, SGD. `benches/step.py` runs it beside the same step in
//! PyTorch: a line on standard input is a step, and its seconds are the answer.

use fedanchor::Result;
use fedanchor::config::resolve;
use fedanchor::loss::{cross_entropy, mix_loss};
use fedanchor::optimiser::Momentum;
use fedanchor::params::{Entry, Part};
use fedanchor::setting::Setting;
use fedanchor::training::Learner;
use fedanchor_data::{Normalisation, Shape};
use std::time::Instant;
use tch::{Device, Kind, Tensor};

const BATCH: i64 = 32;

#[allow(clippy::print_stdout)]
fn main() -> Result<()> {
    let settings = ["model.name=wrn28x2".to_owned()];
    let normalisation = Normalisation { mean: vec![0.5; 3], std: vec![0.25; 3] };
    let shape = Shape { side: 32, channels: 3 };
    let setting = Setting::new(resolve("", &settings)?, shape, 10, &normalisation, true, Some(1))?;
    let options = (Kind::Float, Device::Cpu);
    let images = || setting.to_input(&Tensor::f_randn([BATCH, 1, 32, 32, 3], options)?);
    let labels = || Tensor::f_randint(10, [1, BATCH], (Kind::Int64, Device::Cpu));
    let (fix, mix, fix_labels, mix_labels) = (images()?, images()?, labels()?, labels()?);
    let lambda = Tensor::f_rand([1, BATCH], options)?;
    let params = setting.network.init(0, Device::Cpu)?;
    let trains = |entry: &Entry| entry.part != Part::Anchor;
    let mut learner = Learner::new(&setting, "step", params, Momentum::default(), trains)?;
    for _ in std::io::stdin().lines() {
        let start = Instant::now();
        learner.step(1, 0.03, |pass| {
            let logits =
                |x: &Tensor| setting.network.logits(&setting.network.features(x, pass)?, pass);
            let (fix, mix) = (logits(&fix)?, logits(&mix)?);
            let mix = mix_loss(&mix, &fix_labels, &mix_labels, &lambda)?;
            Ok(vec![(1.0, cross_entropy(&fix, &fix_labels)?), (1.0, mix)].into())
        })?;
        println!("{}", start.elapsed().as_secs_f64());
    }
    Ok(())
}
