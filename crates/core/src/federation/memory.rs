//! Whether a run fits into the memory, before it starts.

use crate::config::{Experiment, ensure};
use crate::error::Result;
use fedanchor_data::formats::free_memory;
use fedanchor_engine::Device;
use fedanchor_engine::training::Context;

/// Refuses batches whose training cannot fit into the memory that is free. What is counted is the least: what
/// convolutions compute for one view of one batch, in single precision. A GPU says itself when its memory is full.
pub(super) fn check(experiment: &Experiment, context: &Context) -> Result<()> {
    match free_memory() {
        Some(free) if context.device == Device::Cpu => check_against(free, experiment, context),
        _ => Ok(()),
    }
}

fn check_against(free: u64, experiment: &Experiment, context: &Context) -> Result<()> {
    let of_image = context.network.convolved * size_of::<f32>() as u64;
    let server = experiment.server_batch().min(experiment.data.anchors);
    for (key, images) in [("server.batch", server), ("client.batch", experiment.client.batch)] {
        let needed = of_image.saturating_mul(images as u64);
        let problem = format!(
            "training on {images} images at a time needs at least {} MB of memory, and {} MB are free: \
             expected at most {}, or a smaller model or data.size",
            needed / 1_000_000,
            free / 1_000_000,
            free / of_image.max(1),
        );
        ensure(needed <= free, key, problem)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::resolve;
    use crate::federation::Federation;
    use fedanchor_data::sample;

    #[test]
    fn a_batch_that_cannot_fit_is_refused_with_the_number() {
        let keys = ["model.name=wrn28x2", "data.name=sample", "server.batch=40", "client.batch=20"];
        let experiment = resolve("preset = \"paper\"", &keys.map(str::to_owned)).unwrap();
        let federation = Federation::new(&experiment, sample::load().unwrap(), Some(1)).unwrap();
        let Federation { experiment, context, .. } = &federation;
        let image = 4 * context.network.convolved;
        check_against(40 * image, experiment, context).unwrap();
        let refused = check_against(40 * image - 1, experiment, context).unwrap_err().to_string();
        let problem = "server.batch: training on 40 images at a time needs at least";
        assert!(refused.starts_with(problem) && refused.contains("at most 39, or"), "{refused}");
        let experiment = Experiment {
            server: crate::config::ServerConfig { batch: Some(1), ..experiment.server.clone() },
            ..experiment.clone()
        };
        let refused = check_against(20 * image - 1, &experiment, context).unwrap_err().to_string();
        assert!(refused.starts_with("client.batch: training on 20 images"), "{refused}");
    }
}
