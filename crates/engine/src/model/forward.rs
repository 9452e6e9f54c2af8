//! Runs the layers of a network for a cohort.
//!
//! K clients are one network with K groups: activations are `[batch, K*C, H, W]`, convolutions run with `groups = K`,
//! batch norm over K*C channels *is* per-client batch norm, and heads are batched matrix products. A layer is a
//! description (indices into the parameters); the tensors come with each forward pass, so one network serves any cohort.
//! Running K networks one after the other was rejected: at the paper's batch of 10 a GPU is idle most of that time.

use super::description::{EPSILON, IMAGES, Layer, Operation, Padding, Value};
use crate::error::{Error, Result};
use crate::tensors::Params;
use fedanchor_cuda as cuda;
use tch::{Kind, Tensor};

pub use cuda::Statistics;

/// One forward pass: the cohort's tensors and how to compute.
#[derive(Debug, Clone, Copy)]
pub struct Pass<'a> {
    /// Tensors in the layout's order, each `[K, ...]`, as the layers use them: on a GPU some are bfloat16 copies.
    pub(crate) tensors: &'a [Tensor],
    /// The same in single precision, for a loss that reads them.
    pub(crate) weights: Option<&'a [Tensor]>,
    /// Further networks of the same clients that a loss reads.
    pub others: &'a [Params],
    /// What batch norm does.
    pub(crate) statistics: Statistics,
    /// Number format of activations and of the weights at their use.
    pub kind: Kind,
    /// Equal parts of the batch with separate batch norm statistics. More than one needs `fused`.
    pub(crate) views: i64,
    /// Layers and losses in the GPU's fused kernels, where there are such.
    pub fused: bool,
}

impl<'a> Pass<'a> {
    /// In single precision, one view, without the GPU's fused kernels.
    pub fn plain(tensors: &'a [Tensor], statistics: Statistics) -> Self {
        let (weights, kind) = (None, Kind::Float);
        Self { tensors, weights, others: &[], statistics, kind, views: 1, fused: false }
    }

    /// The same pass with other tensors, in the layout's order.
    pub fn with_tensors<'b>(&self, tensors: &'b [Tensor]) -> Pass<'b>
    where
        'a: 'b,
    {
        Pass { tensors, weights: None, ..*self }
    }

    /// The same pass with other statistics.
    pub fn with_statistics(&self, statistics: Statistics) -> Self {
        Self { statistics, ..*self }
    }

    /// With leaves that a loss may read beside the layers' tensors.
    pub fn with_weights(self, weights: &'a [Tensor]) -> Self {
        Self { weights: Some(weights), ..self }
    }

    /// The tensors that layers compute with.
    pub fn tensors(&self) -> &'a [Tensor] {
        self.tensors
    }

    /// How batch norm uses its statistics.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// The trained network's weights in single precision, in the layout's order, for a loss that reads them.
    pub fn weights(&self) -> Result<&'a [Tensor]> {
        self.weights.ok_or_else(|| {
            Error::tensors(
                "the loss reads weights, although its `reads_weights` says that it does not",
            )
        })
    }

    /// The clients of the pass.
    pub fn clients(&self) -> usize {
        self.tensors.first().map_or(0, |tensor| tensor.size()[0] as usize)
    }
}

/// What the readers of a value decide about its computation, by value.
#[derive(Debug)]
pub(super) struct Plan {
    readers: Vec<usize>,
    /// Computed together with its only reader, in one kernel or in place.
    joined: Vec<bool>,
    /// Read by a batch norm, which needs sums that a convolution can compute on the way.
    normalised: Vec<bool>,
}

impl Plan {
    pub(super) fn new(layers: &[Layer]) -> Self {
        use Operation::{Add, BatchNorm, Conv, GroupNorm, Relu};
        let mut readers = vec![Vec::new(); layers.len() + 1];
        for (layer, value) in layers.iter().zip(1..) {
            readers[layer.input].push(value);
            if let Add { other } = layer.operation {
                readers[other].push(value);
            }
        }
        let operation = |value: Value| layers[value - 1].operation;
        let is_norm = |value| {
            value != IMAGES && matches!(operation(value), BatchNorm { .. } | GroupNorm { .. })
        };
        // The reader of a value that has one reader, which may only add another value to it.
        let only_reader = |value: Value| match readers[value][..] {
            [reader] if layers[reader - 1].input == value => Some(reader),
            _ => None,
        };
        let is_joined = |value: Value| {
            let Some(reader) = only_reader(value).filter(|_| value != IMAGES) else { return false };
            match (operation(value), operation(reader)) {
                (Conv { .. }, Add { .. }) | (BatchNorm { .. } | GroupNorm { .. }, Relu) => true,
                // Norm, sum and ReLU.
                (BatchNorm { .. } | GroupNorm { .. }, Add { .. }) => {
                    only_reader(reader).is_some_and(|reader| operation(reader) == Relu)
                }
                (Add { .. }, Relu) => {
                    let input = layers[value - 1].input;
                    is_norm(input) && only_reader(input) == Some(value)
                }
                _ => false,
            }
        };
        let is_normalised = |readers: &Vec<Value>| {
            readers.iter().any(|&reader| matches!(operation(reader), BatchNorm { .. }))
        };
        Self {
            joined: (0..readers.len()).map(is_joined).collect(),
            normalised: readers.iter().map(is_normalised).collect(),
            readers: readers.iter().map(Vec::len).collect(),
        }
    }
}

/// A value until its last reader has it. `again` is `x` once more with a separate gradient, for the last of several
/// readers, so that no gradients have to be added.
#[derive(Debug)]
struct Computed {
    x: Tensor,
    again: Option<Tensor>,
    sums: Option<cuda::Sums>,
}

impl From<Tensor> for Computed {
    fn from(x: Tensor) -> Self {
        Self { x, again: None, sums: None }
    }
}

/// The computation of some layers.
pub(super) struct Run<'a> {
    layers: &'a [Layer],
    plan: &'a Plan,
    pass: &'a Pass<'a>,
    values: Vec<Option<Computed>>,
    /// How often each value is still to be read.
    reads: Vec<usize>,
}

impl<'a> Run<'a> {
    /// Computes all layers from a batch of images; the results are what no layer reads.
    pub(super) fn new(
        layers: &'a [Layer],
        plan: &'a Plan,
        pass: &'a Pass,
        images: Tensor,
    ) -> Result<Self> {
        let mut values = vec![Some(images.into())];
        values.resize_with(layers.len() + 1, || None);
        let reads = plan.readers.clone();
        let mut run = Self { layers, plan, pass, values, reads };
        for value in 1..=layers.len() {
            if !plan.joined[value] {
                run.values[value] = Some(run.compute(value)?);
            }
        }
        Ok(run)
    }

    /// Takes a result.
    pub(super) fn take(&mut self, value: Value) -> Result<Tensor> {
        let computed = self.values[value].take();
        Ok(computed.ok_or_else(|| Error::tensors(format!("value {value} was not computed")))?.x)
    }

    /// A value for one of its readers.
    fn read(&mut self, value: Value) -> Result<Tensor> {
        self.reads[value] -= 1;
        if self.reads[value] > 0
            && let Some(computed) = &self.values[value]
        {
            return Ok(computed.x.shallow_clone());
        }
        let computed = self.values[value].take();
        let Computed { x, again, .. } =
            computed.expect("layers are in the order of their computation");
        Ok(again.unwrap_or(x))
    }

    fn compute(&mut self, value: Value) -> Result<Computed> {
        let Layer { input, operation } = self.layers[value - 1];
        Ok(match operation {
            Operation::Conv { .. } => self.conv(value, None, value)?,
            Operation::BatchNorm { .. } | Operation::GroupNorm { .. } => {
                self.norm(value, None, false, value)?
            }
            Operation::Add { other } if self.plan.joined[input] => {
                self.conv(input, Some(other), value)?
            }
            Operation::Add { other } => self.read(input)?.f_add(&self.read(other)?)?.into(),
            Operation::Relu if self.plan.joined[input] => match self.layers[input - 1] {
                Layer { input: norm, operation: Operation::Add { other } } => {
                    self.norm(norm, Some(other), true, value)?
                }
                _ => self.norm(input, None, true, value)?,
            },
            Operation::Relu => self.read(input)?.f_relu()?.into(),
            Operation::Relu6 => self.read(input)?.f_clamp(0.0, 6.0)?.into(),
            Operation::MaxPool { kernel, stride, padding } => {
                let x = self.read(input)?;
                x.f_max_pool2d([kernel; 2], [stride; 2], [padding; 2], [1, 1], false)?.into()
            }
            Operation::GlobalAveragePool => pool(&self.read(input)?, self.pass)?.into(),
            Operation::Flatten => {
                let x = self.read(input)?.f_contiguous()?;
                let x = x.f_view([x.size()[0], self.pass.clients() as i64, -1])?;
                x.f_transpose(0, 1)?.f_to_kind(Kind::Float)?.into()
            }
            Operation::Linear { weight, bias } => {
                linear(&self.read(input)?, (weight, bias), self.pass)?.into()
            }
        })
    }

    /// Computes `value`: the convolution of layer `at`, plus a shortcut if there is one.
    fn conv(&mut self, at: Value, shortcut: Option<Value>, value: Value) -> Result<Computed> {
        let Layer { input, operation: Operation::Conv { weight, bias, stride, padding, groups } } =
            self.layers[at - 1]
        else {
            unreachable!("`at` is a convolution")
        };
        let pass = self.pass;
        let weight = pass.tensors[weight].f_to_kind(pass.kind)?; // [K, to, from, kernel, kernel]
        let x = self.read(input)?;
        let shortcut = shortcut.map(|shortcut| self.read(shortcut)).transpose()?;
        let (mut x, sums) = if padding.before == padding.after
            && groups == 1
            && has_conv_kernel(&x, &weight, pass)
        {
            let wanted = self.plan.normalised[value] && bias.is_none();
            let views = (wanted && pass.statistics != Statistics::Running).then_some(pass.views);
            cuda::conv_before_norm(&x, &weight, stride, padding.before, shortcut.as_ref(), views)?
        } else {
            let mut x = plain_conv(&x, &weight, stride, padding, groups)?;
            if let Some(shortcut) = shortcut {
                x = x.f_add_(&shortcut)?;
            }
            (x, None)
        };
        if let Some(bias) = bias {
            x = x.f_add(&pass.tensors[bias].f_view([1, -1, 1, 1])?.f_to_kind(pass.kind)?)?;
        }
        Ok(Computed { x, again: None, sums })
    }

    /// Computes `value`: the norm of layer `at`, plus a shortcut and with ReLU if there are any.
    fn norm(
        &mut self,
        at: Value,
        shortcut: Option<Value>,
        relu: bool,
        value: Value,
    ) -> Result<Computed> {
        let Layer { input, operation } = self.layers[at - 1];
        let pass = self.pass;
        let channels = |index: usize| pass.tensors[index].f_flatten(0, 1); // [K, C] -> [K * C], a view
        let sums = self.values[input].as_mut().and_then(|computed| computed.sums.take());
        let x = self.read(input)?;
        let shortcut = shortcut.map(|shortcut| self.read(shortcut)).transpose()?;
        let mut y = match operation {
            Operation::BatchNorm { weight, bias, mean, variance, epsilon } => {
                let (weight, bias) = (channels(weight)?, channels(bias)?);
                let (mean, variance) = (channels(mean)?, channels(variance)?);
                if pass.fused {
                    let norm = cuda::Norm {
                        weight: &weight,
                        bias: &bias,
                        mean: &mean,
                        variance: &variance,
                        statistics: pass.statistics,
                        views: pass.views,
                        epsilon,
                        relu,
                        sums: sums.as_ref(),
                    };
                    return self.fused_norm(norm, input, &x, shortcut.as_ref(), value);
                }
                let (training, momentum, keep) = match pass.statistics {
                    Statistics::Update(momentum) => (true, momentum, true),
                    Statistics::Batch => (true, 0.0, false),
                    Statistics::Running => (false, 0.0, true),
                };
                let (mean, variance) = (keep.then_some(mean), keep.then_some(variance));
                let (weight, bias) = (Some(weight), Some(bias));
                x.f_batch_norm(weight, bias, mean, variance, training, momentum, epsilon, true)?
            }
            Operation::GroupNorm { weight, bias, groups } => {
                let groups = groups * pass.clients() as i64;
                // Group norm wants its weights in the activations' format.
                let (weight, bias) = (
                    channels(weight)?.f_to_kind(pass.kind)?,
                    channels(bias)?.f_to_kind(pass.kind)?,
                );
                x.f_group_norm(groups, Some(weight), Some(bias), EPSILON, true)?
            }
            _ => unreachable!("layer {at} is a norm"),
        };
        if let Some(shortcut) = shortcut {
            y = y.f_add_(&shortcut)?;
        }
        Ok(if relu { y.f_relu_()? } else { y }.into())
    }

    /// The same in the GPU's kernels, which return the result twice, or the result and its input.
    fn fused_norm(
        &mut self,
        norm: cuda::Norm,
        input: Value,
        x: &Tensor,
        shortcut: Option<&Tensor>,
        value: Value,
    ) -> Result<Computed> {
        let once = self.plan.readers[value] < 2;
        if let (true, None, Some(rest)) = (norm.relu && once, shortcut, &mut self.values[input]) {
            let (y, again) = norm.forward(x, None, true)?;
            rest.x = again;
            return Ok(y.into());
        }
        let (x, again) = norm.forward(x, shortcut, false)?;
        Ok(Computed { x, again: (!once).then_some(again), sums: None })
    }
}

/// Whether the GPU's own kernels compute a convolution: in bfloat16, with one or three taps per side.
fn has_conv_kernel(x: &Tensor, weight: &Tensor, pass: &Pass) -> bool {
    let [clients, to, _, kernel, _] = weight.size()[..] else { return false };
    let from = x.size()[1] / clients;
    let widths = [from, to].iter().all(|&width| width >= 8 && width.count_ones() == 1);
    pass.fused && pass.kind == Kind::BFloat16 && matches!(kernel, 1 | 3) && widths
}

fn plain_conv(
    x: &Tensor,
    weight: &Tensor,
    stride: i64,
    Padding { before, after }: Padding,
    groups: i64,
) -> Result<Tensor> {
    let (clients, from) = (weight.size()[0], weight.size()[2] * groups);
    let weight = weight.f_flatten(0, 1)?; // [K * to, from / groups, kernel, kernel]
    let (stride, padding, groups) = ([stride; 2], [before; 2], clients * groups);
    let given = x.size()[1] / clients;
    if before != after {
        let x = x.f_constant_pad_nd([before, after, before, after])?;
        return Ok(x.f_conv2d(&weight, None::<Tensor>, stride, [0, 0], [1, 1], groups)?);
    }
    if given == from {
        return Ok(x.f_conv2d(&weight, None::<Tensor>, stride, padding, [1, 1], groups)?);
    }
    // Images for the GPU's kernels have their channels padded.
    let x = x.f_unflatten(1, [clients, given])?.f_narrow(2, 0, from)?.f_flatten(1, 2)?;
    Ok(x.f_conv2d(&weight, None::<Tensor>, stride, padding, [1, 1], groups)?)
}

/// A head: one matrix product per client, always in single precision; `[K, batch, from]` to `[K, batch, to]`.
pub(super) fn linear(x: &Tensor, (weight, bias): (usize, usize), pass: &Pass) -> Result<Tensor> {
    let (weight, bias) = (&pass.tensors[weight], &pass.tensors[bias]);
    if pass.fused && cuda::is_small_head(x.size()[1], weight.size()[1]) {
        return Ok(cuda::head(x, weight, bias)?);
    }
    if x.device().is_cuda() {
        // Weight by input: the weight's gradient then lies in memory as the weight does, and the fused step need
        // not copy it. Steps on a CPU read any order.
        let y = bias.f_unsqueeze(2)?.f_baddbmm(weight, &x.f_transpose(1, 2)?, 1.0, 1.0)?;
        return Ok(y.f_transpose(1, 2)?);
    }
    Ok(bias.f_unsqueeze(1)?.f_baddbmm(x, &weight.f_transpose(1, 2)?, 1.0, 1.0)?)
}

/// Global average pool: `[batch, K*C, H, W]` to `[K, batch, C]`, in single precision.
fn pool(x: &Tensor, pass: &Pass) -> Result<Tensor> {
    let clients = pass.clients() as i64;
    let (_, columns, height, width) = x.size4()?;
    if pass.fused && columns % (8 * clients) == 0 && height * width <= cuda::POOL_PIXELS {
        return Ok(cuda::pool(x, clients)?);
    }
    let pooled = x.f_mean_dim(&[2i64, 3][..], false, Kind::Float)?; // [batch, K * C]
    let (batch, channels) = pooled.size2()?;
    Ok(pooled.f_view([batch, clients, channels / clients])?.f_transpose(0, 1)?.f_contiguous()?)
}
