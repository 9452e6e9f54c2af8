//! What a GPU keeps between steps: the run's own queue, the workspaces in which cohorts are trained, and
//! the captured steps.
//!
//! A step of a cohort is some thousand small operations; starting them one by one takes longer than
//! they run. So each step is captured at its third call (`steps` has the rule), and from then on it is one call.
//! A captured step reads and writes fixed addresses: parameters, momentum, loss sums, learning rate and
//! inputs of a kind of training have one workspace for the whole run, and a cohort is copied in before
//! it is trained. Cohorts shrink as their clients finish, so there is a captured step for every number
//! of clients; they share their working memory, since they never run at once.

use super::sgd::Momentum;
use super::steps::{Next, StepKey, Steps};
use crate::config::Precision;
use crate::error::{Error, Result};
use crate::model::Features;
use crate::tensors::{Entry, Params};
use cuda::{Graph, Queue, Upload};
use fedanchor_cuda as cuda;
use fedanchor_data::cache;
use std::collections::HashMap;
use std::sync::mpsc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tch::{Device, Kind, Tensor};

/// Batches that may be prepared ahead of the training.
const AHEAD: usize = 8;

/// The GPU's side of a run. Shared between threads, used by one at a time.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) device: usize,
    /// The run's queue.
    pub(crate) queue: Queue,
    state: Mutex<GpuState>,
}

#[derive(Debug)]
pub(crate) struct GpuState {
    device: Device,
    copies: Queue,
    workspaces: Vec<Workspace>,
    pub(crate) steps: Steps<Graph>,
    inputs: HashMap<usize, Tensor>,
    /// What captured forward passes wrote last.
    pub(crate) outputs: HashMap<StepKey, Features>,
    uploads: Vec<Upload>,
}

/// The memory in which one kind of training happens: networks of one layout under one name. Methods that train or
/// test networks of two layouts in turn have two, so that neither loses its captured steps.
#[derive(Debug)]
pub(crate) struct Workspace {
    name: &'static str,
    /// What its steps are found by.
    pub(crate) number: u64,
    pub(crate) params: Params,
    /// bfloat16 copies of the convolutions' weights, by entry.
    pub(crate) shadows: Vec<Option<Tensor>>,
    pub(crate) momentum: Momentum,
    /// Sets of further networks that losses read.
    others: Vec<Vec<Params>>,
    /// Sums of the terms of the loss over the steps, `[K]` each.
    sums: Vec<Tensor>,
    pub(crate) lr: Tensor,
}

impl Workspace {
    /// Sums of this many terms, set to 0. They stay where they are, since captured steps add to them.
    pub(crate) fn zeroed_sums(&mut self, terms: usize) -> Result<Vec<Tensor>> {
        let options = (Kind::Float, self.lr.device());
        while self.sums.len() < terms {
            self.sums.push(Tensor::f_zeros([self.params.clients()], options)?);
        }
        let zeroed = self.sums[..terms].iter_mut().map(Tensor::f_zero_);
        Ok(zeroed.collect::<std::result::Result<_, _>>()?)
    }

    /// What a pass reads: the shadows, and parameters where there is none.
    pub(crate) fn tensors(&self) -> Vec<Tensor> {
        let pairs = self.params.tensors.iter().zip(&self.shadows);
        pairs.map(|(tensor, shadow)| shadow.as_ref().unwrap_or(tensor).shallow_clone()).collect()
    }
}

impl Gpu {
    /// The state of a GPU; none on a CPU, where the program was built without CUDA, and where there are no
    /// kernels for the GPU.
    pub(crate) fn new(device: Device, precision: Precision) -> Result<Option<Self>> {
        let Device::Cuda(index) = device else { return Ok(None) };
        if !cuda::is_available() {
            return Ok(None);
        }
        let asked = std::env::var(KERNELS).unwrap_or_default();
        let Some(kernels) = kernels(&asked, cuda::has_kernels(index)?)? else {
            cuda::set_math_mode(false, false)?;
            return Ok(None);
        };
        cuda::setup(index, cache::folder("").as_deref(), kernels)?;
        cuda::set_math_mode(precision == Precision::Bf16, true)?;
        let (workspaces, steps, inputs, outputs, uploads) = Default::default();
        let copies = Queue::new(index)?;
        let state = GpuState { device, copies, workspaces, steps, inputs, outputs, uploads };
        Ok(Some(Self { device: index, queue: Queue::new(index)?, state: Mutex::new(state) }))
    }

    /// What changes from step to step.
    pub(crate) fn lock(&self) -> MutexGuard<'_, GpuState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes `steps` steps. `fill` prepares the bytes of a step, at most `room`, and says how many
    /// clients take part and how many bytes they are; it runs ahead in a separate thread.
    pub(crate) fn run_steps(
        &self,
        steps: usize,
        room: usize,
        mut fill: impl FnMut(usize, &mut [u8]) -> (usize, usize) + Send,
        mut step: impl FnMut(&mut GpuState, usize, Tensor) -> Result<()>,
    ) -> Result<()> {
        let mut state = self.lock();
        // Pinned memory for prepared batches.
        let mut uploads = std::mem::take(&mut state.uploads);
        uploads.retain(|upload| upload.size() >= room);
        while uploads.len() < AHEAD {
            uploads.push(Upload::new(self.device, room)?);
        }
        let (full, prepared) = mpsc::sync_channel(AHEAD);
        let (give_back, free) = mpsc::channel();
        for upload in uploads {
            let _ = give_back.send(upload); // `free` listens
        }
        std::thread::scope(|scope| {
            let feeder = scope.spawn(move || {
                for time in 0..steps {
                    let Ok(mut upload) = free.recv() else { break };
                    let filled = upload.memory().map(|memory| fill(time, memory));
                    if full.send(filled.map(|filled| (filled, upload))).is_err() {
                        break;
                    }
                }
                free // with what was not used again
            });
            let done = (|| {
                for filled in prepared {
                    let ((active, used), mut upload) = filled?;
                    let input = state.feed(&mut upload, used)?;
                    step(&mut state, active, input)?;
                    let _ = give_back.send(upload); // nobody waits for it after the last step
                }
                Ok(())
            })();
            drop(give_back);
            match feeder.join() {
                Ok(free) => state.uploads.extend(free.try_iter()),
                Err(panic) => std::panic::resume_unwind(panic),
            }
            done
        })
    }

    /// Frees all workspaces and steps, before another attempt with smaller cohorts.
    pub(crate) fn free(&self, clients: usize) -> Result<()> {
        let mut state = self.lock();
        state.steps.clear();
        state.workspaces.clear();
        state.inputs.clear();
        state.outputs.clear();
        state.steps.notices.push_back(format!(
            "the clients of a round do not fit into GPU memory together: training {clients} at a time"
        ));
        Ok(cuda::empty_cache()?)
    }
}

/// Asks for other kernels than the fastest, for comparison.
const KERNELS: &str = "FEDANCHOR_KERNELS";

/// The kernels to compute with, or none for libtorch alone; `any` says whether there are some for this GPU.
fn kernels(asked: &str, any: bool) -> Result<Option<cuda::Kernels>> {
    match asked {
        "" => Ok(any.then_some(cuda::Kernels::Fitting)),
        "general" => Ok(any.then_some(cuda::Kernels::General)),
        "none" => Ok(None),
        other => {
            Err(Error::config(KERNELS, format!("expected `general` or `none`, got `{other}`")))
        }
    }
}

impl GpuState {
    /// The workspace of a kind of training, large enough for cohorts like `params`.
    fn workspace(
        &mut self,
        name: &'static str,
        params: &Params,
        half: bool,
    ) -> Result<&mut Workspace> {
        let known = |space: &Workspace| space.name == name && space.params.layout == params.layout;
        let mut at = self.workspaces.iter().position(known);
        if let Some(small) =
            at.filter(|&at| self.workspaces[at].params.clients() < params.clients())
        {
            let small = self.workspaces.swap_remove(small);
            self.steps.forget(small.number);
            self.outputs.retain(|key, _| key.workspace != small.number);
            at = None;
        }
        if at.is_none() {
            let (number, params) = (self.steps.number(), params.like()?);
            let shadow = |(entry, tensor): (&Entry, &Tensor)| {
                let wanted = half && entry.shape.len() == 4;
                wanted.then(|| tensor.f_to_kind(Kind::BFloat16)).transpose()
            };
            let shadows = params.entries().map(shadow).collect::<std::result::Result<_, _>>()?;
            let lr = Tensor::f_zeros([1], (Kind::Float, self.device))?;
            let (momentum, others, sums) = Default::default();
            let space = Workspace { name, number, params, shadows, momentum, others, sums, lr };
            self.workspaces.push(space);
        }
        let at = at.unwrap_or(self.workspaces.len() - 1);
        Ok(&mut self.workspaces[at])
    }

    /// The workspace with this number.
    pub(crate) fn numbered(&mut self, number: u64) -> Result<&mut Workspace> {
        let found = self.workspaces.iter_mut().find(|space| space.number == number);
        found.ok_or_else(|| Error::tensors("the workspace of this training is gone".to_owned()))
    }

    /// Copies parameters to the first clients of their workspace.
    pub(crate) fn move_in(
        &mut self,
        name: &'static str,
        params: &Params,
        half: bool,
    ) -> Result<&mut Workspace> {
        let clients = params.clients();
        let space = self.workspace(name, params, half)?;
        let targets = space.params.tensors.iter().zip(&space.shadows);
        for (from, (full, shadow)) in params.tensors.iter().zip(targets) {
            for to in std::iter::once(full).chain(shadow) {
                to.f_narrow(0, 0, clients)?.f_copy_(from)?;
            }
        }
        Ok(space)
    }

    /// The same for further networks of a cohort that was moved in; with the number of their set.
    pub(crate) fn move_others_in(
        &mut self,
        workspace: u64,
        others: &[Params],
    ) -> Result<(Vec<Params>, usize)> {
        let space = self.numbered(workspace)?;
        let clients = space.params.clients();
        let layouts = |set: &[Params]| set.iter().map(|one| one.layout.clone()).collect::<Vec<_>>();
        let known = space.others.iter().position(|set| layouts(set) == layouts(others));
        let number = match known {
            Some(number) => number,
            None => {
                let room = others.iter().map(|other| other.first(1)?.broadcast(clients));
                space.others.push(room.collect::<Result<_>>()?);
                space.others.len() - 1
            }
        };
        let moved = space.others[number].iter().zip(others).map(|(full, from)| {
            let here = full.first(from.clients())?;
            for (to, from) in here.tensors.iter().zip(&from.tensors) {
                to.shallow_clone().f_copy_(from)?;
            }
            Ok(here)
        });
        Ok((moved.collect::<Result<_>>()?, number))
    }

    /// Uploads a prepared batch to its fixed address, after what was queued before.
    pub(crate) fn feed(&mut self, upload: &mut Upload, bytes: usize) -> Result<Tensor> {
        let input = match self.inputs.get(&bytes) {
            Some(input) => input.shallow_clone(),
            None => {
                let input = Tensor::f_zeros([bytes as i64], (Kind::Uint8, self.device))?;
                self.inputs.insert(bytes, input.shallow_clone());
                input
            }
        };
        upload.start(&self.copies, bytes)?;
        upload.take(&input)?;
        Ok(input)
    }

    /// Runs a step: as it is for the first times, then captured.
    pub(crate) fn run(&mut self, key: StepKey, step: impl Fn() -> Result<()>) -> Result<()> {
        match self.steps.next(key) {
            Next::Replay(graph) => return Ok(graph.replay()?),
            Next::Run => return step(),
            Next::Capture => {}
        }
        match Graph::capture(self.steps.any(), &step) {
            Ok((graph, ())) => {
                graph.replay()?;
                self.steps.captured(key, graph);
                Ok(())
            }
            Err(error) => {
                self.steps.refuse(key, error);
                step()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_the_fastest_unless_others_are_asked_for() {
        let found = |asked: &str, any| kernels(asked, any).unwrap();
        assert_eq!(found("", true), Some(cuda::Kernels::Fitting));
        assert_eq!(found("general", true), Some(cuda::Kernels::General));
        assert_eq!(
            (found("none", true), found("", false), found("general", false)),
            (None, None, None)
        );
        let error = kernels("fast", true).unwrap_err().to_string();
        assert!(error.contains("FEDANCHOR_KERNELS: expected `general` or `none`"), "{error}");
    }
}
