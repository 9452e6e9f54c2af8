//! The networks of trunks against the implementation that their weights were published with, whose numbers
//! `scripts/reference_features.py` printed. `make trunks` sets them up.

use fedanchor_engine::Device;
use fedanchor_engine::trunk::Trunk;
use tch::{Kind, Tensor};

/// Name, norm of the features of a picture, and the first twelve of them.
const REFERENCE: [(&str, f64, [f64; 12]); 3] = [
    (
        "efficientnet-lite0",
        20.095457,
        [0.00022175, 0.0, 0.00111136, 0.0, 0.0, 0.0, 0.0, 2.47074032, 0.0, 0.0, 0.0, 0.0],
    ),
    (
        "efficientnet-lite1",
        19.050619,
        [0.0, 0.0, 0.0, 0.09341497, 0.0, 0.0, 0.0, 2.38668680, 0.0, 0.0, 0.13459367, 0.14830527],
    ),
    (
        "efficientnet-lite2",
        15.785285,
        [
            0.0, 2.06069875, 0.34735112, 0.29771242, 0.00021268, 1.61024571, 0.0, 0.33225191, 0.0,
            0.73666817, 0.0, 0.96045768,
        ],
    ),
];

/// A picture of smooth colours.
fn picture(side: usize) -> Vec<u8> {
    let value = |at: usize| {
        let (y, x, channel) = (at / 3 / side, at / 3 % side, at % 3);
        (x * (channel + 2) + y * 3 + x * y / 40) % 256
    };
    (0..side * side * 3).map(|at| value(at) as u8).collect()
}

#[test]
fn features_are_those_of_the_reference() {
    for (name, norm, first) in REFERENCE {
        let trunk = Trunk::load(name, None, None, Device::Cpu).unwrap();
        let bytes = trunk.encode(&picture(trunk.info.size)).unwrap();
        let features = Tensor::from_data_size(&bytes, &[1280], Kind::Half).to_kind(Kind::Double);
        let found = Vec::<f64>::try_from(features.narrow(0, 0, 12)).unwrap();
        // Half precision has 11 bits.
        let close = |a: f64, b: f64| (a - b).abs() < 2e-3 * b.abs().max(0.1);
        assert!(found.iter().zip(first).all(|(&a, b)| close(a, b)), "{name}: {found:?}");
        let length = features.norm().double_value(&[]);
        assert!(close(length, norm), "{name}: {length}, not {norm}");
    }
}
