//! Wide ResNet-28-2 (Zagoruyko and Komodakis, 2016) and the `small` net for work on a CPU: both are
//! three stages of pre-activation blocks.

use super::layers::Builder;
use super::resnet::{Block, Body};

/// WRN-28-2: four blocks a stage, 32, 64 and 128 channels.
pub(super) fn wrn28x2(builder: &mut Builder, channels: i64) -> Body {
    stages(builder, channels, 16, 1, [32, 64, 128], 4)
}

/// One block a stage of 16, 32 and 64 channels behind a stem of stride 2: a thirtieth of WRN-28-2's
/// arithmetic, and enough to tell the embedded sample's classes apart.
pub(super) fn small(builder: &mut Builder, channels: i64) -> Body {
    stages(builder, channels, 16, 2, [16, 32, 64], 1)
}

fn stages(
    builder: &mut Builder,
    channels: i64,
    stem: i64,
    stem_stride: i64,
    widths: [i64; 3],
    blocks: usize,
) -> Body {
    let stem_conv = builder.conv("conv1", channels, stem, 3, stem_stride);
    let mut from = stem;
    let mut stages = Vec::new();
    for (stage, to) in widths.into_iter().enumerate() {
        let stage = (0..blocks).map(|index| {
            let stride = if stage > 0 && index == 0 { 2 } else { 1 };
            let block =
                Block::pre(builder, &format!("layer{}.{index}", stage + 1), from, to, stride);
            from = to;
            block
        });
        stages.push(stage.collect());
    }
    let end_norm = Some(builder.norm("bn", from));
    let (stem_norm, stem_pool) = (None, false);
    Body { stem: stem_conv, stem_norm, stem_pool, stages, end_norm, widths: widths.to_vec() }
}
