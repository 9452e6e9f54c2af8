//! Losses and their gradients against autograd of plain loops over samples and pairs.

use crate::filling::{labels, lambda, noise};
use crate::{Fixture, assert_close};
use fedanchor::engine::training::losses::{cross_entropy, mix_loss};
use fedanchor::server::{ContrastiveConfig, label_contrastive};
use fedanchor::{Result, resolve};
use tch::{Kind, Tensor};

/// A few rounding errors of single precision; at temperature 0.1 a cosine's are multiplied by 10.
const TOLERANCE: f64 = 5e-6;

/// Gradient of a sum over clients, as the engine takes it.
fn gradient(loss: &Tensor, of: &Tensor) -> Result<Tensor> {
    Ok(Tensor::f_run_backward(&[loss.f_sum(Kind::Float)?], &[of], false, false)?.remove(0))
}

#[test]
fn cross_entropy_and_mix_loss_agree() -> Result<()> {
    let fixture = Fixture::read();
    let each_client = |make: &dyn Fn(i64) -> Tensor| Tensor::cat(&[make(0), make(1)], 0);
    let logits = each_client(&|k| noise(&format!("logits {k}"), &[1, 5, 10]) * 3.0);
    let logits = logits.set_requires_grad(true);
    let fix = each_client(&|k| labels(&format!("fix {k}"), 5));
    let mix = each_client(&|k| labels(&format!("mix {k}"), 5));
    let lambda = each_client(&|k| lambda(&format!("lambda {k}"), 5));
    for (what, loss) in [
        ("cross_entropy", cross_entropy(&logits, &fix)?),
        ("mix_loss", mix_loss(&logits, &fix, &mix, &lambda)?),
    ] {
        let gradient = gradient(&loss, &logits)?;
        for client in 0..2 {
            let name = format!("losses/{what}/{client}");
            let value = fixture.tensor(&format!("{name}/value"))?;
            assert_close(&loss.narrow(0, client, 1), &value, TOLERANCE, &name);
            let expected = fixture.tensor(&format!("{name}/gradient"))?;
            assert_close(&gradient.select(0, client), &expected, TOLERANCE, &name);
        }
    }
    Ok(())
}

#[test]
fn every_form_of_the_contrastive_loss_agrees() -> Result<()> {
    let fixture = Fixture::read();
    // Class 5 alone; classes 1 and 4 absent.
    let labels = Tensor::from_slice(&[0i64, 3, 0, 2, 3, 0, 5, 2]).unsqueeze(0);
    let latents = noise("contrastive", &[1, 8, 6]).set_requires_grad(true);
    let mut forms = 0;
    for temperature in ["0.1", "0.5"] {
        for self_pairs in ["false", "true"] {
            for denominator in ["batch", "class"] {
                for divide_by in ["present", "all"] {
                    let keys = [
                        ("temperature", temperature),
                        ("self_pairs", self_pairs),
                        ("denominator", denominator),
                        ("divide_by", divide_by),
                    ];
                    let keys = keys.map(|(key, value)| format!("method.contrastive.{key}={value}"));
                    let experiment = resolve("preset = \"paper\"", &keys)?;
                    let config = experiment.method.settings["contrastive"].clone();
                    let config: ContrastiveConfig = config.try_into().expect("a config");
                    let loss = label_contrastive(&latents, &labels, 6, &config)?;
                    let name = format!(
                        "losses/contrastive/{temperature}/{self_pairs}/{denominator}/{divide_by}"
                    );
                    let value = fixture.tensor(&format!("{name}/value"))?;
                    assert_close(&loss, &value, TOLERANCE, &name);
                    let expected = fixture.tensor(&format!("{name}/gradient"))?;
                    assert_close(&gradient(&loss, &latents)?, &expected, TOLERANCE, &name);
                    forms += 1;
                }
            }
        }
    }
    assert_eq!(2 * forms, fixture.count("losses/contrastive/"));
    Ok(())
}
