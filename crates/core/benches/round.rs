//! Times whole rounds of preset `paper` on random images of CIFAR-10's shape: 10 clients with 500
//! images each, five epochs, batch 10, both views, 500 anchors, a test on 10,000 images. A threshold of
//! -1 keeps every sample, so the work is the same on both sides: 50,000 image passes, forward and
//! backward. `benches/round.py` runs it beside the same work in PyTorch.
//!
//! Other settings (`key=value`) make it another benchmark: `benches/fedavg.py` has one.
//!
//!     cargo bench -p fedanchor --bench round -- MODEL DEVICE ROUNDS [key=value ...]

use fedanchor::{Result, Simulation, resolve};
use fedanchor_data::{DataSet, ImageSet, Normalisation, Shape};

const CLASSES: u16 = 10;

/// Images whose class can be seen: noise around a colour of its own.
fn images(count: usize, mut state: u64) -> ImageSet {
    let shape = Shape { side: 32, channels: 3 };
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let labels: Vec<u16> = (0..count).map(|index| (index % usize::from(CLASSES)) as u16).collect();
    let pixels = labels.iter().flat_map(|&label| {
        let mut image = Vec::with_capacity(3072);
        for at in 0..3072 {
            let colour = if (label as usize >> (at % 3)) & 1 == 1 { 64 } else { 0 };
            image.push(next() / 2 + colour);
        }
        image
    });
    ImageSet {
        shape,
        pixels: pixels.collect(),
        features: None,
        labels: Some(labels.clone()),
        classes: (0..CLASSES).map(|class| class.to_string()).collect(),
    }
}

#[allow(clippy::print_stdout)]
fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let [model, device, rounds, settings @ ..] = &arguments[..] else {
        println!(
            "usage: cargo bench -p fedanchor --bench round -- MODEL DEVICE ROUNDS [key=value ...]"
        );
        return Ok(());
    };
    let rounds: u32 = rounds.parse().unwrap_or(3);
    let mut keys =
        vec![format!("model.name={model}"), format!("device={device}"), format!("rounds={rounds}")];
    keys.push("preset=paper".to_owned());
    if !settings.iter().any(|setting| setting.starts_with("method.name=")) {
        keys.push("method.threshold=-1".to_owned());
    }
    keys.extend_from_slice(settings);
    let experiment = resolve("preset = \"paper\"", &keys)?;
    let data = DataSet {
        name: "noise".to_owned(),
        train: images(50_500, 1),
        test: images(10_000, 2),
        normalisation: Normalisation { mean: vec![0.5; 3], std: vec![0.25; 3] },
        flip: true,
        unlabelled: None,
        skipped: Vec::new(),
        trunk: None,
    };
    // 500 anchors and 100 clients of 500 images.
    let simulation = Simulation::new(experiment.clone(), data, None)?;
    let (mut coordinator, mut fleet) = (simulation.coordinator()?, simulation.fleet());
    let start = coordinator.pretrain(&mut |_, _| true)?;
    println!("pretrain {:.3} accuracy {:.2}", start.timing.total, start.record.test_accuracy);
    let mixup = experiment.method.settings.get("client_mixup").and_then(|value| value.as_bool());
    let views = if mixup == Some(true) { 2 } else { 1 };
    for round in 1..=rounds {
        let done = coordinator.round(&mut fleet, round)?;
        let (record, timing) = (done.record, done.timing);
        println!(
            "round {round} passes {} total {:.4} broadcast {:.4} clients {:.4} aggregate {:.4} server {:.4} test {:.4} accuracy {:.2} gpu_bytes {}",
            record.kept * views * experiment.client.epochs as usize,
            timing.total,
            timing.broadcast,
            timing.clients,
            timing.aggregate,
            timing.server,
            timing.test,
            record.test_accuracy,
            timing.peak_gpu_memory.unwrap_or_default(),
        );
    }
    Ok(())
}
