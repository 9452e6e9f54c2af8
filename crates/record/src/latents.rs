//! Latents of test images after a round, as safetensors: `latents` `[n, d]` in single precision, and `labels`,
//! `predicted` and `images` `[n]` in 64-bit integers.

use crate::files;
use safetensors::tensor::{Dtype, SafeTensorError, SafeTensors, TensorView};
use std::ffi::OsString;
use std::io;
use std::path::Path;

/// The latents of test images after a round, with the classes that a figure colours them by.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Latents {
    /// Numbers per latent.
    pub width: usize,
    /// The latents one after the other, not normalised.
    pub latents: Vec<f32>,
    /// The true class of every image.
    pub labels: Vec<u16>,
    /// The class that the classification head predicts.
    pub predicted: Vec<u16>,
    /// The index of every image in the test set.
    pub images: Vec<u32>,
}

/// The rounds with latents in a run folder, in ascending order.
pub fn rounds_with_latents(folder: &Path) -> io::Result<Vec<u32>> {
    let entries = match std::fs::read_dir(folder.join(files::LATENTS)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let names = entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
    let round = |name: &OsString| -> Option<u32> {
        name.to_str()?.strip_prefix("round-")?.strip_suffix(".safetensors")?.parse().ok()
    };
    let mut rounds: Vec<u32> = names.iter().filter_map(round).collect();
    rounds.sort_unstable();
    Ok(rounds)
}

impl Latents {
    /// The latent of every image.
    pub fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.latents.chunks_exact(self.width.max(1))
    }

    /// The content of a file.
    pub fn encode(&self) -> Result<Vec<u8>, SafeTensorError> {
        let wide = |values: &[u16]| integers(values.iter().map(|&value| i64::from(value)));
        let (labels, predicted) = (wide(&self.labels), wide(&self.predicted));
        let images = integers(self.images.iter().map(|&image| i64::from(image)));
        let latents: Vec<u8> = self.latents.iter().flat_map(|value| value.to_le_bytes()).collect();
        let count = self.labels.len();
        let tensors = [
            ("latents", Dtype::F32, vec![count, self.width], &latents),
            ("labels", Dtype::I64, vec![count], &labels),
            ("predicted", Dtype::I64, vec![count], &predicted),
            ("images", Dtype::I64, vec![count], &images),
        ];
        let views = tensors
            .into_iter()
            .map(|(name, dtype, shape, bytes)| Ok((name, TensorView::new(dtype, shape, bytes)?)));
        safetensors::serialize(views.collect::<Result<Vec<_>, SafeTensorError>>()?, None)
    }

    /// Reads the content of a file.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let file = SafeTensors::deserialize(bytes)
            .map_err(|error| format!("damaged, or not a file of latents: {error}"))?;
        let latents = tensor(&file, "latents", Dtype::F32)?;
        let &[count, width] = latents.shape() else {
            return Err(format!("`latents`: expected two dimensions, found {:?}", latents.shape()));
        };
        if width == 0 {
            return Err("`latents`: expected at least one number per image, found none".to_owned());
        }
        let (values, _) = latents.data().as_chunks::<4>();
        let values: Vec<f32> = values.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            return Err(format!("`latents`: image {} has {}", at / width, values[at]));
        }
        Ok(Self {
            width,
            latents: values,
            labels: list(&file, "labels", count)?,
            predicted: list(&file, "predicted", count)?,
            images: list(&file, "images", count)?,
        })
    }
}

fn integers(values: impl Iterator<Item = i64>) -> Vec<u8> {
    values.flat_map(i64::to_le_bytes).collect()
}

fn tensor<'a>(
    file: &SafeTensors<'a>,
    name: &str,
    expected: Dtype,
) -> Result<TensorView<'a>, String> {
    let view = file.tensor(name).map_err(|_| format!("`{name}` is missing"))?;
    match view.dtype() {
        found if found == expected => Ok(view),
        found => Err(format!("`{name}`: expected {expected:?}, found {found:?}")),
    }
}

/// A list of integers, one per image.
fn list<T: TryFrom<i64>>(file: &SafeTensors, name: &str, count: usize) -> Result<Vec<T>, String> {
    let view = tensor(file, name, Dtype::I64)?;
    let shape = view.shape();
    if shape != [count] {
        return Err(format!("`{name}`: expected {count} numbers, one per image, found {shape:?}"));
    }
    let number = |&bytes: &[u8; 8]| {
        let value = i64::from_le_bytes(bytes);
        T::try_from(value).map_err(|_| format!("`{name}`: {value} is out of range"))
    };
    view.data().as_chunks::<8>().0.iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latents() -> Latents {
        Latents {
            width: 3,
            latents: vec![1.5, -0.0, f32::MIN_POSITIVE, 1e30, 3.0, 4.0],
            labels: vec![0, u16::MAX],
            predicted: vec![7, 0],
            images: vec![5, 9999],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(rounds_with_latents(folder.path()).unwrap(), Vec::<u32>::new());
        std::fs::create_dir(folder.path().join(files::LATENTS)).unwrap();
        for round in [100, 2] {
            let path = folder.path().join(files::latents(round));
            std::fs::write(&path, latents().encode().unwrap()).unwrap();
            assert_eq!(Latents::decode(&std::fs::read(&path).unwrap()).unwrap(), latents());
            std::fs::write(path.with_extension("safetensors.part"), "torn").unwrap();
        }
        assert_eq!(rounds_with_latents(folder.path()).unwrap(), [2, 100]);
        assert_eq!(latents().rows().nth(1).unwrap(), [1e30, 3.0, 4.0]);
        let file = SafeTensors::deserialize(&latents().encode().unwrap()).unwrap().len();
        assert_eq!(file, 4);
    }

    /// Cut off anywhere, or with any byte of the header changed: an error or other numbers, and no panic.
    #[test]
    fn damaged_files_are_errors() {
        let whole = latents().encode().unwrap();
        for length in 0..whole.len() {
            assert!(Latents::decode(&whole[..length]).is_err(), "{length} of {}", whole.len());
        }
        let header = 8 + usize::from(whole[0]) + 256 * usize::from(whole[1]);
        let mut refused = 0;
        for at in 0..header {
            for flip in [1, 0x20, 0x80] {
                let mut bytes = whole.clone();
                bytes[at] ^= flip;
                refused += usize::from(Latents::decode(&bytes).is_err());
            }
        }
        assert!(refused > 2 * header, "{refused} of {}", 3 * header);
    }

    #[test]
    fn what_does_not_belong_together_is_refused() {
        let refused = |change: fn(&mut Latents)| {
            let mut changed = latents();
            change(&mut changed);
            changed.encode().unwrap_err()
        };
        refused(|latents| latents.width = 2);
        refused(|latents| latents.predicted.truncate(1));
        refused(|latents| latents.images.truncate(1));

        let with = |name: &str, dtype: Dtype, shape: &[usize], bytes: &[u8]| {
            let whole = latents().encode().unwrap();
            let file = SafeTensors::deserialize(&whole).unwrap();
            let mut tensors: Vec<_> =
                file.tensors().into_iter().filter(|(other, _)| other != name).collect();
            let view = TensorView::new(dtype, shape.to_vec(), bytes).unwrap();
            tensors.push((name.to_owned(), view));
            Latents::decode(&safetensors::serialize(tensors, None).unwrap()).unwrap_err()
        };
        for (problem, expected) in [
            (
                with("labels", Dtype::I64, &[1], &[0; 8]),
                "expected 2 numbers, one per image, found [1]",
            ),
            (with("labels", Dtype::F64, &[2], &[0; 16]), "`labels`: expected I64, found F64"),
            (with("images", Dtype::I64, &[2], &[0xff; 16]), "`images`: -1 is out of range"),
            (with("latents", Dtype::F32, &[2], &[0; 8]), "expected two dimensions, found [2]"),
            (with("latents", Dtype::F32, &[2, 0], &[]), "expected at least one number per image"),
            (with("latents", Dtype::F32, &[2, 1], &[0xff; 8]), "`latents`: image 0 has NaN"),
        ] {
            assert!(problem.contains(expected), "{problem}");
        }
        let empty = safetensors::serialize(Vec::<(String, TensorView)>::new(), None).unwrap();
        assert_eq!(Latents::decode(&empty).unwrap_err(), "`latents` is missing");
    }
}
