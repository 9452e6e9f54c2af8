//! Local training of a cohort: every client on the samples it kept, all clients as one network.

use crate::anchors::PseudoLabels;
use crate::error::{InPhase, Result};
use crate::fix_mix::FixMix;
use crate::method::{ClientReport, Cohort, Update, goes_up};
use crate::optimiser::Momentum;
use crate::params::{Entry, Params, Part};
use crate::schedule::{Schedule, Task};
use crate::training::{Learner, check_finite};
use fedanchor_record::Losses;

/// Trains every client from the broadcast model on its fix set; one report a client, in the cohort's
/// order. A client that kept nothing has nothing to say.
pub(crate) fn train_clients(
    cohort: Cohort,
    broadcast: &Params,
    labels: Vec<PseudoLabels>,
    loss: &FixMix,
) -> Result<Vec<ClientReport>> {
    let Cohort { setting, round, clients } = cohort;
    let config = &setting.experiment.client;
    let tasks = clients.iter().zip(&labels).map(|(client, labels)| Task {
        who: client.id,
        images: client.images,
        local: client.local,
        labels: &labels.label,
        fix: labels.fix_set(),
    });
    let tasks: Vec<Task> = tasks.collect();

    let mut schedule = Schedule::new(&tasks, 0..config.epochs, config.batch);
    let order = schedule.order().to_vec();
    let kept: Vec<Option<&Momentum>> =
        order.iter().map(|&task| clients[task].momentum.as_ref()).collect();
    let params = broadcast.broadcast(order.len() as i64)?;
    let trains = |entry: &Entry| entry.part != Part::Anchor;
    let mut learner = Learner::new(setting, "clients", params, Momentum::stack(&kept)?, trains)?;
    let (lr, steps) = (setting.experiment.lr(round), schedule.steps(&tasks));
    let fill = |time: usize, bytes: &mut [u8]| {
        let samples = schedule.step(setting, round, &tasks, time);
        let active = samples.len() / config.batch;
        loss.fill(&tasks, &samples, bytes);
        (active, loss.bytes(active))
    };
    learner
        .train(lr, steps, loss.bytes(order.len()), fill, |x, pass| loss.loss(x, pass))
        .in_phase("training clients")?;

    let mut trained: Vec<Option<(Update, Losses, Option<Momentum>)>> =
        clients.iter().map(|_| None).collect();
    let finite = learner.params.first_not_finite()?;
    for (slot, &at) in order.iter().enumerate() {
        let task = &tasks[at];
        let means = learner.mean_losses(slot, loss.terms(), schedule.steps_of(task))?;
        check_finite(round, task.who, "client training", &means, finite[slot].as_deref())?;
        let params = learner.params.client(slot as i64)?;
        let update = Update {
            client: task.who,
            params: params.subset(|entry| goes_up(setting, entry)),
            samples: task.local.len(),
            kept: task.fix.len(),
        };
        let losses = Losses {
            client_fix: means.first().copied(),
            client_mix: means.get(1).copied(),
            ..Losses::default()
        };
        let momentum = config.keep_momentum.then(|| learner.momentum.client(slot as i64));
        trained[at] = Some((update, losses, momentum.transpose()?));
    }
    drop(tasks);
    let reports =
        clients.into_iter().zip(labels).zip(trained).map(|((client, labels), trained)| {
            match trained {
                Some((update, losses, momentum)) => {
                    ClientReport { update: Some(update), labels, losses, momentum }
                }
                // It did not train: the momentum it had it keeps.
                None => {
                    let (losses, momentum) = (Losses::default(), client.momentum);
                    ClientReport { update: None, labels, losses, momentum }
                }
            }
        });
    Ok(reports.collect())
}
