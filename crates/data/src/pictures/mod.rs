//! Reading one picture.

use serde::{Deserialize, Serialize};

/// How a picture that is not square becomes square. Square pictures are the same under all three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fit {
    /// Stretched: all of it, out of proportion.
    #[default]
    Stretch,
    /// Cropped: the middle, without the ends of the longer side.
    Crop,
    /// Padded: all of it in proportion, in the middle of a square of the mean colour of its border.
    Pad,
}
