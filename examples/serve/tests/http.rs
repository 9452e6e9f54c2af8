//! A served model answers what the model itself says.

#![allow(clippy::unwrap_used)]

use fedanchor::engine::Device;
use fedanchor::{Model, RunOptions};
use fedanchor_data::sample;
use fedanchor_data::thumbnail::write_png;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

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
    let address = listener.local_addr().unwrap();
    runtime.spawn(async move { axum::serve(listener, serve::service(model)).await });

    let (status, text) = ask(address, "GET /classes", b"");
    assert_eq!(status, 200, "{text}");
    let classes: Vec<String> = serde_json::from_str(&text).unwrap();
    assert_eq!(classes, names);

    let picture = folder.path().join("picture.png");
    write_png(images.shape, images.image(0), &picture).unwrap();
    let (status, text) = ask(address, "POST /predict", &std::fs::read(&picture).unwrap());
    assert_eq!(status, 200, "{text}");
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["class"], names[expected.class()].as_str());
    assert_eq!(answer["nearest"], names[expected.anchor_class()].as_str());
    let confidence = answer["confidence"].as_f64().unwrap() as f32;
    assert!((confidence - expected.confidence()).abs() < 1e-5, "{text}");
    let (status, text) = ask(address, "POST /predict", b"not a picture");
    assert!(status == 422 && text.contains("picture"), "{status}: {text}");
}

/// The status and the text of an answer.
fn ask(address: SocketAddr, request: &str, body: &[u8]) -> (u16, String) {
    let mut connection = TcpStream::connect(address).unwrap();
    let length = body.len();
    let head = format!(
        "{request} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    connection.write_all(head.as_bytes()).unwrap();
    connection.write_all(body).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), text.to_owned())
}
