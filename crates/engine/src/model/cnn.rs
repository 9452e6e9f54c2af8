//! A plain CNN: two 3x3 convolutions of 32 and 64 channels without padding, a 2x2 maximum, a hidden layer of 128. The
//! network of pfl-research's public CIFAR-10 benchmark, without its dropout; it has no normalisation and one stage.

use super::description::{Builder, IMAGES, Value};

pub(super) fn cnn(net: &mut Builder) -> Value {
    let x = net.valid_conv("conv1", IMAGES, 32, 3);
    let x = net.relu(x);
    let x = net.valid_conv("conv2", x, 64, 3);
    let x = net.relu(x);
    let x = net.max_pool(x, 2, 2, 0);
    let x = net.flatten(x);
    let x = net.linear("hidden", x, 128);
    net.relu(x)
}
