//! What is written for one client, run for a cohort. It needs no GPU.

use crate::CudaError;
use crate::shim::{Message, Result, check, raw};
use std::ptr::null_mut;
use tch::Tensor;
use torch_sys::C_tensor;

unsafe extern "C" {
    fn fa_vmap_enter(clients: i64, level: *mut i64) -> Message;
    fn fa_vmap_leave();
    fn fa_vmap_one(all: *mut C_tensor, level: i64, out: *mut *mut C_tensor) -> Message;
    fn fa_vmap_all(one: *mut C_tensor, clients: i64, out: *mut *mut C_tensor) -> Message;
}

/// This thread's work on one client's views, until it is dropped.
struct Entered {
    level: i64,
}

impl Entered {
    fn new(clients: i64) -> Result<Self> {
        let mut level = 0;
        // SAFETY: `level` is written once; what was entered is left when the value is dropped, on this thread.
        check(unsafe { fa_vmap_enter(clients, &mut level) })?;
        Ok(Self { level })
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        // SAFETY: levels are left in the reverse order of their entering, since values are dropped so.
        unsafe { fa_vmap_leave() }
    }
}

fn tensor(out: *mut C_tensor) -> Tensor {
    // SAFETY: a new tensor of the C++ side, which is ours.
    unsafe { Tensor::from_ptr(out) }
}

/// Calls `one` with one client's views of tensors with an axis of clients, `[K, ...]`; it computes for all of them at
/// once. Returns what it returns for all, `[K, ...]` each. Operations that draw random numbers, read values on the host or
/// have results of a size that depends on values fail.
pub fn vmap<E: From<CudaError>>(
    clients: usize,
    tensors: &[Tensor],
    one: impl FnOnce(Vec<Tensor>) -> std::result::Result<Vec<Tensor>, E>,
) -> std::result::Result<Vec<Tensor>, E> {
    let clients = clients as i64;
    let entered = Entered::new(clients)?;
    let view = |all: &Tensor| {
        let mut out = null_mut();
        // SAFETY: a live tensor, borrowed for the call; `out` is a new one.
        check(unsafe { fa_vmap_one(raw(all), entered.level, &mut out) })?;
        Ok(tensor(out))
    };
    let views = tensors.iter().map(view).collect::<Result<_>>()?;
    let all = |one: &Tensor| {
        let mut out = null_mut();
        // SAFETY: as above.
        check(unsafe { fa_vmap_all(raw(one), clients, &mut out) })?;
        Ok(tensor(out))
    };
    Ok(one(views)?.iter().map(all).collect::<Result<_>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Kind, TchError};

    fn failed(error: TchError) -> CudaError {
        CudaError::Failed(error.to_string())
    }

    /// Values and gradients of a function of one client are those of each client by itself.
    #[test]
    fn a_cohort_computes_what_each_client_does() {
        tch::manual_seed(1);
        let options = (Kind::Float, tch::Device::Cpu);
        let logits = Tensor::randn([3, 4, 5], options).set_requires_grad(true);
        let labels = Tensor::randint(5, [3, 4], (Kind::Int64, tch::Device::Cpu));
        let loss = |x: &Tensor, y: &Tensor| x.cross_entropy_for_logits(y) * x.size()[0];
        let all = vmap::<CudaError>(3, &[logits.shallow_clone(), labels.shallow_clone()], |one| {
            assert_eq!((one[0].size(), one[1].size()), (vec![4, 5], vec![4]));
            Ok(vec![loss(&one[0], &one[1]), Tensor::from(7.0)])
        });
        let all = all.unwrap();
        assert_eq!((all[0].size(), all[1].size()), (vec![3], vec![3]));
        all[0].sum(Kind::Float).backward();
        for client in 0..3 {
            let own = logits.detach().get(client).set_requires_grad(true);
            let alone = loss(&own, &labels.get(client));
            alone.backward();
            let differs = (&alone - all[0].get(client)).abs().double_value(&[]);
            let gradient = (own.grad() - logits.grad().get(client)).abs().max().double_value(&[]);
            assert!(differs < 1e-6 && gradient < 1e-6, "{client}: {differs} {gradient}");
        }
    }

    #[test]
    fn what_a_cohort_cannot_compute_is_an_error_and_the_thread_goes_on() {
        let x = Tensor::ones([2, 3], (Kind::Float, tch::Device::Cpu));
        for (one, problem) in [
            ((|x: &Tensor| x.f_dropout(0.5, true)) as fn(&Tensor) -> _, "random"),
            (|x| x.f_nonzero(), "vmap"),
            (|x| x.f_masked_select(&x.gt(0.0)), "vmap"),
        ] {
            let outcome =
                vmap(2, &[x.shallow_clone()], |views| Ok(vec![one(&views[0]).map_err(failed)?]));
            let CudaError::Failed(reason) = outcome.unwrap_err() else { panic!() };
            assert!(reason.contains(problem), "{reason}");
        }
        assert_eq!((&x + 1.0).sum(Kind::Float), Tensor::from(12f32));
    }
}
