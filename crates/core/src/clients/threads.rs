//! Clients on several cores of a CPU.
//!
//! Every core takes the next cohort and trains it with one compute thread, so that nothing waits inside a
//! client; reports are handed on in the cohorts' order, so results depend neither on which client
//! finishes first nor on the number of cores. Splitting every operation over the cores instead was
//! rejected: on two cores it was no faster than one, and on a busy machine much slower.

use super::ClientSite;
use crate::error::Result;
use crate::messages::Broadcast;
use crate::methods::{ClientReport, Cohort};
use fedanchor_engine::{default_threads, guard, set_threads};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError, mpsc};

/// Takes the reports of a cohort, or why it could not train.
pub(super) type TakeReports<'a> = dyn FnMut(Vec<u32>, Result<Vec<ClientReport>>) -> Result<()> + 'a;

/// Trains all cohorts, one per core at a time, and hands their reports to `take` in order.
pub(super) fn train_on_cores(
    site: ClientSite,
    cohorts: Vec<Cohort>,
    broadcast: &Broadcast,
    take: &mut TakeReports,
) -> Result<()> {
    // Tensors may move between threads but not be shared: each thread gets its own broadcast.
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = cores.min(cohorts.len());
    let copies = (0..threads).map(|_| broadcast.copy()).collect::<Result<Vec<_>>>()?;
    let queue = Mutex::new(cohorts.into_iter().enumerate());
    let (sender, receiver) = mpsc::channel();
    default_threads(); // before the threads below set theirs
    let span = tracing::Span::current();
    std::thread::scope(|scope| {
        for broadcast in copies {
            let (sender, queue, span) = (sender.clone(), &queue, span.clone());
            scope.spawn(move || {
                let _span = span.entered();
                set_threads(1);
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some((number, cohort)) = next else { break };
                    let clients = cohort.clients.iter().map(|client| client.id).collect();
                    let outcome = guard(|| site.update(cohort, &broadcast));
                    if sender.send((number, (clients, outcome))).is_err() {
                        break; // the round was given up
                    }
                }
            });
        }
        drop(sender);
        let mut waiting = BTreeMap::<usize, (Vec<u32>, _)>::new();
        let mut expected = 0;
        for (number, done) in receiver {
            waiting.insert(number, done);
            while let Some((clients, outcome)) = waiting.remove(&expected) {
                take(clients, outcome)?;
                expected += 1;
            }
        }
        Ok(())
    })
}

/// Sets the number of threads that this thread's operations are split over, until it is dropped.
#[derive(Debug)]
pub struct ComputeThreads {
    before: i32,
}

impl ComputeThreads {
    /// For the server's own work: all cores, except for the `small` network, whose operations take less
    /// time than waking another core does. Its records are then the same bytes on any number of cores.
    pub fn for_server(model: &str) -> Self {
        let all = default_threads();
        let before = tch::get_num_threads();
        set_threads(if model == "small" { 1 } else { all });
        Self { before }
    }
}

impl Drop for ComputeThreads {
    fn drop(&mut self) {
        set_threads(self.before);
    }
}
