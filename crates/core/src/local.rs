//! Local training of a cohort: every client on the samples it kept, all clients as one network.

use crate::error::{InPhase, Result};
use crate::labels::PseudoLabels;
use crate::method::{Client, ClientReport, Cohort, Kept, Update, goes_up};
use crate::optimiser::Momentum;
use crate::params::{Params, Part};
use crate::schedule::{Schedule, Task};
use crate::training::{Learner, StepLoss};
use fedanchor_record::Losses;

/// How the clients of a method train.
pub(crate) struct Local<'a> {
    /// The model they all start from.
    pub(crate) model: &'a Params,
    /// The loss.
    pub(crate) loss: &'a dyn StepLoss,
    /// What a gradient changes.
    pub(crate) trains: fn(Part) -> bool,
    /// What one client brings along, where a method's clients have something of their own.
    pub(crate) own: Option<&'a OwnOf<'a>>,
    /// How slowly the first of the other networks follows the trained one, if it does.
    pub(crate) follow: Option<f64>,
    /// Whether the loss may tell a client to leave a step out. It then has a second term, which says
    /// who made the step.
    pub(crate) may_skip: bool,
    /// Whether clients train on all their samples and the loss itself chooses among them.
    pub(crate) whole: bool,
}

/// Finds what a client brings along.
pub(crate) type OwnOf<'a> = dyn Fn(&Client) -> Result<Own> + 'a;

/// What one client brings along, one client each.
pub(crate) struct Own {
    /// Entries of the network that are its own, in place of the model's; none of them if empty.
    pub(crate) entries: Params,
    /// Further networks that the loss reads.
    pub(crate) others: Vec<Params>,
}

impl<'a> Local<'a> {
    /// From this model with this loss: backbone and classifier, nothing of one's own.
    pub(crate) fn plain(model: &'a Params, loss: &'a dyn StepLoss) -> Self {
        let trains = |part| matches!(part, Part::Backbone | Part::Classifier);
        Self { model, loss, trains, own: None, follow: None, may_skip: false, whole: false }
    }

    /// Trains every client on its fix set; one report a client, in the cohort's order. A client that
    /// kept nothing has nothing to say.
    pub(crate) fn train(
        &self,
        cohort: Cohort,
        labels: Vec<PseudoLabels>,
    ) -> Result<Vec<ClientReport>> {
        let Cohort { setting, round, clients } = cohort;
        let (config, loss) = (&setting.experiment.client, self.loss);
        let tasks = clients.iter().zip(&labels).map(|(client, labels)| Task {
            who: client.id,
            images: client.images,
            local: client.local,
            labels: &labels.label,
            weights: &labels.weight,
            fix: if self.whole {
                (0..client.local.len() as u32).collect()
            } else {
                labels.fix_set()
            },
        });
        let tasks: Vec<Task> = tasks.collect();

        let mut schedule = Schedule::new(&tasks, 0..config.epochs, loss.batch());
        let order = schedule.order().to_vec();
        let momentum: Vec<Option<&Momentum>> =
            order.iter().map(|&task| clients[task].kept.momentum.as_ref()).collect();
        let mut params = self.model.broadcast(order.len() as i64)?;
        let mut others = Vec::new();
        if let Some(own) = self.own.filter(|_| !order.is_empty()) {
            let owns: Vec<Own> =
                order.iter().map(|&at| own(&clients[at])).collect::<Result<_>>()?;
            let entries: Vec<&Params> = owns.iter().map(|own| &own.entries).collect();
            params = params.with(Params::stack(&entries)?, setting.network.layout.clone());
            for other in 0..owns[0].others.len() {
                let all: Vec<&Params> = owns.iter().map(|own| &own.others[other]).collect();
                others.push(Params::stack(&all)?);
            }
        }
        let momentum = Momentum::stack(&momentum)?;
        let trains = self.trains;
        let mut learner = Learner::new(setting, "clients", params, momentum, |e| trains(e.part))?
            .with_others(others, self.follow)?;
        if self.may_skip {
            learner = learner.with_skipped_steps();
        }
        let (lr, steps) = (setting.experiment.lr(round), schedule.steps(&tasks));
        let fill = |time: usize, bytes: &mut [u8]| {
            let samples = schedule.step(setting, round, &tasks, time);
            let active = samples.len() / loss.batch();
            loss.fill(&tasks, &samples, bytes);
            (active, loss.bytes(active))
        };
        learner
            .train(lr, steps, loss.bytes(order.len()), fill, |x, pass| loss.loss(x, pass))
            .in_phase("training clients")?;

        let mut trained: Vec<Option<(Update, Losses, Option<Kept>)>> =
            clients.iter().map(|_| None).collect();
        let finite = learner.params.first_not_finite()?;
        for (slot, &at) in order.iter().enumerate() {
            let task = &tasks[at];
            let means = learner.mean_losses(slot, loss.terms(), schedule.steps_of(task))?;
            let sound = means.iter().all(|mean| mean.is_finite()) && finite[slot].is_none();
            let first = means.first().copied().filter(|_| sound);
            let mut losses = Losses { client_fix: first, ..Losses::default() };
            match means.get(1).copied() {
                // The mean over the steps that were made; without any there is nothing to send.
                Some(made) if self.may_skip && made == 0.0 => continue,
                Some(made) if self.may_skip => losses.client_fix = first.map(|sum| sum / made),
                mix => losses.client_mix = mix.filter(|_| sound),
            }
            let params = learner.params.client(slot as i64)?;
            let update = Update {
                client: task.who,
                round,
                params: params.subset(|entry| goes_up(setting, entry)),
                samples: task.local.len(),
                kept: labels[at].kept.iter().filter(|kept| **kept).count(),
            };
            let momentum = config.keep_momentum.then(|| learner.momentum.client(slot as i64));
            let mut kept = Kept { momentum: momentum.transpose()?, params: Vec::new() };
            if self.follow.is_some() {
                let own = params.subset(|entry| entry.part == Part::Predictor).copy()?;
                kept.params = vec![own, learner.others[0].client(slot as i64)?.copy()?];
            }
            // Who went astray says so in its update, which the server turns away, and keeps what it had.
            trained[at] = Some((update, losses, sound.then_some(kept)));
        }
        drop(tasks);
        let reports =
            clients.into_iter().zip(labels).zip(trained).map(|((client, labels), trained)| {
                match trained {
                    Some((update, losses, kept)) => {
                        let kept = kept.unwrap_or(client.kept);
                        ClientReport { update: Some(update), labels, losses, kept }
                    }
                    // It did not train: what it had it keeps.
                    None => {
                        let losses = Losses::default();
                        ClientReport { update: None, labels, losses, kept: client.kept }
                    }
                }
            });
        Ok(reports.collect())
    }
}
