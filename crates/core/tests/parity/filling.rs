//! Numbers from names: the same integer hash as in the script that makes the fixture.

use crate::CLASSES;
use fedanchor::Result;
use fedanchor::engine::tensors::{Layout, Params};
use tch::Tensor;

/// `count` numbers of 24 bits.
fn hashed(text: &str, count: usize) -> impl Iterator<Item = u32> + use<> {
    let key = text.bytes().fold(0u32, |key, b| key.wrapping_mul(31).wrapping_add(b.into()));
    (0..count as u32).map(move |place| {
        let mut h = place.wrapping_mul(0x9E37_79B1).wrapping_add(key);
        for _ in 0..2 {
            h = (h ^ (h >> 16)).wrapping_mul(0x1B56_C4F5);
        }
        (h ^ (h >> 16)) >> 8
    })
}

/// Numbers in [-1, 1), exact multiples of 2^-23.
fn numbers(text: &str, count: usize) -> impl Iterator<Item = f32> + use<> {
    let half = 1 << 23;
    hashed(text, count).map(move |h| (h as i32 - half) as f32 / half as f32)
}

/// The same as a tensor.
pub fn noise(text: &str, shape: &[i64]) -> Tensor {
    let count = shape.iter().product::<i64>() as usize;
    Tensor::from_slice(&numbers(text, count).collect::<Vec<_>>()).reshape(shape)
}

/// Labels of one client: `[1, count]`.
pub fn labels(text: &str, count: usize) -> Tensor {
    let labels: Vec<i64> = hashed(text, count).map(|h| i64::from(h) % CLASSES as i64).collect();
    Tensor::from_slice(&labels).unsqueeze(0)
}

/// Numbers in [0, 1) for one client: `[1, count]`.
pub fn lambda(text: &str, count: i64) -> Tensor {
    (noise(text, &[1, count]) + 1.0) / 2.0
}

/// 256 places in a tensor of `count` numbers.
pub fn places(text: &str, count: usize) -> Tensor {
    let places: Vec<i64> = hashed(text, 256).map(|h| i64::from(h) % count as i64).collect();
    Tensor::from_slice(&places)
}

/// A network of one client; `filling` tells clients apart.
pub fn filled(layout: &Layout, filling: &str) -> Result<Params> {
    let tensors = layout.iter().map(|entry| {
        let u = numbers(&format!("{filling}/{}", entry.name), entry.numel() as usize);
        let values: Vec<f32> = if entry.shape.len() > 1 {
            let fan_in: i64 = entry.shape[1..].iter().product();
            let bound = (3.0 / fan_in as f64).sqrt() as f32;
            u.map(|u| u * bound).collect()
        } else if entry.name.ends_with("running_var") {
            u.map(|u| 1.0 + u / 2.0).collect()
        } else if entry.name.ends_with("weight") {
            u.map(|u| 1.0 + u / 4.0).collect() // of a norm
        } else {
            u.map(|u| u / 4.0).collect() // biases and running means
        };
        let shape: Vec<i64> = std::iter::once(1).chain(entry.shape.iter().copied()).collect();
        Ok(Tensor::f_from_slice(&values)?.f_reshape(&shape)?)
    });
    Ok(Params { tensors: tensors.collect::<Result<_>>()?, layout: layout.clone() })
}
