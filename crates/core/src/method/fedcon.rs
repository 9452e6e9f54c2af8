//! FedCon: Long, Che, Wang, Ye, Luo, Wu, Xiao and Ma, "FedCon: A Contrastive Framework for Federated
//! Semi-Supervised Learning", 2021.
//!
//! Clients learn without labels: the backbone followed by a predictor must foresee, for one view of an
//! image, what a slowly following target network makes of another view (as in BYOL). Predictor and
//! target are the client's own and stay with it from round to round; backbones are averaged, the
//! classification head lives on the server alone. The server learns from its labels on two views and
//! asks that their predictions agree, with a weight that rises over the rounds.
//!
//! The published script evaluates the live network in place of its moving average, mixes the clients'
//! states up, and restarts a warm-up of ten epochs in every round of one, so that clients hardly learn;
//! this is the method as the paper describes it. SGD as all methods here instead of LARS, and a
//! predictor of 4,096 instead of 12,288.

use super::{Broadcast, Client, ClientReport, Cohort, Method};
use crate::config::{Augmentation, FedConConfig};
use crate::error::{InPhase, Result};
use crate::labels::by_classifier;
use crate::local::{Local, Own};
use crate::loss::{cross_entropy, mean_of_batch, unit};
use crate::model::{Pass, Statistics};
use crate::params::{Params, Part};
use crate::schedule::{Sample, Task};
use crate::server::Server;
use crate::server_epochs::supervised_epoch;
use crate::training::{StepLoss, Terms};
use crate::two_views::TwoViews;
use fedanchor_record::Losses;
use tch::{Kind, Tensor};

pub(super) struct FedCon {
    pub(super) config: FedConConfig,
}

impl Method for FedCon {
    fn pretrain(&self, server: &mut Server, epoch: u32) -> Result<Losses> {
        let lr = server.setting.experiment.pretrain.lr;
        self.server_epoch(server, 0, epoch, lr)
    }

    fn broadcast(&self, server: &Server, _: u32) -> Result<Option<Broadcast>> {
        let sent = server.params.subset(|entry| entry.part != Part::Predictor);
        Ok(Some(Broadcast::of(sent.copy()?)))
    }

    fn client_update(&self, cohort: Cohort, broadcast: &Broadcast) -> Result<Vec<ClientReport>> {
        let Cohort { setting, round, ref clients } = cohort;
        let model = &broadcast.params;
        // For the record alone: nobody's labels are trained on.
        let labels = by_classifier(setting, model, 0.0, round, clients)
            .in_phase("labelling the clients' images")?;
        let batch = setting.experiment.client.batch;
        let views = TwoViews { setting, round, batch, second: Augmentation::Weak, number: 0.0 };
        let own = |client: &Client| match &client.kept.params[..] {
            [predictor, target] => {
                Ok(Own { entries: predictor.copy()?, others: vec![target.copy()?] })
            }
            // Its first round: a predictor of its own, and a target that starts where it does.
            _ => {
                let drawn = setting.network.init_client(
                    setting.experiment.seed,
                    client.id,
                    setting.device,
                )?;
                let target = model.subset(|entry| entry.part == Part::Backbone);
                let entries = drawn.subset(|entry| entry.part == Part::Predictor);
                Ok(Own { entries, others: vec![target.copy()?] })
            }
        };
        let loss = ClientLoss(views);
        let local = Local {
            trains: |part| matches!(part, Part::Backbone | Part::Predictor),
            own: Some(&own),
            follow: Some(self.config.target_decay),
            ..Local::plain(model, &loss)
        };
        local.train(cohort, labels)
    }

    fn server_update(
        &self,
        server: &mut Server,
        mean: Option<Params>,
        round: u32,
    ) -> Result<Losses> {
        server.take_mean(mean.as_ref())?;
        let (epochs, lr) =
            (server.setting.experiment.server.epochs, server.setting.experiment.lr(round));
        let mut losses = Losses::default();
        for epoch in 0..epochs {
            losses = self.server_epoch(server, round, epoch, lr)?;
        }
        server.end_round();
        Ok(losses)
    }
}

impl FedCon {
    fn server_epoch(&self, server: &mut Server, round: u32, epoch: u32, lr: f64) -> Result<Losses> {
        let setting = server.setting;
        let batch = setting.experiment.server_batch();
        let number = ramp(round, self.config.ramp_up) as f32;
        let views = TwoViews { setting, round, batch, second: Augmentation::Weak, number };
        let means = supervised_epoch(server, &ServerLoss(views), Vec::new(), round, epoch, lr)?;
        Ok(Losses { server_fix: means.first().copied(), ..Losses::default() })
    }
}

/// exp(-5 (1 - t/T)^2), 1 from round T on.
fn ramp(round: u32, over: u32) -> f64 {
    let left = 1.0 - f64::from(round) / f64::from(over.max(1));
    (-5.0 * left.max(0.0).powi(2)).exp()
}

struct ClientLoss<'a>(TwoViews<'a>);

impl StepLoss for ClientLoss<'_> {
    fn batch(&self) -> usize {
        self.0.batch
    }

    fn terms(&self) -> usize {
        1
    }

    fn bytes(&self, active: usize) -> usize {
        self.0.bytes(active)
    }

    fn fill(&self, tasks: &[Task], samples: &[Sample], out: &mut [u8]) {
        self.0.fill(tasks, samples, out);
    }

    fn loss(&self, bytes: &Tensor, pass: &Pass) -> Result<Terms> {
        let network = &self.0.setting.network;
        let batch = self.0.read(bytes, pass.tensors[0].size()[0] as usize)?;
        // The target has the backbone's entries, which come first in the layout.
        let target =
            Pass { tensors: &pass.others[0].tensors, statistics: Statistics::Batch, ..*pass };
        let foreseen = |x: &Tensor| network.predictions(&network.features(x, pass)?, pass);
        let seen = |x: &Tensor| -> Result<Tensor> {
            tch::no_grad(|| Ok(network.features(x, &target)?.pooled))
        };
        let loss = consistency(&foreseen(&batch.first)?, &seen(&batch.second)?)?
            .f_add(&consistency(&foreseen(&batch.second)?, &seen(&batch.first)?)?)?;
        Ok(vec![(1.0, loss.f_mul_scalar(0.5)?)].into())
    }
}

/// -cos of predictions with targets, `[K, batch, F]` each, mean over the batch.
fn consistency(foreseen: &Tensor, seen: &Tensor) -> Result<Tensor> {
    let cosine = unit(foreseen)?.f_mul(&unit(seen)?)?;
    mean_of_batch(&cosine.f_sum_dim_intlist(&[-1i64][..], false, Kind::Float)?.f_neg()?)
}

struct ServerLoss<'a>(TwoViews<'a>);

impl StepLoss for ServerLoss<'_> {
    fn batch(&self) -> usize {
        self.0.batch
    }

    fn terms(&self) -> usize {
        2
    }

    fn bytes(&self, active: usize) -> usize {
        self.0.bytes(active)
    }

    fn fill(&self, tasks: &[Task], samples: &[Sample], out: &mut [u8]) {
        self.0.fill(tasks, samples, out);
    }

    fn loss(&self, bytes: &Tensor, pass: &Pass) -> Result<Terms> {
        let network = &self.0.setting.network;
        let batch = self.0.read(bytes, pass.tensors[0].size()[0] as usize)?;
        let logits = |x: &Tensor| network.logits(&network.features(x, pass)?, pass);
        let (first, second) = (logits(&batch.first)?, logits(&batch.second)?);
        let supervised = cross_entropy(&first, &batch.labels)?
            .f_add(&cross_entropy(&second, &batch.labels)?)?
            .f_mul_scalar(0.5)?;
        let agreement = divergence(&second, &first)?.f_add(&divergence(&first, &second)?)?;
        let agreement = agreement.f_mul_scalar(0.5)?.f_mul(&batch.number)?;
        Ok(vec![(1.0, supervised), (1.0, agreement)].into())
    }
}

/// KL(other || this) of two views' predictions, without a gradient for the other; mean over the batch.
fn divergence(other: &Tensor, this: &Tensor) -> Result<Tensor> {
    let other = other.f_detach()?.f_log_softmax(-1, Kind::Float)?;
    let this = this.f_log_softmax(-1, Kind::Float)?;
    let each = other.f_exp()?.f_mul(&other.f_sub(&this)?)?;
    mean_of_batch(&each.f_sum_dim_intlist(&[-1i64][..], false, Kind::Float)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consistency_by_hand() {
        // Client 0: cosines 1 and 0; client 1: -1 and 0.6.
        let foreseen = [2f32, 0.0, 0.0, 3.0, 1.0, 0.0, 3.0, 4.0];
        let seen = [5f32, 0.0, 1.0, 0.0, -2.0, 0.0, 1.0, 0.0];
        let of = |values: &[f32]| Tensor::from_slice(values).view([2, 2, 2]);
        let loss = Vec::<f64>::try_from(consistency(&of(&foreseen), &of(&seen)).unwrap()).unwrap();
        assert!((loss[0] + 0.5).abs() < 1e-6 && (loss[1] - 0.2).abs() < 1e-6, "{loss:?}");
    }

    #[test]
    fn divergence_by_hand() {
        // Other (3/4, 1/4), this (1/2, 1/2): 3/4 ln 3/2 + 1/4 ln 1/2.
        let other = Tensor::from_slice(&[3f32.ln(), 0.0]).view([1, 1, 2]).set_requires_grad(true);
        let this = Tensor::from_slice(&[0f32, 0.0]).view([1, 1, 2]).set_requires_grad(true);
        let loss = divergence(&other, &this).unwrap();
        let expected = 0.75 * 1.5f64.ln() + 0.25 * 0.5f64.ln();
        assert!((loss.double_value(&[0]) - expected).abs() < 1e-6);
        loss.sum(Kind::Float).backward();
        // The gradient for this view is its probabilities less the other's; the other has none.
        let gradient = Vec::<f64>::try_from(this.grad().flatten(0, -1)).unwrap();
        assert!((gradient[0] + 0.25).abs() < 1e-6 && (gradient[1] - 0.25).abs() < 1e-6);
        assert!(!other.grad().defined());
    }

    #[test]
    fn the_servers_consistency_rises_to_its_full_weight() {
        assert!((ramp(0, 100) - (-5f64).exp()).abs() < 1e-12);
        assert!((ramp(50, 100) - (-1.25f64).exp()).abs() < 1e-12);
        assert_eq!((ramp(100, 100), ramp(300, 100)), (1.0, 1.0));
    }
}
