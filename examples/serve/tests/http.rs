//! A served model answers what the model itself says.

#![allow(clippy::unwrap_used)]

use fedanchor::engine::Device;
use fedanchor::{Model, RunOptions};
use fedanchor_data::sample;
use fedanchor_data::thumbnail::write_png;

#[test]
fn answers_are_the_models() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let text = "preset = 'best'\nrounds = 1\ndata = { name = 'sample', anchors = 30, clients = 200 }\n\
                model.name = 'small'\nclient = { per_round = 1, epochs = 1, batch = 32 }\n\
                pretrain.epochs = 5\n";
    let experiment = fedanchor::resolve(text, &[]).unwrap();
    fedanchor::run(&experiment, RunOptions::new(&run), &mut ()).unwrap();

    let model = Model::load(&run, Device::Cpu).unwrap();
    let images = sample::load().unwrap().test;
    let expected = model.predict(&[images.image(0)]).unwrap().remove(0);
    let names = model.classes().to_vec();

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    runtime.spawn(async move { axum::serve(listener, serve::service(model)).await });

    let classes: Vec<String> = {
        let mut answer = ureq::get(format!("{address}/classes")).call().unwrap();
        serde_json::from_str(&answer.body_mut().read_to_string().unwrap()).unwrap()
    };
    assert_eq!(classes, names);

    let picture = folder.path().join("picture.png");
    write_png(images.shape, images.image(0), &picture).unwrap();
    let post = |bytes: &[u8]| {
        let agent: ureq::Agent =
            ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let mut answer = agent.post(format!("{address}/predict")).send(bytes).unwrap();
        (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
    };
    let (status, text) = post(&std::fs::read(&picture).unwrap());
    assert_eq!(status, 200, "{text}");
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["class"], names[expected.class()].as_str());
    assert_eq!(answer["nearest"], names[expected.anchor_class()].as_str());
    let confidence = answer["confidence"].as_f64().unwrap() as f32;
    assert!((confidence - expected.confidence()).abs() < 1e-5, "{text}");
    let (status, text) = post(b"not a picture");
    assert!(status == 422 && text.contains("picture"), "{status}: {text}");
}
