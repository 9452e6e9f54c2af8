//! SGD for a cohort: momentum, weight decay and clipping, each client by itself and on the device.
//!
//! PyTorch's update rule. tch's own optimiser clips the whole store at once and reads the norm on the
//! host; here the norm of client k is the k-th number of a tensor.

use crate::config::OptimiserConfig;
use crate::error::Result;
use crate::tensors::{Bundle, Params};
use cuda::SgdEntry;
use fedanchor_cuda as cuda;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use tch::{Kind, Tensor};

/// Momentum buffers by index of the entry; an entry that never had a gradient has none.
#[derive(Debug, Default)]
pub struct Momentum {
    buffers: HashMap<usize, Tensor>,
}

impl Momentum {
    /// A view of the first `clients` clients: updates in place reach the whole.
    pub(crate) fn first(&self, clients: i64) -> Result<Momentum> {
        self.map(|buffer| buffer.f_narrow(0, 0, clients))
    }

    /// One client's buffers, as a copy.
    pub fn client(&self, index: i64) -> Result<Momentum> {
        self.map(|buffer| buffer.f_narrow(0, index, 1)?.f_detach_copy())
    }

    /// Adds the buffers to a bundle under `group`, by the names of `like`'s entries.
    pub fn put_into(&self, bundle: &mut Bundle, group: &str, like: &Params) -> Result<()> {
        for (&index, buffer) in &self.buffers {
            bundle.put(format!("{group}/{}", like.layout[index].name), buffer)?;
        }
        Ok(())
    }

    /// The buffers from a bundle; an entry without one there has none.
    pub fn take_from(bundle: &Bundle, group: &str, like: &Params) -> Result<Self> {
        let found = bundle.group(group);
        let mut buffers = HashMap::new();
        for (index, (entry, tensor)) in like.entries().enumerate() {
            if let Some(saved) = found.get(entry.name.as_str()) {
                let mut buffer = tensor.f_zeros_like()?;
                buffer.f_copy_(saved)?;
                buffers.insert(index, buffer);
            }
        }
        Ok(Self { buffers })
    }

    /// A deep copy.
    pub fn copy(&self) -> Result<Momentum> {
        self.map(Tensor::f_detach_copy)
    }

    /// Puts back the clients that did not make a step.
    pub(crate) fn put_back(&self, before: &Momentum, made: &Tensor) -> Result<()> {
        for (index, now) in &self.buffers {
            if let Some(before) = before.buffers.get(index) {
                put_back(now, before, made)?;
            }
        }
        Ok(())
    }

    fn map(&self, change: impl Fn(&Tensor) -> Result<Tensor, tch::TchError>) -> Result<Momentum> {
        let changed = self.buffers.iter().map(|(&index, buffer)| Ok((index, change(buffer)?)));
        Ok(Momentum { buffers: changed.collect::<Result<_>>()? })
    }

    /// Stacks one client's buffers each into a cohort's; `None` counts as zeros.
    pub fn stack(all: &[Option<&Momentum>]) -> Result<Momentum> {
        let Some(known) = all.iter().flatten().next() else { return Ok(Momentum::default()) };
        let stacked = known.buffers.iter().map(|(index, like)| {
            let zeros = like.f_zeros_like()?;
            let parts = all.iter().map(|one| one.and_then(|one| one.buffers.get(index)));
            let parts: Vec<&Tensor> = parts.map(|part| part.unwrap_or(&zeros)).collect();
            Ok((*index, Tensor::f_cat(&parts, 0)?))
        });
        Ok(Momentum { buffers: stacked.collect::<Result<_>>()? })
    }

    /// Makes sure that each of these entries has a buffer as large as its parameter.
    pub(crate) fn fill(&mut self, entries: &[usize], params: &[Tensor]) -> Result<()> {
        for &index in entries {
            if let Entry::Vacant(place) = self.buffers.entry(index) {
                place.insert(params[index].f_zeros_like()?);
            }
        }
        Ok(())
    }

    /// Copies another's buffers into these, allocating those that are missing as large as `full`, and
    /// returns views of the first `clients`.
    pub(crate) fn take_over(&mut self, from: &Self, full: &[Tensor], clients: i64) -> Result<Self> {
        self.fill(&from.buffers.keys().copied().collect::<Vec<_>>(), full)?;
        let views = from.buffers.iter().map(|(&index, from)| {
            let mut view = self.buffers[&index].f_narrow(0, 0, clients)?;
            view.f_copy_(from)?;
            Ok((index, view))
        });
        Ok(Momentum { buffers: views.collect::<Result<_>>()? })
    }
}

/// One step in place: `params[index]` and its gradient for every trained entry, all `[K, ...]`.
pub(crate) fn sgd_step(
    config: &OptimiserConfig,
    lr: f64,
    params: &[Tensor],
    gradients: &[(usize, Tensor)],
    momentum: &Momentum,
) -> Result<()> {
    let Some((_, first)) = gradients.first() else { return Ok(()) };
    let scale = clip_scale(gradients, config.clip)?;
    // Numbers as tensors, so that `x + a * b` is one pass over memory.
    let number = |value: f64| Tensor::f_full([1], value, (Kind::Float, first.device()));
    let (backward, nesterov) = (number(-lr)?, number(config.momentum)?);
    for (index, gradient) in gradients {
        let mut parameter = params[*index].shallow_clone();
        let scale = per_client(&scale, gradient)?;
        let mut step = parameter.f_mul_scalar(config.weight_decay)?.f_addcmul_(gradient, &scale)?;
        if let Some(buffer) = momentum.buffers.get(index).filter(|_| config.momentum > 0.0) {
            let mut buffer = buffer.shallow_clone();
            let buffer = buffer.f_mul_scalar_(config.momentum)?.f_add_(&step)?;
            step = if config.nesterov { step.f_addcmul_(&buffer, &nesterov)? } else { buffer };
        }
        let _ = parameter.f_addcmul_(&step, &backward)?;
    }
    Ok(())
}

/// The same in the GPU's fused kernels, with the learning rate on the device; bfloat16 copies of the
/// parameters are kept up to date.
pub(crate) fn sgd_step_on_gpu(
    config: &OptimiserConfig,
    lr: &Tensor,
    params: &[Tensor],
    gradients: &[(usize, Tensor)],
    momentum: &Momentum,
    shadows: &[Option<Tensor>],
) -> Result<()> {
    let entries = gradients.iter().zip(shadows).map(|((index, gradient), shadow)| SgdEntry {
        value: &params[*index],
        momentum: momentum.buffers.get(index).filter(|_| config.momentum > 0.0),
        gradient,
        shadow: shadow.as_ref(),
    });
    let config = cuda::Sgd {
        momentum: config.momentum,
        decay: config.weight_decay,
        clip: config.clip,
        nesterov: config.nesterov,
    };
    Ok(cuda::sgd(config, lr, &entries.collect::<Vec<_>>())?)
}

/// min(1, clip / norm) for every client, `[K]`; 1 where clipping is off.
fn clip_scale(gradients: &[(usize, Tensor)], clip: f64) -> Result<Tensor> {
    let norm = |gradient: &Tensor| {
        let all_but_clients: Vec<i64> = (1..gradient.dim() as i64).collect();
        gradient.f_norm_scalaropt_dim(2, &all_but_clients[..], false)
    };
    if clip == 0.0 {
        let (_, first) = &gradients[0];
        return Ok(Tensor::f_ones([first.size()[0]], (Kind::Float, first.device()))?);
    }
    let norms =
        gradients.iter().map(|(_, gradient)| norm(gradient)).collect::<Result<Vec<_>, _>>()?;
    let norm = Tensor::f_stack(&norms, 0)?.f_norm_scalaropt_dim(2, [0], false)?; // [K]
    Ok(norm.f_add_scalar(1e-6)?.f_reciprocal()?.f_mul_scalar(clip)?.f_clamp_max(1.0)?)
}

/// `[K]` as `[K, 1, 1, ...]`, to multiply each client's slice.
pub(crate) fn per_client(scale: &Tensor, like: &Tensor) -> Result<Tensor> {
    let mut shape = vec![1; like.dim()];
    shape[0] = -1;
    Ok(scale.f_view(&shape[..])?)
}

/// Puts the clients back that did not make the step: those with 0 in `made`.
pub(crate) fn put_back(now: &Tensor, before: &Tensor, made: &Tensor) -> Result<()> {
    let made = per_client(made, now)?.f_to_kind(Kind::Bool)?;
    now.shallow_clone().f_copy_(&now.f_where_self(&made, before)?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Heads, LrSchedule, ModelConfig};
    use crate::model::Network;
    use fedanchor_data::Shape;
    use tch::Device;

    const PLAIN: OptimiserConfig = OptimiserConfig {
        lr: 0.1,
        momentum: 0.0,
        nesterov: false,
        weight_decay: 0.0,
        clip: 0.0,
        schedule: LrSchedule::Constant,
    };

    fn steps(config: &OptimiserConfig, count: usize) -> Vec<f64> {
        // Two clients with one weight each: gradients (3, 4)-like norms 5 and 0.5 over two entries.
        let params = [
            Tensor::from_slice(&[1f32, 1.0]).view([2, 1]),
            Tensor::from_slice(&[0f32, 0.0]).view([2, 1]),
        ];
        let mut momentum = Momentum::default();
        momentum.fill(&[0, 1], &params).unwrap();
        for _ in 0..count {
            let gradients = vec![
                (0, Tensor::from_slice(&[3f32, 0.3]).view([2, 1])),
                (1, Tensor::from_slice(&[4f32, 0.4]).view([2, 1])),
            ];
            sgd_step(config, 0.1, &params, &gradients, &momentum).unwrap();
        }
        params.iter().flat_map(|p| Vec::<f64>::try_from(p.flatten(0, -1)).unwrap()).collect()
    }

    fn assert_close(found: &[f64], expected: &[f64]) {
        assert!(
            found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5),
            "{found:?} {expected:?}"
        );
    }

    #[test]
    fn each_client_is_clipped_by_its_own_norm() {
        let config = OptimiserConfig { clip: 1.0, ..PLAIN };
        // Client 0: norm 5, scaled by 1/5: gradients 0.6, 0.8. Client 1: norm 0.5, as it is.
        assert_close(&steps(&config, 1), &[1.0 - 0.06, 1.0 - 0.03, -0.08, -0.04]);
    }

    #[test]
    fn momentum_and_decay_follow_pytorch() {
        let plain = OptimiserConfig { momentum: 0.5, weight_decay: 0.1, ..PLAIN };
        // Client 0, entry 0: g1 = 3 + .1 = 3.1, v = 3.1, w = .69; g2 = 3.069, v = 4.619, w = .2281.
        assert_close(&steps(&plain, 2)[..1], &[0.2281]);
        let nesterov = OptimiserConfig { nesterov: true, ..plain };
        // w = 1 - .1 * (3.1 + 1.55) = .535; g = 3.0535, v = 4.6035, w = .535 - .1 * (3.0535 + 2.30175).
        assert_close(&steps(&nesterov, 2)[..1], &[-0.000525]);
    }

    /// Weights, momentum and copies of a cohort that became smaller lie in memory as the GPU's kernels need
    /// them: on a CPU, the device is all that the fused step refuses.
    #[test]
    fn a_cohort_is_laid_out_for_the_fused_step() {
        let shape = Shape { side: 16, channels: 3 };
        for name in ["small", "wrn28x2", "resnet18", "cnn"] {
            let heads = Heads { anchor: true, predictor: None };
            let network = Network::new(&ModelConfig::plain(name), heads, shape, 10).unwrap();
            let one = network.init(0, Device::Cpu).unwrap();
            let full = one.broadcast(3).unwrap().like().unwrap();
            let trained: Vec<usize> = (0..full.tensors.len()).collect();
            let mut given = Momentum::default();
            given.fill(&trained, &full.tensors).unwrap();
            let given = given.first(2).unwrap();
            let momentum = Momentum::default().take_over(&given, &full.tensors, 2).unwrap();
            let params = full.first(2).unwrap();
            let shadow = |tensor: &Tensor| Some(tensor.to_kind(Kind::BFloat16).narrow(0, 0, 2));
            let shadows: Vec<Option<Tensor>> = full.tensors.iter().map(shadow).collect();
            let gradients: Vec<(usize, Tensor)> =
                params.tensors.iter().map(Tensor::contiguous).enumerate().collect();
            let config = OptimiserConfig { momentum: 0.9, ..PLAIN };
            let lr = Tensor::zeros([1], (Kind::Float, Device::Cpu));
            let refused =
                sgd_step_on_gpu(&config, &lr, &params.tensors, &gradients, &momentum, &shadows);
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("value: expected a tensor on a GPU"), "{name:?}: {error}");
        }
    }
}
