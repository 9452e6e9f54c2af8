//! Pseudo-labels of single images, for inspection by a person.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `samples.json`: images of the last round in which clients labelled theirs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Samples {
    /// Number of the last round in which clients labelled images.
    pub round: u32,
    /// The images by kind, the most telling of each kind first.
    pub samples: Vec<Sample>,
}

/// One image and its pseudo-label.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sample {
    /// Why the image is shown.
    pub kind: SampleKind,
    /// Number of the client that holds it.
    pub client: u32,
    /// Its index among the training images, as in `partition.json`.
    pub image: u32,
    /// Name of the class of its pseudo-label.
    pub label: String,
    /// Name of its true class; `null` where that is unknown.
    pub truth: Option<String>,
    /// The score of the pseudo-label.
    pub score: f32,
    /// The threshold for the score; `null` if all samples are kept (`softmatch`) or none is.
    pub threshold: Option<f32>,
    /// The image without augmentation: an 8-bit PNG file in base64.
    pub png: String,
}

/// Why a sample is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SampleKind {
    /// Kept although its pseudo-label is wrong; the highest score first.
    Wrong,
    /// Instead of `wrong` where true labels are unknown: kept; the lowest score first.
    KeptDoubtful,
    /// Not kept; the highest score first. Where true labels are known, only if its pseudo-label is right.
    LeftOut,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_as_documented() {
        let text = r#"{"round":3,"samples":[{"kind":"kept-doubtful","client":7,"image":41,
            "label":"cat","truth":null,"score":0.61,"threshold":0.6,"png":"AA=="}]}"#;
        let samples: Samples = serde_json::from_str(text).unwrap();
        let [sample] = &samples.samples[..] else { panic!("{samples:?}") };
        assert_eq!((samples.round, sample.kind, sample.image), (3, SampleKind::KeptDoubtful, 41));
        assert_eq!((&sample.truth, sample.score, sample.threshold), (&None, 0.61, Some(0.6)));
        assert_eq!(serde_json::to_string(&SampleKind::LeftOut).unwrap(), r#""left-out""#);
        let written = serde_json::to_string(&samples).unwrap();
        assert_eq!(written, text.split_whitespace().collect::<String>());
    }
}
