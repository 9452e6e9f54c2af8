//! A network for inference alone: batch norm is folded into the convolution before it.

use crate::error::{Error, Result};
use crate::model::{IMAGES, Layer, Network, Operation, Padding, Value};
use crate::tensors::Params;
use tch::{Device, Kind, Tensor};

/// The layers of a trunk from images to its output, with their tensors.
#[derive(Debug)]
pub struct TrunkLayers {
    /// Each with an input among the values before it, as in a network.
    pub layers: Vec<Layer>,
    /// The tensors that the layers name by number.
    pub tensors: Vec<Tensor>,
    /// How many layers read each value.
    readers: Vec<usize>,
}

/// How many layers read each value.
fn readers(layers: &[Layer]) -> Vec<usize> {
    let mut readers = vec![0; layers.len() + 1];
    for layer in layers {
        readers[layer.input] += 1;
        if let Operation::Add { other } = layer.operation {
            readers[other] += 1;
        }
    }
    readers
}

impl TrunkLayers {
    /// Those up to the one that computes `output`.
    pub(super) fn new(network: &Network, params: &Params, output: Value) -> Result<Self> {
        let _no_grad = tch::no_grad_guard();
        let plain = params.tensors.iter().map(|tensor| tensor.f_squeeze_dim(0));
        let mut tensors = plain.collect::<Result<Vec<_>, _>>()?;
        let backbone = &network.layers[..output];
        let before = readers(backbone);
        let mut layers: Vec<Layer> = Vec::new();
        // The value here of each value of the network.
        let mut places = vec![IMAGES];
        for layer in backbone {
            let input: Value = places[layer.input];
            let operation = layer.operation.renumbered(|value| places[value], |tensor| tensor);
            let conv = input.checked_sub(1).map(|at| layers[at].operation);
            if let Operation::BatchNorm { weight, bias, mean, variance, epsilon } = operation
                && let Some(Operation::Conv { weight: kernel, bias: None, stride, padding, groups }) =
                    conv
                && before[layer.input] == 1
            {
                let scale = tensors[variance].f_add_scalar(epsilon)?.f_rsqrt()?;
                let scale = scale.f_mul(&tensors[weight])?;
                let shift = tensors[bias].f_sub(&tensors[mean].f_mul(&scale)?)?;
                tensors[kernel] = tensors[kernel].f_mul(&scale.f_view([-1, 1, 1, 1])?)?;
                tensors.push(shift);
                let bias = Some(tensors.len() - 1);
                layers[input - 1].operation =
                    Operation::Conv { weight: kernel, bias, stride, padding, groups };
                places.push(input);
                continue;
            }
            layers.push(Layer { input, operation });
            places.push(layers.len());
        }
        Ok(Self { readers: readers(&layers), layers, tensors })
    }

    /// The same with all tensors on a device; on the same device they share memory.
    pub(super) fn on(&self, device: Device) -> Result<Self> {
        let tensors = self.tensors.iter().map(|tensor| tensor.f_to_device(device));
        let tensors = tensors.collect::<Result<_, _>>()?;
        Ok(Self { layers: self.layers.clone(), tensors, readers: self.readers.clone() })
    }

    /// `[count, C, H, W]` to pooled features `[count, C]`, or to what a last stage reads, `[count, C, H, W]`.
    pub(super) fn forward(&self, images: Tensor) -> Result<Tensor> {
        let mut values: Vec<Option<Tensor>> = vec![Some(images)];
        let mut left = self.readers.clone();
        // A value, and whether this reader is its last, which may then overwrite it.
        let mut read = |values: &mut [Option<Tensor>], value: Value| {
            left[value] -= 1;
            let last = left[value] == 0;
            let x = if last {
                values[value].take()
            } else {
                values[value].as_ref().map(Tensor::shallow_clone)
            };
            let missing = || Error::tensors(format!("value {value} was not computed"));
            x.ok_or_else(missing).map(|x| (x, last))
        };
        for &Layer { input, operation } in &self.layers {
            let (mut x, last) = read(&mut values, input)?;
            let at = |index: usize| &self.tensors[index];
            let value = match operation {
                Operation::Conv {
                    weight,
                    bias,
                    stride,
                    padding: Padding { before, after },
                    groups,
                } => {
                    if let [to, from, 1, 1] = at(weight).size()[..]
                        && (stride, groups, before, after) == (1, 1, 0, 0)
                    {
                        values.push(Some(pointwise(
                            &x,
                            &at(weight).f_view([to, from])?,
                            bias.map(at),
                        )?));
                        continue;
                    }
                    let mut zeros = before;
                    if before != after {
                        (x, zeros) = (x.f_constant_pad_nd([before, after, before, after])?, 0);
                    }
                    let (stride, zeros) = ([stride; 2], [zeros; 2]);
                    x.f_conv2d(at(weight), bias.map(at), stride, zeros, [1, 1], groups)?
                }
                Operation::Relu if last => x.f_relu_()?,
                Operation::Relu => x.f_relu()?,
                Operation::Relu6 if last => x.f_clamp_(0.0, 6.0)?,
                Operation::Relu6 => x.f_clamp(0.0, 6.0)?,
                Operation::Add { other } => {
                    let (other, _) = read(&mut values, other)?;
                    if last { x.f_add_(&other)? } else { x.f_add(&other)? }
                }
                Operation::MaxPool { kernel, stride, padding } => {
                    x.f_max_pool2d([kernel; 2], [stride; 2], [padding; 2], [1, 1], false)?
                }
                Operation::GlobalAveragePool => x.f_mean_dim(&[2i64, 3][..], false, Kind::Float)?,
                Operation::BatchNorm { weight, bias, mean, variance, epsilon } => {
                    let [weight, bias, mean, variance] =
                        [weight, bias, mean, variance].map(|i| Some(at(i)));
                    x.f_batch_norm(weight, bias, mean, variance, false, 0.0, epsilon, false)?
                }
                Operation::Flatten => x.f_flatten(1, -1)?,
                Operation::GroupNorm { .. } | Operation::Linear { .. } => {
                    return Err(Error::tensors("the trunk has a layer that trunks do not have"));
                }
            };
            values.push(Some(value));
        }
        values.pop().flatten().ok_or_else(|| Error::tensors("the trunk has no layers"))
    }
}

/// A 1x1 convolution as one product of matrices: pixels by channels. Channels are last in memory, so nothing is copied.
fn pointwise(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let (count, channels, height, width) = x.size4()?;
    let pixels = x.f_permute([0, 2, 3, 1])?.f_reshape([-1, channels])?;
    let y = match bias {
        Some(bias) => bias.f_addmm(&pixels, &weight.f_tr()?)?,
        None => pixels.f_matmul(&weight.f_tr()?)?,
    };
    Ok(y.f_view([count, height, width, -1])?.f_permute([0, 3, 1, 2])?)
}
