//! The layers of a cohort network.
//!
//! K clients are one network with K groups: activations are `[batch, K*C, H, W]`, convolutions run
//! with `groups = K`, batch norm over K*C channels *is* per-client batch norm, and heads are batched
//! matrix products. A layer is a description (indices into the parameters); the tensors come with
//! each forward pass, so one network serves any cohort. Running K networks one after the other was
//! rejected: at the paper's batch of 10 a GPU is idle most of that time.

use super::operations::{Operation, Operations, Value};
use crate::error::{Error, Result};
use crate::tensors::{Entry, Params, Part};
use fedanchor_graph as graph;
use tch::{Kind, Tensor};

pub use graph::Statistics;

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
    /// Equal parts of the batch that batch norm sees apart. More than one needs `fused`.
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

/// What flows from block to block. Pre-activation: branch and shortcut, added, with what the convolution has
/// left for the next norm. Post-activation: `again` is `x` once more with a gradient of its own, for the shortcut.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) x: Tensor,
    pub(super) again: Option<Tensor>,
    sums: Option<graph::Sums>,
}

impl Flow {
    pub(super) fn of(x: Tensor) -> Self {
        Self { x, again: None, sums: None }
    }
}

/// Collects the entries of a network while its layers are described.
#[derive(Debug)]
pub(super) struct Builder {
    pub(super) entries: Vec<Entry>,
    pub(super) norm: Norm,
}

/// Which normalisation the network uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Norm {
    Batch,
    Group(i64),
}

impl Builder {
    fn entry(&mut self, name: String, shape: &[i64], part: Part, statistic: bool) -> usize {
        self.entries.push(Entry { name, shape: shape.to_vec(), part, statistic });
        self.entries.len() - 1
    }

    /// A square convolution without bias, padded so that stride 1 keeps the size.
    pub(super) fn conv(
        &mut self,
        name: &str,
        from: i64,
        to: i64,
        kernel: i64,
        stride: i64,
    ) -> Conv {
        let shape = [to, from, kernel, kernel];
        let weight = self.entry(format!("{name}.weight"), &shape, Part::Backbone, false);
        Conv { weight, stride, padding: kernel / 2 }
    }

    /// A square convolution without padding, and its bias.
    pub(super) fn valid_conv(
        &mut self,
        name: &str,
        from: i64,
        to: i64,
        kernel: i64,
    ) -> (Conv, usize) {
        let conv = Conv { padding: 0, ..self.conv(name, from, to, kernel, 1) };
        (conv, self.entry(format!("{name}.bias"), &[to], Part::Backbone, false))
    }

    pub(super) fn norm(&mut self, name: &str, channels: i64) -> NormLayer {
        let weight = self.entry(format!("{name}.weight"), &[channels], Part::Backbone, false);
        let bias = self.entry(format!("{name}.bias"), &[channels], Part::Backbone, false);
        match self.norm {
            Norm::Group(groups) => NormLayer::Group { weight, bias, groups: groups.min(channels) },
            Norm::Batch => {
                let mut statistic = |what: &str| {
                    self.entry(format!("{name}.{what}"), &[channels], Part::Backbone, true)
                };
                let (mean, variance) = (statistic("running_mean"), statistic("running_var"));
                NormLayer::Batch { weight, bias, mean, variance }
            }
        }
    }

    pub(super) fn linear(&mut self, name: &str, from: i64, to: i64, part: Part) -> Linear {
        let weight = self.entry(format!("{name}.weight"), &[to, from], part, false);
        let bias = self.entry(format!("{name}.bias"), &[to], part, false);
        Linear { weight, bias }
    }
}

/// A convolution.
#[derive(Debug)]
pub(super) struct Conv {
    weight: usize,
    stride: i64,
    padding: i64,
}

impl Conv {
    /// Whether the GPU's own kernels compute it: they are for bfloat16, with one or three taps a side.
    fn is_fused(&self, pass: &Pass) -> bool {
        let kernel = pass.tensors[self.weight].size()[3];
        pass.fused && pass.kind == Kind::BFloat16 && matches!(kernel, 1 | 3)
    }

    pub(super) fn forward(&self, x: &Tensor, pass: &Pass) -> Result<Tensor> {
        let weight = &pass.tensors[self.weight]; // [K, to, from, kernel, kernel]
        if self.is_fused(pass) {
            return Ok(graph::conv(x, &weight.f_to_kind(pass.kind)?, self.stride, self.padding)?);
        }
        let (clients, from) = (weight.size()[0], weight.size()[2]);
        let weight = weight.f_flatten(0, 1)?.f_to_kind(pass.kind)?; // [K * to, from, kernel, kernel]
        let (stride, padding) = ([self.stride; 2], [self.padding; 2]);
        let given = x.size()[1] / clients;
        if given == from {
            return Ok(x.f_conv2d(&weight, None::<Tensor>, stride, padding, [1, 1], clients)?);
        }
        // Images for the GPU's kernels have their channels padded.
        let x = x.f_unflatten(1, [clients, given])?.f_narrow(2, 0, from)?.f_flatten(1, 2)?;
        Ok(x.f_conv2d(&weight, None::<Tensor>, stride, padding, [1, 1], clients)?)
    }

    /// The convolution plus a shortcut, if there is one, for a norm.
    pub(super) fn before_norm(
        &self,
        x: &Tensor,
        skip: Option<&Tensor>,
        pass: &Pass,
    ) -> Result<Flow> {
        if self.is_fused(pass) {
            let weight = &pass.tensors[self.weight].f_to_kind(pass.kind)?;
            let views = (pass.statistics != Statistics::Running).then_some(pass.views);
            let (x, sums) =
                graph::conv_before_norm(x, weight, self.stride, self.padding, skip, views)?;
            return Ok(Flow { x, again: None, sums });
        }
        let mut x = self.forward(x, pass)?;
        Ok(Flow::of(match skip {
            Some(skip) => x.f_add_(skip)?,
            None => x,
        }))
    }
}

impl Conv {
    pub(super) fn describe(&self, to: &mut Operations, input: Value) -> Value {
        let Self { weight, stride, padding } = *self;
        to.push(Operation::Conv { input, weight, bias: None, stride, padding })
    }

    pub(super) fn describe_biased(&self, to: &mut Operations, input: Value, bias: usize) -> Value {
        let Self { weight, stride, padding } = *self;
        to.push(Operation::Conv { input, weight, bias: Some(bias), stride, padding })
    }
}

/// Batch or group norm.
#[derive(Debug)]
pub(super) enum NormLayer {
    Batch { weight: usize, bias: usize, mean: usize, variance: usize },
    Group { weight: usize, bias: usize, groups: i64 },
}

const EPSILON: f64 = 1e-5;

impl NormLayer {
    fn forward(&self, x: &Tensor, pass: &Pass) -> Result<Tensor> {
        let flat = |index: usize| pass.tensors[index].f_flatten(0, 1); // [K, C] -> [K * C], a view
        match *self {
            Self::Batch { weight, bias, mean, variance } => {
                let (weight, bias) = (Some(flat(weight)?), Some(flat(bias)?));
                let (training, momentum, keep) = match pass.statistics {
                    Statistics::Update(momentum) => (true, momentum, true),
                    Statistics::Batch => (true, 0.0, false),
                    Statistics::Running => (false, 0.0, true),
                };
                let statistic =
                    |index| Ok::<_, tch::TchError>(if keep { Some(flat(index)?) } else { None });
                let (mean, variance) = (statistic(mean)?, statistic(variance)?);
                Ok(x.f_batch_norm(weight, bias, mean, variance, training, momentum, EPSILON, true)?)
            }
            Self::Group { weight, bias, groups } => {
                let clients = pass.tensors[weight].size()[0];
                // Group norm wants its weights in the activations' format.
                let (weight, bias) =
                    (flat(weight)?.f_to_kind(pass.kind)?, flat(bias)?.f_to_kind(pass.kind)?);
                Ok(x.f_group_norm(clients * groups, Some(weight), Some(bias), EPSILON, true)?)
            }
        }
    }

    /// The GPU's fused form of this norm, where the pass asks for it and the norm has one.
    fn fused<T>(
        &self,
        sums: &Option<graph::Sums>,
        pass: &Pass,
        relu: bool,
        call: impl FnOnce(graph::Norm) -> Result<T, graph::GraphError>,
    ) -> Result<Option<T>> {
        let Self::Batch { weight, bias, mean, variance } = *self else { return Ok(None) };
        if !pass.fused {
            return Ok(None);
        }
        let flat = |index: usize| pass.tensors[index].f_flatten(0, 1);
        let norm = graph::Norm {
            weight: &flat(weight)?,
            bias: &flat(bias)?,
            mean: &flat(mean)?,
            variance: &flat(variance)?,
            statistics: pass.statistics,
            views: pass.views,
            epsilon: EPSILON,
            relu,
            sums: sums.as_ref(),
        };
        Ok(Some(call(norm)?))
    }

    /// Normalise alone.
    pub(super) fn plain(&self, flow: &Flow, pass: &Pass) -> Result<Tensor> {
        match self.fused(&flow.sums, pass, false, |norm| norm.forward(&flow.x))? {
            Some((y, _)) => Ok(y),
            None => self.forward(&flow.x, pass),
        }
    }

    /// Normalise, then ReLU.
    pub(super) fn relu(&self, flow: &Flow, pass: &Pass) -> Result<Tensor> {
        Ok(self.relu_twice(flow, pass)?.x)
    }

    /// The same for two consumers.
    pub(super) fn relu_twice(&self, flow: &Flow, pass: &Pass) -> Result<Flow> {
        Ok(match self.fused(&flow.sums, pass, true, |norm| norm.forward(&flow.x))? {
            Some((x, again)) => Flow { again: Some(again), ..Flow::of(x) },
            None => Flow::of(self.forward(&flow.x, pass)?.f_relu_()?),
        })
    }

    /// Normalise, then ReLU; and what was normalised, for the shortcut.
    pub(super) fn relu_passing(&self, flow: Flow, pass: &Pass) -> Result<(Tensor, Tensor)> {
        match self.fused(&flow.sums, pass, true, |norm| norm.forward_passing(&flow.x))? {
            Some(both) => Ok(both),
            None => Ok((self.relu(&flow, pass)?, flow.x)),
        }
    }

    /// Normalise, add the shortcut, ReLU; for two consumers.
    pub(super) fn residual_relu(&self, flow: &Flow, skip: &Tensor, pass: &Pass) -> Result<Flow> {
        let fused = self.fused(&flow.sums, pass, true, |norm| norm.forward_residual(&flow.x, skip));
        Ok(match fused? {
            Some((x, again)) => Flow { again: Some(again), ..Flow::of(x) },
            None => Flow::of(self.forward(&flow.x, pass)?.f_add_(skip)?.f_relu_()?),
        })
    }
}

impl NormLayer {
    pub(super) fn describe(&self, to: &mut Operations, input: Value) -> Value {
        let epsilon = EPSILON;
        to.push(match *self {
            Self::Batch { weight, bias, mean, variance } => {
                Operation::BatchNorm { input, weight, bias, mean, variance, epsilon }
            }
            Self::Group { weight, bias, groups } => {
                Operation::GroupNorm { input, weight, bias, groups, epsilon }
            }
        })
    }

    /// Normalise, then ReLU.
    pub(super) fn describe_relu(&self, to: &mut Operations, input: Value) -> Value {
        let input = self.describe(to, input);
        to.push(Operation::Relu { input })
    }
}

/// A head: one matrix product per client, always in single precision.
#[derive(Debug)]
pub(super) struct Linear {
    weight: usize,
    bias: usize,
}

impl Linear {
    /// `[K, batch, from]` to `[K, batch, to]`.
    pub(super) fn forward(&self, x: &Tensor, pass: &Pass) -> Result<Tensor> {
        let (weight, bias) = (&pass.tensors[self.weight], &pass.tensors[self.bias]);
        if pass.fused && graph::is_small_head(x.size()[1], weight.size()[1]) {
            return Ok(graph::head(x, weight, bias)?);
        }
        if x.device().is_cuda() {
            // Weight by input: the weight's gradient then lies in memory as the weight does, and the fused step need
            // not copy it. Steps on a CPU read any order.
            let y = bias.f_unsqueeze(2)?.f_baddbmm(weight, &x.f_transpose(1, 2)?, 1.0, 1.0)?;
            return Ok(y.f_transpose(1, 2)?);
        }
        Ok(bias.f_unsqueeze(1)?.f_baddbmm(x, &weight.f_transpose(1, 2)?, 1.0, 1.0)?)
    }

    pub(super) fn describe(&self, to: &mut Operations, input: Value) -> Value {
        to.push(Operation::Linear { input, weight: self.weight, bias: self.bias })
    }
}

/// Global average pool: `[batch, K*C, H, W]` to `[K, batch, C]`, in single precision.
pub(super) fn pool(x: &Tensor, pass: &Pass) -> Result<Tensor> {
    let clients = pass.clients() as i64;
    let (_, columns, height, width) = x.size4()?;
    if pass.fused && columns % (8 * clients) == 0 && height * width <= graph::POOL_PIXELS {
        return Ok(graph::pool(x, clients)?);
    }
    let pooled = x.f_mean_dim(&[2i64, 3][..], false, Kind::Float)?; // [batch, K * C]
    let (batch, channels) = pooled.size2()?;
    Ok(pooled.f_view([batch, clients, channels / clients])?.f_transpose(0, 1)?.f_contiguous()?)
}
