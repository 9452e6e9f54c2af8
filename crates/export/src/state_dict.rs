//! A state dict: the weights of a ResNet-18 as a file of PyTorch that loads into torchvision's.
//!
//! The file is a zip archive of stored entries: a pickle that describes the tensors, and one entry of
//! plain numbers per tensor. Parameters have torchvision's names except for the classifier. Models that
//! torchvision lacks are refused: no program could read them.

use crate::{Error, Exported, Result, Trained, bytes_of, without_predictor};
use fedanchor_engine::config::{ModelConfig, NormKind};
use fedanchor_engine::tensors::Part;
use std::io::{Cursor, Write};
use zip::write::SimpleFileOptions;

/// One tensor of the file.
struct Item {
    name: String,
    /// `FloatStorage` or `LongStorage`.
    storage: &'static str,
    shape: Vec<i32>,
    bytes: Vec<u8>,
}

/// Writes the weights of a ResNet-18 under torchvision's names.
pub fn state_dict(model: &Trained) -> Result<Exported> {
    fits_torchvision(&model.network.config)?;
    let params = model.params;
    let mut items = Vec::new();
    for (entry, tensor) in params.entries() {
        let name = match entry.part {
            Part::Backbone => entry.name.clone(),
            Part::Classifier => entry.name.replace("classifier.", "fc."),
            Part::Anchor | Part::Predictor => continue,
        };
        let shape = entry.shape.iter().map(|&size| size as i32).collect();
        let counter = name.strip_suffix(".running_var");
        let counter = counter.map(|norm| format!("{norm}.num_batches_tracked"));
        items.push(Item { name, storage: "FloatStorage", shape, bytes: bytes_of(tensor)? });
        // The number of batches seen. Nothing reads it, but torchvision's norms do not load without it.
        items.extend(counter.map(|name| Item {
            name,
            storage: "LongStorage",
            shape: vec![],
            bytes: 0i64.to_le_bytes().to_vec(),
        }));
    }
    let mut left_out = Vec::new();
    if params.layout.iter().any(|entry| entry.part == Part::Anchor) {
        let text = "anchor.weight, anchor.bias: torchvision's ResNet-18 has no second head";
        left_out.push(text.to_owned());
    }
    left_out.extend(without_predictor(model));
    left_out.push("class names, normalisation: a state dict holds tensors only".to_owned());
    Ok(Exported { bytes: archive(&items)?, left_out })
}

/// Refuses models that torchvision lacks.
fn fits_torchvision(config: &ModelConfig) -> Result<()> {
    let problem = if config.name != "resnet18" {
        format!("torchvision has no network `{}`", config.name)
    } else if config.preactivation {
        "torchvision's ResNet-18 has no pre-activation blocks".to_owned()
    } else if config.norm != NormKind::Batch {
        "torchvision's ResNet-18 has batch norm, this model group norm".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::Unfit(format!(
        "a state dict of torchvision cannot hold this model: {problem}: export it as onnx or safetensors"
    )))
}

/// The description of the tensors: what `torch.save` of an ordered dict would write.
fn describe(items: &[Item]) -> Vec<u8> {
    let mut pickle = Pickle::new();
    pickle.ordered_dict();
    pickle.add(&[MARK]);
    for (number, item) in items.iter().enumerate() {
        pickle.text(&item.name);
        pickle.global("torch._utils", "_rebuild_tensor_v2");
        // In the arguments, first the storage: its type, entry, device and length.
        pickle.add(&[MARK, MARK]);
        pickle.text("storage");
        pickle.global("torch", item.storage);
        pickle.text(&number.to_string());
        pickle.text("cpu");
        pickle.int(item.shape.iter().product());
        pickle.add(&[TUPLE, PERSISTENT_ID]);
        // The tensor's offset, shape and strides; no gradient, no hooks.
        pickle.int(0);
        pickle.ints(&item.shape);
        pickle.ints(&strides(&item.shape));
        pickle.add(&[FALSE]);
        pickle.ordered_dict();
        pickle.add(&[TUPLE, REDUCE]);
    }
    pickle.add(&[SET_ITEMS, STOP]);
    pickle.0
}

/// Strides of a tensor whose last axis is the fastest.
fn strides(shape: &[i32]) -> Vec<i32> {
    (0..shape.len()).map(|axis| shape[axis + 1..].iter().product()).collect()
}

/// A pickle under construction: the few instructions of Python's format (protocol 2) that a state dict needs. They are
/// those that `torch.load(weights_only=True)` accepts: no code of the file is run.
struct Pickle(Vec<u8>);

/// Starts the items of a dict, or of a tuple.
const MARK: u8 = b'(';
/// Ends the pickle.
const STOP: u8 = b'.';
/// Calls the function before the last tuple with the tuple's values.
const REDUCE: u8 = b'R';
/// Makes a tuple of the values since the mark.
const TUPLE: u8 = b't';
/// Adds the keys and values since the mark to the dict before it.
const SET_ITEMS: u8 = b'u';
/// Replaces the last value by the object outside the pickle that it identifies.
const PERSISTENT_ID: u8 = b'Q';
const FALSE: u8 = 0x89;
const EMPTY_TUPLE: u8 = b')';
const GLOBAL: u8 = b'c';
const TEXT: u8 = b'X';
const INT: u8 = b'J';

impl Pickle {
    fn new() -> Self {
        Self(vec![0x80, 2])
    }

    /// An empty `collections.OrderedDict`.
    fn ordered_dict(&mut self) {
        self.global("collections", "OrderedDict");
        self.0.extend([EMPTY_TUPLE, REDUCE]);
    }

    /// Adds instructions without arguments.
    fn add(&mut self, instructions: &[u8]) {
        self.0.extend(instructions);
    }

    /// A function or class by name.
    fn global(&mut self, module: &str, name: &str) {
        self.0.push(GLOBAL);
        self.0.extend(format!("{module}\n{name}\n").into_bytes());
    }

    fn text(&mut self, text: &str) {
        self.0.push(TEXT);
        self.0.extend((text.len() as u32).to_le_bytes());
        self.0.extend(text.as_bytes());
    }

    fn int(&mut self, value: i32) {
        self.0.push(INT);
        self.0.extend(value.to_le_bytes());
    }

    fn ints(&mut self, values: &[i32]) {
        self.0.push(MARK);
        values.iter().for_each(|&value| self.int(value));
        self.0.push(TUPLE);
    }
}

fn archive(items: &[Item]) -> Result<Vec<u8>> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    // PyTorch maps tensors from files and expects this alignment.
    let options = SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Stored)
        .with_alignment(64);
    let mut put = |name: &str, bytes: &[u8]| -> Result<()> {
        zip.start_file(format!("model/{name}"), options)?;
        Ok(zip.write_all(bytes).map_err(zip::result::ZipError::from)?)
    };
    put("data.pkl", &describe(items))?;
    put("byteorder", b"little")?;
    for (number, item) in items.iter().enumerate() {
        put(&format!("data/{number}"), &item.bytes)?;
    }
    put("version", b"3\n")?;
    Ok(zip.finish()?.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Latents;
    use fedanchor_data::{Fit, Normalisation, Shape};
    use fedanchor_engine::config::{Heads, Stem};
    use fedanchor_engine::model::Network;
    use tch::Device;

    fn exported(change: impl Fn(&mut ModelConfig)) -> Result<Exported> {
        let mut config = ModelConfig { latent_dim: 4, ..ModelConfig::plain("resnet18") };
        change(&mut config);
        let heads = Heads { anchor: true, predictor: Some(2) };
        let shape = Shape { side: 16, channels: 3 };
        let network = Network::new(&config, heads, shape, 2)?;
        state_dict(&Trained {
            network: &network,
            params: &network.init(0, Device::Cpu)?,
            shape,
            classes: &["a".to_owned(), "b".to_owned()],
            normalisation: &Normalisation { mean: vec![0.5; 3], std: vec![0.5; 3] },
            fit: Fit::Stretch,
            version: "1",
            latents: Latents::Anchor,
            class_means: None,
        })
    }

    #[test]
    fn what_torchvision_has_no_network_for_is_refused() {
        assert!(exported(|config| config.stem = Stem::Imagenet).is_ok());
        let refused = |change: fn(&mut ModelConfig)| exported(change).unwrap_err().to_string();
        assert_eq!(
            refused(|config| config.name = "wrn28x2".to_owned()),
            "a state dict of torchvision cannot hold this model: torchvision has no network `wrn28x2`: \
             export it as onnx or safetensors"
        );
        assert!(refused(|config| config.preactivation = true).contains("pre-activation"));
        assert!(refused(|config| config.norm = NormKind::Group).contains("this model group norm"));
    }

    #[test]
    fn what_is_left_out_is_named() {
        let starts = ["anchor.weight, anchor.bias: ", "predictor.*: ", "class names, "];
        let left_out = exported(|_| ()).unwrap().left_out;
        assert_eq!(left_out.len(), starts.len());
        assert!(left_out.iter().zip(starts).all(|(text, start)| text.starts_with(start)));
    }

    /// PyTorch looks for tensors at multiples of 64 bytes when it maps a file.
    #[test]
    fn numbers_are_stored_plainly_and_aligned() {
        let bytes = exported(|_| ()).unwrap().bytes;
        let mut archive = zip::ZipArchive::new(Cursor::new(&bytes)).unwrap();
        assert_eq!(archive.len(), 122 + 3);
        for index in 0..archive.len() {
            let entry = archive.by_index(index).unwrap();
            assert_eq!(entry.compression(), zip::CompressionMethod::Stored);
            assert_eq!(entry.data_start().map(|start| start % 64), Some(0), "{:?}", entry.name());
        }
    }

    #[test]
    fn strides_by_hand() {
        assert_eq!(strides(&[2, 3, 4]), [12, 4, 1]);
        assert!(strides(&[]).is_empty());
    }
}
