//! ONNX: the network as a graph that runtimes of many languages execute.
//!
//! libtorch has no exporter, so the graph is written from the network's list of operations. Batch
//! norm stays a separate node: runtimes fold it into the convolution themselves, and the file keeps the numbers
//! of the model. Group norm is written with instance norm, because its ONNX operator
//! came later and was first defined with one weight per group.

mod proto;

pub use proto::{Attribute, Constant, Graph, Node};

use crate::{Error, Exported, Latents, Result, Trained};
use fedanchor_data::{FILTER, Normalisation, Shape};
use fedanchor_engine::model::{EPSILON, IMAGES, Layer, Operation, Value};
use fedanchor_engine::tensors::Part;
use fedanchor_engine::trunk::TrunkLayers;
use prost::Message;
use proto::{
    Dimension, FLOAT, FLOAT16, INT64, IR_VERSION, Model, OPERATORS, OperatorSet, Property, Size,
    TensorType, Type, UINT8, ValueInfo,
};
use tch::{Device, Kind, Tensor};

/// The input of the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// `input`: normalised images in single precision, `[N, C, H, W]`.
    Normalised,
    /// `images`: 8-bit pixels, `[N, H, W, C]`; the graph scales and normalises them itself.
    Raw,
}

/// The name of the normalised images in the graph.
fn source(input: Input) -> &'static str {
    match input {
        Input::Normalised => "input",
        Input::Raw => "normalised",
    }
}

/// Writes a model as ONNX. Its outputs are `logits` and `probabilities` `[N, C]`, `latents` of length 1 `[N, D]` if it
/// has them, and with class means the `scores` of eq. 3, `[N, C]`.
pub fn onnx(model: &Trained, input: Input) -> Result<Exported> {
    let (graph, left_out) = graph(model, input)?;
    let file = Model {
        ir_version: IR_VERSION,
        producer_name: "fedanchor".to_owned(),
        producer_version: env!("CARGO_PKG_VERSION").to_owned(),
        doc_string: format!(
            "{} for {} classes, trained by fedanchor {}",
            model.network.config.name,
            model.classes.len(),
            model.version
        ),
        graph: Some(graph),
        opset_import: vec![OperatorSet { version: OPERATORS }],
        metadata_props: properties(model),
    };
    Ok(Exported { bytes: file.encode_to_vec(), left_out })
}

/// The graph of [`onnx`], and the parts that it lacks.
pub fn graph(model: &Trained, input: Input) -> Result<(Graph, Vec<String>)> {
    check(model)?;
    let Shape { side, channels } = model.shape;
    let (side, channels) = (side as i64, channels as i64);
    let mut graph = Graph { name: model.network.config.name.to_string(), ..Graph::default() };
    match input {
        Input::Normalised => graph.input.push(batch(
            "input",
            FLOAT,
            &[channels, side, side],
            "Images with pixels scaled to [0, 1] and normalised: see the property `normalisation`.",
        )),
        Input::Raw => {
            let doc = "Images as 8-bit pixels, 0 to 255, channels last.";
            graph.input.push(batch("images", UINT8, &[side, side, channels], doc));
            normalise(&mut graph, model);
        }
    }
    let mut images = source(input);
    if let Some((trunk, _)) = model.trunk {
        encode(&mut graph, model, trunk, images)?;
        images = FEATURES;
    }
    let layout = &model.params.layout;
    let names = Naming {
        name: &|value| if value == IMAGES { images.to_owned() } else { name_of(value, model) },
        tensor: &|at| {
            (layout[at].name.clone(), layout[at].shape.clone(), &model.params.tensors[at])
        },
    };
    for (layer, value) in model.network.layers.iter().zip(1..) {
        // Without an untrained anchor head.
        if model.latents == Latents::Anchor || model.network.latents != Some(value) {
            add(&mut graph, &names, value, *layer)?;
        }
    }
    let left_out = outputs(&mut graph, model)?;
    Ok((graph, left_out))
}

/// Checks that the parts of the model fit together.
fn check(model: &Trained) -> Result<()> {
    let (channels, normalisation) = (model.shape.channels, model.of_pixels());
    for (name, values) in [("mean", &normalisation.mean), ("std", &normalisation.std)] {
        if values.len() != channels {
            let found = values.len();
            return mismatch(format!(
                "the normalisation's {name}: expected {channels} channels, found {found}"
            ));
        }
    }
    match model.params.clients() {
        1 => Ok(()),
        found => mismatch(format!("the parameters: expected one network, found {found} networks")),
    }
}

fn mismatch<T>(problem: String) -> Result<T> {
    Err(Error::Unfit(problem))
}

/// Adds the normalisation of 8-bit pixels, as in training.
fn normalise(graph: &mut Graph, model: &Trained) {
    let channels = [model.shape.channels as i64];
    let Normalisation { mean, std } = model.of_pixels();
    floats(graph, "pixel.scale", &[], &[1.0 / 255.0]);
    floats(graph, "pixel.mean", &channels, mean);
    floats(graph, "pixel.std", &channels, std);
    node(graph, "Cast", "pixel.float", &["images"], vec![int("to", FLOAT.into())]);
    node(graph, "Mul", "pixel.scaled", &["pixel.float", "pixel.scale"], vec![]);
    node(graph, "Sub", "pixel.centred", &["pixel.scaled", "pixel.mean"], vec![]);
    node(graph, "Div", "pixel.normalised", &["pixel.centred", "pixel.std"], vec![]);
    let order = vec![ints("perm", &[0, 3, 1, 2])];
    node(graph, "Transpose", source(Input::Raw), &["pixel.normalised"], order);
}

/// The name of a value of a layer in the graph.
fn name_of(value: Value, model: &Trained) -> String {
    if value == model.network.logits { "logits".to_owned() } else { format!("value{value}") }
}

/// The normalised features of a trunk in the graph.
const FEATURES: &str = "features";

/// Adds the trunk: from images to features, in half precision as in training, normalised.
fn encode(graph: &mut Graph, model: &Trained, trunk: &TrunkLayers, images: &str) -> Result<()> {
    let names = Naming {
        name: &|value| match value {
            IMAGES => images.to_owned(),
            value => format!("trunk.value{value}"),
        },
        tensor: &|at| (format!("trunk.{at}"), trunk.tensors[at].size(), &trunk.tensors[at]),
    };
    for (layer, value) in trunk.layers.iter().zip(1..) {
        add(graph, &names, value, *layer)?;
    }
    let last = (names.name)(trunk.layers.len());
    let Normalisation { mean, std } = model.normalisation;
    // By channel, of a vector or of what a last stage reads.
    let channels = mean.len() as i64;
    let shape = match is_map(trunk) {
        true => vec![channels, 1, 1],
        false => vec![channels],
    };
    floats(graph, "features.mean", &shape, mean);
    floats(graph, "features.std", &shape, std);
    node(graph, "Cast", "features.half", &[&last], vec![int("to", FLOAT16.into())]);
    node(graph, "Cast", "features.single", &["features.half"], vec![int("to", FLOAT.into())]);
    node(graph, "Sub", "features.centred", &["features.single", "features.mean"], vec![]);
    node(graph, "Div", FEATURES, &["features.centred", "features.std"], vec![]);
    Ok(())
}

/// Whether the trunk ends before its features are pooled.
fn is_map(trunk: &TrunkLayers) -> bool {
    let pools = |layer: &Layer| layer.operation == Operation::GlobalAveragePool;
    !trunk.layers.last().is_some_and(pools)
}

/// What a list of layers is called in the graph: the name of each value, and the name, shape and numbers of each tensor.
struct Naming<'a> {
    name: &'a dyn Fn(Value) -> String,
    tensor: &'a dyn Fn(usize) -> (String, Vec<i64>, &'a Tensor),
}

/// Adds a layer and the tensors that it needs.
fn add(
    graph: &mut Graph,
    names: &Naming,
    value: Value,
    Layer { input, operation }: Layer,
) -> Result<()> {
    let name = names.name;
    let (input, output) = (&*name(input), &*name(value));
    let put = |graph: &mut Graph, index: usize| -> Result<String> {
        let (name, shape, numbers) = (names.tensor)(index);
        tensor(graph, &name, &shape, numbers)?;
        Ok(name)
    };
    // One number per channel, to be multiplied with or added to [N, C, H, W].
    let channelwise = |graph: &mut Graph, index: usize| -> Result<String> {
        let (name, _, numbers) = (names.tensor)(index);
        tensor(graph, &name, &[numbers.numel() as i64, 1, 1], numbers)?;
        Ok(name)
    };
    match operation {
        Operation::Conv { weight, bias, stride, padding, groups } => {
            let mut inputs = vec![input.to_owned(), put(graph, weight)?];
            if let Some(bias) = bias {
                inputs.push(put(graph, bias)?);
            }
            let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
            let kernel = &(names.tensor)(weight).1[2..];
            let attributes = vec![
                ints("kernel_shape", kernel),
                ints("strides", &[stride; 2]),
                ints("pads", &[padding.before, padding.before, padding.after, padding.after]),
                int("group", groups),
            ];
            node(graph, "Conv", output, &inputs, attributes);
        }
        Operation::BatchNorm { weight, bias, mean, variance, epsilon } => {
            let (weight, bias) = (put(graph, weight)?, put(graph, bias)?);
            let (mean, variance) = (put(graph, mean)?, put(graph, variance)?);
            let inputs = [input, &*weight, &*bias, &*mean, &*variance];
            let attributes = vec![float("epsilon", epsilon)];
            node(graph, "BatchNormalization", output, &inputs, attributes);
        }
        Operation::GroupNorm { weight, bias, groups } => {
            let inner = |name: &str| format!("{output}.{name}");
            let (shape, rows, apart) = (inner("shape"), inner("rows"), inner("apart"));
            let (ones, zeros) = (inner("ones"), inner("zeros"));
            let (flat, back, weighted) = (inner("flat"), inner("back"), inner("weighted"));
            let (weight, bias) = (channelwise(graph, weight)?, channelwise(graph, bias)?);
            whole(graph, &rows, &[0, groups, -1]);
            floats(graph, &ones, &[groups], &vec![1.0; groups as usize]);
            floats(graph, &zeros, &[groups], &vec![0.0; groups as usize]);
            node(graph, "Shape", &shape, &[input], vec![]);
            node(graph, "Reshape", &flat, &[input, &rows], vec![]);
            let attributes = vec![float("epsilon", EPSILON)];
            node(graph, "InstanceNormalization", &apart, &[&flat, &ones, &zeros], attributes);
            node(graph, "Reshape", &back, &[&apart, &shape], vec![]);
            node(graph, "Mul", &weighted, &[&back, &weight], vec![]);
            node(graph, "Add", output, &[&weighted, &bias], vec![]);
        }
        Operation::Relu => node(graph, "Relu", output, &[input], vec![]),
        Operation::Relu6 => {
            let bounds = ["least", "most"].map(|name| format!("{output}.{name}"));
            floats(graph, &bounds[0], &[], &[0.0]);
            floats(graph, &bounds[1], &[], &[6.0]);
            node(graph, "Clip", output, &[input, &bounds[0], &bounds[1]], vec![]);
        }
        Operation::Add { other } => {
            node(graph, "Add", output, &[input, &name(other)], vec![]);
        }
        Operation::MaxPool { kernel, stride, padding } => {
            let attributes = vec![
                ints("kernel_shape", &[kernel; 2]),
                ints("strides", &[stride; 2]),
                ints("pads", &[padding; 4]),
            ];
            node(graph, "MaxPool", output, &[input], attributes);
        }
        Operation::GlobalAveragePool => {
            let pooled = format!("{output}.pooled");
            node(graph, "GlobalAveragePool", &pooled, &[input], vec![]);
            node(graph, "Flatten", output, &[&pooled], vec![int("axis", 1)]);
        }
        Operation::Flatten => {
            node(graph, "Flatten", output, &[input], vec![int("axis", 1)]);
        }
        Operation::Linear { weight, bias } => {
            let (weight, bias) = (put(graph, weight)?, put(graph, bias)?);
            let inputs = [input, &*weight, &*bias];
            node(graph, "Gemm", output, &inputs, vec![int("transB", 1)]);
        }
    }
    Ok(())
}

/// Adds the outputs and the nodes after the heads. Returns the parts that are left out.
fn outputs(graph: &mut Graph, model: &Trained) -> Result<Vec<String>> {
    let mut left_out = Vec::new();
    if model.params.layout.iter().any(|entry| entry.part == Part::Predictor) {
        left_out.push("predictor.*: it serves training only".to_owned());
    }
    let classes = model.classes.len() as i64;
    let output = |graph: &mut Graph, name: &str, size: i64, doc: &str| {
        graph.output.push(batch(name, FLOAT, &[size], doc));
    };
    output(graph, "logits", classes, "The classification head, one number per class.");
    node(graph, "Softmax", "probabilities", &["logits"], vec![int("axis", 1)]);
    output(graph, "probabilities", classes, "Softmax of the logits.");
    let (latents, width, doc) = match (model.latents, model.network.latents) {
        (Latents::Anchor, Some(latents)) => {
            let width = model.network.config.latent_dim as i64;
            (latents, width, "The anchor head, scaled to length 1.")
        }
        (Latents::Pooled, head) => {
            if head.is_some() {
                left_out.push("anchor.*: the latents are the pooled features".to_owned());
            }
            let doc = "The pooled features, scaled to length 1.";
            (model.network.pooled, model.network.features_width, doc)
        }
        (Latents::Anchor, None) => {
            if model.class_means.is_some() {
                let text = "class means: the network has no anchor head to compare with";
                left_out.push(text.to_owned());
            }
            return Ok(left_out);
        }
    };

    // A zero vector stays zero, as in training.
    let raw = &*name_of(latents, model);
    floats(graph, "latents.least", &[], &[1e-12]);
    let along = vec![ints("axes", &[1]), int("keepdims", 1)];
    node(graph, "ReduceL2", "latents.norm", &[raw], along);
    node(graph, "Max", "latents.length", &["latents.norm", "latents.least"], vec![]);
    node(graph, "Div", "latents", &[raw, "latents.length"], vec![]);
    output(graph, "latents", width, doc);

    let Some(means) = model.class_means else {
        left_out.push("scores: the model has no class means of anchors".to_owned());
        return Ok(left_out);
    };
    if means.size() != [classes, width] {
        let (expected, found) = ([classes, width], means.size());
        return mismatch(format!("the class means: expected {expected:?}, found {found:?}"));
    }
    tensor(graph, "class_means", &[width, classes], &means.f_tr()?)?;
    node(graph, "MatMul", "scores", &["latents", "class_means"], vec![]);
    output(graph, "scores", classes, "Average cosine with the anchors of each class.");
    Ok(left_out)
}

/// The metadata for users of the file.
fn properties(model: &Trained) -> Vec<Property> {
    let property = |(key, value): (&str, String)| Property { key: key.to_owned(), value };
    let normalisation = serde_json::json!({
        "mean": model.of_pixels().mean,
        "std": model.of_pixels().std,
    });
    let fit = serde_json::json!(model.fit);
    let all = [
        ("classes", serde_json::json!(model.classes).to_string()),
        ("size", model.shape.side.to_string()),
        ("channels", model.shape.channels.to_string()),
        ("normalisation", normalisation.to_string()),
        ("fit", fit.as_str().unwrap_or_default().to_owned()),
        ("filter", FILTER.to_owned()),
        ("antialias", "true".to_owned()),
        ("model", model.network.config.name.to_string()),
        ("version", model.version.to_owned()),
    ];
    all.into_iter().map(property).collect()
}

/// An integer attribute.
fn int(name: &str, value: i64) -> Attribute {
    Attribute { name: name.to_owned(), i: Some(value), kind: 2, ..Attribute::default() }
}

/// An attribute of several integers.
fn ints(name: &str, values: &[i64]) -> Attribute {
    let ints = values.to_vec();
    Attribute { name: name.to_owned(), ints, kind: 7, ..Attribute::default() }
}

/// A floating-point attribute.
fn float(name: &str, value: f64) -> Attribute {
    Attribute { name: name.to_owned(), f: Some(value as f32), kind: 1, ..Attribute::default() }
}

/// Adds a node, named like its output.
fn node(graph: &mut Graph, op_type: &str, output: &str, input: &[&str], attribute: Vec<Attribute>) {
    graph.node.push(Node {
        input: input.iter().map(|&name| name.to_owned()).collect(),
        output: vec![output.to_owned()],
        name: output.to_owned(),
        op_type: op_type.to_owned(),
        attribute,
    });
}

/// Adds a tensor of the network in single precision, in this shape.
fn tensor(graph: &mut Graph, name: &str, dims: &[i64], tensor: &Tensor) -> Result<()> {
    let host = tensor.f_to_device(Device::Cpu)?.f_to_kind(Kind::Float)?.f_contiguous()?;
    let mut bytes = vec![0; host.numel() * size_of::<f32>()];
    host.f_copy_data_u8(&mut bytes, host.numel())?;
    constant(graph, name, dims, FLOAT, bytes);
    Ok(())
}

/// Adds floating-point numbers.
fn floats(graph: &mut Graph, name: &str, dims: &[i64], values: &[f32]) {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    constant(graph, name, dims, FLOAT, bytes);
}

/// Adds integers, such as a shape.
fn whole(graph: &mut Graph, name: &str, values: &[i64]) {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    constant(graph, name, &[values.len() as i64], INT64, bytes);
}

fn constant(graph: &mut Graph, name: &str, dims: &[i64], data_type: i32, raw_data: Vec<u8>) {
    graph.initializer.push(Constant {
        dims: dims.to_vec(),
        data_type,
        name: name.to_owned(),
        raw_data,
    });
}

/// An input or output of any number of images, with these sizes per image.
fn batch(name: &str, elem_type: i32, sizes: &[i64], doc: &str) -> ValueInfo {
    let fixed = sizes.iter().map(|&size| Size::Fixed(size));
    let all = [Size::Named("N".to_owned())].into_iter().chain(fixed);
    let dim = all.map(|size| Dimension { size: Some(size) }).collect();
    let tensor = Some(TensorType { elem_type, shape: Some(proto::Shape { dim }) });
    ValueInfo { name: name.to_owned(), kind: Some(Type { tensor }), doc_string: doc.to_owned() }
}
