//! A model as a list of layers. It is described once: training and inference run this list (`forward`), exporters write
//! it, and the layout that it fills names the tensors that are saved and sent.

use crate::config::{ModelConfig, NormKind};
use crate::error::Error;
use crate::tensors::{Entry, Part};
use fedanchor_data::Shape;

/// The number of a value: 0 is the batch of images `[batch, C, H, W]`, and n is what layer n - 1 computes.
pub type Value = usize;

/// The batch of images.
pub const IMAGES: Value = 0;

/// Added to the variance in a norm, unless its layer has another number.
pub const EPSILON: f64 = 1e-5;

/// A layer: an operation on a value.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub struct Layer {
    pub input: Value,
    pub operation: Operation,
}

/// What a layer computes. `weight`, `bias`, `mean` and `variance` are positions in the network's layout.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)] // each comment explains the fields of its operation
pub enum Operation {
    /// A square convolution with weight `[to, from / groups, kernel, kernel]` and bias `[to]`.
    Conv { weight: usize, bias: Option<usize>, stride: i64, padding: Padding, groups: i64 },
    /// Batch norm, with one weight and bias and with running statistics per channel.
    BatchNorm { weight: usize, bias: usize, mean: usize, variance: usize, epsilon: f64 },
    /// Group norm, with one weight and bias per channel.
    GroupNorm { weight: usize, bias: usize, groups: i64 },
    /// max(x, 0).
    Relu,
    /// max(x, 0), and at most 6.
    Relu6,
    /// The sum with another value of the same shape.
    Add { other: Value },
    /// The maximum over square windows; the border of `padding` pixels never is the maximum.
    MaxPool { kernel: i64, stride: i64, padding: i64 },
    /// The mean over all pixels: `[batch, C, H, W]` to `[batch, C]`.
    GlobalAveragePool,
    /// `[batch, C, H, W]` to `[batch, C * H * W]`.
    Flatten,
    /// `x W^T + b` with weight `[to, from]` and bias `[to]`.
    Linear { weight: usize, bias: usize },
}

/// Zeros around an image: above and to its left, below and to its right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Padding {
    pub before: i64,
    pub after: i64,
}

impl Operation {
    /// The same with other numbers for its further inputs and for its tensors.
    pub(crate) fn renumbered(
        self,
        value: impl Fn(Value) -> Value,
        mut tensor: impl FnMut(usize) -> usize,
    ) -> Self {
        match self {
            Self::Conv { weight, bias, stride, padding, groups } => {
                let (weight, bias) = (tensor(weight), bias.map(&mut tensor));
                Self::Conv { weight, bias, stride, padding, groups }
            }
            Self::BatchNorm { weight, bias, mean, variance, epsilon } => {
                let [weight, bias, mean, variance] = [weight, bias, mean, variance].map(tensor);
                Self::BatchNorm { weight, bias, mean, variance, epsilon }
            }
            Self::GroupNorm { weight, bias, groups } => {
                let [weight, bias] = [weight, bias].map(tensor);
                Self::GroupNorm { weight, bias, groups }
            }
            Self::Linear { weight, bias } => {
                let [weight, bias] = [weight, bias].map(tensor);
                Self::Linear { weight, bias }
            }
            Self::Add { other } => Self::Add { other: value(other) },
            same @ (Self::Relu
            | Self::Relu6
            | Self::MaxPool { .. }
            | Self::GlobalAveragePool
            | Self::Flatten) => same,
        }
    }
}

impl Padding {
    /// As many on every side.
    pub fn all(zeros: i64) -> Self {
        Self { before: zeros, after: zeros }
    }
}

/// Collects the layers and tensors of a network while a model describes it.
#[derive(Debug)]
pub struct Builder<'a> {
    /// The settings of the model.
    pub config: &'a ModelConfig,
    pub(super) entries: Vec<Entry>,
    pub(super) layers: Vec<Layer>,
    /// Channels and side of every value; side 0 for a value without pixels.
    pub(super) sizes: Vec<(i64, i64)>,
    /// The outputs of the stages that have ended.
    pub(super) stages: Vec<Value>,
    /// The pooled output of stage `model.latent_stage`, if that stage has ended.
    pub(super) latent_input: Option<Value>,
    /// Numbers that all convolutions compute for one image.
    pub(super) convolved: u64,
    /// Why the description cannot be used.
    pub(super) problem: Option<Error>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(config: &'a ModelConfig, images: Shape) -> Self {
        let (entries, layers, stages, latent_input, problem) = Default::default();
        let sizes = vec![(images.channels as i64, images.side as i64)];
        Self { config, entries, layers, sizes, stages, latent_input, convolved: 0, problem }
    }

    /// The channels of a value, or its length if it has no pixels.
    pub fn channels(&self, x: Value) -> i64 {
        self.sizes[x].0
    }

    /// A square convolution without bias, padded so that stride 1 keeps the size.
    pub fn conv(&mut self, name: &str, x: Value, to: i64, kernel: i64, stride: i64) -> Value {
        let weight = self.conv_weight(name, self.channels(x), to, kernel);
        self.conv_by(weight, None, x, stride, Padding::all(kernel / 2))
    }

    /// A square convolution without bias, padded so that a stride divides the size, rounded up: where the zeros are odd
    /// in number, more of them are below and to the right. `groups` are as many as there are channels for a convolution
    /// of each channel by itself.
    pub fn same_conv(
        &mut self,
        name: &str,
        x: Value,
        to: i64,
        (kernel, stride, groups): (i64, i64, i64),
    ) -> Value {
        let weight = self.conv_weight(name, self.channels(x) / groups, to, kernel);
        let side = self.sizes[x].1;
        let zeros = ((side + stride - 1) / stride - 1) * stride + kernel - side;
        let zeros = zeros.max(0);
        let padding = Padding { before: zeros / 2, after: zeros - zeros / 2 };
        self.conv_in_groups(weight, None, x, (stride, groups), padding)
    }

    /// A square convolution with bias and without padding.
    pub fn valid_conv(&mut self, name: &str, x: Value, to: i64, kernel: i64) -> Value {
        let weight = self.conv_weight(name, self.channels(x), to, kernel);
        let bias = self.tensor(name, "bias", &[to], Part::Backbone);
        self.conv_by(weight, Some(bias), x, 1, Padding::all(0))
    }

    pub(super) fn conv_weight(&mut self, name: &str, from: i64, to: i64, kernel: i64) -> usize {
        self.tensor(name, "weight", &[to, from, kernel, kernel], Part::Backbone)
    }

    pub(super) fn conv_by(
        &mut self,
        weight: usize,
        bias: Option<usize>,
        x: Value,
        stride: i64,
        padding: Padding,
    ) -> Value {
        self.conv_in_groups(weight, bias, x, (stride, 1), padding)
    }

    fn conv_in_groups(
        &mut self,
        weight: usize,
        bias: Option<usize>,
        x: Value,
        (stride, groups): (i64, i64),
        padding: Padding,
    ) -> Value {
        let [to, _, kernel, _] = self.entries[weight].shape[..] else { unreachable!() };
        let side = self.side_after(x, kernel, stride, padding);
        self.convolved += (to * side * side) as u64;
        self.layer(x, Operation::Conv { weight, bias, stride, padding, groups }, (to, side))
    }

    /// The norm of `model.norm`. The GPU's kernels need a multiple of 8 channels.
    pub fn norm(&mut self, name: &str, x: Value) -> Value {
        self.norm_with(name, x, EPSILON)
    }

    /// The same with another number in place of [`EPSILON`].
    pub fn norm_with(&mut self, name: &str, x: Value, epsilon: f64) -> Value {
        let channels = self.channels(x);
        if channels % 8 != 0 {
            let problem = format!("`{name}` must have a multiple of 8 channels, got {channels}");
            self.refuse("model.name", problem);
        }
        let weight = self.tensor(name, "weight", &[channels], Part::Backbone);
        let bias = self.tensor(name, "bias", &[channels], Part::Backbone);
        let operation = match self.config.norm {
            NormKind::Group => {
                let groups = channels.min(self.config.groups as i64);
                if groups < 1 || channels % groups != 0 {
                    let problem = format!(
                        "{groups} groups do not divide the {channels} channels of `{name}`"
                    );
                    self.refuse("model.groups", problem);
                }
                Operation::GroupNorm { weight, bias, groups }
            }
            NormKind::Batch => {
                let mean = self.tensor(name, "running_mean", &[channels], Part::Backbone);
                let variance = self.tensor(name, "running_var", &[channels], Part::Backbone);
                self.entries[mean].statistic = true;
                self.entries[variance].statistic = true;
                Operation::BatchNorm { weight, bias, mean, variance, epsilon }
            }
        };
        self.layer(x, operation, self.sizes[x])
    }

    /// The norm of `model.norm`, then ReLU.
    pub fn norm_relu(&mut self, name: &str, x: Value) -> Value {
        let x = self.norm(name, x);
        self.relu(x)
    }

    /// max(x, 0).
    pub fn relu(&mut self, x: Value) -> Value {
        self.layer(x, Operation::Relu, self.sizes[x])
    }

    /// max(x, 0), and at most 6.
    pub fn relu6(&mut self, x: Value) -> Value {
        self.layer(x, Operation::Relu6, self.sizes[x])
    }

    /// The sum of two values of the same shape; fastest if `x` is the one computed last.
    pub fn add(&mut self, x: Value, other: Value) -> Value {
        self.layer(x, Operation::Add { other }, self.sizes[x])
    }

    /// The maximum over square windows.
    pub fn max_pool(&mut self, x: Value, kernel: i64, stride: i64, padding: i64) -> Value {
        let size = (self.channels(x), self.side_after(x, kernel, stride, Padding::all(padding)));
        self.layer(x, Operation::MaxPool { kernel, stride, padding }, size)
    }

    /// The mean over all pixels.
    pub fn pool(&mut self, x: Value) -> Value {
        self.layer(x, Operation::GlobalAveragePool, (self.channels(x), 0))
    }

    /// All pixels of all channels as one vector.
    pub fn flatten(&mut self, x: Value) -> Value {
        let (channels, side) = self.sizes[x];
        self.layer(x, Operation::Flatten, (channels * side * side, 0))
    }

    /// A linear layer of a value without pixels.
    pub fn linear(&mut self, name: &str, x: Value, to: i64) -> Value {
        self.head(name, x, to, Part::Backbone)
    }

    /// Ends a stage, which every stage but the last must: the anchor head can read its output `x`
    /// (`model.latent_stage`).
    pub fn end_stage(&mut self, x: Value) {
        self.stages.push(x);
        if self.config.latent_stage == Some(self.stages.len()) {
            self.latent_input = Some(self.pool(x));
        }
    }

    pub(super) fn head(&mut self, name: &str, x: Value, to: i64, part: Part) -> Value {
        let (weight, bias) = self.linear_tensors(name, self.channels(x), to, part);
        self.layer(x, Operation::Linear { weight, bias }, (to, 0))
    }

    pub(super) fn linear_tensors(
        &mut self,
        name: &str,
        from: i64,
        to: i64,
        part: Part,
    ) -> (usize, usize) {
        (self.tensor(name, "weight", &[to, from], part), self.tensor(name, "bias", &[to], part))
    }

    fn tensor(&mut self, name: &str, what: &str, shape: &[i64], part: Part) -> usize {
        let (name, shape) = (format!("{name}.{what}"), shape.to_vec());
        if self.entries.iter().any(|entry| entry.name == name) {
            self.refuse("model.name", format!("two layers have a tensor `{name}`"));
        }
        self.entries.push(Entry { name, shape, part, statistic: false });
        self.entries.len() - 1
    }

    fn layer(&mut self, input: Value, operation: Operation, size: (i64, i64)) -> Value {
        self.layers.push(Layer { input, operation });
        self.sizes.push(size);
        self.layers.len()
    }

    /// Refuses the description; the first reason counts.
    fn refuse(&mut self, key: &str, problem: String) {
        self.problem.get_or_insert(Error::config(key, problem));
    }

    fn side_after(&mut self, x: Value, kernel: i64, stride: i64, padding: Padding) -> i64 {
        let zeros = padding.before + padding.after;
        let side = (self.sizes[x].1 + zeros - kernel).div_euclid(stride) + 1;
        if side < 1 {
            let problem =
                format!("images of {} pixels are too small for this model", self.sizes[IMAGES].1);
            self.refuse("data.size", problem);
        }
        side.max(1)
    }
}
