//! The last stage of a network by itself: what is trained where `model.unfreeze` is `last` and a trunk computes the stages
//! before it.

use super::description::{Builder, IMAGES, Layer, Operation, Value};
use crate::config::ModelConfig;
use crate::error::{Error, Result};
use fedanchor_data::Shape;

type Describe = dyn Fn(&mut Builder) -> Value;

/// Describes the last stage for inputs of this shape; returns it with its pooled features.
pub(super) fn describe<'a>(
    config: &'a ModelConfig,
    input: Shape,
    whole: &Describe,
) -> Result<(Builder<'a>, Value)> {
    // The side of the images follows from that of the input: at any size, the stages before divide it by the same.
    const ANY: usize = 512;
    let mut builder = Builder::new(config, Shape { side: ANY, channels: 3 });
    whole(&mut builder);
    let no_stages = || {
        Error::config("model.unfreeze", format!("`{}` has no stage before its last", config.name))
    };
    let from = builder.stages.last().copied().ok_or_else(no_stages)?;
    let divisor = ANY / (builder.sizes[from].1.max(1) as usize);
    let images = Shape { side: input.side * divisor, channels: 3 };
    let mut builder = Builder::new(config, images);
    let pooled = whole(&mut builder);
    let expected = builder.sizes[from];
    if expected != (input.channels as i64, input.side as i64) {
        let (channels, side) = expected;
        let problem = format!(
            "the last stage of `{}` reads {channels} numbers for each of {side} x {side} places, these inputs have {} \
             for {} x {}",
            config.name, input.channels, input.side, input.side
        );
        return Err(Error::config("model.name", problem));
    }
    if builder.latent_input.is_some() {
        let problem = "the trunk computes this stage: only the last has an anchor head to train";
        return Err(Error::config("model.latent_stage", problem));
    }
    builder.drop_before(from);
    Ok((builder, pooled - from))
}

impl Builder<'_> {
    /// Drops all layers up to the one that computes `from`, which becomes the input, and their tensors.
    fn drop_before(&mut self, from: Value) {
        let value = |value: Value| value - from;
        let mut kept = vec![None; self.entries.len()];
        let mut count = 0;
        for layer in &mut self.layers[from..] {
            let operation = layer.operation.renumbered(value, |tensor| {
                *kept[tensor].get_or_insert_with(|| {
                    count += 1;
                    count - 1
                })
            });
            *layer = Layer { input: value(layer.input), operation };
        }
        // Layers come in the order of their tensors.
        let mut entries = kept.iter();
        self.entries.retain(|_| entries.next().is_some_and(Option::is_some));
        self.layers.drain(..from);
        self.sizes.drain(..from);
        self.convolved = (self.layers.iter().zip(&self.sizes[IMAGES + 1..]))
            .filter(|(layer, _)| matches!(layer.operation, Operation::Conv { .. }))
            .map(|(_, (channels, side))| (channels * side * side) as u64)
            .sum();
    }
}
