//! A trained model behind HTTP.
//!
//! `serve RUN [ADDRESS]` loads the model of a run and answers
//!
//! ```text
//! GET  /classes           ["five","four",...]
//! POST /predict           body: a picture; {"class":"five","confidence":0.98,"nearest":"five","cosine":0.91}
//! ```
//!
//! Pictures are decoded on the threads of the requests; the model predicts one picture at a time, since a CPU
//! is busy with one anyway.

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use fedanchor::Model;
use fedanchor_data::{Fit, Shape, pictures};
use serde::Serialize;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// The largest body of a request, in bytes.
const LARGEST: usize = 32 << 20;

/// What the handlers share.
struct Served {
    shape: Shape,
    fit: Fit,
    classes: Vec<String>,
    model: Mutex<Model>,
}

/// The answer to a picture.
#[derive(Debug, Serialize)]
struct Answer {
    class: String,
    confidence: f32,
    nearest: String,
    cosine: f32,
}

/// The service for a model.
pub fn service(model: Model) -> Router {
    let (shape, fit) = (model.description.shape, model.description.fit);
    let classes = model.classes().to_vec();
    let served = Arc::new(Served { shape, fit, classes, model: Mutex::new(model) });
    Router::new()
        .route("/classes", get(classes_of))
        .route("/predict", post(predict))
        .layer(DefaultBodyLimit::max(LARGEST))
        .with_state(served)
}

async fn classes_of(State(served): State<Arc<Served>>) -> Json<Vec<String>> {
    Json(served.classes.clone())
}

async fn predict(
    State(served): State<Arc<Served>>,
    body: Bytes,
) -> Result<Json<Answer>, (StatusCode, String)> {
    let work = tokio::task::spawn_blocking(move || {
        let pixels = pictures::decode(&body, Path::new("picture"), served.shape, served.fit)
            .map_err(|error| (StatusCode::UNPROCESSABLE_ENTITY, error.to_string()))?;
        let failed = |problem: String| (StatusCode::INTERNAL_SERVER_ERROR, problem);
        let model = served.model.lock().unwrap_or_else(PoisonError::into_inner);
        let found = model.predict(&[&pixels]).map_err(|error| failed(error.to_string()))?;
        let [found] = &found[..] else { return Err(failed("no prediction".to_owned())) };
        Ok(Json(Answer {
            class: served.classes[found.class()].clone(),
            confidence: found.confidence(),
            nearest: served.classes[found.anchor_class()].clone(),
            cosine: found.anchor_score(),
        }))
    });
    work.await.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?
}
