//! Trained models.

use crate::errors::{of, other};
use fedanchor::engine::Device;
use fedanchor_data::{Shape, pictures};
use fedanchor_export::{Input, Node, graph};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde_json::json;
use std::path::{Path, PathBuf};
use tch::{Kind, Tensor};

/// A tensor of a graph: its name, its ONNX number type, its shape and its bytes.
type Constant = (String, i32, Vec<i64>, Py<PyBytes>);

/// A trained model, ready to predict.
#[pyclass(frozen)]
pub(crate) struct Model {
    inner: std::sync::Mutex<fedanchor::Model>,
}

#[pymethods]
impl Model {
    /// Reads the model of a run folder, or a model file.
    #[new]
    #[pyo3(signature = (path, trunk, device))]
    fn new(py: Python, path: PathBuf, trunk: Option<&str>, device: &str) -> PyResult<Self> {
        let device = fedanchor::config::device(device).map_err(of)?;
        let inner = py.detach(|| fedanchor::Model::load_with(&path, trunk, device)).map_err(of)?;
        Ok(Self { inner: inner.into() })
    }

    /// What its file says of it, as JSON.
    fn description(&self) -> String {
        json!(self.lock().description).to_string()
    }

    /// Pixels of a picture file in the shape that the model reads.
    fn read(&self, path: PathBuf) -> PyResult<Vec<u8>> {
        let (shape, fit) = self.shape();
        pictures::read(&path, shape, fit).map_err(other)
    }

    /// The same of 8-bit pixels `[height, width, channels]`.
    fn fitted(
        &self,
        pixels: Vec<u8>,
        width: u32,
        height: u32,
        channels: usize,
    ) -> PyResult<Vec<u8>> {
        let (shape, fit) = self.shape();
        let expected = width as usize * height as usize * channels;
        if pixels.len() != expected || expected == 0 || ![1, 3].contains(&channels) {
            return Err(other(format!(
                "a picture: expected {height} x {width} x {channels} bytes with 1 or 3 channels, got {}",
                pixels.len()
            )));
        }
        // As a file with the same pixels is read.
        let format = if channels == 1 { "P5" } else { "P6" };
        let mut file = format!("{format} {width} {height} 255\n").into_bytes();
        file.extend(pixels);
        pictures::decode(&file, Path::new("a picture"), shape, fit).map_err(other)
    }

    /// Probabilities and scores of pictures, one after the other, as bytes in single precision.
    fn predict(&self, py: Python, pictures: Vec<Vec<u8>>) -> PyResult<(Py<PyBytes>, Py<PyBytes>)> {
        let (mut probabilities, mut scores) = (Vec::new(), Vec::new());
        py.detach(|| {
            let model = self.lock();
            for some in pictures.chunks(AT_ONCE) {
                let some: Vec<&[u8]> = some.iter().map(Vec::as_slice).collect();
                for prediction in model.predict(&some)? {
                    probabilities
                        .extend(prediction.probabilities.iter().flat_map(|p| p.to_le_bytes()));
                    scores.extend(prediction.scores.iter().flat_map(|s| s.to_le_bytes()));
                }
            }
            Ok(())
        })
        .map_err(of)?;
        let bytes = |values: &[u8]| PyBytes::new(py, values).unbind();
        Ok((bytes(&probabilities), bytes(&scores)))
    }

    /// Unit latents of pictures, one after the other, as bytes in single precision.
    fn latents(&self, py: Python, pictures: Vec<Vec<u8>>) -> PyResult<Py<PyBytes>> {
        let all = py.detach(|| {
            let model = self.lock();
            let mut all = Vec::new();
            for some in pictures.chunks(AT_ONCE) {
                let some: Vec<&[u8]> = some.iter().map(Vec::as_slice).collect();
                all.extend(floats(&model.latents(&some)?)?);
            }
            Ok(all)
        });
        let all: Vec<f32> = all.map_err(of)?;
        let bytes: Vec<u8> = all.iter().flat_map(|value| value.to_le_bytes()).collect();
        Ok(PyBytes::new(py, &bytes).unbind())
    }

    /// The network as a graph from 8-bit pixels `[N, H, W, C]`: nodes as JSON, and tensors.
    fn graph(&self, py: Python) -> PyResult<(String, Vec<Constant>)> {
        let model = self.lock();
        let trunk = model.trunk().map(|trunk| trunk.layers()).transpose().map_err(other)?;
        if let Some(None) = trunk {
            return Err(other(
                "the trunk of this model is TorchScript, whose layers are not known: load it with torch.jit.load",
            ));
        }
        let trunk = trunk.flatten();
        let version = model.description.build.to_string();
        let trained = fedanchor_cli::trained(&model, trunk.as_ref(), &version);
        let (graph, _) = graph(&trained, Input::Raw).map_err(other)?;
        let node = |node: &Node| {
            let attributes = node.attribute.iter().map(|attribute| {
                let value = match attribute.kind {
                    1 => json!(attribute.f),
                    2 => json!(attribute.i),
                    _ => json!(attribute.ints),
                };
                (attribute.name.clone(), value)
            });
            let attributes: serde_json::Map<_, _> = attributes.collect();
            json!({ "op": node.op_type, "inputs": node.input, "output": node.output[0], "attributes": attributes })
        };
        let nodes: Vec<_> = graph.node.iter().map(node).collect();
        let constants = graph.initializer.iter().map(|constant| {
            let bytes = PyBytes::new(py, &constant.raw_data).unbind();
            (constant.name.clone(), constant.data_type, constant.dims.clone(), bytes)
        });
        Ok((json!(nodes).to_string(), constants.collect()))
    }
}

/// Pictures that are predicted at a time, so that memory does not grow with their number.
const AT_ONCE: usize = 250;

impl Model {
    fn lock(&self) -> std::sync::MutexGuard<'_, fedanchor::Model> {
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn shape(&self) -> (Shape, fedanchor_data::Fit) {
        let model = self.lock();
        (model.description.shape, model.description.fit)
    }
}

fn floats(tensor: &Tensor) -> fedanchor::Result<Vec<f32>> {
    let flat = tensor.f_to_device(Device::Cpu)?.f_to_kind(Kind::Float)?.f_flatten(0, -1)?;
    Ok(Vec::try_from(flat)?)
}
