//! Simulated clients on several cores of a CPU.
//!
//! Every core takes the next cohort and trains it with one compute thread, so nothing waits for
//! anything within a client; reports are handed on in the cohorts' order, so results do not depend
//! on who finishes first, nor on the number of cores. Splitting every operation over the cores
//! instead was rejected: on two cores it was no faster than one, and on a busy machine much slower.

use crate::config::ModelName;
use crate::error::{Result, guard};
use crate::method::{Broadcast, ClientReport, Cohort, Method};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError, mpsc};
use tch::Device;

/// Trains all cohorts and hands each one's clients and reports to `take`, in order.
pub(crate) fn train(
    method: &dyn Method,
    cohorts: Vec<Cohort>,
    broadcast: &Broadcast,
    take: &mut dyn FnMut(Vec<u32>, Vec<ClientReport>) -> Result<()>,
) -> Result<()> {
    if broadcast.params.device() != Device::Cpu {
        for cohort in cohorts {
            take(ids(&cohort), method.client_update(cohort, broadcast)?)?;
        }
        return Ok(());
    }
    // Tensors may move between threads but not be shared: each gets a broadcast of its own, as a
    // real client would.
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let crew = cores.min(cohorts.len());
    let copies = (0..crew).map(|_| broadcast.copy()).collect::<Result<Vec<_>>>()?;
    let queue = Mutex::new(cohorts.into_iter().enumerate());
    let (sender, receiver) = mpsc::channel();
    let _one_thread_each = ComputeThreads::set(1);
    std::thread::scope(|scope| {
        for broadcast in copies {
            let (sender, queue) = (sender.clone(), &queue);
            scope.spawn(move || {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some((number, cohort)) = next else { break };
                    let clients = ids(&cohort);
                    let outcome = guard(|| method.client_update(cohort, &broadcast));
                    let failed = outcome.is_err();
                    // Nobody listens any more once another cohort has failed.
                    if sender.send((number, clients, outcome)).is_err() || failed {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut waiting = BTreeMap::new();
        let mut expected = 0;
        for (number, clients, outcome) in receiver {
            waiting.insert(number, (clients, outcome));
            while let Some((clients, outcome)) = waiting.remove(&expected) {
                take(clients, outcome?)?;
                expected += 1;
            }
        }
        // A gap is a cohort that nobody trained because a later one had failed: say that failure.
        waiting.into_values().try_for_each(|(_, outcome)| outcome.map(|_| ()))
    })
}

fn ids(cohort: &Cohort) -> Vec<u32> {
    cohort.clients.iter().map(|client| client.id).collect()
}

/// Sets the number of threads an operation is split over, until it is dropped.
pub(crate) struct ComputeThreads(i32);

impl ComputeThreads {
    /// For the server's own work: all cores, but for the `small` net, whose operations take less time
    /// than waking another core does. Its records are then the same bytes on any number of cores.
    pub(crate) fn for_server(model: ModelName) -> Self {
        Self::set(if model == ModelName::Small { 1 } else { tch::get_num_threads() })
    }

    fn set(threads: i32) -> Self {
        let before = tch::get_num_threads();
        tch::set_num_threads(threads);
        Self(before)
    }
}

impl Drop for ComputeThreads {
    fn drop(&mut self) {
        tch::set_num_threads(self.0);
    }
}
