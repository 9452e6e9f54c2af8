//! Trained models.

use crate::errors::{of, other};
use crate::work::{self, Work};
use fedanchor::engine::Device;
use fedanchor_data::{Fit, Shape, pictures};
use fedanchor_export::{Input, Node, graph};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tch::{Kind, Tensor};

/// A tensor of a graph: its name, its ONNX number type, its shape and its bytes.
type Constant = (String, i32, Vec<i64>, Py<PyBytes>);

/// A trained model, ready to predict.
#[pyclass(frozen)]
pub(crate) struct Model {
    inner: Mutex<fedanchor::Model>,
    description: String,
    shape: Shape,
    fit: Fit,
}

#[pymethods]
impl Model {
    /// Reads the model of a run folder, or a model file.
    #[new]
    #[pyo3(signature = (path, trunk, device))]
    fn new(py: Python, path: PathBuf, trunk: Option<&str>, device: &str) -> PyResult<Self> {
        let device = fedanchor::config::device(device).map_err(of)?;
        let _work = Work::begin()?;
        let inner = py.detach(|| fedanchor::Model::load_with(&path, trunk, device)).map_err(of)?;
        let description = json!(inner.description).to_string();
        let (shape, fit) = (inner.description.shape, inner.description.fit);
        Ok(Self { inner: inner.into(), description, shape, fit })
    }

    /// What its file says of it, as JSON.
    fn description(&self) -> &str {
        &self.description
    }

    /// Pixels of a picture file in the shape that the model reads.
    fn read(&self, py: Python, path: PathBuf) -> PyResult<Vec<u8>> {
        py.detach(|| pictures::read(&path, self.shape, self.fit)).map_err(other)
    }

    /// The same of a file's content.
    fn decode(&self, py: Python, content: Vec<u8>) -> PyResult<Vec<u8>> {
        let name = Path::new("a picture");
        py.detach(|| pictures::decode(&content, name, self.shape, self.fit)).map_err(other)
    }

    /// The same of 8-bit pixels `[height, width, channels]`.
    fn fitted(
        &self,
        py: Python,
        pixels: Vec<u8>,
        width: u32,
        height: u32,
        channels: usize,
    ) -> PyResult<Vec<u8>> {
        let expected = (width as usize).checked_mul(height as usize);
        let expected = expected.and_then(|area| area.checked_mul(channels));
        if expected != Some(pixels.len()) || pixels.is_empty() || ![1, 3].contains(&channels) {
            return Err(other(format!(
                "a picture: expected {height} x {width} x {channels} bytes with 1 or 3 channels, got {}",
                pixels.len()
            )));
        }
        // As a file with the same pixels is read.
        let format = if channels == 1 { "P5" } else { "P6" };
        let mut file = format!("{format} {width} {height} 255\n").into_bytes();
        file.extend(pixels);
        self.decode(py, file)
    }

    /// Probabilities and scores of pictures, one after the other, as bytes in single precision.
    fn predict(&self, py: Python, pictures: Vec<Vec<u8>>) -> PyResult<(Py<PyBytes>, Py<PyBytes>)> {
        let (mut probabilities, mut scores) = (Vec::new(), Vec::new());
        self.in_parts(py, &pictures, |model, some| {
            for prediction in model.predict(some)? {
                probabilities.extend(bytes(&prediction.probabilities));
                scores.extend(bytes(&prediction.scores));
            }
            Ok(())
        })?;
        Ok((PyBytes::new(py, &probabilities).unbind(), PyBytes::new(py, &scores).unbind()))
    }

    /// Unit latents of pictures, one after the other, as bytes in single precision.
    fn latents(&self, py: Python, pictures: Vec<Vec<u8>>) -> PyResult<Py<PyBytes>> {
        let mut all = Vec::new();
        self.in_parts(py, &pictures, |model, some| {
            all.extend(bytes(&floats(&model.latents(some)?)?));
            Ok(())
        })?;
        Ok(PyBytes::new(py, &all).unbind())
    }

    /// The network as a graph from 8-bit pixels `[N, H, W, C]`: nodes as JSON, and tensors.
    fn graph(&self, py: Python) -> PyResult<(String, Vec<Constant>)> {
        let _work = Work::begin()?;
        let graph = py.detach(|| {
            let model = self.lock();
            let trunk = model.trunk().map(|trunk| trunk.layers()).transpose();
            let trunk = trunk.map_err(|error| error.to_string())?;
            if let Some(None) = trunk {
                return Err("the trunk of this model is TorchScript, whose layers are not known: load it with \
                            torch.jit.load"
                    .to_owned());
            }
            let trunk = trunk.flatten();
            let version = model.description.build.to_string();
            let trained = fedanchor_cli::trained(&model, trunk.as_ref(), &version);
            graph(&trained, Input::Raw).map(|(graph, _)| graph).map_err(|error| error.to_string())
        });
        let graph = graph.map_err(other)?;
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
    fn lock(&self) -> MutexGuard<'_, fedanchor::Model> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with all pictures, some at a time; signals are answered in between.
    fn in_parts(
        &self,
        py: Python,
        pictures: &[Vec<u8>],
        mut what: impl FnMut(&fedanchor::Model, &[&[u8]]) -> fedanchor::Result<()> + Send,
    ) -> PyResult<()> {
        let _work = Work::begin()?;
        for some in pictures.chunks(AT_ONCE) {
            let some: Vec<&[u8]> = some.iter().map(Vec::as_slice).collect();
            py.detach(|| what(&self.lock(), &some)).map_err(of)?;
            py.check_signals()?;
            if work::is_ending() {
                return Err(other("the interpreter ends"));
            }
        }
        Ok(())
    }
}

fn bytes(values: &[f32]) -> impl Iterator<Item = u8> {
    values.iter().flat_map(|value| value.to_le_bytes())
}

fn floats(tensor: &Tensor) -> fedanchor::Result<Vec<f32>> {
    let flat = tensor.f_to_device(Device::Cpu)?.f_to_kind(Kind::Float)?.f_flatten(0, -1)?;
    Ok(Vec::try_from(flat)?)
}
